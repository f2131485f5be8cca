"""Runs a partition in text: one command a line, what it answers and asks for indented under each.

The partition is broker 1's. Around it stand a pretended etcd (one state key), a pretended log, and the other brokers,
of which broker N is registered under broker epoch 100 + N. Fences are answered at once unless the scenario says
otherwise; ISR proposals and reads wait for the scenario.

    partition brokers=1,2,3 min-isr=2 [lag=10s]
    log end=10 [epochs=0:0,3:6] [start=0] [hw=4] what the log holds before it is fenced
    fences fail|refused|wait|succeed             how log-storage answers a fence from here on; `fence-answer` ends a
    wait leader 1 epoch 5 [isr=1,2] [elr=3] [lost=2] [unclean=5] [replicas=1,2]
                                                 the controller writes this state and instructs the partition
    resend [min-isr=1] [revision=7] [epoch=4]    the instruction again, as it is in etcd or as given
    append 10                                    appended and answered
    append-unknown 10 written|lost               the answer never came
    lands 10                                     an append of unknown outcome is written only now, and nobody is told
    produce p1 10                                the same with acks=all: waits under that name
    duplicate p1 10                              a duplicate whose old end offset is 10
    admit acks=-1                                whether a produce would be admitted
    fetch broker=2 at=10 [acked=10] [epoch=5] [last=5] [session=7] [broker-epoch=102] [start=0]
    name broker=2 at=10 ...                      the same of a session that is incremental, in a request of its own
    requests broker=2 for=20s [session=7]        its requests, one each 500 ms, say nothing of the partition
    forget broker=2 [session=7]                  a request forgets it
    open broker=2 session=7 [broker-epoch=102]   a stream of it opens; `close`: closes
    throttle rate=100 replicas=0:1               of what this leader sends, bytes a second; `none`, and `*` for all
    send broker=2 bytes=500 [session=2]          batches to a follower, or what they wait for
    register broker=2 epoch=202 | unregister broker=2 | shutting-down broker=2
    consume at=10 [epoch=5] | latest | epoch-end 3
    tick 10s                                     time passes, 100 ms at a time
    committed | refused                          the outcome of the ISR proposal in flight
    unknown written|lost                         the outcome is not known here, and what etcd did
    late-write                                   the proposal whose outcome is unknown reaches etcd only now
    etcd isr=1,3 [elr=..] [lost=..]              another writer changes the state, leader epoch kept
    etcd leader=2 epoch=6                        another leader is elected, which nobody has told us yet
    read                                         etcd is read and the state shown (ReadState's answer, or a watch)
    log-fails                                    log-storage answers that this log is offline
    log-storage-restarts | registration-lost | resign | stop
    status

Lines that begin with `=` start anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from throttle import Throttle

from highwater.errors import ErrorCode
from highwater.metadata.schema.models import PartitionState, VersionedState
from highwater.model.fence_role import Role
from highwater.model.leader_epochs import LeaderEpochCache
from highwater.model.partition import PartitionKey
from highwater.replica_manager.partition.actions import (
    NEVER_MS,
    Action,
    Fence,
    FenceAnswer,
    FetchSession,
    Follow,
    FollowerFetch,
    HighWatermarkAdvanced,
    Instruction,
    LeadershipInterrupted,
    LeadershipStarted,
    LiveBrokers,
    LogStartRaised,
    PartitionSettings,
    ReadState,
    StopFollowing,
    WriteIsr,
)
from highwater.replica_manager.partition.answers import (
    check_consumer_fetch,
    end_offset_for_epoch,
    latest_for_consumer,
    produce_admission,
    produce_outcome,
)
from highwater.replica_manager.partition.partition import Partition
from highwater.replica_manager.replicas.purgatory import ProducePurgatory

ME = 1
KEY = PartitionKey(bytes(16), 0)
FAR_MS = 1 << 60
INDENT = "    "


def run(text: str) -> str:
    """The scenario with what it prints now under each command."""
    lines: list[str] = []
    runner: Runner | None = None
    for line in text.splitlines():
        if line.startswith(INDENT):
            continue
        lines.append(line)
        if line.startswith("="):
            runner = Runner()
        elif line and not line.startswith("#"):
            assert runner is not None, "a scenario begins with a line `= what it shows`"
            lines += [INDENT + output for output in runner.command(line)]
    return "\n".join(lines) + "\n"


class Runner:
    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.output: list[str] = []
        self.state: VersionedState | None = None
        self.replicas: tuple[int, ...] = ()
        self.revision = 10
        self.epochs_of_brokers: dict[int, int] = {}
        self.shutting_down: set[int] = set()
        self.sessions: dict[tuple[int, int], FetchSession] = {}
        self.fences = "succeed"
        self.waiting_fence: Fence | None = None
        self.incarnation = "storage-1"
        self.log = LeaderEpochCache()
        self.log_end = self.log_start = self.log_high_watermark = 0
        self.in_flight: WriteIsr | None = None
        self.unknown: list[WriteIsr] = []
        self.throttle = Throttle(self)
        self.produces: ProducePurgatory[tuple[str, int, int]] = ProducePurgatory(100)
        self.high_watermark = 0  # and leader epoch, as they were after the last command
        self.leader_epoch = -1

    def command(self, line: str) -> list[str]:
        name, *words = line.split()
        named = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        self.output = []
        handler: Callable[..., None] = getattr(self, "do_" + name.replace("-", "_"))
        handler(*plain, **{key.replace("-", "_"): value for key, value in named.items()})
        self.check()
        return self.output

    # ------------------------------------------------------------------------------------------------- what comes out

    def carry_out(self, actions: Sequence[Action]) -> None:
        for action in actions:
            self.output.append(rendered(action))
            if isinstance(action, WriteIsr):
                assert self.in_flight is None, "one proposal at a time"
                self.in_flight = action
            elif isinstance(action, Fence):
                self.waiting_fence = action
                if self.fences != "wait":
                    self.do_fence_answer()
            elif isinstance(action, LeadershipInterrupted):
                for produce, _, _ in self.produces.interrupted(KEY):
                    self.output.append(f"{produce}: {ErrorCode.NOT_LEADER_OR_FOLLOWER.name}")
                if self.in_flight is not None and self.partition.leadership is None:
                    self.unknown.append(self.taken())
            elif isinstance(action, HighWatermarkAdvanced):
                for produce, leader_epoch, required in self.produces.reached(KEY, action.offset):
                    outcome = produce_outcome(self.partition, leader_epoch, required)
                    assert outcome is not None
                    self.output.append(f"{produce}: {'acknowledged' if not outcome else outcome.name}")

    def check(self) -> None:
        self.partition.check_invariants()
        state = self.partition.committed
        unclean = state is not None and state.state.unclean_epoch > self.leader_epoch
        assert unclean or self.partition.high_watermark >= self.high_watermark, "invariant 2: HW only grows"
        self.high_watermark = self.partition.high_watermark
        self.leader_epoch = self.partition.leader_epoch
        if any(line.startswith("hw=") for line in self.output):
            for broker in self.partition.maximal_isr - {ME}:
                acked = self.partition.followers[broker].log_end_offset
                assert acked >= self.high_watermark, "invariant 2: HW is at or below every member's LEO"

    # ----------------------------------------------------------------------------------------------------- the set-up

    def do_partition(self, brokers: str, min_isr: str = "1", lag: str = "10s") -> None:
        self.replicas = numbers(brokers)
        self.min_isr = int(min_isr)
        settings = PartitionSettings(replica_lag_time_max_ms=milliseconds(lag), min_insync_replicas=self.min_isr)
        self.partition = Partition(KEY, "T", ME, settings)
        self.epochs_of_brokers = {broker: 100 + broker for broker in self.replicas}
        self.brokers_changed()

    def do_log(self, end: str, epochs: str = "", start: str = "0", hw: str = "0") -> None:
        entries = [tuple(map(int, entry.split(":"))) for entry in epochs.split(",") if entry]
        self.log = LeaderEpochCache([(epoch, offset) for epoch, offset in entries])
        self.log_end, self.log_start, self.log_high_watermark = int(end), int(start), int(hw)

    # ------------------------------------------------------------------------------------------ instructions and fences

    def do_leader(self, leader: str, *epoch: str, **fields: str) -> None:
        assert epoch[0] == "epoch"
        self.replicas = numbers(fields.pop("replicas", "")) or self.replicas
        isr = fields.pop("isr", ",".join(map(str, self.replicas)))
        self.write_state(leader=leader, epoch=epoch[1], isr=isr, elr=fields.pop("elr", ""), **fields)
        self.do_resend()

    def do_resend(self, min_isr: str = "", revision: str = "", epoch: str = "") -> None:
        assert self.state is not None
        state = self.state
        if min_isr:
            self.min_isr = int(min_isr)
        if revision:
            state = VersionedState(state.state, int(revision))
        if epoch:
            state = VersionedState(state.state.with_(leader_epoch=int(epoch)), state.revision)
        answer = self.partition.instruct(Instruction(state, self.replicas, self.min_isr), self.now_ms)
        if answer.error is not ErrorCode.NONE:
            self.output.append(answer.error.name)
        self.carry_out(answer.actions)

    def do_fences(self, how: str) -> None:
        self.fences = how

    def do_fence_answer(self) -> None:
        fence, self.waiting_fence = self.waiting_fence, None
        assert fence is not None
        errors = {"fail": ErrorCode.LOG_STORAGE_ERROR, "refused": ErrorCode.STALE_FENCE}
        error = errors.get(self.fences, ErrorCode.NONE)
        answer = FenceAnswer(fence.role, fence.leader_epoch, error)
        if error is ErrorCode.NONE:
            answer = FenceAnswer(
                fence.role,
                fence.leader_epoch,
                error,
                self.log_end,
                self.log.last_epoch_below(self.log_end),
                self.log_start,
                self.log_high_watermark,
                self.incarnation,
                self.log.entries,
            )
            if fence.role is Role.LEADER:
                self.log.assign(fence.leader_epoch, self.log_end)
        else:
            self.output.append(f"fence: {error.name}")
        self.carry_out(self.partition.fenced(answer, self.now_ms))

    # --------------------------------------------------------------------------------------------------- the own log

    def do_append(self, count: str) -> None:
        self.log_end += int(count)
        self.answer_append(self.partition.leader_epoch)

    def answer_append(self, leader_epoch: int) -> None:
        self.carry_out(
            self.partition.appended(leader_epoch, self.incarnation, self.log_end, self.log_start, self.now_ms)
        )

    def do_append_unknown(self, count: str, what: str) -> None:
        self.log_end += int(count) if what == "written" else 0
        self.carry_out(self.partition.append_unknown(self.partition.leader_epoch, self.now_ms))

    def do_lands(self, count: str) -> None:
        self.log_end += int(count)

    def do_produce(self, name: str, count: str) -> None:
        admission = produce_admission(self.partition, -1)
        if admission is not ErrorCode.NONE:
            self.output.append(f"{name}: {admission.name}")
            return
        self.log_end += int(count)
        self.produces.add(KEY, self.log_end, FAR_MS, (name, self.partition.leader_epoch, self.log_end))
        self.do_append("0")

    def do_duplicate(self, name: str, end: str) -> None:
        required = int(end)
        leader_epoch = self.partition.leader_epoch
        error: ErrorCode | None = produce_admission(self.partition, -1)
        if error is ErrorCode.NONE:
            error = produce_outcome(self.partition, leader_epoch, required)
        if error is None:
            self.produces.add(KEY, required, FAR_MS, (name, leader_epoch, required))
        self.output.append(f"{name}: " + ("waits" if error is None else error.name if error else "acknowledged"))
        self.answer_append(leader_epoch)

    def do_admit(self, acks: str) -> None:
        self.output.append(produce_admission(self.partition, int(acks)).name)

    def do_raise_log_start(self, offset: str) -> None:
        self.log_start = int(offset)
        leader_epoch = self.partition.leader_epoch
        self.carry_out(self.partition.log_start_seen(leader_epoch, self.incarnation, self.log_start))

    # ------------------------------------------------------------------------------------------ followers and brokers

    def session(self, broker: str, number: str, broker_epoch: str, fetcher: str = "0") -> FetchSession:
        epoch = int(broker_epoch) if broker_epoch else 100 + int(broker)
        made = FetchSession(int(broker), epoch, int(fetcher), int(number))
        return self.sessions.setdefault((made.broker_id, made.number), made)

    def do_fetch(
        self,
        broker: str,
        at: str,
        acked: str = "",
        epoch: str = "",
        last: str = "",
        session: str = "1",
        broker_epoch: str = "",
        start: str = "0",
        repeated: str = "",
    ) -> None:
        fetch_offset = int(at)
        last_epoch = int(last) if last else self.log.last_epoch_below(min(fetch_offset, self.log_end))
        fetch = FollowerFetch(
            self.session(broker, session, broker_epoch),
            int(epoch) if epoch else self.partition.leader_epoch,
            fetch_offset,
            int(acked) if acked else fetch_offset,
            last_epoch,
            int(start),
            bool(repeated),
        )
        verdict = self.partition.fetched(fetch, self.now_ms)
        if verdict.error is not ErrorCode.NONE:
            self.output.append(verdict.error.name)
        elif verdict.diverging is not None:
            self.output.append(f"diverging epoch={verdict.diverging.leader_epoch} end={verdict.diverging.end_offset}")
        else:
            self.output.append(f"read {fetch_offset}..{verdict.log_end_offset} hw={verdict.high_watermark}")
        self.carry_out(verdict.actions)

    def do_name(self, **fields: str) -> None:
        self.do_fetch(**fields, repeated="yes")
        self.request(self.sessions[int(fields["broker"]), int(fields.get("session", "1"))])

    def do_forget(self, broker: str, session: str = "1") -> None:
        forgets = self.sessions[int(broker), int(session)]
        self.carry_out(self.partition.unnamed(forgets))
        self.request(forgets)

    def do_requests(self, broker: str, session: str = "1", **times: str) -> None:
        end_ms = self.now_ms + milliseconds(times["for"])
        while self.now_ms < end_ms:
            self.request(self.sessions[int(broker), int(session)])
            self.do_tick("500ms")

    def request(self, session: FetchSession) -> None:
        if session.requested(self.now_ms, self.partition.settings.session_silent_ms):
            self.carry_out(self.partition.session_liveness_changed(session, self.now_ms))

    def do_open(self, broker: str, session: str, broker_epoch: str = "", fetcher: str = "0") -> None:
        opened = self.session(broker, session, broker_epoch, fetcher)
        self.carry_out(self.partition.session_opened(opened, self.now_ms))

    def do_close(self, broker: str, session: str = "1") -> None:
        self.carry_out(self.partition.session_closed(self.sessions[int(broker), int(session)], self.now_ms))

    def do_throttle(self, rate: str, replicas: str) -> None:
        self.throttle.configure(rate, replicas)

    def do_send(self, broker: str, session: str = "1", **size: str) -> None:
        self.output.append(self.throttle.send(KEY, self.sessions[int(broker), int(session)], int(size["bytes"])))

    def do_register(self, broker: str, epoch: str) -> None:
        self.epochs_of_brokers[int(broker)] = int(epoch)
        self.brokers_changed()

    def do_unregister(self, broker: str) -> None:
        del self.epochs_of_brokers[int(broker)]
        self.brokers_changed()

    def do_shutting_down(self, broker: str) -> None:
        self.shutting_down.add(int(broker))
        self.brokers_changed()

    def brokers_changed(self) -> None:
        live = LiveBrokers(dict(self.epochs_of_brokers), frozenset(self.shutting_down))
        self.carry_out(self.partition.brokers_changed(live, self.now_ms))

    # ------------------------------------------------------------------------------------------------------ consumers

    def do_consume(self, at: str, epoch: str = "-1") -> None:
        error = check_consumer_fetch(self.partition, int(epoch), int(at))
        bound = self.partition.high_watermark
        self.output.append(error.name if error else f"read {at}..{bound}" if int(at) < bound else "nothing")

    def do_latest(self) -> None:
        latest = latest_for_consumer(self.partition)
        self.output.append(latest.name if isinstance(latest, ErrorCode) else str(latest))

    def do_epoch_end(self, epoch: str) -> None:
        end = end_offset_for_epoch(self.partition, int(epoch))
        self.output.append(f"epoch={end.leader_epoch} end={end.end_offset}")

    # ----------------------------------------------------------------------------------------------------------- etcd

    def write_state(self, **fields: str) -> None:
        before = self.state.state if self.state is not None else PartitionState(-1, -1, 0, ())
        leader = int(fields["leader"]) if "leader" in fields else before.leader
        state = before.with_(
            leader=leader,
            leader_epoch=int(fields.get("epoch", before.leader_epoch)),
            leader_broker_epoch=100 + leader,
            isr=numbers(fields["isr"]) if "isr" in fields else before.isr,
            elr=numbers(fields["elr"]) if "elr" in fields else before.elr,
            lost=numbers(fields["lost"]) if "lost" in fields else before.lost,
            unclean_epoch=int(fields.get("unclean", before.unclean_epoch)),
        )
        self.put(state)

    def put(self, state: PartitionState) -> None:
        self.revision += 1
        self.state = VersionedState(state, self.revision)

    def taken(self) -> WriteIsr:
        proposal, self.in_flight = self.in_flight, None
        assert proposal is not None, "no proposal in flight"
        return proposal

    def compare_and_put(self, proposal: WriteIsr) -> bool:
        assert self.state is not None
        holds = self.state.revision == proposal.compare_revision and all(
            self.epochs_of_brokers.get(broker) == epoch for broker, epoch in proposal.broker_epochs.items()
        )
        if holds:
            self.put(proposal.state)
        return holds

    def do_committed(self) -> None:
        proposal = self.taken()
        assert self.compare_and_put(proposal), "etcd would have refused it"
        self.carry_out(self.partition.isr_written(proposal.proposal_id, self.revision, self.now_ms))

    def do_refused(self) -> None:
        proposal = self.taken()
        assert not self.compare_and_put(proposal), "etcd would have written it"
        self.carry_out(self.partition.isr_refused(proposal.proposal_id, self.now_ms))

    def do_unknown(self, what: str) -> None:
        proposal = self.taken()
        if what == "written":
            assert self.compare_and_put(proposal)
        else:
            self.unknown.append(proposal)
        self.carry_out(self.partition.isr_unknown(proposal.proposal_id, self.now_ms))

    def do_late_write(self) -> None:
        self.output.append("written" if self.compare_and_put(self.unknown.pop()) else "compare failed")

    def do_etcd(self, **fields: str) -> None:
        self.write_state(**fields)

    def do_read(self) -> None:
        assert self.state is not None
        self.carry_out(self.partition.state_seen(self.state, self.now_ms))

    # -------------------------------------------------------------------------------------------------- time and ends

    def do_tick(self, duration: str) -> None:
        end_ms = self.now_ms + milliseconds(duration)
        while self.now_ms < end_ms:
            self.now_ms += min(100, end_ms - self.now_ms)
            for session in self.sessions.values():
                silent_ms = self.partition.settings.session_silent_ms
                if NEVER_MS < session.last_request_ms <= self.now_ms - silent_ms and not session.silence_told:
                    session.silence_told = True
                    self.carry_out(self.partition.session_liveness_changed(session, self.now_ms))
            is_due = self.partition.tick_from_ms <= self.now_ms
            actions = self.partition.tick(self.now_ms)
            assert is_due or not actions, "a partition says from when on a tick may do something"
            self.carry_out(actions)

    def do_log_storage_restarts(self) -> None:
        self.incarnation = f"storage-{int(self.incarnation.split('-')[1]) + 1}"
        self.carry_out(self.partition.log_storage_restarted(self.incarnation))

    def do_log_fails(self) -> None:
        self.carry_out(self.partition.log_failed())

    def do_registration_lost(self) -> None:
        self.carry_out(self.partition.registration_lost())

    def do_resign(self) -> None:
        self.carry_out(self.partition.resign())

    def do_stop(self) -> None:
        self.carry_out(self.partition.stop())

    def do_status(self) -> None:
        partition = self.partition
        leadership = partition.leadership
        self.output.append(
            f"{partition.phase.value} epoch={partition.leader_epoch} log={partition.log_start_offset}.."
            f"{partition.log_end_offset} hw={partition.high_watermark}"
            + (" (held)" if leadership is not None and leadership.high_watermark_is_held else "")
        )
        if partition.committed is not None:
            state = partition.committed.state
            pending = sorted(partition.maximal_isr.difference(state.isr))
            self.output.append(
                f"isr={joined(state.isr)}"
                + (f" pending={joined(pending)}" if pending else "")
                + (f" elr={joined(state.elr)}" if state.elr else "")
                + (f" lost={joined(state.lost)}" if state.lost else "")
            )
        for replica in partition.followers.values():
            session = "open" if replica.session_open else "closed" if replica.session is not None else "none"
            self.output.append(f"broker {replica.broker_id}: acked={replica.log_end_offset} session={session}")


def rendered(action: Action) -> str:
    match action:
        case Fence(role, leader_epoch):
            return f"fence {role.name.lower()} epoch={leader_epoch}"
        case Follow(leader, leader_epoch, unclean_epoch):
            return f"follow {leader} epoch={leader_epoch}" + (f" unclean={unclean_epoch}" if unclean_epoch >= 0 else "")
        case StopFollowing():
            return "stop-following"
        case WriteIsr(_, state, _, broker_epochs):
            joining = " ".join(f"if {broker}@{epoch}" for broker, epoch in broker_epochs.items())
            return (
                f"propose isr={joined(state.isr)}"
                + (f" elr={joined(state.elr)}" if state.elr else "")
                + (f" lost={joined(state.lost)}" if state.lost else "")
                + (f" {joining}" if joining else "")
            )
        case ReadState():
            return "read-state"
        case HighWatermarkAdvanced(offset):
            return f"hw={offset}"
        case LogStartRaised(offset):
            return f"log-start={offset}"
        case LeadershipStarted(leader_epoch, _, log_end_offset):
            return f"leads epoch={leader_epoch} from={log_end_offset}"
        case LeadershipInterrupted(leader_epoch):
            return f"interrupted epoch={leader_epoch}"


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)


def joined(brokers: Sequence[int]) -> str:
    return ",".join(map(str, brokers))


def milliseconds(text: str) -> int:
    return int(text[:-2]) if text.endswith("ms") else int(text[:-1]) * 1000

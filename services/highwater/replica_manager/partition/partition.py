"""One partition on one broker: what it is instructed to be, fenced as, and (by its `Leadership`) leads.

Pure: one event in, actions out, in the order in which they are to be carried out. No clock, no I/O. The order of events
is the caller's; late and repeated answers are recognised and ignored. The numbers in this file are RULES'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from highwater.errors import ErrorCode
from highwater.metadata.schema.models import NO_LEADER, PartitionState, VersionedState
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey
from highwater.replica_manager.partition.actions import (
    FAR_MS,
    NO_ACTIONS,
    Action,
    Fence,
    FenceAnswer,
    FetchSession,
    FetchVerdict,
    Follow,
    FollowerFetch,
    Instructed,
    Instruction,
    LeadershipInterrupted,
    LeadershipStarted,
    LiveBrokers,
    PartitionSettings,
    StopFollowing,
)
from highwater.replica_manager.partition.leadership import Leadership
from highwater.replica_manager.partition.replica import Replica

NO_BROKERS = LiveBrokers()


class Phase(Enum):
    OFFLINE = "offline"  # nothing instructed, or not assigned here
    FENCING = "fencing"  # instructed; the fence is not answered yet
    UNFENCED = "unfenced"  # the fence failed; the instruction sent again tries again
    LEADER = "leader"
    SETTLING = "settling"  # leader whose log end is being read again after an append of unknown outcome (3.4)
    FOLLOWER = "follower"
    RESIGNED = "resigned"  # gave leadership up; leads again only under a higher leader epoch (3.5)


_LEADING = frozenset({Phase.LEADER, Phase.SETTLING})
_AWAITING_FENCE = frozenset({Phase.FENCING, Phase.UNFENCED})


class Partition:
    """Invariants: the leader epoch only grows (invariant 5); there is a `Leadership` exactly while the phase is LEADER
    or SETTLING; leadership given up under an epoch is never taken up again under it (3.5)."""

    def __init__(self, key: PartitionKey, topic: str, broker_id: int, settings: PartitionSettings) -> None:
        self.key = key
        self.topic = topic
        self.broker_id = broker_id
        self.settings = settings

        self._phase = Phase.OFFLINE
        self._role = Role.FOLLOWER  # of the fence asked for last
        self._state: VersionedState | None = None  # the latest known, where it is not led here
        self._replicas: tuple[int, ...] = ()  # the assignment
        self._topic_minimum: int | None = None  # None: the broker's default counts
        self._min_insync_replicas = 1  # min(configured, assigned), at least 1 (5.2)
        self._highest_epoch_seen = -1  # in an instruction or in etcd
        self._live = NO_BROKERS
        self._leadership: Leadership | None = None
        # Ids go on over leader epochs, so that a late outcome of an old proposal is never taken for a new one's. Where
        # a replica was evicted, and is assigned here again, they begin anew: outcomes are those of one `Partition`.
        self._next_proposal_id = 1
        self._incarnation = ""  # log-storage's, as last fenced or announced; "" before either
        # As last fenced, and while this broker leads the leadership's. The high watermark is of the present lineage,
        # the one since the last unclean election (7.4), or 0, and only grows within it (invariant 2).
        self._log_start_offset = 0
        self._log_end_offset = 0
        self._high_watermark = 0
        # While settling: when to fence again after one that failed. None while its answer is awaited: there is never
        # more than one under way, so that the answer is always the one asked for after the latest unknown append.
        self._refence_from_ms: int | None = None

    # ------------------------------------------------------------------------------------------------- what it is

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def leadership(self) -> Leadership | None:
        """The leader's view, while this broker leads: followers, proposals, epoch start. Read only."""
        return self._leadership

    @property
    def committed(self) -> VersionedState | None:
        """The latest state known under the leader epoch instructed last; None before the first instruction."""
        return self._leadership.proposals.committed if self._leadership is not None else self._state

    @property
    def leader(self) -> int:
        """The leader as this broker last heard, NO_LEADER where there is none."""
        return self._state.state.leader if self._state is not None else NO_LEADER

    @property
    def leader_epoch(self) -> int:
        """Of the instruction taken last; -1 before the first."""
        return self._state.state.leader_epoch if self._state is not None else -1

    @property
    def replicas(self) -> tuple[int, ...]:
        """The assignment, preferred leader first."""
        return self._replicas

    @property
    def min_insync_replicas(self) -> int:
        """min(configured, assigned replicas) (5.2)."""
        return self._min_insync_replicas

    @property
    def maximal_isr(self) -> frozenset[int]:
        """The committed ISR and that of every pending proposal (5.1); empty where this broker does not lead."""
        return self._leadership.proposals.maximal_isr if self._leadership is not None else frozenset()

    @property
    def followers(self) -> Mapping[int, Replica]:
        """The leader's view of the others; empty where this broker does not lead. Read only."""
        return self._leadership.followers if self._leadership is not None else {}

    @property
    def high_watermark(self) -> int:
        """The leader's; on a follower as it was when it was fenced."""
        return self._leadership.high_watermark if self._leadership is not None else self._high_watermark

    @property
    def log_end_offset(self) -> int:
        """The leader's own; on a follower as it was when it was fenced. Reads for replicas are bounded by it:
        log-storage may hold more, whose append is not answered yet, and a replica that acknowledged that would be out
        of range."""
        return self._leadership.log_end_offset if self._leadership is not None else self._log_end_offset

    @property
    def log_start_offset(self) -> int:
        return self._leadership.log_start_offset if self._leadership is not None else self._log_start_offset

    @property
    def incarnation(self) -> str:
        """log-storage's, under which this partition is fenced."""
        return self._incarnation

    # --------------------------------------------------------------------------------------- instructions and fences

    def instruct(self, instruction: Instruction, now_ms: int) -> Instructed:
        """Ordered by (leader epoch, state revision): lower is refused, equal is applied again without effect, the same
        epoch with a higher revision updates the ISR only (1.3). The topic's minimum is taken with each but the
        first."""
        state = instruction.state.state
        known = self.committed
        if state.leader_epoch < self._highest_epoch_seen:
            return Instructed(ErrorCode.FENCED_LEADER_EPOCH, NO_ACTIONS)
        if known is None or state.leader_epoch > known.state.leader_epoch:
            return self._change_leader_epoch(instruction)
        if instruction.state.revision < known.revision:
            return Instructed(ErrorCode.FENCED_LEADER_EPOCH, NO_ACTIONS)
        if self._phase is Phase.OFFLINE:
            return Instructed(ErrorCode.REPLICA_NOT_ASSIGNED, NO_ACTIONS)
        if state.leader != self.leader:
            return Instructed(ErrorCode.INVALID_REQUEST, NO_ACTIONS)  # invariant 5: no controller of ours says so
        self._configure(instruction)
        actions = self._see_same_epoch(instruction.state, now_ms)
        if self._phase is Phase.RESIGNED:
            return Instructed(ErrorCode.LOG_STORAGE_ERROR, actions)  # 7.7
        if self._phase is Phase.UNFENCED:
            self._phase = Phase.FENCING
            return Instructed(ErrorCode.NONE, (Fence(self._role, state.leader_epoch),))
        return Instructed(ErrorCode.NONE, actions)

    def _change_leader_epoch(self, instruction: Instruction) -> Instructed:
        state = instruction.state.state
        leads = state.leader == self.broker_id
        if leads and self.broker_id not in state.isr:
            return Instructed(ErrorCode.INVALID_REQUEST, NO_ACTIONS)  # invariant 6
        # 3.3: leave the leader's tables, stop the fetcher's work, fence; the answer publishes to WatchFollowing.
        actions = self._interrupt()
        actions.append(StopFollowing())
        if state.unclean_epoch > self.leader_epoch:
            self._high_watermark = 0  # what was known of the old lineage says nothing of the new one (7.4)
        self._state = instruction.state
        self._replicas = instruction.replicas
        self._highest_epoch_seen = state.leader_epoch
        self._configure(instruction)
        if self.broker_id not in instruction.replicas:
            self._phase = Phase.OFFLINE
            return Instructed(ErrorCode.REPLICA_NOT_ASSIGNED, actions)
        self._phase = Phase.FENCING
        self._role = Role.LEADER if leads else Role.FOLLOWER
        actions.append(Fence(self._role, state.leader_epoch))
        return Instructed(ErrorCode.NONE, actions)

    def settings_changed(self, settings: PartitionSettings, now_ms: int) -> Sequence[Action]:
        """Takes the broker's settings in place of those before. What they decide is decided again; a topic's own
        minimum stays."""
        self.settings = settings
        if self._state is None:
            return NO_ACTIONS
        self._take_minimum()
        if self._leadership is None:
            return NO_ACTIONS
        self._leadership.settings = settings
        return self._leadership.evaluate(now_ms)

    def _configure(self, instruction: Instruction) -> None:
        self._topic_minimum = instruction.min_insync_replicas
        self._take_minimum()

    def _take_minimum(self) -> None:
        configured = self.settings.min_insync_replicas if self._topic_minimum is None else self._topic_minimum
        self._min_insync_replicas = max(1, min(configured, len(self._replicas)))
        if self._leadership is not None:
            self._leadership.min_insync_replicas = self._min_insync_replicas

    def fenced(self, answer: FenceAnswer, now_ms: int) -> Sequence[Action]:
        """log-storage's answer to a `Fence`; one of another epoch or role is late and ignored."""
        if answer.leader_epoch != self.leader_epoch or answer.role is not self._role:
            return NO_ACTIONS
        if self._phase is Phase.SETTLING:
            return self._settled(answer, now_ms)
        if self._phase not in _AWAITING_FENCE:
            return NO_ACTIONS
        # A log-storage that is gone may have answered late; `log_storage_restarted` has announced the new one.
        gone = answer.error is ErrorCode.NONE and self._incarnation not in ("", answer.incarnation)
        if gone or answer.error is not ErrorCode.NONE:
            # A leader whose fence is refused has led under this epoch in an earlier life, or is overtaken: an election
            # is needed (3.1, 3.5). Anything else may pass when the instruction is sent again.
            refused = answer.error is ErrorCode.STALE_FENCE and self._role is Role.LEADER
            self._phase = Phase.RESIGNED if refused else Phase.UNFENCED
            return NO_ACTIONS
        assert self._state is not None
        self._incarnation = answer.incarnation
        if self._role is Role.LEADER:
            return self._start_leading(self._state, answer, now_ms)
        return self._start_following(self._state.state, answer)

    def _start_leading(self, state: VersionedState, answer: FenceAnswer, now_ms: int) -> Sequence[Action]:
        self._phase = Phase.LEADER
        self._leadership = Leadership(
            self.broker_id,
            self.settings,
            state,
            self._replicas,
            self._min_insync_replicas,
            self._live,
            answer,
            self._high_watermark,
            self._next_proposal_id,
            now_ms,
        )
        started = LeadershipStarted(self._leadership.leader_epoch, answer.incarnation, answer.log_end_offset)
        return (started, *self._leadership.evaluate(now_ms))

    def _start_following(self, state: PartitionState, answer: FenceAnswer) -> Sequence[Action]:
        self._phase = Phase.FOLLOWER
        self._log_start_offset = answer.log_start_offset
        self._log_end_offset = answer.log_end_offset
        # A log that has taken nothing since the last unclean election is yet to be compared with the new lineage, and
        # perhaps cut: what it knew as committed must not outlive that (7.4). Of one that has, all is true.
        if answer.last_epoch >= state.unclean_epoch:
            known = max(self._high_watermark, answer.high_watermark, answer.log_start_offset)
            self._high_watermark = min(known, answer.log_end_offset)
        if state.leader == NO_LEADER:
            return NO_ACTIONS
        return (Follow(state.leader, state.leader_epoch, state.unclean_epoch),)

    # ------------------------------------------------------------------------------------------------- the own log

    def appended(
        self, leader_epoch: int, incarnation: str, log_end_offset: int, log_start_offset: int, now_ms: int
    ) -> Sequence[Action]:
        """log-storage answered an append of this leadership (of a duplicate too)."""
        leadership = self._leadership
        if leadership is None or leader_epoch != leadership.leader_epoch:
            return NO_ACTIONS
        if incarnation != self._incarnation:
            return self.log_storage_restarted(incarnation)
        if log_start_offset > leadership.log_start_offset:
            grown = leadership.log_grew(log_end_offset, now_ms)
            return (*grown, *leadership.log_start_raised(log_start_offset))
        return leadership.log_grew(log_end_offset, now_ms)

    def log_start_seen(self, leader_epoch: int, incarnation: str, log_start_offset: int) -> Sequence[Action]:
        """log-storage answered something else with its log start (a read, RaiseLogStart)."""
        leadership = self._leadership
        if leadership is None or (leader_epoch, incarnation) != (leadership.leader_epoch, self._incarnation):
            return NO_ACTIONS
        return leadership.log_start_raised(log_start_offset)

    def append_unknown(self, leader_epoch: int, now_ms: int) -> Sequence[Action]:
        """An append got no answer. Never tried again blindly: fence again and read the log end (3.4). Produces that
        wait are failed (5.4); the SDK's retries are recognised as duplicates where they had been written."""
        if self._phase is not Phase.LEADER or leader_epoch != self.leader_epoch:
            return NO_ACTIONS
        self._phase = Phase.SETTLING
        self._refence_from_ms = None
        return (LeadershipInterrupted(leader_epoch), Fence(Role.LEADER, leader_epoch))

    def log_failed(self) -> Sequence[Action]:
        """log-storage answered that the log is offline (7.7). A leader gives up, a follower stops; the instruction sent
        again is answered with the error, until the log can be fenced again or another leads."""
        if self._phase is Phase.FOLLOWER:
            self._phase = Phase.UNFENCED
            return (StopFollowing(),)
        return self.resign()

    def _settled(self, answer: FenceAnswer, now_ms: int) -> Sequence[Action]:
        leadership = self._leadership
        assert leadership is not None
        if answer.error is ErrorCode.STALE_FENCE:
            return self.resign()
        if answer.error is not ErrorCode.NONE:
            self._refence_from_ms = now_ms + self.settings.isr_retry_backoff_ms  # `tick` fences again
            return NO_ACTIONS
        if answer.incarnation != self._incarnation:
            return self.log_storage_restarted(answer.incarnation)
        # One author, one incarnation: nothing of ours cuts it (3.5). Where something else did, its records are with the
        # other replicas, and whoever leads next is to have them.
        if answer.log_end_offset < leadership.log_end_offset:
            return self.resign()
        self._phase = Phase.LEADER
        return (
            LeadershipStarted(leadership.leader_epoch, self._incarnation, answer.log_end_offset),
            *leadership.log_grew(answer.log_end_offset, now_ms),
            *leadership.log_start_raised(answer.log_start_offset),
        )

    # ----------------------------------------------------------------------------- followers, brokers, ISR proposals

    def fetched(self, fetch: FollowerFetch, now_ms: int) -> FetchVerdict:
        """A replica's fetch (4.1-4.3, 4.5). On an error or a divergence nothing is recorded."""
        if self._leadership is not None:
            return self._leadership.fetched(fetch, now_ms)
        error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        epoch = max(fetch.leader_epoch, 0)
        if self.leader_epoch not in (fetch.leader_epoch, epoch):
            lower = epoch < self.leader_epoch
            error = ErrorCode.FENCED_LEADER_EPOCH if lower else ErrorCode.UNKNOWN_LEADER_EPOCH
        return FetchVerdict(error, None, self._high_watermark, self._log_start_offset, self._log_end_offset, NO_ACTIONS)

    def session_opened(self, session: FetchSession, now_ms: int) -> Sequence[Action]:
        """A stream of a replica fetcher opened. It counts here once it fetches; where it takes the place of one that
        had, that one is reopened (5.6)."""
        return self._leadership.session_opened(session, now_ms) if self._leadership is not None else NO_ACTIONS

    def unnamed(self, session: FetchSession) -> Sequence[Action]:
        """The requests of a session that names what has changed alone say nothing of this partition any more: it was
        forgotten, or is to be named anew (4.11)."""
        return self._leadership.unnamed(session) if self._leadership is not None else NO_ACTIONS

    def session_liveness_changed(self, session: FetchSession, now_ms: int) -> Sequence[Action]:
        """Such a session has sent nothing for `PartitionSettings.session_silent_ms`, or something again."""
        if self._leadership is None:
            return NO_ACTIONS
        return self._leadership.session_liveness_changed(session, now_ms)

    def session_closed(self, session: FetchSession, now_ms: int) -> Sequence[Action]:
        """A stream closed. Harmless where a newer one has taken its place."""
        return self._leadership.session_closed(session, now_ms) if self._leadership is not None else NO_ACTIONS

    def brokers_changed(self, live: LiveBrokers, now_ms: int) -> Sequence[Action]:
        """The registrations in etcd, as far as this broker has seen them."""
        self._live = live
        return self._leadership.brokers_changed(live, now_ms) if self._leadership is not None else NO_ACTIONS

    def isr_written(self, proposal_id: int, revision: int, now_ms: int) -> Sequence[Action]:
        """The proposal's transaction succeeded; `revision` is its etcd revision."""
        if self._leadership is None:
            return NO_ACTIONS
        return self._leadership.isr_written(proposal_id, revision, now_ms)

    def isr_refused(self, proposal_id: int, now_ms: int) -> Sequence[Action]:
        """One of the proposal's compares failed: nothing was written."""
        if self._leadership is None:
            return NO_ACTIONS
        return self._leadership.isr_failed(proposal_id, now_ms, refused=True)

    def isr_unknown(self, proposal_id: int, now_ms: int) -> Sequence[Action]:
        """Time-out or broken connection: it may have been written, or be written yet (2.4)."""
        if self._leadership is None:
            return NO_ACTIONS
        return self._leadership.isr_failed(proposal_id, now_ms, refused=False)

    def state_seen(self, state: VersionedState, now_ms: int) -> Sequence[Action]:
        """A state was read from etcd, or came by a watch. A higher leader epoch ends leadership at once (2.4); what
        comes of it is the controller's to say."""
        epoch = state.state.leader_epoch
        if epoch > self.leader_epoch:
            self._highest_epoch_seen = max(self._highest_epoch_seen, epoch)
            return self.resign()
        if epoch < self.leader_epoch or self._phase is Phase.OFFLINE:
            return NO_ACTIONS  # late
        return self._see_same_epoch(state, now_ms)

    def _see_same_epoch(self, state: VersionedState, now_ms: int) -> Sequence[Action]:
        assert state.state.leader == self.leader  # invariant 5
        if self._leadership is None:
            assert self._state is not None
            if state.revision > self._state.revision:
                self._state = state
            return NO_ACTIONS
        if self._leadership.proposals.seen(state) and self.broker_id not in state.state.isr:
            return self.resign()  # its tail is held to be lost (7.2)
        return self._leadership.evaluate(now_ms)

    # ------------------------------------------------------------------------------------------------- time and ends

    @property
    def tick_from_ms(self) -> int:
        """Before that time `tick` changes nothing, unless another event comes first; FAR_MS: nothing waits for a
        time."""
        if self._leadership is None:
            return FAR_MS
        tick_ms, refence_ms = self._leadership.tick_from_ms, self._refence_from_ms
        return tick_ms if refence_ms is None or refence_ms > tick_ms else refence_ms

    def tick(self, now_ms: int) -> Sequence[Action]:
        """Time has passed. To be called within 100 ms or so of `tick_from_ms`: it drives `session_grace_ms`,
        `isr_retry_backoff_ms` and `replica_lag_time_max_ms`."""
        leadership = self._leadership
        if leadership is None:
            return NO_ACTIONS
        refence_ms = self._refence_from_ms
        if self._phase is Phase.SETTLING and refence_ms is not None and now_ms >= refence_ms:
            self._refence_from_ms = None
            return (Fence(Role.LEADER, leadership.leader_epoch), *leadership.tick(now_ms))
        return leadership.tick(now_ms)

    def log_storage_restarted(self, incarnation: str) -> Sequence[Action]:
        """log-storage answers under another incarnation. A leader leads again only under a higher epoch (3.5); a
        follower is fenced anew, as the log may not be the one that had been fenced."""
        if incarnation == self._incarnation:
            return NO_ACTIONS
        before, self._incarnation = self._incarnation, incarnation
        if not before:
            return NO_ACTIONS  # the first one heard of
        if self._role is Role.LEADER:
            return self.resign()
        if self._phase is not Phase.FOLLOWER and self._phase not in _AWAITING_FENCE:
            return NO_ACTIONS
        self._phase = Phase.FENCING
        return (StopFollowing(), Fence(Role.FOLLOWER, self.leader_epoch))

    def registration_lost(self) -> Sequence[Action]:
        """This broker's own key in etcd is gone or another's (1.4)."""
        return self.resign()

    def resign(self) -> Sequence[Action]:
        """Gives leadership up, or the way to it. It is taken up again only under a higher leader epoch."""
        if self._leadership is None and not (self._role is Role.LEADER and self._phase in _AWAITING_FENCE):
            return NO_ACTIONS
        actions = self._interrupt()
        self._phase = Phase.RESIGNED
        return actions

    def stop(self) -> Sequence[Action]:
        """StopReplica: neither leads nor follows, until an instruction under a higher leader epoch."""
        actions = self._interrupt()
        actions.append(StopFollowing())
        self._phase = Phase.OFFLINE
        return actions

    def _interrupt(self) -> list[Action]:
        """Ends a leadership and keeps what outlives it."""
        leadership, self._leadership = self._leadership, None
        if leadership is None:
            return []
        self._state = leadership.proposals.committed
        self._next_proposal_id = leadership.proposals.next_id
        self._log_start_offset = leadership.log_start_offset
        self._log_end_offset = leadership.log_end_offset
        self._high_watermark = leadership.high_watermark
        # While settling its waiting produces have been failed already, but fetches may wait.
        return [LeadershipInterrupted(leadership.leader_epoch)]

    def check_invariants(self) -> None:
        """Asserted after every step of a simulated run."""
        assert (self._leadership is not None) == (self._phase in _LEADING)
        if self._leadership is not None:
            assert self._highest_epoch_seen == self._leadership.leader_epoch  # invariant 5; 2.4
            self._leadership.check_invariants()

"""What has happened, and the invariants that it must keep: 1 to 6 and 9, each checked where it can break.

Checks are made when something changes, against the disks themselves and not against what anybody believes, so that a
run of thousands of steps stays cheap and a violation is reported in the step that commits it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from highwater.log_storage.fence import Fence
from highwater.metadata.schema.models import NO_LEADER, PartitionState
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey

if TYPE_CHECKING:
    from .storage import Batch, Disk, Log


class InvariantError(AssertionError):
    """An invariant does not hold. `invariant`: its number in docs/replication.md, with a word about which part."""

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(f"invariant {invariant}: {message}")
        self.invariant = invariant


class Cut(NamedTuple):
    """A replica has dropped what was damaged (RULES 7.6). Whatever it had acknowledged before then was acknowledged
    below this broker epoch, and up to this offset."""

    broker_epoch: int
    log_end_offset: int


class LostTail(NamedTuple):
    """What a stopped machine had not flushed may be gone (RULES 7.2): of what was below this offset, and fetched under
    registrations up to this revision of etcd."""

    revision: int
    log_end_offset: int


class History:
    def __init__(self, disks: dict[int, Disk], note: Callable[..., None]) -> None:
        self._disks = disks
        self._note = note
        self.states: dict[PartitionKey, PartitionState] = {}  # as etcd has them
        self.names: dict[tuple[str, int], PartitionKey] = {}
        self.dead: set[PartitionKey] = set()  # of topics that are marked for deletion
        self.unclean_allowed = False
        self.kept_minimum = 0  # members that every ISR keeps, whatever is done (RULES 7.8)
        # The last unclean election that their topic allows: only what was committed since, under its epoch or a higher
        # one, is still promised.
        self.unclean: dict[PartitionKey, int] = {}
        self.acknowledged = 0
        self.consumed = 0
        self.elections = 0
        # Invariant 1: what was acknowledged, or seen by a consumer, by base offset.
        self._committed: dict[PartitionKey, dict[int, Batch]] = defaultdict(dict)
        self._offset_of: dict[PartitionKey, dict[int, int]] = defaultdict(dict)  # payload -> base offset
        self._lost_tails: dict[tuple[int, PartitionKey], LostTail] = {}  # until etcd's states say so
        self._told_tails: dict[tuple[int, PartitionKey], LostTail] = {}  # the last of those since
        self._cut: dict[tuple[int, PartitionKey], Cut] = {}  # replicas that are not back in an ISR yet
        self._leads: dict[tuple[PartitionKey, int], tuple[int, str, str]] = {}  # 5: (key, epoch) -> its one author
        self._in_etcd: dict[tuple[PartitionKey, int], int] = {}  # 5: (key, epoch) -> leader, as written
        self._chains: dict[tuple[PartitionKey, int, int], int] = {}  # 4: (key, offset, epoch) -> the log up to there
        self._marks: dict[tuple[Any, ...], int] = {}  # 2: high watermarks, by replica and start of its process
        self._fences: dict[tuple[int, PartitionKey], int] = {}  # 9: the highest epoch a disk was ever fenced at
        self._leader_fences: dict[tuple[PartitionKey, int], Fence] = {}  # 5: who was admitted to lead under an epoch
        self._controllers: dict[str, int] = {}  # 9: by replica-manager's incarnation

    # etcd (5, 6)

    def topic_created(self, key: PartitionKey, name: str) -> None:
        self.names[name, key.partition] = key

    def topic_marked(self, keys: Iterable[PartitionKey]) -> None:
        self.dead.update(keys)

    def state_written(
        self, key: PartitionKey, old: PartitionState | None, new: PartitionState, compared: bool, writer: str
    ) -> None:
        if not compared:
            raise InvariantError("6 (compare-and-swap)", f"{writer} wrote {key} without comparing its revision")
        self.states[key] = new
        if old is not None:
            if new.leader_epoch < old.leader_epoch:
                raise InvariantError("5 (epochs grow)", f"{writer} took {key} from {old} to {new}")
            if new.leader_epoch == old.leader_epoch and new.leader != old.leader:
                raise InvariantError("5 (one leader)", f"{writer} changed the leader of {key}: {old}, {new}")
            began = old.leader != NO_LEADER or old.leader_epoch > 0  # before, nobody may have been there
            if began and len(new.isr) < self.kept_minimum <= len(old.isr):
                raise InvariantError("shutdown (minimum)", f"{writer} took {key} from {old} to {new}")
            from_broker = writer.startswith("replica-manager")
            if from_broker and (new.leader_epoch != old.leader_epoch or writer != f"replica-manager {old.leader}"):
                raise InvariantError("6 (by the leader)", f"{writer} wrote {key}: {old} to {new}")
        if not new.isr and not new.lost:
            raise InvariantError("6 (never empty)", f"{writer} emptied the ISR of {key}")
        if new.leader != NO_LEADER and new.leader not in new.isr:
            raise InvariantError("6 (holds the leader)", f"{key}: {new}")
        for member in new.isr:
            self._cut.pop((member, key), None)
        self._in_etcd[key, new.leader_epoch] = new.leader
        if new.leader_epoch == new.unclean_epoch and (old is None or old.unclean_epoch != new.unclean_epoch):
            self._unclean_election(key, new.leader_epoch)
        if old is None or new.isr != old.isr or new.elr != old.elr:
            self._check_holders(key, (*new.isr, *new.elr), "1 (every ISR member holds it)")

    def _unclean_election(self, key: PartitionKey, leader_epoch: int) -> None:
        if not self.unclean_allowed:
            return  # then it must not have cost anything
        self.unclean[key] = leader_epoch
        self._committed.pop(key, None)
        self._offset_of.pop(key, None)

    def _is_past(self, key: PartitionKey, leader_epoch: int) -> bool:
        """Whether nothing is promised (any more) of what is done under this leader epoch."""
        return key in self.dead or leader_epoch < self.unclean.get(key, -1)

    # Leadership (1, 5)

    def leads(self, broker_id: int, manager: str, storage: str, key: PartitionKey, leader_epoch: int) -> None:
        if key in self.dead:
            return
        author = (broker_id, manager, storage)
        known = self._leads.setdefault((key, leader_epoch), author)
        if known != author:
            raise InvariantError("5 (one leader)", f"{key} epoch {leader_epoch} is led by {author}, was by {known}")
        if self._in_etcd.get((key, leader_epoch)) != broker_id:
            raise InvariantError("5 (written to etcd)", f"broker {broker_id} leads {key} under epoch {leader_epoch}")
        self.elections += 1
        if self.states[key].leader_epoch == leader_epoch:
            self._check_holders(key, (broker_id,), "1 (in every later leader's log)")

    # Records (1, 3, 4, 9)

    def appended(self, broker_id: int, log: Log, leader_epoch: int) -> None:
        """The last batch was appended, under a fence at `leader_epoch`."""
        batch, chain = log.batches[-1], log.chain[-1]
        if leader_epoch < self._fences.get((broker_id, log.key), -1):
            raise InvariantError("9 (stale appends)", f"broker {broker_id} took {batch} under epoch {leader_epoch}")
        known = self._chains.setdefault((log.key, batch.base_offset, batch.leader_epoch), chain)
        if known != chain:
            raise InvariantError("4", f"broker {broker_id} holds {batch} of {log.key} over another log than others do")

    def truncated(self, broker_id: int, log: Log, dropped: Sequence[Batch]) -> None:
        self._note("truncated", broker_id, log.key, log.log_end_offset, len(dropped))
        state = self.states.get(log.key)
        if dropped and state is not None and broker_id in (*state.isr, *state.elr):
            self._check_holders(log.key, (broker_id,), "1 (truncated)")
        mark = self._marks.get(("follower", broker_id, log.key), 0)
        if mark > log.high_watermark:
            self._marks["follower", broker_id, log.key] = log.high_watermark

    def damage_dropped(self, broker_id: int, broker_epoch: int, log: Log, dropped: Sequence[Batch]) -> None:
        """RULES 7.6. `broker_epoch`: of the registration that the replica waited for; nothing of the log has been
        fetched under it yet."""
        state = self.states.get(log.key)
        if state is not None and log.key not in self.dead and broker_id in (state.leader, *state.isr, *state.elr):
            raise InvariantError("1 (dropped while it counts)", f"broker {broker_id} cut its log of {log.key}: {state}")
        log_end_offset = max((batch.next_offset for batch in dropped), default=log.log_end_offset)
        before = self._cut.get((broker_id, log.key), Cut(0, 0))
        self._cut[broker_id, log.key] = Cut(broker_epoch, max(log_end_offset, before.log_end_offset))
        self.truncated(broker_id, log, dropped)

    def log_deleted(self, broker_id: int, key: PartitionKey) -> None:
        if key not in self.dead:
            raise InvariantError("1 (deleted)", f"broker {broker_id} deleted its log of {key}, whose topic lives")
        self._fences.pop((broker_id, key), None)

    def losing_tail(self, broker_id: int, revision: int) -> None:
        """Now; the disk still has it."""
        for log in self._disks[broker_id].logs.values():
            self._lost_tails[broker_id, log.key] = LostTail(revision, log.log_end_offset)

    def tail_recorded(self, broker_id: int, broker_epoch: int) -> None:
        """Every state has taken note of it (RULES 7.2): from here on what this broker is in, it holds. A late write of
        an earlier registration says nothing of a loss since."""
        self._must_hold(broker_id, broker_epoch, "1 (lost tail)")

    def registered_whole(self, broker_id: int, broker_epoch: int) -> None:
        """Without a word of a lost tail: so it has lost nothing that counts."""
        self._must_hold(broker_id, broker_epoch, "1 (registered as whole)")

    def _must_hold(self, broker_id: int, broker_epoch: int, invariant: str) -> None:
        for replica, lost in list(self._lost_tails.items()):
            if replica[0] == broker_id and broker_epoch > lost.revision:
                self._told_tails[replica] = self._lost_tails.pop(replica)
                state = self.states[replica[1]]
                if broker_id in (*state.isr, *state.elr):
                    self._check_holders(replica[1], (broker_id,), invariant)

    def acked(self, key: PartitionKey, batch: Batch, base_offset: int, broker_id: int, leader_epoch: int) -> None:
        """A broker answers for it with `acks=all`."""
        self._note("acked", broker_id, key, base_offset, batch.payload)
        if self._is_past(key, leader_epoch):
            return
        self.acknowledged += 1
        known = self._offset_of[key].setdefault(batch.payload, base_offset)
        if known != base_offset:
            raise InvariantError("1 (once)", f"{key}: {batch} was acknowledged at {known} and now at {base_offset}")
        self._commit(key, base_offset, batch)

    def consumer_read(
        self, key: PartitionKey, batches: Iterable[Batch], high_watermark: int, leader_epoch: int
    ) -> None:
        for batch in batches:
            if batch.next_offset > high_watermark:
                raise InvariantError("3", f"a consumer of {key} got {batch}, the high watermark is {high_watermark}")
            if not self._is_past(key, leader_epoch):
                self.consumed += 1
                self._commit(key, batch.base_offset, batch)

    def latest_shown(self, key: PartitionKey, leader_epoch: int, latest: int) -> None:
        """`latest` for consumers never goes back (RULES 5.7), zombies that nobody has told aside."""
        if self._is_past(key, leader_epoch) or self.states[key].leader_epoch != leader_epoch:
            return
        if latest < max((batch.next_offset for batch in self._committed[key].values()), default=0):
            raise InvariantError("3 (latest goes back)", f"{key}: {latest}, more was committed")

    def consumer_reset(self, key: PartitionKey, offset: int, leader_epoch: int) -> None:
        if key not in self.dead and key not in self.unclean:
            raise InvariantError("3 (reset)", f"a consumer of {key} was told that {offset} is out of range")

    def _commit(self, key: PartitionKey, base_offset: int, batch: Batch) -> None:
        known = self._committed[key].setdefault(base_offset, batch)
        if known.payload != batch.payload:
            raise InvariantError("1 (same offset)", f"{key}: {known} and then {batch} at offset {base_offset}")
        if known is batch:
            state = self.states[key]
            for broker_id in (*state.isr, *state.elr):
                self._check_holds(key, broker_id, base_offset, batch, "1 (every ISR member holds it)")

    def _check_holders(self, key: PartitionKey, brokers: Iterable[int], invariant: str) -> None:
        if key in self.dead:
            return
        for broker_id in brokers:
            for base_offset, batch in self._committed[key].items():
                self._check_holds(key, broker_id, base_offset, batch, invariant)

    def _check_holds(self, key: PartitionKey, broker_id: int, base_offset: int, batch: Batch, invariant: str) -> None:
        log = self._disks[broker_id].logs.get(key)
        found = None if log is None else log.by_offset.get(base_offset)
        if found is None or found.payload != batch.payload:
            lost = self._lost_tails.get((broker_id, key))
            if lost is not None and batch.next_offset <= lost.log_end_offset:
                return
            raise InvariantError(
                invariant,
                f"broker {broker_id} has {found} where #{batch.payload} was committed at {base_offset}: {key}",
            )

    def committed(self, key: PartitionKey) -> dict[int, Batch]:
        return self._committed[key]

    # High watermarks (2)

    def leader_high_watermark(
        self,
        broker_id: int,
        manager: str,
        key: PartitionKey,
        leader_epoch: int,
        offset: int,
        members: Mapping[int, int],
    ) -> None:
        """`members`: each broker in the ISR or in that of a pending proposal, and the broker epoch of its fetches that
        this leader goes by (-1: it fetched nothing)."""
        if self._is_past(key, leader_epoch):
            return
        self._grows(("leader", broker_id, manager, key, leader_epoch), offset)
        for member in {*members, *self.states[key].isr}:
            log = self._disks[member].logs.get(key)
            end = 0 if log is None else log.log_end_offset
            if end >= offset:
                continue
            broker_epoch = members.get(member, -1)
            if not (
                self._had_acknowledged(member, key, broker_epoch, offset)
                or self._had_lost(member, key, broker_epoch, offset)
            ):
                raise InvariantError(
                    "2 (HW <= LEO)", f"broker {broker_id}: {key} is at {offset}, ISR member {member} ends at {end}"
                )

    def _had_acknowledged(self, member: int, key: PartitionKey, broker_epoch: int, offset: int) -> bool:
        """Whether a leader may go on counting what the member held before it was cut: of a state that it has not heard
        of yet, or in a proposal that etcd will refuse (RULES 2.3, 7.6). The others that it counts hold that. What is
        fetched after the cut is counted as everybody's. A leader by which it has not fetched yet begins with the high
        watermark of its log: what it counted as a follower's was acknowledged to leaders before it."""
        cut = self._cut.get((member, key))
        if cut is None or offset > cut.log_end_offset:
            return False
        unheard = broker_epoch < 0 and member not in self.states[key].isr
        return unheard or 0 <= broker_epoch < cut.broker_epoch

    def _had_lost(self, member: int, key: PartitionKey, broker_epoch: int, offset: int) -> bool:
        """Whether the member may have held it, as far as the leader can know (RULES 7.2, 7.5): of a state that says
        that it is lost the leader may not have heard yet."""
        lost = self._lost_tails.get((member, key))
        if lost is None and member not in self.states[key].isr:
            lost = self._told_tails.get((member, key))
        return lost is not None and broker_epoch <= lost.revision and offset <= lost.log_end_offset

    def follower_high_watermark(self, broker_id: int, log: Log) -> None:
        self._grows(("follower", broker_id, log.key), log.high_watermark)

    def storage_started(self, broker_id: int) -> None:
        """The high watermark begins again at its checkpoint."""
        for mark in [mark for mark in self._marks if mark[:2] == ("follower", broker_id)]:
            del self._marks[mark]

    def _grows(self, mark: tuple[Any, ...], offset: int) -> None:
        before = self._marks.get(mark, 0)
        if offset < before:
            raise InvariantError("2 (HW grows)", f"{mark} went from {before} to {offset}")
        self._marks[mark] = offset

    # Fences and controllers (5, 9)

    def fenced(self, broker_id: int, key: PartitionKey, fence: Fence) -> None:
        leader_epoch = fence.leader_epoch
        before = self._fences.get((broker_id, key), -1)
        if fence.role is Role.LEADER:
            known = self._leader_fences.setdefault((key, leader_epoch), fence)
            if known != fence:
                raise InvariantError("5 (one author)", f"broker {broker_id} fenced {key} as {fence} after {known}")
        if leader_epoch < before:
            raise InvariantError("9 (fences)", f"broker {broker_id} fenced {key} at {leader_epoch} after {before}")
        self._fences[broker_id, key] = leader_epoch

    def instructed(self, manager: str, controller_epoch: int) -> None:
        """A replica-manager carries out an instruction."""
        before = self._controllers.get(manager, 0)
        if controller_epoch < before:
            raise InvariantError("9 (deposed controllers)", f"{manager} obeys epoch {controller_epoch} after {before}")
        self._controllers[manager] = controller_epoch

"""The committed state of a partition that is led here, and the ISR proposals that may have been written over it.

Every proposal compares the committed revision (RULES 2.2), so that at most one of those pending can have been written.
A proposal is *in flight* from its making until its outcome is told, and *unsettled* after an outcome that is unknown
(or a refusal, until a read confirms it): then it stays pending until a revision above the compared one has been seen
(RULES 2.4). What is pending is known by its ISRs' union and by its removals; both are bounded by the assignment,
however many proposals have failed.
"""

from __future__ import annotations

from collections.abc import Mapping

from highwater.metadata.schema.models import PartitionState, VersionedState
from highwater.replica_manager.partition.actions import WriteIsr

NOBODY: frozenset[int] = frozenset()


class IsrProposals:
    """Invariant: every pending proposal's compared revision equals `committed.revision`."""

    __slots__ = (
        "_awaited_id",
        "_next_id",
        "_refused_isr",
        "_refused_removals",
        "_unknown_isr",
        "_unknown_removals",
        "committed",
        "in_flight",
    )

    def __init__(self, committed: VersionedState, next_id: int) -> None:
        self.committed = committed  # the latest state known to be in etcd; its revision only grows
        self.in_flight: WriteIsr | None = None  # pending, and its outcome has not been told
        self._unknown_isr = NOBODY  # every broker in the ISR of some proposal of unknown outcome
        self._unknown_removals = NOBODY  # every committed member that some such proposal leaves out
        self._refused_isr = NOBODY  # the same of the one that was refused, until a read confirms it
        self._refused_removals = NOBODY
        self._next_id = next_id
        self._awaited_id: int | None = None

    @property
    def next_id(self) -> int:
        """Ids go on over leader epochs, so that a late outcome of an old proposal is never taken for a new one's."""
        return self._next_id

    @property
    def unknown(self) -> bool:
        """Tells whether a proposal's outcome is unknown: only a higher revision settles it (RULES 2.4)."""
        return bool(self._unknown_isr)

    @property
    def refused(self) -> bool:
        """Tells whether a proposal was refused and no read has shown yet what the state is."""
        return bool(self._refused_isr)

    @property
    def unsettled(self) -> bool:
        return self.unknown or self.refused

    @property
    def maximal_isr(self) -> frozenset[int]:
        """The committed ISR and every pending proposal's (RULES 5.1)."""
        union = self._unknown_isr.union(self._refused_isr, self.committed.state.isr)
        return union.union(self.in_flight.state.isr) if self.in_flight is not None else union

    @property
    def certain_isr_size(self) -> int:
        """Members of the committed ISR that no pending proposal removes (RULES 5.3)."""
        removed = self._unknown_removals | self._refused_removals
        if self.in_flight is not None:
            removed = removed.union(_removals(self.committed.state, self.in_flight.state))
        return len(self.committed.state.isr) - len(removed)

    @property
    def outcome_awaited(self) -> bool:
        """Tells whether the last proposal's outcome has not been told yet. A watch may have settled it already: then
        nothing is pending, but no other is made either, so that one transaction never holds two of a partition."""
        return self._awaited_id is not None

    def propose(self, state: PartitionState, joining_broker_epochs: Mapping[int, int]) -> WriteIsr:
        assert self._awaited_id is None, "one proposal of a partition at a time"
        assert state.isr, "the ISR never changes to empty"  # invariant 6
        assert state.leader_epoch == self.committed.state.leader_epoch  # invariant 6: under the current leader epoch
        self.in_flight = WriteIsr(self._next_id, state, self.committed.revision, joining_broker_epochs)
        self._awaited_id = self._next_id
        self._next_id += 1
        return self.in_flight

    def written(self, proposal_id: int, revision: int) -> bool:
        """The proposal was written. Whether its outcome was awaited."""
        if self._awaited_id != proposal_id:
            return False
        self._awaited_id = None
        if self.in_flight is not None:
            assert revision > self.in_flight.compare_revision, (revision, self.in_flight)
            self.seen(VersionedState(self.in_flight.state, revision))
        return True

    def failed(self, proposal_id: int, *, refused: bool) -> bool:
        """The proposal was refused, or its outcome is unknown: it stays pending until `seen` settles it, unless that
        has done so already. Whether its outcome was awaited."""
        if self._awaited_id != proposal_id:
            return False
        self._awaited_id = None
        proposal, self.in_flight = self.in_flight, None
        if proposal is None:
            return True
        removals = _removals(self.committed.state, proposal.state)
        if refused:
            self._refused_isr = self._refused_isr.union(proposal.state.isr)
            self._refused_removals |= removals
        else:
            self._unknown_isr = self._unknown_isr.union(proposal.state.isr)
            self._unknown_removals |= removals
        return True

    def seen(self, state: VersionedState) -> bool:
        """A state of this leader epoch was read from etcd. Whether it is newer: then nothing is pending any more, as
        all proposals compared an older revision. The old one shown again settles what was refused, and nothing
        whose outcome is unknown (RULES 2.4)."""
        if state.revision < self.committed.revision:
            return False
        self._refused_isr = self._refused_removals = NOBODY
        if state.revision == self.committed.revision:
            return False
        self.committed = state
        self.in_flight = None
        self._unknown_isr = self._unknown_removals = NOBODY
        return True


def next_state(
    committed: PartitionState, isr: frozenset[int], lost_data: frozenset[int], min_insync_replicas: int
) -> PartitionState:
    """The state with `isr` as its ISR, and what follows for `elr` and `lost`.

    At the minimum `elr` is empty (RULES 5.2); reaching it empties `lost` too (RULES 7.4). Below it, members that leave
    enter `elr`, as they have acknowledged all that is committed (RULES 7.3); except `lost_data`, whose acked offset is
    below the high watermark: they enter none and leave the one they are in (RULES 4.5).
    """
    members = tuple(sorted(isr))
    lost = NOBODY.union(committed.lost) - isr
    if len(isr) >= min_insync_replicas:
        reached = len(committed.isr) < min_insync_replicas
        return committed.with_(isr=members, elr=(), lost=() if reached else tuple(sorted(lost)))
    elr = NOBODY.union(committed.elr, committed.isr) - isr - lost_data
    return committed.with_(isr=members, elr=tuple(sorted(elr)), lost=tuple(sorted(lost)))


def _removals(committed: PartitionState, proposed: PartitionState) -> frozenset[int]:
    return NOBODY.union(committed.isr).difference(proposed.isr)

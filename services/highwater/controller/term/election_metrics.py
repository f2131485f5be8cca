"""Metrics of elections: Kafka's `LeaderElectionRateAndTimeMs` and `UncleanLeaderElectionsPerSec`."""

from __future__ import annotations

from collections.abc import Sequence

from highwater.controller.state_machines.actions import WriteState
from highwater.metadata.schema.models import NO_LEADER, PartitionState
from highwater.telemetry.metrics import Metrics


class ElectionMetrics:
    def __init__(self, metrics: Metrics) -> None:
        elections = metrics.counter("elections", "Leaders elected", ("kind",))
        self._elections = {kind: elections.labels(kind) for kind in ("clean", "unclean")}
        self._times = metrics.timing("election", "From the decision about leaders until etcd had it", ())

    def written(self, writes: Sequence[tuple[WriteState, PartitionState | None]], took_s: float) -> None:
        """etcd has these states, each with the one before it; they were decided together."""
        counted = 0
        for write, before in writes:
            kind = election_of(before, write.state)
            if kind:
                counted += 1
                self._elections[kind].inc()
        if counted:
            self._times.labels().observe(took_s)


def election_of(before: PartitionState | None, after: PartitionState) -> str:
    """The kind of election that has made `after` of `before` (None: nothing, it is the partition's first state); empty:
    it has not elected a leader."""
    if before is None or after.leader == NO_LEADER or after.leader_epoch == before.leader_epoch:
        return ""
    return "unclean" if after.unclean_epoch == after.leader_epoch else "clean"

"""The metrics of a broker's group coordinator."""

from __future__ import annotations

from collections.abc import Iterable

from highwater.groups.records import Record
from highwater.groups.requests import GroupState
from highwater.telemetry.metrics import Metrics

_OFFSET_COMMIT = b"\0\1"  # the kinds with which records' keys begin
_GROUP_EPOCH = b"\0\3"


class GroupMetrics:
    def __init__(self, metrics: Metrics) -> None:
        groups = metrics.gauge("groups", "Groups coordinated here", ("state",))
        self.groups = {
            state: groups.labels(state.value.lower()) for state in GroupState if state is not GroupState.DEAD
        }
        self.members = metrics.gauge("group_members", "Members of the groups coordinated here")
        self.sessions = metrics.gauge("group_sessions", "Members' streams that are open here")
        self.loading = metrics.gauge("group_shards_loading", "Led partitions of __consumer_offsets that are not served")
        self.load = metrics.latency("group_load", "From the leadership of a partition of __consumer_offsets to serving")
        self.rebalances = metrics.counter("group_rebalances", "Group epochs: each shares the partitions out anew")
        self.commits = metrics.counter("group_offset_commits", "Offsets committed, by partition")
        self.append_failures = metrics.counter(
            "group_append_failures",
            "Shards of groups that were dropped and loaded anew, by what the log answered",
            ("error",),
        )

    def count(self, records: Iterable[Record]) -> None:
        """Counts what the records of an outcome say."""
        for record in records:
            kind = record.key[:2]
            if record.value is not None:
                if kind == _OFFSET_COMMIT:
                    self.commits.inc()
                elif kind == _GROUP_EPOCH:
                    self.rebalances.inc()

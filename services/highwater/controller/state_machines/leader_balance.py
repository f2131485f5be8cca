"""The leaderships that should go back to the preferred leaders. Pure.

A broker that was away leads nothing when it is back. Where that is left so, rolling restarts bring all leaderships to
few brokers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from highwater.controller.state_machines.partition_state_machine import PartitionStateMachine
from highwater.model.partition import PartitionKey


def led_by_others(partitions: Iterable[PartitionStateMachine], allowed_percent: int) -> list[PartitionKey]:
    """Of every broker of whose own partitions (it is their preferred leader) others lead more than `allowed_percent`:
    those that others lead."""
    own: dict[int, list[PartitionStateMachine]] = defaultdict(list)
    for partition in partitions:
        own[partition.replicas[0]].append(partition)
    found: list[PartitionKey] = []
    for broker_id, wanted in own.items():
        away = [partition.key for partition in wanted if partition.leader != broker_id]
        if len(away) * 100 > allowed_percent * len(wanted):
            found += away
    return found

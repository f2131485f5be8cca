"""Brokers that registered with their tail lost, until every state has taken note of it (RULES 7.2). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from highwater.controller.state_machines.actions import RecordTail
from highwater.metadata.schema.models import LiveBroker
from highwater.model.partition import PartitionKey


class LostTails:
    """Each such registration goes once over the partitions that its broker hosts. Only then is it recorded in
    `/brokers/tail/<id>` and ordinary; a controller elected before that begins again."""

    def __init__(self) -> None:
        self._recorded: dict[int, int] = {}  # broker id -> broker epoch in /brokers/tail/<id>
        self._open: dict[int, tuple[int, set[PartitionKey]]] = {}  # broker id -> broker epoch, partitions to go

    def load(self, recorded: Mapping[int, int]) -> None:
        self._recorded = dict(recorded)

    def recorded(self, broker_id: int, broker_epoch: int) -> None:
        self._recorded[broker_id] = broker_epoch

    def registered(self, broker: LiveBroker, hosted: Iterable[PartitionKey]) -> None:
        broker_id = broker.registration.broker_id
        self._open.pop(broker_id, None)
        if broker.registration.tail_lost and self._recorded.get(broker_id) != broker.broker_epoch:
            self._open[broker_id] = (broker.broker_epoch, set(hosted))

    def gone(self, broker_id: int) -> None:
        self._open.pop(broker_id, None)

    def of(self, key: PartitionKey, replicas: Iterable[int]) -> frozenset[int]:
        """Replicas of which this partition has not taken note yet."""
        return frozenset(b for b in replicas if b in self._open and key in self._open[b][1]) if self._open else _NOBODY

    def noted(self, key: PartitionKey, replicas: Iterable[int]) -> None:
        """The partition's committed state has taken note of all of them, or the partition is going."""
        if self._open:
            for broker_id in replicas:
                if broker_id in self._open:
                    self._open[broker_id][1].discard(key)

    def take_done(self) -> list[RecordTail]:
        done = [RecordTail(broker_id, epoch) for broker_id, (epoch, keys) in self._open.items() if not keys]
        for record in done:
            del self._open[record.broker_id]
        return done


_NOBODY: frozenset[int] = frozenset()

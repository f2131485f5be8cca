"""An index of a broker's replicas that are in their ISRs and of those that are not: kept as states change, so that a
question about one broker costs nothing, however many partitions there are. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from highwater.metadata.schema.models import PartitionState
from highwater.model.partition import PartitionKey


class IsrIndex:
    """Invariant: the key of every partition that has a state and is not being deleted stands, for each broker that it
    is assigned to, in exactly one of the two."""

    def __init__(self) -> None:
        # Dictionaries for their order: the same events give the same answers, whatever the hashes are.
        self._members: dict[int, dict[PartitionKey, None]] = defaultdict(dict)
        self._outside: dict[int, dict[PartitionKey, None]] = defaultdict(dict)

    def put(self, key: PartitionKey, replicas: Sequence[int], state: PartitionState) -> None:
        for broker_id in replicas:
            inside = broker_id in state.isr
            (self._members if inside else self._outside)[broker_id][key] = None
            (self._outside if inside else self._members)[broker_id].pop(key, None)

    def remove(self, key: PartitionKey, replicas: Sequence[int]) -> None:
        for broker_id in replicas:
            self._members[broker_id].pop(key, None)
            self._outside[broker_id].pop(key, None)

    def outside(self, broker_id: int) -> Collection[PartitionKey]:
        """Partitions that are assigned to the broker, and whose ISR does not hold it."""
        return self._outside.get(broker_id, {}).keys()

    def members(self, broker_id: int) -> Collection[PartitionKey]:
        """Partitions whose ISR holds the broker."""
        return self._members.get(broker_id, {}).keys()

"""The batches of traced produces, so that followers are told with the records which traces they are a part of."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from highwater.model.partition import PartitionKey
from highwater.records import CorruptBatchError, iter_batches
from highwater.rpc.embedding import Piece
from highwater.telemetry.tracing import MAX_PARENTS

MAX_BATCHES = 1024


class TracedBatches:
    """Those of which not all followers have heard, by their base offset. Where there are too many the oldest go: a
    trace then lacks its followers. False where there is none: nobody looks for any then."""

    def __init__(self) -> None:
        self._traceparents: OrderedDict[tuple[PartitionKey, int], str] = OrderedDict()
        self._base_offsets: dict[PartitionKey, set[int]] = {}

    def __bool__(self) -> bool:
        return bool(self._traceparents)

    def add(self, key: PartitionKey, base_offset: int, traceparent: str) -> None:
        self._traceparents[key, base_offset] = traceparent
        self._base_offsets.setdefault(key, set()).add(base_offset)
        if len(self._traceparents) > MAX_BATCHES:
            self._forget(*self._traceparents.popitem(last=False)[0])

    def remove(self, key: PartitionKey, base_offset: int) -> None:
        """All in-sync followers have it, or it is not waited for any longer."""
        if self._traceparents.pop((key, base_offset), None) is not None:
            self._forget(key, base_offset)

    def _forget(self, key: PartitionKey, base_offset: int) -> None:
        base_offsets = self._base_offsets[key]
        base_offsets.discard(base_offset)
        if not base_offsets:
            del self._base_offsets[key]

    def among(self, key: PartitionKey, pieces: Sequence[Piece]) -> list[str]:
        """The traces that these batches, which are whole, are a part of; `MAX_PARENTS` at most."""
        base_offsets = self._base_offsets.get(key)
        if base_offsets is None or not pieces:
            return []
        found: list[str] = []
        try:
            for _, header in iter_batches(b"".join(pieces)):
                if header.base_offset in base_offsets and len(found) < MAX_PARENTS:
                    found.append(self._traceparents[key, header.base_offset])
        except CorruptBatchError:  # the follower finds that out
            return found
        return found

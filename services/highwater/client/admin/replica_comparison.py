"""A walk over all replicas of a partition side by side: they hold the same batches (invariant 4).

One replica, the leader where it answers, is what the others are compared with, batch by batch: base offset, last
offset, leader epoch and CRC, from the later of the two log starts up to the high watermark or the other's log end.
Below what compaction has passed over in either of the two, batches may be gone or changed; what both still have must
have the same records at the offsets that both have (RULES 10.2).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

MAX_PROBLEMS = 10  # told of one replica; the others are counted


class Batch(NamedTuple):
    base_offset: int
    last_offset: int
    leader_epoch: int
    crc: int


class BatchSource(Protocol):
    """One replica's batches in order. What it says of its log is as of the latest page, and so never older than the
    batch at its head."""

    broker_id: int
    log_start_offset: int
    log_end_offset: int
    cleaned_to: int  # compaction may have changed batches below

    async def head(self) -> Batch | None:
        """The next batch; None at the end."""

    def advance(self) -> None:
        """Goes past the head."""

    async def refresh(self) -> None:
        """Brings what it says of its log up to date."""

    def damaged(self, batch: Batch) -> bool:
        """True where this replica's records in the batch's place are known to be damaged."""


SameRecords = Callable[[BatchSource, BatchSource, int], Awaitable[str]]
"""Compares the records at an offset where two replicas have batches that begin there; a sentence on the difference, or
an empty string."""


@dataclass(slots=True)
class Findings:
    """Findings on one replica against the reference."""

    compared: int = 0  # batches
    problems: list[str] = field(default_factory=list)
    more_problems: int = 0

    def add(self, problem: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)
        else:
            self.more_problems += 1


async def compare(
    reference: BatchSource,
    others: Sequence[BatchSource],
    high_watermark: int,
    same_records: SameRecords,
    progress: Callable[[int], None] = lambda offset: None,
) -> dict[int, Findings]:
    """Walks over all of them; findings by broker id. `progress` is called with the offset that the walk has come to.
    Raises what the sources raise."""
    pairs = [_Pair(reference, other, high_watermark, same_records) for other in others]
    while (batch := await reference.head()) is not None and batch.last_offset < high_watermark:
        for pair in pairs:
            await pair.take(batch)
        reference.advance()
        progress(batch.last_offset + 1)
    for pair in pairs:
        await pair.finish()
    return {pair.other.broker_id: pair.findings for pair in pairs}


class _Pair:
    def __init__(
        self, reference: BatchSource, other: BatchSource, high_watermark: int, same_records: SameRecords
    ) -> None:
        self.reference = reference
        self.other = other
        self.findings = Findings()
        self._high_watermark = high_watermark
        self._same_records = same_records

    async def take(self, batch: Batch) -> None:
        """The reference's next batch."""
        await self._pass_over(batch.base_offset)
        head = await self.other.head()
        if head is None or head.base_offset > batch.last_offset:
            if batch.last_offset < self.other.log_end_offset:
                await self._lacks(self.other, batch)
            return
        self.other.advance()
        self.findings.compared += 1
        if head != batch:
            await self._differ(batch, head)

    async def finish(self) -> None:
        await self._pass_over(self._high_watermark)

    async def _pass_over(self, offset: int) -> None:
        """Takes in the batches that the other has below `offset`, and the reference does not."""
        while (head := await self.other.head()) is not None and head.last_offset < offset:
            self.other.advance()
            await self._lacks(self.reference, head)

    async def _lacks(self, source: BatchSource, batch: Batch) -> None:
        """`source` has no batch in this one's place."""
        if source.damaged(batch) or self._may_lack(source, batch):
            return
        await self._refresh()
        if not self._may_lack(source, batch):
            self.findings.add(
                f"broker {source.broker_id} lacks the batch of offsets {batch.base_offset} to {batch.last_offset}"
            )

    def _may_lack(self, source: BatchSource, batch: Batch) -> bool:
        return batch.base_offset < max(source.log_start_offset, self._compacted_below)

    @property
    def _compacted_below(self) -> int:
        return max(self.reference.cleaned_to, self.other.cleaned_to)

    async def _differ(self, batch: Batch, head: Batch) -> None:
        floor = max(self.reference.log_start_offset, self.other.log_start_offset)
        if batch.last_offset < floor:
            return
        if batch.base_offset >= self._compacted_below:
            await self._refresh()
        if batch.base_offset >= self._compacted_below:
            self.findings.add(_difference(batch, head))
        elif batch.base_offset == head.base_offset:
            problem = await self._same_records(self.reference, self.other, batch.base_offset)
            if problem:
                self.findings.add(problem)

    async def _refresh(self) -> None:
        """Retention or compaction may have been at work since the pages were read."""
        await self.reference.refresh()
        await self.other.refresh()


def _difference(batch: Batch, head: Batch) -> str:
    where = f"offset {batch.base_offset}"
    if (batch.base_offset, batch.last_offset) != (head.base_offset, head.last_offset):
        return (
            f"{where}: a batch of offsets {head.base_offset} to {head.last_offset} stands where it should be "
            f"{batch.base_offset} to {batch.last_offset}"
        )
    if batch.leader_epoch != head.leader_epoch:
        return f"{where}: leader epoch {head.leader_epoch}, should be {batch.leader_epoch}"
    return f"{where}: other records, CRC-32C {head.crc:#010x} instead of {batch.crc:#010x}"

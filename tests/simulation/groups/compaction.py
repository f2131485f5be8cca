"""Compaction of the logs of `__consumer_offsets`: production's cleaner over the bytes of one replica's log, of each one
at times of its own.

A batch keeps its place and its payload in the simulation, so that invariants 1 to 6 go on over whole logs. What it has
lost are records, and one that the cleaner drops (`Batch.gone`) is shown to no coordinator. What it had is kept beside
it: a shard that was loaded is held against all that was ever written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from highwater.groups.group_partition import OFFSETS_TOPIC
from highwater.log_storage.compaction.cleaner_job import CleanJob, PassLimits, SegmentFile
from highwater.log_storage.compaction.cleaner_pass import Cleaner
from highwater.log_storage.compaction.cleaner_selection import SegmentFacts, cleanable_range
from highwater.records import BatchHeader, Record, iter_batches, read_header
from highwater.replica_manager.groups.record_batches import decode

from ..history import InvariantError
from .coordinator import CLOCK_MS, stored

if TYPE_CHECKING:
    from ..storage import Batch, Log
    from ..world import Node, World

_INDEX_BYTES = 1 << 20
_MAPS = (24 * 8, 24 * 64, 1 << 16)  # bytes: room for a few keys, for some, for all


class MemoryCleaner(Cleaner):
    """A pass over segments in memory. `kept` has the batches of the cleaned ones, by base offset."""

    def __init__(self, job: CleanJob, limits: PassLimits, seed: int, files: dict[int, bytes]) -> None:
        super().__init__(job, limits, seed=seed)
        self._files = files
        self.kept: dict[int, bytes] = {}

    def _chunks(self, segment: SegmentFile) -> Iterator[tuple[bytes, list[tuple[int, BatchHeader]]]]:
        data = self._files[segment.base_offset]
        yield data, list(iter_batches(data))

    def _write(self, cleaned: Any, output: Sequence[Any]) -> None:
        del cleaned
        self.kept |= {batch.header.base_offset: bytes(batch.content) for batch in output}

    def cleaned(self) -> tuple[int, int]:
        """Up to where batches are as `kept` says, and up to where the log is clean."""
        clean_to = self.build_map()
        group = [segment for segment in self._job.segments if segment.base_offset < clean_to]
        for segment in group:
            self._clean_into(None, segment, last=segment is group[-1])  # type: ignore[arg-type]
        return (group[-1].next_offset if group else 0), clean_to


class Compaction:
    """Of the offsets topic's logs at one broker."""

    def __init__(self, world: World, node: Node) -> None:
        assert world.settings.groups is not None
        self._world = world
        self._node = node
        self._random = world.scheduler.random
        self._retention_ms = world.settings.groups.delete_retention_ms
        self._now_ms = CLOCK_MS + world.scheduler.now_ms

    def run(self) -> None:
        assert self._world.groups is not None
        for log in list(self._node.disk.logs.values()):
            if log.topic == OFFSETS_TOPIC and not log.offline and self._within_retention(log):
                dropped = self._compact(log)
                self._world.groups.checks.compacted += dropped
                self._world.note("compacted", self._node.broker_id, log.key, log.cleaned_to, dropped)

    def _within_retention(self, log: Log) -> bool:
        """Whoever reads is to see a tombstone before it goes: for longer than `delete.retention.ms` no replica may lag
        and no load may take."""
        world = self._world
        groups = world.settings.groups
        assert groups is not None
        manager = self._node.manager
        shard = None if manager is None or manager.groups is None else manager.groups.hosted(log.key.partition)
        began_ms = None if shard is None else shard.load_began_ms
        if began_ms is not None and world.scheduler.now_ms - began_ms >= self._retention_ms:
            return False
        ends = [
            0 if other is None else other.log_end_offset
            for replica in world.topics[OFFSETS_TOPIC].replicas[log.key.partition]
            for other in [world.nodes[replica].disk.logs.get(log.key)]
        ]
        oldest_ms = self._now_ms - self._retention_ms + groups.skew_ms * len(world.nodes)
        return not any(
            batch.base_offset >= min(ends) and read_header(batch.original).max_timestamp <= oldest_ms
            for batch in log.batches
        )

    def _compact(self, log: Log) -> int:
        """The number of records that are gone."""
        damaged = [offset for offset in (log.unreadable, log.damaged_from) if offset is not None]
        stable = min([log.high_watermark, *damaged])
        there = [batch for batch in log.batches if not batch.gone and batch.next_offset <= stable]
        if len(there) < 2:
            return 0
        bases = sorted({there[0].base_offset, *(self._random.choice(there).base_offset for _ in range(3))})
        facts = [SegmentFacts(base, 1, 0, 0) for base in bases]
        found = cleanable_range(
            facts,
            cleaned_to=log.cleaned_to,
            log_start_offset=0,
            stable_offset=stable,
            min_lag_ms=0,
            wall_clock_ms=self._now_ms,
        )
        if found.first_dirty_offset >= found.end_offset:
            return 0
        log.flushed = max(log.flushed, found.end_offset)  # as a sealed segment is
        files = {
            base: b"".join(stored(batch) for batch in there if base <= batch.base_offset < end)
            for base, end in pairwise(bases)
            if end <= found.end_offset
        }
        job = CleanJob(
            "",
            tuple(SegmentFile(base, end, len(files[base])) for base, end in pairwise(bases) if base in files),
            found.first_dirty_offset,
            found.end_offset,
            self._now_ms,
            self._retention_ms,
            1 << 30,
            _INDEX_BYTES,
            4096,
        )
        limits = PassLimits(map_bytes=self._random.choice(_MAPS))
        cleaner = MemoryCleaner(job, limits, self._random.getrandbits(128), files)
        end_offset, log.cleaned_to = cleaner.cleaned()
        self._check_tombstones(log, end_offset, cleaner.kept)
        for place, batch in enumerate(log.batches):
            if batch.base_offset < end_offset and not batch.gone:
                self._replace(log, place, batch, cleaner.kept.get(batch.base_offset, b""))
        return cleaner.counts.records_dropped

    def _check_tombstones(self, log: Log, end_offset: int, kept: dict[int, bytes]) -> None:
        """One that says the last of its key stays for `delete.retention.ms`: whoever has read what it covers is to read
        it."""
        groups = self._world.settings.groups
        assert groups is not None
        young_ms = self._now_ms - self._retention_ms + groups.skew_ms * len(self._world.nodes)
        last: dict[bytes | None, int] = {}
        dropped: list[Record] = []
        for batch in log.batches:
            rows = [] if batch.gone else [row for _, rows in decode(stored(batch)) for row in rows]
            last |= {row.key: row.offset for row in rows}
            if rows and batch.base_offset < end_offset:
                left = {row.offset for _, rows in decode(kept.get(batch.base_offset, b"")) for row in rows}
                dropped += [row for row in rows if row.value is None and row.offset not in left]
        for row in dropped:
            if last[row.key] == row.offset and row.timestamp > young_ms:
                raise InvariantError(
                    "compaction (tombstones)", f"broker {self._node.broker_id} drops {row} of {log.key} at {young_ms}"
                )

    def _replace(self, log: Log, place: int, batch: Batch, data: bytes) -> None:
        """Of this log alone: the batch may be others' as well."""
        if data != stored(batch):
            log.batches[place] = log.by_offset[batch.base_offset] = batch.compacted(data)

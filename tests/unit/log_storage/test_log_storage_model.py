"""A log against a plain list of batches, whatever is done to it: appends, rolls, truncation, retention, compaction,
restarts and crashes. Invariant 7 after every crash, invariant 8 after every cleaning."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from log_storage_batches import batch, make_log, read_all

from highwater.errors import ErrorCode
from highwater.log_storage.compaction.cleaner_job import PassLimits
from highwater.log_storage.compaction.cleaner_process import run_pass
from highwater.log_storage.compaction.cleaner_selection import CleanableRange
from highwater.log_storage.compaction.segment_swap import clean_job, swap_in
from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.log.timestamp_lookup import MAX_TIMESTAMP
from highwater.log_storage.producers import producer_snapshots
from highwater.log_storage.producers.producer_states import ProducerBatch
from highwater.log_storage.recovery.recovery import Checkpointed
from highwater.log_storage.segment.segment import Segment
from highwater.model.leader_epochs import LeaderEpochCache
from highwater.records import BatchHeader, Record, decode, iter_batches, read_header

CONFIG = LogConfig(segment_bytes=1024, index_interval_bytes=150, index_max_bytes=120)
KEYS = (b"a", b"", b"k" * 256, b"k" * 257, b"k" * 300)  # hashed in all the ways there are


class Stored(NamedTuple):
    content: bytes  # as it stands in the log
    header: BatchHeader

    @property
    def records(self) -> list[Record]:
        return list(decode(self.content).records())


class LogMachine(RuleBasedStateMachine):
    """`model` holds the batches that the log should have, those below the log start too, and `floor_epoch` is the
    epoch of the last batch before them; `start` is the log start, `end` the log end. `produced` are all batches of each
    producer, those too whose records retention or compaction has taken."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="highwater-log-"))
        self.log = make_log(self.directory, CONFIG)
        self.model: list[Stored] = []
        self.epoch = 0
        self.start = self.end = 0
        self.floor_epoch = -1
        self.high_watermark = 0
        self.sequences: dict[int, int] = {}
        self.produced: dict[int, list[ProducerBatch]] = {0: [], 1: []}
        self.durable: set[Path] = set()  # snapshots that no crash takes
        self.on_disk = 0  # nor batches below it: up to there they were synced
        self.patch = pytest.MonkeyPatch()
        write, write_durably, sync = producer_snapshots.write, producer_snapshots.write_durably, producer_snapshots.sync

        def written(directory: Path, offset: int, *arguments: Any, **options: Any) -> None:
            write(directory, offset, *arguments, **options)
            self.durable.discard(producer_snapshots.path_of(directory, offset))

        def written_durably(directory: Path, offset: int, *arguments: Any, **options: Any) -> None:
            write_durably(directory, offset, *arguments, **options)
            self.durable.add(producer_snapshots.path_of(directory, offset))

        def synced(directory: Path, offset: int) -> None:
            sync(directory, offset)
            self.durable.add(producer_snapshots.path_of(directory, offset))

        sync_batches = Segment.sync_batches

        def synced_batches(segment: Segment) -> None:
            sync_batches(segment)
            self.on_disk = max(self.on_disk, segment.end_offset)

        self.patch.setattr(Segment, "sync_batches", synced_batches)
        self.patch.setattr(producer_snapshots, "sync", synced)
        self.patch.setattr(producer_snapshots, "write_durably", written_durably)
        self.patch.setattr(producer_snapshots, "write", written)

    def teardown(self) -> None:
        self.patch.undo()
        shutil.rmtree(self.directory)

    @initialize(start=st.integers(0, 100))
    def begin(self, start: int) -> None:
        self.log.truncation.truncate_fully_and_start_at(start)
        self.start = self.end = self.high_watermark = self.on_disk = start

    def _made(self, count: int, size: int, timestamp: int, producer_id: int, key: int) -> bytes:
        sequence = self.sequences.get(producer_id, 0) if producer_id >= 0 else -1
        if producer_id >= 0:
            self.sequences[producer_id] = sequence + count
        return batch(
            count,
            value=b"x" * size,
            timestamp=timestamp,
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            sequence=sequence,
            keys=KEYS[key:] + KEYS[:key],
        )

    @rule(
        shapes=st.lists(
            st.tuples(
                st.integers(1, 4), st.integers(0, 250), st.integers(0, 50), st.integers(-1, 1), st.integers(0, 4)
            ),
            min_size=1,
            max_size=4,
        ),
        new_epoch=st.booleans(),
        as_leader=st.booleans(),
    )
    def append(self, shapes: list[tuple[int, int, int, int, int]], new_epoch: bool, as_leader: bool) -> None:
        if new_epoch:
            self.epoch += 1
        records = b"".join(self._made(*shape) for shape in shapes)
        stored, base = [], self.end
        for position, header in iter_batches(records):
            stamped = (
                base.to_bytes(8, "big")
                + header.length.to_bytes(4, "big")
                + self.epoch.to_bytes(4, "big")
                + records[position + 16 : position + header.size_bytes]
            )
            stored.append(Stored(stamped, read_header(stamped)))
            base = stored[-1].header.next_offset
        if as_leader:
            self.log.become_leader(self.epoch)
            appended = self.log.append_as_leader(records, self.epoch, self.end, 0)
        else:
            self.log.become_follower()
            copied = b"".join(batch.content for batch in stored)
            appended = self.log.append_as_follower(copied, self.epoch, self.end, -1, -1, 0)
        self.model += stored
        for header in (each.header for each in stored if each.header.producer_id >= 0):
            entry = ProducerBatch(header.base_sequence, header.last_sequence, header.base_offset, header.last_offset)
            self.produced[header.producer_id].append(entry)
        self.end = base
        assert appended.last_offset == self.end - 1

    @precondition(lambda self: self.log.segments[-1].size_bytes)
    @rule()
    def roll(self) -> None:
        self.log.writer.roll(self.end)

    @rule(offset=st.integers(0, 200), allowed=st.booleans())
    def truncate(self, offset: int, allowed: bool) -> None:
        unclean_epoch = self.epoch + 1 if allowed else -1
        cut = min(
            [min(stored.header.base_offset, offset) for stored in self.model if stored.header.last_offset >= offset]
            or [self.end]
        )
        if offset < self.start or (cut < self.high_watermark and not allowed):
            if cut < self.high_watermark and not allowed:
                with pytest.raises(LogError, check=lambda e: e.code is ErrorCode.TRUNCATION_BELOW_HIGH_WATERMARK):
                    self.log.truncation.cut_for(offset, unclean_epoch)
            return
        assert self.log.truncation.cut_for(offset, unclean_epoch) == cut
        self.log.offsets.promise_at_most(cut)
        self.log.truncation.truncate_to(cut)
        self._lose_produced(cut)
        if cut < max(self.high_watermark, self.start):  # records before it may have gone for ones behind it
            self.produced = {who: [*self._known(who)] for who in self.produced}
        self.model = [stored for stored in self.model if stored.header.base_offset < cut]
        self.high_watermark = min(self.high_watermark, cut)
        self.start, self.end, self.on_disk = min(self.start, cut), min(self.end, cut), min(self.on_disk, cut)
        self._forget_sequences()

    @rule(offset=st.integers(0, 300))
    def raise_high_watermark(self, offset: int) -> None:
        self.log.offsets.raise_high_watermark(offset)
        self.high_watermark = max(self.high_watermark, min(offset, self.end))

    @precondition(lambda self: self.high_watermark > self.start)
    @rule(data=st.data())
    def raise_log_start(self, data: st.DataObject) -> None:
        self.start = data.draw(st.integers(self.start, self.high_watermark))
        self.log.log_start.raise_to(self.start)
        self.log.remove_deleted()

    @precondition(lambda self: self.high_watermark > self.start)
    @rule(data=st.data())
    def follow_log_start(self, data: st.DataObject) -> None:
        """As far as it may be in the checkpoint; the rest is still due."""
        self.log.become_follower()
        due = data.draw(st.integers(self.start, self.high_watermark))
        self.log.append_as_follower(b"", self.epoch, self.end, -1, due, 0)
        self.start = self.log.offsets.log_start_to_checkpoint
        self.log.log_start.reach(self.start)
        self.log.remove_deleted()

    @rule(now=st.integers(0, 60), keep_ms=st.integers(-1, 60), keep_bytes=st.integers(-1, 4096))
    def retain(self, now: int, keep_ms: int, keep_bytes: int) -> None:
        self.log.config = replace(CONFIG, retention_ms=keep_ms, retention_bytes=keep_bytes)
        before = self.log.segments.copy()
        count = self.log.log_start.expired(now)
        if not count:
            return
        self.log.log_start.move_behind(count)
        self.log.log_start.release_segments()
        self.log.remove_deleted()
        assert self.log.segments[0] is before[count] if count < len(before) else not self.log.size_bytes
        for segment in before[:count]:
            old = -1 < keep_ms < now - segment.max_timestamp
            assert old or keep_bytes >= 0 or segment.end_offset <= self.start
        last = before[count - 1]
        if last.end_offset > self.start and not -1 < keep_ms < now - last.max_timestamp:
            assert self.log.size_bytes >= keep_bytes  # only its size has let the last one go
        self.start = max(self.start, before[count - 1].end_offset)
        assert self.start <= self.high_watermark

    @rule()
    def flush(self) -> None:
        self.log.flush()

    @rule()
    def restart(self) -> None:
        self.log.close()
        self._reopen(clean=True)

    @rule()
    def kill(self) -> None:
        """Of the process: what was written is in the page cache."""
        self._reopen(clean=False)

    @rule(data=st.data(), garbage=st.binary(max_size=80))
    def crash(self, data: st.DataObject, garbage: bytes) -> None:
        """Of the machine: one of the segments that were not flushed ends anywhere above what was, perhaps in garbage;
        the ones behind it are there, empty or missing. Nothing of their indexes is to be believed."""
        flushed = self.on_disk
        last = len(self.log.segments) - 1
        first, unindexed = (
            max(n for n, segment in enumerate(self.log.segments) if n == 0 or segment.base_offset <= offset)
            for offset in (flushed, self.log.recovery_point)
        )
        chosen = data.draw(st.integers(first, last))
        segment = self.log.segments[chosen]
        kept = sum(
            len(stored.content) for stored in self.model if segment.base_offset <= stored.header.base_offset < flushed
        )
        length = data.draw(st.integers(min(kept, segment.size_bytes), segment.size_bytes))
        with segment.path.open("r+b") as file:
            file.truncate(length)
            file.seek(length)
            file.write(garbage)
        for later in self.log.segments[chosen + 1 :]:
            match data.draw(st.sampled_from(["there", "empty", "missing"])):
                case "empty":
                    later.path.write_bytes(b"")
                case "missing":
                    later.path.unlink()
        for unflushed in self.log.segments[unindexed:]:
            for path in unflushed.paths()[1:]:
                if data.draw(st.booleans()):
                    path.write_bytes(garbage)
        for path in sorted(self.directory.glob("*.snapshot")):
            if path not in self.durable and data.draw(st.booleans()):
                path.write_bytes(garbage)
        before = self.model
        self._reopen(clean=False, compare=False)
        end = self.log.log_end_offset
        self._lose_produced(end)
        self.model = [stored for stored in before if stored.header.base_offset < end]
        ends = {stored.header.next_offset for stored in self.model}
        assert end in ends or end == self.log.segments[-1].base_offset  # a prefix, cut between batches
        assert max(flushed, self.start) <= end <= self.end
        self.end = end
        self.high_watermark = min(self.high_watermark, end)
        self._forget_sequences()

    @rule(wanted=st.integers(0, 300), again=st.booleans())
    def clean(self, wanted: int, again: bool) -> None:
        """Compaction of what is committed and flushed, up to any sealed segment."""
        stable = min(self.log.recovery_point, self.high_watermark, wanted)
        ends = [segment.base_offset for segment in self.log.segments[1:] if segment.base_offset <= stable]
        if not ends:
            return
        first_dirty = self.log.segments[0].base_offset
        if again and self.log.cleaned_to is not None and first_dirty <= self.log.cleaned_to < ends[-1]:
            first_dirty = self.log.cleaned_to
        before = self._records()
        job, present = clean_job(self.log, CleanableRange(first_dirty, ends[-1]), 0)
        report = run_pass(job, PassLimits(), lambda group: self._swap_in(group, present), lambda _: None)
        self.log.offsets.cleaned_to = report.cleaned_to
        self.log.remove_deleted()
        after = self._records()
        assert after.items() <= before.items()  # what stays is as it was, at its offset
        latest = {key: offset for offset, (key, _) in before.items()}
        for offset, (key, _) in before.items():
            assert offset in after or (offset < report.cleaned_to and latest[key] > offset)  # invariant 8
        self._read_model()

    def _swap_in(self, group: object, present: dict[int, Segment]) -> None:
        assert swap_in(self.log, group, present)  # type: ignore[arg-type]

    def _records(self) -> dict[int, tuple[bytes | None, bytes | None]]:
        return {
            record.offset: (record.key, record.value)
            for segment in self.log.segments
            for position, header in segment.headers(0)
            for record in decode(segment.batch_at(position, header)).records()
        }

    def _read_model(self) -> None:
        first = self.log.segments[0].base_offset
        self.model = [stored for stored in self.model if stored.header.last_offset < first] + [
            Stored(segment.batch_at(position, header), header)
            for segment in self.log.segments
            for position, header in segment.headers(0)
        ]

    def _reopen(self, *, clean: bool, compare: bool = True) -> None:
        self.start = self.log.offsets.log_start_to_checkpoint  # which may have been written at any time
        known = Checkpointed(clean, self.log.recovery_point, self.start, self.high_watermark)
        end, producers = self.log.log_end_offset, self.log.producers
        self.log = make_log(self.directory, CONFIG, known)
        self._forget_sequences()
        if compare:
            assert self.log.log_end_offset == end
            assert self.log.producers == producers  # of those too whose records are gone

    def _lose_produced(self, end: int) -> None:
        self.produced = {
            who: [entry for entry in batches if entry.base_offset < end] for who, batches in self.produced.items()
        }

    def _known(self, producer_id: int) -> tuple[ProducerBatch, ...]:
        state = self.log.producers.get(producer_id)
        return () if state is None else state.batches

    def _forget_sequences(self) -> None:
        """The producers go on from what the log remembers of them; the invariant below says what it must."""
        states = {producer_id: self.log.producers.get(producer_id) for producer_id in (0, 1)}
        self.sequences = {
            key: state.batches[-1].last_sequence + 1 for key, state in states.items() if state is not None
        }

    @invariant()
    def the_log_is_the_model(self) -> None:
        assert self.log.log_end_offset == self.end
        assert self.log.log_start_offset == self.start
        assert self.log.high_watermark == self.high_watermark
        kept = [stored for stored in self.model if stored.header.last_offset >= self.start]
        assert read_all(self.log) == [stored.header for stored in kept]
        for stored in kept[-3:]:
            assert self.log.read(max(stored.header.base_offset, self.start), -1, 1) == stored.content

    @invariant()
    def epochs_are_those_of_the_batches(self) -> None:
        for stored in self.model:
            if stored.header.last_offset >= self.start:
                found = self.log.epochs.last_epoch_below(stored.header.base_offset + 1)
                assert found == stored.header.partition_leader_epoch
        # Also where all batches have gone: deleted, and the rest lost in a crash.
        last_epoch = self.model[-1].header.partition_leader_epoch if self.model else self.floor_epoch
        assert self.log.last_epoch == last_epoch
        assert LeaderEpochCache(self.log.epochs.entries) == self.log.epochs

    @invariant()
    def producers_are_those_of_the_batches(self) -> None:
        """Of all there have been: what is known of them outlives their records."""
        for producer_id, batches in self.produced.items():
            assert self._known(producer_id)[-1:] == tuple(batches[-1:])

    @invariant()
    def lookups_by_time_find_the_first(self) -> None:
        for asked in (0, 25, 52):
            expected = -1
            for stored in self.model:
                hits = [r.offset for r in stored.records if r.timestamp >= asked and r.offset >= self.start]
                if hits:
                    expected = min(hits)
                    break
            assert self.log.reader.list_offset(asked).offset == expected

    @invariant()
    def the_newest_is_found_below_any_bound(self) -> None:
        """MAX_TIMESTAMP: the first record with the largest one."""
        for bound in (self.end, self.high_watermark, (self.start + self.end) // 2):
            stamps = [
                (-record.timestamp, record.offset)
                for stored in self.model
                for record in stored.records
                if self.start <= record.offset < bound
            ]
            expected = min(stamps)[1] if stamps else -1
            assert self.log.reader.list_offset(MAX_TIMESTAMP, bound).offset == expected


# Shrinking what has failed takes longer than a test may, and then says what it was.
pytestmark = pytest.mark.timeout(600)
LogMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestLogMachine = LogMachine.TestCase

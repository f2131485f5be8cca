"""Compaction against a list of records (invariant 8): the last value of every key stays, a tombstone stays as long as
it should, offsets never change; also where the map overflows, and where a pass is given up between two groups."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from log_storage_batches import make_log

from highwater.log_storage.compaction.cleaner_job import CleanedGroup, PassLimits
from highwater.log_storage.compaction.cleaner_process import run_pass
from highwater.log_storage.compaction.offset_map import ENTRY_BYTES
from highwater.log_storage.compaction.segment_swap import as_seen, due_job, swap_in
from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.log.log import Log
from highwater.log_storage.recovery.recovery import Checkpointed
from highwater.model.leader_epochs import NO_EPOCH
from highwater.records import Codec, Record, decode, encode_lists, encode_rows, iter_batches

CONFIG = LogConfig(
    segment_bytes=2048,
    index_interval_bytes=150,
    index_max_bytes=240,
    compacts=True,
    deletes=False,
    min_cleanable_ratio=0.0,
    delete_retention_ms=1000,
)


SHORT_KEYS = st.integers(0, 6).map(lambda number: b"key-%d" % number)


def keys_of(lengths: list[int]) -> st.SearchStrategy[bytes]:
    """Alike up to their last byte. They are hashed in other ways by their length."""
    return st.builds(
        lambda length, last: (b"k" * 4096)[: max(length - 1, 0)] + last[: min(length, 1)],
        st.sampled_from(lengths),
        st.sampled_from([b"a", b"b"]),
    )


def records_with(keys: st.SearchStrategy[Any]) -> st.SearchStrategy[list[tuple[bytes | None, bytes | None]]]:
    return st.lists(st.tuples(keys, st.one_of(st.none(), st.binary(max_size=60))), min_size=1, max_size=8)


def encode(records: list[tuple[bytes | None, bytes | None]], columnar: bool, codec: Codec, **options: Any) -> bytes:
    timestamps = range(1000, 1000 + len(records))
    if columnar:
        keys, values = zip(*records, strict=True)
        return encode_lists(timestamps, keys, values, codec=codec, **options)
    rows = [Record(0, at, key, value, ()) for at, (key, value) in zip(timestamps, records, strict=True)]
    return encode_rows(rows, codec=codec, **options)


def records_of(log: Log) -> list[Record]:
    """Everything that a reader sees."""
    found: list[Record] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        content = log.read(offset, -1, 1 << 20)
        if not content:  # it was cut within a gap, and ends there
            assert all(header.last_offset < offset for header in log.segment_list.headers())
            break
        for position, header in iter_batches(content):
            assert header.last_offset >= offset
            found += [record for record in decode(content, position).records() if record.offset >= offset]
            offset = header.next_offset
    return found


class CleanerMachine(RuleBasedStateMachine):
    """`written` is every record that was ever appended; `horizons` tells when a tombstone may first be missed."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="highwater-cleaner-")) / "topic-0"
        self.log = make_log(self.directory, CONFIG)
        self.written: dict[int, tuple[bytes | None, bytes | None]] = {}
        self.passed_over: dict[int, int] = {}  # when compaction first passed over a tombstone
        self.now_ms = 1_000_000
        self.epoch = 0
        self.sequence = 0
        self.epoch_starts: dict[int, int] = {}

    def teardown(self) -> None:
        shutil.rmtree(self.directory.parent)

    @initialize(start=st.integers(0, 50))
    def begin(self, start: int) -> None:
        self.log.truncation.truncate_fully_and_start_at(start)

    @rule(
        records=st.one_of(
            records_with(st.one_of(st.none(), SHORT_KEYS, keys_of([0, 1, 255, 256, 257, 300, 4096]))),
            records_with(keys_of([256, 257, 300])),  # a batch of long keys alone
        ),
        columnar=st.booleans(),
        codec=st.sampled_from([Codec.NONE, Codec.LZ4]),
        produced=st.booleans(),
        new_epoch=st.booleans(),
    )
    def append(
        self,
        records: list[tuple[bytes | None, bytes | None]],
        columnar: bool,
        codec: Codec,
        produced: bool,
        new_epoch: bool,
    ) -> None:
        self.epoch += new_epoch
        options = {"producer_id": 5, "producer_epoch": 0, "base_sequence": self.sequence} if produced else {}
        appended = self.log.append_as_leader(
            encode(records, columnar, codec, **options), self.epoch, self.log.log_end_offset, 0
        )
        self.sequence += len(records) if produced else 0
        self.epoch_starts.setdefault(self.epoch, appended.base_offset)
        for offset, record in enumerate(records, appended.base_offset):
            self.written[offset] = record

    @rule()
    def roll(self) -> None:
        if self.log.segments[-1].size_bytes:
            self.log.writer.roll(self.log.log_end_offset)

    @rule(share=st.floats(0, 1))
    def commit(self, share: float) -> None:
        self.log.flush()
        self.log.offsets.raise_high_watermark(round(self.log.log_end_offset * share))

    @rule(ms=st.integers(1, 1500))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @rule(
        all_of_it=st.sampled_from([True, True, False]),
        slots=st.sampled_from([3, 5, 11, 1000, 1000]),
        io_bytes=st.sampled_from([64, 400, 1 << 19]),
        swaps=st.sampled_from([0, 0, 0, 1, 2]),
        deleted=st.sampled_from([None, None, None, (0, 0.5), (0, 1.0), (1, 0.5), (1, 1.0)]),
    )
    def clean(self, all_of_it: bool, slots: int, io_bytes: int, swaps: int, deleted: tuple[int, float] | None) -> None:
        """A pass; also one of which only the first groups are swapped in before it is stopped, and one beside which
        records are deleted: between the choice and its beginning, or before its first segment is put in."""
        if all_of_it:
            self.roll()
            self.commit(1.0)
        cleanable = as_seen(None, self.log, self.now_ms).range
        if cleanable.first_dirty_offset == cleanable.end_offset:
            return
        if deleted is not None and deleted[0] == 0:
            self._delete(deleted[1])
        before = records_of(self.log)
        limits = PassLimits(map_bytes=slots * ENTRY_BYTES, io_bytes=io_bytes)
        due = due_job(self.log, self.now_ms)
        if due is None:
            assert deleted is not None
            return
        job, present = due.complete(), due.present
        groups: list[CleanedGroup] = []
        report = run_pass(job, limits, groups.append, lambda moved: None)  # type: ignore[arg-type]
        whole = swaps == 0 or swaps >= len(groups)
        if deleted is not None and deleted[0] == 1:
            self._delete(deleted[1])
        for group in groups if whole else groups[:swaps]:
            if not swap_in(self.log, group, present):
                assert deleted is not None
                whole = False
                break
        if whole:
            assert job.first_dirty_offset < report.cleaned_to <= job.end_offset
            self.log.offsets.cleaned_to = report.cleaned_to
        else:
            for path in self.directory.glob("*.cleaned"):
                path.unlink()
        for record in before:
            if record.value is None and record.offset < report.cleaned_to:
                self.passed_over.setdefault(record.offset, self.now_ms)

    @precondition(lambda self: self.log.high_watermark > self.log.log_start_offset)
    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        self._delete(share)

    def _delete(self, share: float) -> None:
        span = self.log.high_watermark - self.log.log_start_offset
        self.log.log_start.raise_to(self.log.log_start_offset + round(span * share))

    @rule(share=st.floats(0, 1), unclean=st.booleans())
    def truncate(self, share: float, unclean: bool) -> None:
        """To the high watermark at the least; after an unclean election also below it, and below what was clean."""
        log = self.log
        lowest = log.segments[0].base_offset if unclean else log.high_watermark
        wanted = lowest + round((log.log_end_offset - lowest) * share)
        try:
            cut = log.truncation.cut_for(max(wanted, lowest), log.last_epoch + 1 if unclean else -1)
        except LogError:  # the high watermark is within a batch
            assert not unclean
            return
        log.offsets.promise_at_most(cut)
        log.truncation.truncate_to(cut)
        assert (log.cleaned_to or 0) <= log.log_end_offset
        for known in (self.written, self.passed_over):
            for offset in [offset for offset in known if offset >= cut]:
                del known[offset]  # type: ignore[attr-defined]
        self.epoch_starts = {epoch: start for epoch, start in self.epoch_starts.items() if start < cut}
        if unclean:  # what was committed may be lost, and what it had taken the place of does not come back
            left = {record.offset for record in records_of(log)}
            self.written = {offset: record for offset, record in self.written.items() if offset in left}
        producer = log.producers.get(5)
        self.sequence = producer.batches[-1].last_sequence + 1 if producer is not None else 0

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        log = self.log
        if clean:
            log.close()
        known = Checkpointed(clean, log.recovery_point, log.log_start_offset, log.high_watermark, log.cleaned_to)
        producers = log.producers
        last = max((header.next_offset for header in log.segment_list.headers()), default=log.log_end_offset)
        last = max(last, log.segments[-1].base_offset)  # rolled in a gap
        self.log = make_log(self.directory, CONFIG, known)
        # After a truncation into a gap the log ends where its last batch does.
        assert max(last, log.log_start_offset) == self.log.log_end_offset
        epochs = {log.last_epoch}
        if not clean and log.last_epoch == NO_EPOCH:
            # Cut below what was its start it had let go of the epochs before it, of which the file still tells.
            epochs.add(max(self.epoch_starts, default=NO_EPOCH))
        assert self.log.last_epoch in epochs
        # A producer's last sequence outlives its records.
        assert {who: (state.epoch, state.batches[-1]) for who, state in self.log.producers.items()} == {
            who: (state.epoch, state.batches[-1]) for who, state in producers.items()
        }

    @invariant()
    def what_is_left_is_what_was_written(self) -> None:
        found = {record.offset: (record.key, record.value) for record in records_of(self.log)}
        start = self.log.log_start_offset
        expected = {offset: record for offset, record in self.written.items() if offset >= start}
        assert found.items() <= expected.items()  # invariant 8: offsets never change
        last = {record[0]: offset for offset, record in sorted(expected.items()) if record[0] is not None}
        cleaned_to = self.log.cleaned_to or 0
        for offset, (key, value) in expected.items():
            if last.get(key) == offset and value is not None:
                assert offset in found  # invariant 8: the last value of every key
            if last.get(key) == offset and value is None and offset not in found:
                assert self.now_ms >= self.passed_over[offset] + CONFIG.delete_retention_ms
            if offset >= max(cleaned_to, self.log.high_watermark):
                assert offset in found
        # Where the tombstone has gone, what it covered has gone before.
        for key, offset in last.items():
            if offset not in found:
                assert not [older for older, (other, _) in found.items() if other == key]
        # What has been compacted has each key at most once.
        keys = [key for offset, (key, _) in found.items() if offset < cleaned_to]
        assert None not in keys
        assert len(keys) == len(set(keys))

    @invariant()
    def each_epoch_has_its_first_batch(self) -> None:
        """RULES 4.3: the cache can be made again from the headers."""
        starts: dict[int, int] = {}
        for header in self.log.segment_list.headers():
            starts.setdefault(header.partition_leader_epoch, header.base_offset)
        for epoch, start in self.epoch_starts.items():
            if start >= self.log.segments[0].base_offset and epoch in starts:
                assert starts[epoch] == start
        present = {epoch for epoch, start in self.epoch_starts.items() if start >= self.log.segments[0].base_offset}
        assert present <= set(starts)


TestCleaner = CleanerMachine.TestCase
TestCleaner.settings = settings(max_examples=80, stateful_step_count=25, deadline=None)

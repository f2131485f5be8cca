"""The process that compacts, by itself: what it is told and answers, and that it does not outlive its log-storage."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from log_storage_batches import make_log
from test_cleaner_crashes import KEYS, LIMITS, NOW, fill, problems
from test_cleaner_model import CONFIG, encode, records_of

from highwater.log_storage.compaction import cleaner_pass as cleaner_module
from highwater.log_storage.compaction import cleaner_process
from highwater.log_storage.compaction.cleaner_job import (
    Answer,
    CleanedGroup,
    CleanJob,
    PassFailed,
    PassLimits,
    PassReport,
    SegmentFile,
    answer_from_json,
    answer_to_json,
)
from highwater.log_storage.compaction.cleaner_pass import Cleaner, CleanerError
from highwater.log_storage.compaction.cleaner_process import run_pass
from highwater.log_storage.compaction.cleaner_worker import CleanerWorker
from highwater.log_storage.compaction.offset_map import ENTRY_BYTES
from highwater.log_storage.compaction.segment_swap import as_seen, clean_job, swap_in
from highwater.log_storage.log.log import Log
from highwater.log_storage.recovery.recovery import Checkpointed
from highwater.records import Batch, Codec, encode_lists, read_header

PATIENCE_S = 30


def job_of(log: Log) -> CleanJob:
    return clean_job(log, as_seen(None, log, NOW).range, NOW)[0]


@pytest.mark.parametrize(
    "answer",
    [
        CleanedGroup((0, 100), 4711, 200),
        PassReport(200, 5, 100, 95, 1, 1 << 20, 1 << 10, 1 << 27),
        PassFailed("no space left", False),
    ],
)
def test_what_is_said_between_the_processes(answer: Answer) -> None:
    assert answer_from_json(answer_to_json(answer)) == answer
    assert "\n" not in answer_to_json(answer)
    job = CleanJob(
        "/data/t-0", (SegmentFile(0, 100, 7),), 3, 100, NOW, 0, 1 << 20, 1 << 10, 4096, True, bytes(range(32))
    )
    assert CleanJob.from_json(job.to_json()) == job


async def test_a_process_does_one_job_after_another_and_ends_with_the_log_storage(tmp_path: Path) -> None:
    worker = CleanerWorker(LIMITS)
    assert worker.pid is None
    for number in (0, 1):
        log = make_log(tmp_path / f"t-{number}", CONFIG)
        fill(log, 0, 20)
        answers = [answer async for answer in worker.run(job_of(log))]
        assert [type(answer) for answer in answers] == [CleanedGroup] * (len(answers) - 1) + [PassReport]
        report = answers[-1]
        assert isinstance(report, PassReport)
        assert (report.cleaned_to, report.keys, report.records_read) == (60, KEYS, 60)
        assert report.peak_memory_bytes > 20 << 20
    await worker.close()
    assert worker.pid is None


def test_it_ends_with_its_standard_input_in_the_middle_of_a_pass(tmp_path: Path) -> None:
    log = make_log(tmp_path / "t-0", CONFIG)
    fill(log, 0, 20)
    limits = json.dumps({"bytes_per_second": 1})
    command = [sys.executable, "-m", "highwater.log_storage.compaction.cleaner_process", limits]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(job_of(log).to_json().encode() + b"\n")
        process.stdin.close()
        assert process.wait(PATIENCE_S) == 0
    assert len(records_of(log)) == 60


def test_a_pass_is_held_back_to_its_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`log.cleaner.io.max.bytes.per.second`: what is read and what is written counts."""
    log = make_log(tmp_path / "t-0", CONFIG)
    fill(log, 0, 20)
    now_s, slept_s = 100.0, 0.0

    def sleep(delay_s: float) -> None:
        nonlocal now_s, slept_s
        now_s, slept_s = now_s + delay_s, slept_s + delay_s

    monkeypatch.setattr(cleaner_process.time, "monotonic", lambda: now_s)
    monkeypatch.setattr(cleaner_process.time, "sleep", sleep)
    report = run_pass(job_of(log), LIMITS, lambda answer: None, cleaner_process.throttled(1_000))
    assert report.bytes_written > 0
    assert slept_s == pytest.approx((report.bytes_read + report.bytes_written) / 1_000)


def test_a_damaged_batch_is_not_carried_over(tmp_path: Path) -> None:
    log = make_log(tmp_path / "t-0", CONFIG)
    fill(log, 0, 20)
    path = log.segments[1].path
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    with pytest.raises(CleanerError, match=path.name):
        run_pass(job_of(log), LIMITS, lambda answer: None, lambda moved: None)
    assert not list(tmp_path.glob("*/*.cleaned*"))


def test_no_segment_is_made_that_an_index_could_not_point_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions have 31 bits. Batches that lose records may grow: columns then get their offsets."""
    log = make_log(tmp_path / "t-0", CONFIG)
    fill(log, 0, 20)
    monkeypatch.setattr(cleaner_module, "MAX_SEGMENT_BYTES", 100)
    with pytest.raises(CleanerError, match=r"would exceed 2 GiB: give the topic a smaller segment\.bytes"):
        run_pass(job_of(log), LIMITS, lambda answer: None, lambda moved: None)
    assert not list(tmp_path.glob("*/*.cleaned*"))
    assert len(records_of(log)) == 60


def test_columns_are_compacted_by_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = make_log(tmp_path / "t-0", CONFIG)
    for first in range(0, 60, 10):
        keys: list[bytes | None] = [b"key-%d" % (number % 4) for number in range(first, first + 10)]
        values = [None if number % 7 == 0 else b"%d" % number * 9 for number in range(first, first + 10)]
        log.append_as_leader(encode_lists([1] * 10, keys, values, codec=Codec.LZ4), 1, first, 0)
    log.writer.roll(60)
    log.flush()
    log.offsets.raise_high_watermark(60)
    job, present = clean_job(log, as_seen(None, log, NOW).range, NOW)
    groups: list[Answer] = []

    def never(*_: object) -> None:
        raise AssertionError("a record of a columnar batch was looked at by itself")

    with monkeypatch.context() as patched:
        patched.setattr(Batch, "records", never)
        run_pass(job, LIMITS, groups.append, lambda moved: None)
    for group in groups:
        assert isinstance(group, CleanedGroup)
        assert swap_in(log, group, present)
    assert [(record.offset, record.key, record.value) for record in records_of(log)] == [
        (56, b"key-0", None),
        *((number, b"key-%d" % (number % 4), b"%d" % number * 9) for number in (57, 58, 59)),
    ]
    assert all(header.columnar for header in log.segment_list.headers() if header.record_count)


def test_a_log_start_that_rises_meanwhile_stops_it(tmp_path: Path) -> None:
    log = make_log(tmp_path / "t-0", CONFIG)
    fill(log, 0, 40)
    job, present = clean_job(log, as_seen(None, log, NOW).range, NOW)
    groups: list[Answer] = []
    run_pass(job, LIMITS, groups.append, lambda moved: None)
    log.log_start.raise_to(log.segments[1].base_offset + 1)
    left = [record.offset for record in records_of(log)]
    first, second = groups[:2]
    assert isinstance(first, CleanedGroup)
    assert isinstance(second, CleanedGroup)
    assert not swap_in(log, first, present)
    assert [record.offset for record in records_of(log)] == left


def test_records_without_a_key_from_before_the_policy_go(tmp_path: Path) -> None:
    """RULES 10.3."""
    log = make_log(tmp_path / "t-0", CONFIG)
    log.append_as_leader(encode([(None, b"a"), (b"k", b"b"), (None, b"c")], False, Codec.LZ4), 1, 0, 0)
    log.append_as_leader(encode([(None, b"d"), (b"l", None)], True, Codec.ZSTD), 1, 3, 0)
    log.writer.roll(5)
    log.flush()
    log.offsets.raise_high_watermark(5)
    job, present = clean_job(log, as_seen(None, log, NOW).range, NOW)
    groups: list[Answer] = []
    assert run_pass(job, LIMITS, groups.append, lambda moved: None).keyless_dropped == 3
    for group in groups:
        assert isinstance(group, CleanedGroup)
        assert swap_in(log, group, present)
    assert [(record.offset, record.key, record.value) for record in records_of(log)] == [
        (1, b"k", b"b"),
        (4, b"l", None),
    ]
    # The tombstone's batch tells from when on it may go.
    horizons = [header.delete_horizon_ms for header in log.segment_list.headers()]
    assert horizons == [None, NOW + CONFIG.delete_retention_ms]


def pass_over(log: Log, now_ms: int) -> None:
    """A pass over everything that there is."""
    log.writer.roll(log.log_end_offset)
    log.flush()
    log.offsets.raise_high_watermark(log.log_end_offset)
    job, present = clean_job(log, as_seen(None, log, now_ms).range, now_ms)
    groups: list[Answer] = []
    log.offsets.cleaned_to = run_pass(job, LIMITS, groups.append, lambda moved: None).cleaned_to
    for group in groups:
        assert isinstance(group, CleanedGroup)
        assert swap_in(log, group, present)


@pytest.mark.parametrize("columnar", [False, True])
def test_a_tombstone_stays_as_long_as_it_should_and_then_goes(tmp_path: Path, columnar: bool) -> None:
    """`delete.retention.ms` counts from the pass that first went over it, whatever its own timestamp is."""
    log = make_log(tmp_path / "t-0", CONFIG)
    written: list[tuple[bytes | None, bytes | None]] = [(b"k", b"old"), (b"l", b"kept"), (b"k", None), (b"m", None)]
    log.append_as_leader(encode(written, columnar, Codec.LZ4), 1, 0, 0)
    kept = [(1, b"l", b"kept"), (2, b"k", None), (3, b"m", None)]
    for number, waited_ms in enumerate((0, CONFIG.delete_retention_ms - 1, CONFIG.delete_retention_ms)):
        if number == 2:
            kept = kept[:1]
        pass_over(log, NOW + waited_ms)
        found = [(record.offset, record.key, record.value) for record in records_of(log) if record.key != b"more"]
        assert found == kept, waited_ms
        log.append_as_leader(encode([(b"more", b"%d" % number)], columnar, Codec.LZ4), 1, log.log_end_offset, 0)


def test_a_producer_is_not_forgotten_with_its_records(tmp_path: Path) -> None:
    """Not even where its snapshots are lost: its last batch stays, without records."""
    log = make_log(tmp_path / "t-0", CONFIG)
    for sequence in range(3):
        fields = {"producer_id": 5, "producer_epoch": 2, "base_sequence": sequence}
        log.append_as_leader(encode([(b"k", b"mine")], False, Codec.NONE, **fields), 1, sequence, 0)
    log.append_as_leader(encode([(b"k", b"another's")], False, Codec.NONE), 1, 3, 0)
    before = log.producers.get(5)
    pass_over(log, NOW)
    assert [record.offset for record in records_of(log)] == [3]
    for path in log.directory.glob("*.snapshot"):
        path.unlink()
    after = make_log(log.directory, CONFIG, Checkpointed(False, log.recovery_point)).producers.get(5)
    assert before is not None
    assert after is not None
    assert (after.epoch, after.batches[-1]) == (before.epoch, before.batches[-1])


def test_cleaned_segments_are_as_old_as_the_last_they_replace_and_small_ones_become_one(tmp_path: Path) -> None:
    log = make_log(tmp_path / "t-0", CONFIG)
    fill(log, 0, 40)
    mtimes = {segment.base_offset: segment.path.stat().st_mtime_ns for segment in log.segments}
    job, present = clean_job(log, as_seen(None, log, NOW).range, NOW)
    many = len(present)
    groups: list[Answer] = []
    run_pass(job, LIMITS, groups.append, lambda moved: None)
    for group in groups:
        assert isinstance(group, CleanedGroup)
        assert swap_in(log, group, present)
        replaced = next(each for each in log.segments if each.base_offset == group.base_offsets[0])
        assert replaced.path.stat().st_mtime_ns == mtimes[group.base_offsets[-1]]
    log.offsets.cleaned_to = log.segments[-1].base_offset
    fill(log, 40, 5)
    job, present = clean_job(log, as_seen(None, log, NOW).range, NOW)
    again: list[Answer] = []
    run_pass(job, LIMITS, again.append, lambda moved: None)
    assert max(len(group.base_offsets) for group in again if isinstance(group, CleanedGroup)) > 3
    for group in again:
        assert isinstance(group, CleanedGroup)
        assert swap_in(log, group, present)
    assert len(log.segments) < many / 2
    log.close()
    assert not problems(log.directory)


def test_a_pass_that_changes_nothing_leaves_the_files_as_they_are(tmp_path: Path) -> None:
    log = make_log(tmp_path / "t-0", CONFIG)
    values = [b"%d" % number * 100 for number in range(12)]
    for first in range(0, 12, 3):
        keys = [b"key-%d" % number for number in range(first, first + 3)]
        log.append_as_leader(encode_lists([1] * 3, keys, values[first : first + 3]), 1, first, 0)
    log.writer.roll(12)
    log.flush()
    log.offsets.raise_high_watermark(12)
    sizes = [segment.size_bytes for segment in log.segments]
    assert min(sizes[:-1]) > CONFIG.segment_bytes / 2 or len(sizes) == 2
    groups: list[Answer] = []
    report = run_pass(job_of(log), LIMITS, groups.append, lambda moved: None)
    assert (groups, report.records_dropped, report.cleaned_to) == ([], 0, 12)


def test_a_large_batch_is_read_whole_and_a_map_without_room_is_refused(tmp_path: Path) -> None:
    log = make_log(tmp_path / "t-0", CONFIG)
    content = encode_lists([1] * 500, [b"key"] * 500, [b"%d" % number for number in range(500)])
    log.append_as_leader(content, 1, 0, 0)
    log.writer.roll(500)
    log.flush()
    log.offsets.raise_high_watermark(500)
    assert read_header(content).size_bytes > 64
    cleaner = Cleaner(job_of(log), PassLimits(map_bytes=3 * ENTRY_BYTES, io_bytes=64), seed=1)
    assert cleaner.build_map() == 500
    assert cleaner.keys == 1
    [group] = cleaner.groups()
    assert cleaner.clean(group) is not None
    with pytest.raises(ValueError, match=r"log\.cleaner\.dedupe\.buffer\.size"):
        Cleaner(job_of(log), PassLimits(map_bytes=ENTRY_BYTES))


def test_a_measurement_of_a_directory(tmp_path: Path) -> None:
    log = make_log(tmp_path / "t-0", CONFIG)
    fill(log, 0, 40)
    log.close()
    command = [sys.executable, "-m", "highwater.log_storage.compaction.offline_cleaning", str(log.directory)]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S).stdout)
    assert (told["passes"], told["records_read"]) == (1, 120)
    assert told["records_dropped"] >= 120 - KEYS - 3
    assert told["seconds"] > 0
    assert told["peak_memory_bytes"] > pa.total_allocated_bytes()

"""Reopening after a crash (invariant 7), and what is done with left-overs."""

from __future__ import annotations

import logging
import re
import shutil
from pathlib import Path

import pytest
from log_storage_batches import batch, lead, make_log, produced, read_all

from highwater.errors import ErrorCode
from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.log.log import Appended, Log
from highwater.log_storage.recovery.recovery import Checkpointed
from highwater.log_storage.segment.segment_files import file_name
from highwater.model.log_state import LogState
from highwater.records import read_header

SMALL = LogConfig(segment_bytes=1024, index_interval_bytes=100)
CRASHED = Checkpointed()
CLEAN = Checkpointed(clean=True)


def filled(directory: Path, batches: int = 20) -> Log:
    """Batches of one record, two to a segment; a new epoch every five."""
    log = make_log(directory, SMALL)
    for number in range(batches):
        lead(log, _padded(number), epoch=1 + number // 5)
    return log


def _padded(number: int) -> bytes:
    return batch(value=b"x" * 300, timestamp=1_000 + number)


def offsets(log: Log) -> list[int]:
    return [header.base_offset for header in read_all(log)]


@pytest.mark.parametrize("known", [CLEAN, CRASHED, Checkpointed(recovery_point=7)])
def test_everything_is_there_again(tmp_path: Path, known: Checkpointed) -> None:
    log = make_log(tmp_path, SMALL)
    sent = [produced(2, sequence=2 * number) for number in range(8)]
    for number, encoded in enumerate(sent):
        lead(log, encoded, epoch=1 + number // 3)
        lead(log, _padded(number), epoch=1 + number // 3)
    log.offsets.raise_high_watermark(9)
    log.close()
    again = make_log(tmp_path, SMALL, Checkpointed(known.clean, known.recovery_point, 0, 9))
    assert again.state == log.state
    assert again.epochs == log.epochs
    assert again.producers.get(7) == log.producers.get(7)
    assert again.read(0, -1, 100_000) == log.read(0, -1, 100_000)
    assert read_all(again) == read_all(log)
    assert lead(again, sent[-1], epoch=4).duplicate
    assert again.recovery_point == (again.log_end_offset if known.clean else known.recovery_point)


def test_the_last_batch_cut_at_every_byte(tmp_path: Path) -> None:
    original = tmp_path / "original"
    log = make_log(original)
    lead(log, produced(sequence=0))
    lead(log, produced(sequence=1))
    before = log.size_bytes
    lead(log, produced(2, sequence=2))
    content = log.segments[0].path.read_bytes()
    for length in range(before, len(content) + 1):
        directory = tmp_path / f"cut-{length}"
        directory.mkdir()
        (directory / file_name(0, ".log")).write_bytes(content[:length])
        again = make_log(directory)
        whole = length == len(content)
        assert again.log_end_offset == (4 if whole else 2), length
        assert again.segments[0].path.stat().st_size == (len(content) if whole else before)
        assert lead(again, produced(2, sequence=2)) == Appended(2, 3, whole, -1)  # the producers went with the log
        shutil.rmtree(directory)


def test_a_flipped_bit_anywhere_in_the_last_batch(tmp_path: Path) -> None:
    log = make_log(tmp_path / "original")
    lead(log, batch(2), epoch=5)
    before = log.size_bytes
    lead(log, batch(2), epoch=5)
    content = log.segments[0].path.read_bytes()
    directory = tmp_path / "flipped"
    for position in range(before, len(content)):
        directory.mkdir()
        damaged = bytearray(content)
        damaged[position] ^= 0x10
        (directory / file_name(0, ".log")).write_bytes(damaged)
        again = make_log(directory)
        # The leader epoch alone is outside the CRC: a higher one cannot be told from a true one.
        in_epoch = before + 12 <= position < before + 16
        assert again.log_end_offset in ((2, 4) if in_epoch else (2,)), position - before
        for header in read_all(again):
            assert header.record_count == 2
        shutil.rmtree(directory)


@pytest.mark.parametrize("tail", [b"\0" * 5, b"\0" * 300, b"garbage" * 30])
def test_garbage_behind_the_last_batch_is_cut(tmp_path: Path, tail: bytes) -> None:
    log = filled(tmp_path)
    last = log.segments[-1].path
    size = last.stat().st_size
    with last.open("ab") as file:
        file.write(tail)
    again = make_log(tmp_path, SMALL)
    assert again.state == log.state
    assert last.stat().st_size == size


def test_a_hole_drops_all_later_segments(tmp_path: Path) -> None:
    log = filled(tmp_path)
    damaged = log.segments[4].path
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    again = make_log(tmp_path, SMALL)
    assert offsets(again) == list(range(9))
    assert again.epochs.entries == ((1, 0), (2, 5))
    assert sorted(path.name for path in tmp_path.glob("*.log")) == [file_name(base, ".log") for base in (0, 2, 4, 6, 8)]
    assert lead(again, batch(), epoch=9).base_offset == 9


def test_what_recovery_cuts_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Which file, where, why, and how much."""
    log = filled(tmp_path)
    dropped = sum(segment.size_bytes for segment in log.segments[5:])
    damaged = log.segments[4]
    [_, (position, header)] = damaged.headers(0)
    content = bytearray(damaged.path.read_bytes())
    content[-1] ^= 1
    damaged.path.write_bytes(content)
    with caplog.at_level(logging.WARNING, "highwater"):
        make_log(tmp_path, SMALL)
    (said,) = [record.getMessage() for record in caplog.records]
    assert str(damaged.path) in said
    assert "CRC-32C" in said
    assert f"position={position} bytes={header.size_bytes + dropped} segments_dropped=5" in said
    caplog.clear()
    with caplog.at_level(logging.WARNING, "highwater"):
        make_log(tmp_path, SMALL)
    assert not caplog.records


def test_a_segment_whose_tail_is_gone_at_a_batch_drops_what_follows(tmp_path: Path) -> None:
    log = filled(tmp_path)
    shorter = log.segments[4].path
    content = shorter.read_bytes()
    shorter.write_bytes(content[: len(content) // 2])
    assert offsets(make_log(tmp_path, SMALL)) == list(range(9))


def test_a_missing_segment_drops_what_follows(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.segments[4].path.unlink()
    assert offsets(make_log(tmp_path, SMALL)) == list(range(8))
    assert not (tmp_path / file_name(8, ".index")).exists()


def test_stale_batches_behind_a_truncation_are_cut(tmp_path: Path) -> None:
    """A crash of the machine may bring back what was truncated: it continues neither offsets nor epochs."""
    log = make_log(tmp_path)
    lead(log, batch(), epoch=1)
    lead(log, batch(), epoch=1)
    stale = log.read(1, -1, 1)
    log.truncation.truncate_to(1)
    lead(log, batch(3), epoch=4)
    with log.segments[0].path.open("ab") as file:
        file.write(stale)
    again = make_log(tmp_path)
    assert again.state == LogState(4, 4, 0, 0)


def test_damage_below_the_recovery_point_is_not_cut_away(tmp_path: Path) -> None:
    log = filled(tmp_path)
    damaged = log.segments[1].path
    content = bytearray(damaged.read_bytes())
    content[16] ^= 0x40  # the magic: the walk cannot go on
    damaged.write_bytes(content)
    with pytest.raises(LogError, match="damaged below the recovery point") as raised:
        make_log(tmp_path, SMALL, Checkpointed(recovery_point=19))
    assert raised.value.code is ErrorCode.LOG_STORAGE_ERROR
    assert damaged.read_bytes() == bytes(content)


def test_the_high_watermark_is_capped_at_the_log_end(tmp_path: Path) -> None:
    """RULES 4.6."""
    filled(tmp_path)
    assert make_log(tmp_path, SMALL, Checkpointed(high_watermark=99)).high_watermark == 20


def test_a_log_that_ends_below_its_log_start_starts_anew_there(tmp_path: Path) -> None:
    filled(tmp_path)
    again = make_log(tmp_path, SMALL, Checkpointed(log_start_offset=50, high_watermark=60))
    assert again.state == LogState(50, -1, 50, 50)
    (tmp_path / "empty").mkdir()
    assert make_log(tmp_path / "empty", SMALL, Checkpointed(log_start_offset=9)).log_end_offset == 9


# -- epochs and indexes are made again
# -----------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [None, b"", b"garbage", b"0\n1\n1 0\n", b"0\n2\n1 0\n9 3\n"])
@pytest.mark.parametrize("clean", [True, False])
def test_the_epoch_cache_comes_from_the_headers(tmp_path: Path, content: bytes | None, clean: bool) -> None:
    log = filled(tmp_path)
    log.close()
    path = tmp_path / "leader-epoch-checkpoint"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    assert make_log(tmp_path, SMALL, Checkpointed(clean)).epochs.entries == ((1, 0), (2, 5), (3, 10), (4, 15))


def test_epochs_whose_batches_are_gone_come_from_the_file(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.offsets.raise_high_watermark(20)
    log.log_start.raise_to(8)
    log.close()
    again = make_log(tmp_path, SMALL, Checkpointed(True, 20, 8, 20))
    assert again.epochs.entries == ((2, 5), (3, 10), (4, 15))


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "zeroed", "torn", "empty", "of another segment"])
def test_indexes_are_made_again(tmp_path: Path, clean: bool, suffix: str, damage: str) -> None:
    config = LogConfig(index_interval_bytes=100)
    log = make_log(tmp_path, config)
    for number in range(40):
        lead(log, batch(value=b"x" * 60, timestamp=1_000 + number))
    log.close()
    path = tmp_path / file_name(0, suffix)
    good = path.read_bytes()
    size = 8 if suffix == ".index" else 12
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(
            {
                "zeroed": good[: -2 * size] + b"\0" * size + good[-size:],
                "torn": good[:-3],
                "empty": b"",
                "of another segment": good[:-size] + b"\x7f" * size,
            }[damage]
        )
    again = make_log(tmp_path, config, Checkpointed(clean))
    assert offsets(again) == list(range(40))
    assert [again.reader.list_offset(1_000 + number).offset for number in range(40)] == list(range(40))
    again.close()
    if damage != "empty" or not clean:  # an empty index is a valid one
        assert path.read_bytes() == good


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_any_index_entry_may_be_zeroed(tmp_path: Path, clean: bool, suffix: str) -> None:
    config = LogConfig(index_interval_bytes=100)
    log = make_log(tmp_path, config)
    for number in range(30):
        lead(log, batch(value=b"x" * 60, timestamp=1_000 + number))
    log.close()
    path = tmp_path / file_name(0, suffix)
    good = path.read_bytes()
    size = 8 if suffix == ".index" else 12
    assert len(good) // size > 10
    for entry in range(0, len(good), size):
        path.write_bytes(good[:entry] + b"\0" * size + good[entry + size :])
        again = make_log(tmp_path, config, Checkpointed(clean, 30 if clean else 0))
        assert again.log_end_offset == 30
        for number in range(29, -1, -1):
            assert read_header(again.read(number, -1, 1)).base_offset == number
        assert [again.reader.list_offset(1_000 + number).offset for number in range(30)] == list(range(30))
        again.close()
        if entry or suffix == ".index" or not clean:  # timestamp 0 at the first batch leads nobody astray
            assert path.read_bytes() == good


def test_an_index_that_leads_into_the_middle_of_a_batch_is_made_again(tmp_path: Path) -> None:
    config = LogConfig(index_interval_bytes=100)
    log = make_log(tmp_path, config)
    for _ in range(40):
        lead(log, batch(value=b"x" * 60))
    log.close()
    path = tmp_path / file_name(0, ".index")
    shifted = bytearray(path.read_bytes())
    for entry in range(7, len(shifted), 8):
        shifted[entry] ^= 1
    path.write_bytes(shifted)
    assert offsets(make_log(tmp_path, config, CLEAN)) == list(range(40))


# -- what a stop has left ----------------------------------------------------------------------------------------------


def test_left_overs_are_removed(tmp_path: Path) -> None:
    log = filled(tmp_path)
    for name in (
        file_name(0, ".log.deleted"),
        file_name(0, ".log.cleaned"),
        file_name(0, ".index.swap"),
        file_name(77, ".index"),
        file_name(77, ".timeindex"),
        "leader-epoch-checkpoint.tmp",
    ):
        (tmp_path / name).write_bytes(b"left over")
    again = make_log(tmp_path, SMALL)
    assert again.state == log.state
    suffixes = {path.name.partition(".")[2] for path in tmp_path.iterdir()}
    assert suffixes <= {"log", "index", "timeindex", "snapshot", ""}
    assert not (tmp_path / file_name(77, ".index")).exists()


@pytest.mark.parametrize("removed_already", [0, 1, 2])
def test_a_swap_takes_the_place_of_the_segments_it_covers(tmp_path: Path, removed_already: int) -> None:
    log = filled(tmp_path)
    first, second = log.segments[1], log.segments[2]
    merged = first.path.read_bytes() + second.path.read_bytes()
    (tmp_path / file_name(first.base_offset, ".log.swap")).write_bytes(merged)
    for segment in (second, first)[:removed_already]:
        segment.path.unlink()
    again = make_log(tmp_path, SMALL)
    assert again.state == log.state
    assert offsets(again) == list(range(20))
    assert [segment.base_offset for segment in again.segments[:3]] == [0, 2, 6]
    assert not list(tmp_path.glob("*.swap"))


def test_a_damaged_swap_gives_way_to_its_original(tmp_path: Path) -> None:
    log = filled(tmp_path)
    swap = tmp_path / file_name(2, ".log.swap")
    swap.write_bytes(log.segments[1].path.read_bytes()[:-1])
    assert make_log(tmp_path, SMALL).state == log.state
    assert not swap.exists()


@pytest.mark.parametrize("name", ["copy-of.log", "0000000000000000000².log"])  # a digit, and no number to `int`
def test_a_foreign_file_is_named(tmp_path: Path, name: str) -> None:
    filled(tmp_path)
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(LogError, match=f"{re.escape(name)} is not the name of a segment"):
        make_log(tmp_path, SMALL)


# -- flushing
# -----------------------------------------------------------------------------------------------------------


def test_a_flush_moves_the_recovery_point(tmp_path: Path) -> None:
    log = filled(tmp_path)
    assert log.recovery_point == 0
    flush = log.flusher.begin_flush()
    lead(log, batch(), epoch=9)  # appends go on meanwhile
    flush.run()
    log.flusher.finish_flush(flush)
    assert log.recovery_point == 20
    assert (tmp_path / "leader-epoch-checkpoint").read_bytes() == b"0\n5\n1 0\n2 5\n3 10\n4 15\n9 20\n"
    log.truncation.truncate_to(log.truncation.cut_for(12, -1))
    assert log.recovery_point == 12


def test_flush_messages(tmp_path: Path) -> None:
    log = make_log(tmp_path, LogConfig(flush_messages=3))
    lead(log, batch(2))
    assert not log.flusher.must_sync
    lead(log, batch(1))
    assert log.flusher.must_sync
    sync = log.flusher.begin_sync()
    sync.run()
    log.flusher.finish_sync(sync)
    assert not log.flusher.must_sync
    assert log.recovery_point == 0  # the indexes are not on disk

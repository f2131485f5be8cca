"""What is known to be damaged is forgotten where it is cut off."""

from __future__ import annotations

from pathlib import Path

from log_storage_batches import batch, lead, make_log

from highwater.log_storage.log.log import Log
from highwater.log_storage.segment.damage import DamagedRange


def damaged_log(directory: Path) -> Log:
    log = make_log(directory)
    for _ in range(10):
        lead(log, batch())
    log.damage.note(log.segments[0], [DamagedRange(2, 3, "flipped"), DamagedRange(6, 8, "flipped")])
    return log


def known(log: Log) -> list[tuple[int, int]]:
    return [(damaged.first_offset, damaged.last_offset) for damaged in log.damage.of(log.segments)]


def test_damage_behind_a_cut_inside_its_segment_is_forgotten(tmp_path: Path) -> None:
    log = damaged_log(tmp_path)
    log.truncation.truncate_to(5)
    assert known(log) == [(2, 3)]
    for _ in range(5):
        lead(log, batch())  # new batches at the same offsets are sound
    assert known(log) == [(2, 3)]


def test_damage_across_a_cut_ends_there(tmp_path: Path) -> None:
    log = damaged_log(tmp_path)
    log.truncation.truncate_to(7)
    assert known(log) == [(2, 3), (6, 6)]


def test_a_log_begun_anew_is_sound(tmp_path: Path) -> None:
    log = damaged_log(tmp_path)
    log.truncation.truncate_fully_and_start_at(0)
    assert known(log) == []
    assert log.damage.first_segment(log.segments) is None

"""The iterators behind `highwater log dump`."""

from __future__ import annotations

from pathlib import Path

import pytest
from log_storage_batches import batch, lead, make_log

from highwater.log_storage.config import LogConfig
from highwater.log_storage.inspect.dump import DumpedEntry, dump_index, dump_segment


def test_a_segment(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    for count in (2, 1, 3):
        lead(log, batch(count))
    path = log.segments[0].path
    dumped = list(dump_segment(path, records=True))
    assert [item.header.base_offset for item in dumped if item.header is not None] == [0, 2, 3]
    assert [item.problem for item in dumped] == ["", "", ""]
    assert [record.offset for item in dumped for record in item.records] == list(range(6))
    assert dumped[1].position == len(batch(2))


def test_damage_is_told(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    for _ in range(3):
        lead(log, batch())
    path = log.segments[0].path
    content = bytearray(path.read_bytes())
    size = len(content) // 3
    content[2 * size - 1] ^= 1
    path.write_bytes(content + b"\0" * 70)
    dumped = list(dump_segment(path, records=True))
    assert [bool(item.problem) for item in dumped] == [False, True, False, True]
    assert "CRC" in dumped[1].problem
    assert dumped[3].header is None
    path.write_bytes(content[:-1])
    assert "truncated" in list(dump_segment(path))[-1].problem


def test_indexes(tmp_path: Path) -> None:
    log = make_log(tmp_path, LogConfig(index_interval_bytes=50))
    log.truncation.truncate_fully_and_start_at(100)
    for number in range(3):
        lead(log, batch(2, timestamp=1_000 * (number + 1)))
    log.close()
    size = len(batch(2))
    assert list(dump_index(tmp_path / f"{100:020d}.index")) == [DumpedEntry(103, size), DumpedEntry(105, 2 * size)]
    assert list(dump_index(tmp_path / f"{100:020d}.timeindex")) == [DumpedEntry(2_001, 103), DumpedEntry(3_001, 105)]
    with pytest.raises(ValueError, match="not a segment"):
        list(dump_index(tmp_path / "leader-epoch-checkpoint"))


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    directory = tmp_path / "00000000000000000000.log"
    directory.mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        list(dump_segment(directory))
    assert caught.value.filename == str(directory)

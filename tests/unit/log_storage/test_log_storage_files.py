"""The layouts of the small files and of the indexes, byte for byte."""

from __future__ import annotations

import struct
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.log_storage.files import partition_metadata
from highwater.log_storage.files.checkpoints import (
    CheckpointError,
    read_epochs,
    read_offsets,
    write_epochs,
    write_offsets,
)
from highwater.log_storage.files.partition_metadata import PartitionMetadataError
from highwater.log_storage.segment.offset_index import OffsetIndex
from highwater.log_storage.segment.time_index import TimeIndex
from highwater.model.leader_epochs import EpochEntry, LeaderEpochCache


def test_an_offset_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "recovery-point-offset-checkpoint"
    write_offsets(path, {("log-format", 2): 0, ("kafka-action", 1): 1, ("log-format", 1): 12})
    assert path.read_bytes() == b"0\n3\nkafka-action 1 1\nlog-format 1 12\nlog-format 2 0\n"
    assert read_offsets(path) == {("log-format", 2): 0, ("kafka-action", 1): 1, ("log-format", 1): 12}
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_kafkas_checkpoint_is_read_and_written_as_it_is(tmp_path: Path) -> None:
    """The example of a `recovery-point-offset-checkpoint` in the description of Kafka that this follows."""
    path = tmp_path / "recovery-point-offset-checkpoint"
    path.write_text("0\n4\nlog-format 1 0\nlog-format 2 0\nkafka-action 1 1\nkafka-action 2 0\n")
    found = read_offsets(path)
    assert found == {("log-format", 1): 0, ("log-format", 2): 0, ("kafka-action", 1): 1, ("kafka-action", 2): 0}
    lines = path.read_text().splitlines()
    write_offsets(path, found)
    assert path.read_text().splitlines() == [*lines[:2], *sorted(lines[2:])]
    assert not path.with_name(path.name + ".tmp").exists()


def test_a_checkpoint_that_is_not_there(tmp_path: Path) -> None:
    assert read_offsets(tmp_path / "none") == {}
    assert read_epochs(tmp_path / "none") is None


def test_a_leader_epoch_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    write_epochs(path, [EpochEntry(0, 0), EpochEntry(3, 4000)])
    assert path.read_bytes() == b"0\n2\n0 0\n3 4000\n"
    assert read_epochs(path) == LeaderEpochCache([(0, 0), (3, 4000)])


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "missing"),
        (b"0\n", "missing"),
        (b"1\n0\n", "version 1"),
        (b"0\n2\nt 0 1\n", "1 entries, line 2 says 2"),
        (b"0\n1\nt 0\n", "line 3"),
        (b"0\n1\nt 0 -1\n", "line 3"),
        (b"0\n1\nt zero 1\n", "line 3"),
        (b"\xff\xfe\x00", "text"),
        (b"0\nmany\n", "line 2"),
    ],
)
def test_a_damaged_checkpoint_is_named(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "replication-offset-checkpoint"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=problem) as raised:
        read_offsets(path)
    assert str(path) in str(raised.value)


def test_epochs_out_of_order_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_bytes(b"0\n2\n3 0\n1 10\n")
    with pytest.raises(CheckpointError, match="out of order"):
        read_epochs(path)


def test_partition_metadata_is_kafkas(tmp_path: Path) -> None:
    topic_id = UUID("f81d4fae-7dec-11d0-a765-00a0c91e6bf6").bytes
    partition_metadata.write(tmp_path, topic_id)
    content = (tmp_path / "partition.metadata").read_bytes()
    assert content == b"version: 0\ntopic_id: -B1Prn3sEdCnZQCgyR5r9g"
    assert partition_metadata.read(tmp_path) == topic_id


@pytest.mark.parametrize(
    "content", [b"", b"version: 0\n", b"version: 0\ntopic_id: short", b"version: 1\ntopic_id: -B1Prn3sEdCnZQCgyR5r9g"]
)
def test_damaged_partition_metadata(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "partition.metadata").write_bytes(content)
    with pytest.raises(PartitionMetadataError, match=r"partition\.metadata is damaged"):
        partition_metadata.read(tmp_path)


def test_names_of_directories() -> None:
    assert partition_metadata.parse_directory_name("my-topic.x-12") == ("my-topic.x", 12)
    assert partition_metadata.parse_directory_name("lost+found") is None
    assert partition_metadata.parse_directory_name("topic-0.abcd.deleted") is None


def test_offset_index_layout(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000100.index"
    index = OffsetIndex(path, 100, 80)
    index.append(104, 4096)
    index.append(230, 9000)
    index.write_out()
    assert path.read_bytes() == struct.pack(">iiii", 4, 4096, 130, 9000)
    again = OffsetIndex(path, 100, 80)
    assert [again.lookup(offset) for offset in (100, 103, 104, 229, 230, 999)] == [0, 0, 4096, 4096, 9000, 9000]
    assert again.last() == (230, 9000)


def test_time_index_layout(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000100.timeindex"
    index = TimeIndex(path, 100, 120)
    index.reset()
    index.append(1_500, 104)
    index.append(1_500, 110)  # not above the last: left out
    index.append(1_700, 230)
    index.write_out()
    assert path.read_bytes() == struct.pack(">qiqi", 1_500, 4, 1_700, 130)
    again = TimeIndex(path, 100, 120)
    assert [again.offset_before(timestamp) for timestamp in (0, 1_500, 1_501, 1_700, 1_701)] == [
        100,
        100,
        104,
        104,
        230,
    ]


def test_an_index_is_full(tmp_path: Path) -> None:
    index = OffsetIndex(tmp_path / "00000000000000000000.index", 0, 17)
    index.append(1, 100)
    assert not index.full
    index.append(2, 200)
    assert index.full


@pytest.mark.parametrize(
    ("entries", "valid"),
    [
        ([], True),
        ([(4, 100), (9, 200)], True),
        ([(4, 100), (0, 0)], False),  # zeroed by a crash
        ([(0, 0), (9, 200)], False),
        ([(4, 100), (4, 200)], False),
        ([(4, 200), (9, 100)], False),
        ([(4, 100), (9, 5_000)], False),  # behind the segment's end
        ([(-4, 100)], False),
    ],
)
def test_an_impossible_offset_index_is_seen(tmp_path: Path, entries: list[tuple[int, int]], valid: bool) -> None:
    path = tmp_path / "00000000000000000000.index"
    path.write_bytes(b"".join(struct.pack(">ii", *entry) for entry in entries))
    index = OffsetIndex(path, 0, 1000)
    assert index.valid(5_000) is valid


def test_an_index_of_a_fraction_of_an_entry_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.index"
    path.write_bytes(b"\0" * 12)
    assert not OffsetIndex(path, 0, 1000).load()


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 500)), min_size=1, max_size=30),
    st.integers(0, 2000),
    st.integers(0, 20_000),
)
def test_lookup_against_a_plain_search(steps: list[tuple[int, int]], offset: int, cut: int) -> None:
    index = OffsetIndex(Path("/nonexistent/00000000000000000007.index"), 7, 10_000)
    entries, last_offset, position = [], 6, 0
    for offsets, size in steps:
        last_offset, position = last_offset + offsets, position + size
        index.append(last_offset, position)
        entries.append((last_offset, position))
    assert index.lookup(offset) == max((p for o, p in entries if o <= offset), default=0)
    index.truncate(cut)
    assert len(index) == sum(1 for _, p in entries if p < cut)


def test_write_out_appends_what_is_new_and_follows_a_truncation(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.index"
    index = OffsetIndex(path, 0, 1000)
    for number in range(1, 6):
        index.append(number, number * 100)
        index.write_out(sync=number % 2 == 0)
    index.truncate(300)
    assert path.read_bytes() == struct.pack(">iiii", 1, 100, 2, 200)
    index.append(9, 900)
    index.write_out()
    assert path.read_bytes() == struct.pack(">iiiiii", 1, 100, 2, 200, 9, 900)

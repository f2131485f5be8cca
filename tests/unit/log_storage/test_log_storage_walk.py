"""The one walk over a segment's batches: what its options mean, whatever stands in the file."""

from __future__ import annotations

import os
from itertools import pairwise, takewhile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_storage_batches import batch

from highwater.log_storage.files.descriptor import Descriptor
from highwater.log_storage.segment.walk import DamagedBatch, WalkedBatch, walk
from highwater.records import HEADER_BYTES, CorruptBatchError, read_header, verify

BATCHES = [batch(count, base_offset=10 * count, value=b"v" * 40 * count) for count in range(1, 6)]
CONTENT = b"".join(BATCHES)
STARTS = [sum(map(len, BATCHES[:number])) for number in range(len(BATCHES))]
CHUNKS = st.sampled_from([HEADER_BYTES, 100, 300, 1 << 20])


@st.composite
def damaged_contents(draw: st.DrawFn) -> bytes:
    content = bytearray(CONTENT)
    for _ in range(draw(st.integers(0, 3))):
        header = st.sampled_from(STARTS).flatmap(lambda start: st.integers(start, start + HEADER_BYTES - 1))
        position = draw(st.one_of(header, st.integers(0, len(content) - 1)))
        content[position] = draw(st.sampled_from([0, 255, content[position] ^ 1]))
    return bytes(content[: draw(st.one_of(st.just(len(content)), st.integers(0, len(content))))])


def walked(file: Descriptor, end: int, chunk_bytes: int, *, check_crcs: bool) -> list[WalkedBatch | DamagedBatch]:
    return list(walk(file, 0, end, check_crcs=check_crcs, pass_over_damage=True, chunk_bytes=chunk_bytes))


def until_damage(file: Descriptor, end: int, chunk_bytes: int, *, check_crcs: bool) -> list[object]:
    found: list[object] = []
    try:
        found.extend(walk(file, 0, end, check_crcs=check_crcs, chunk_bytes=chunk_bytes))
    except CorruptBatchError as error:
        found.append((error.position, error.reason))
    return found


@given(
    content=damaged_contents(), chunk_bytes=CHUNKS, lacking=st.sampled_from([0, 0, 30, 500]), check_crcs=st.booleans()
)
def test_whatever_stands_in_the_file(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, chunk_bytes: int, lacking: int, check_crcs: bool
) -> None:
    path = tmp_path_factory.mktemp("walk") / "segment"
    path.write_bytes(content)
    file, end = Descriptor(path, os.O_RDONLY), len(content) + lacking  # the file may lack what was written
    found = walked(file, end, chunk_bytes, check_crcs=check_crcs)

    # The chunks do not show: what is found, where, and what is told of it.
    assert found == walked(file, end, 1 << 20, check_crcs=check_crcs)
    # Nothing is left out: each begins where the one before it ends, and the last one ends the walk.
    assert [one.position for one in found[:1]] == [0] * bool(end)
    for one, following in pairwise(found):
        assert one.header is not None
        assert one.position + one.header.size_bytes == following.position
    if found and (header := found[-1].header) is not None:
        assert found[-1].position + header.size_bytes >= end
    # What is called whole is whole.
    whole = [one for one in found if isinstance(one, WalkedBatch)]
    for position, header in whole:
        assert header == read_header(content, position)
        assert position + header.size_bytes <= end
        if check_crcs:
            verify(content, position, header)
    # What stands in front of all damage is found.
    stood = zip(STARTS, BATCHES, strict=True)
    untouched = takewhile(lambda one: content.startswith(one[1], one[0]), stood)
    assert {start for start, _ in untouched} <= {one.position for one in whole}

    # Where damage is not passed over, it is the end, and told with the same words.
    expected: list[object] = []
    for one in found:
        expected.append(one if isinstance(one, WalkedBatch) else (one.position, one.problem))
        if isinstance(one, DamagedBatch):
            break
    assert until_damage(file, end, chunk_bytes, check_crcs=check_crcs) == expected


def test_only_the_range_is_walked(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(CONTENT)
    file = Descriptor(path, os.O_RDONLY)
    assert [position for position, _ in walk(file, STARTS[1], STARTS[3])] == STARTS[1:3]
    with pytest.raises(CorruptBatchError, match=f"truncated: {len(BATCHES[2]) - 1} of {len(BATCHES[2])} bytes"):
        list(walk(file, STARTS[1], STARTS[3] - 1))


def test_no_more_is_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Payloads whose CRCs are not asked for are skipped."""
    path = tmp_path / "segment"
    path.write_bytes(CONTENT)
    file, asked = Descriptor(path, os.O_RDONLY), []
    pread = os.pread

    def observed(descriptor: int, size: int, position: int) -> bytes:
        asked.append(size)
        return pread(descriptor, size, position)

    monkeypatch.setattr(os, "pread", observed)
    assert len(list(walk(file, 0, len(CONTENT), chunk_bytes=HEADER_BYTES))) == len(BATCHES)
    assert asked == [HEADER_BYTES] * len(BATCHES)


def test_the_file_stays_open_while_it_is_walked(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(CONTENT)
    batches = walk(Descriptor(path, os.O_RDONLY), 0, len(CONTENT), chunk_bytes=HEADER_BYTES)
    next(batches)
    assert [position for position, _ in batches] == STARTS[1:]

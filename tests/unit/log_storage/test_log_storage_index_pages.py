"""Indexes that stay on disk: a lookup finds what a search of all entries would, and reads one page for it."""

from __future__ import annotations

import os
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from highwater.log_storage.segment.index_pages import PAGE_BYTES
from highwater.log_storage.segment.offset_index import OffsetIndex
from highwater.log_storage.segment.time_index import TimeIndex

BASE = 1_000
# How many entries, about whole pages of them too, and the seed of their distances.
COUNTS = (0, 1, 2, 100, 341, 342, 343, 511, 512, 513, 682, 683, 1_024, 1_025, 1_500)
STEPS = st.tuples(st.sampled_from(COUNTS), st.integers(0, 2**32 - 1))


def _steps(count: int, seed: int) -> list[tuple[int, int]]:
    chosen = np.random.default_rng(seed)
    return list(zip(chosen.integers(1, 9, count).tolist(), chosen.integers(1, 500, count).tolist(), strict=True))


@settings(max_examples=60, deadline=None)
@given(STEPS, st.lists(st.integers(-5, 14_000), min_size=1, max_size=40), st.booleans())
def test_an_offset_index_on_disk(
    tmp_path_factory: pytest.TempPathFactory, shape: tuple[int, int], asked: list[int], released: bool
) -> None:
    steps = _steps(*shape)
    path = tmp_path_factory.mktemp("index") / f"{BASE:020}.index"
    index = OffsetIndex(path, BASE, 1 << 20)
    index.reset()
    entries = list(zip(accumulate(s for s, _ in steps), accumulate(p for _, p in steps), strict=True))
    for offset, position in entries:
        index.append(BASE + offset, position)
    index.write_out()
    if released:
        index.release()
    else:
        index = OffsetIndex(path, BASE, 1 << 20)
        assert index.load()
    edges = [offset + near for offset, _ in entries[:: PAGE_BYTES // 8] + entries[-1:] for near in (-1, 0, 1)]
    for offset in [*asked, *edges]:
        expected = max((position for at, position in entries if at <= offset), default=0)
        assert index.lookup(BASE + offset) == expected
    assert index.last() == ((BASE + entries[-1][0], entries[-1][1]) if entries else None)
    assert len(index) == len(entries)
    assert [index.entry(number) for number in range(0, len(entries), 97)] == entries[::97]


@settings(max_examples=60, deadline=None)
@given(STEPS, st.lists(st.integers(0, 14_000), min_size=1, max_size=40))
def test_a_time_index_on_disk(
    tmp_path_factory: pytest.TempPathFactory, shape: tuple[int, int], asked: list[int]
) -> None:
    """An entry of 12 bytes may lie across two pages."""
    steps = _steps(*shape)
    path = tmp_path_factory.mktemp("index") / f"{BASE:020}.timeindex"
    index = TimeIndex(path, BASE, 1 << 20)
    index.reset()
    entries = list(zip(accumulate(s for s, _ in steps), accumulate(p for _, p in steps), strict=True))
    for timestamp, offset in entries:
        index.append(timestamp, BASE + offset)
    index.write_out()
    index.release()
    edges = [at + near for at, _ in entries[:: PAGE_BYTES // 12] + entries[1::341] + entries[-1:] for near in (0, 1, 2)]
    for timestamp in [*asked, *edges]:
        expected = max((offset for at, offset in entries if at < timestamp), default=0)
        assert index.offset_before(timestamp) == BASE + expected


def test_a_lookup_reads_one_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = TimeIndex(tmp_path / f"{BASE:020}.timeindex", BASE, 1 << 24)
    index.reset()
    for number in range(1, 100_000):
        index.append(number * 10, BASE + number)
    index.write_out()
    index.release()
    read: list[tuple[int, int]] = []
    pread = os.pread

    def observed(descriptor: int, size: int, position: int) -> bytes:
        read.append((position // PAGE_BYTES, (position + size - 1) // PAGE_BYTES))
        return pread(descriptor, size, position)

    monkeypatch.setattr(os, "pread", observed)
    for timestamp in (1, 11, 500_001, 777_777, 999_980, 2_000_000):
        read.clear()
        assert index.offset_before(timestamp) == BASE + min((timestamp - 1) // 10, 99_999)
        assert len(read) <= 1
        assert all(first == last for first, last in read)

"""Compaction does not launder damage: every batch that a pass reads is checked, also one that it would drop or copy as
it is, and what is damaged is reported as such and left where it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from log_storage_batches import batch, lead, make_log
from log_storage_client import LEADER, key, running
from test_cleaner_choice import cleaner_of
from test_cleaner_service import COMPACT, SETTINGS, fill, log_of, until

from highwater.log_storage.compaction.cleaner_job import Answer, CleanJob, PassLimits
from highwater.log_storage.compaction.cleaner_pass import DamagedSegmentError
from highwater.log_storage.compaction.cleaner_process import run_pass
from highwater.log_storage.compaction.offset_map import ENTRY_BYTES
from highwater.log_storage.compaction.segment_swap import as_seen, clean_job
from highwater.log_storage.config import LogConfig
from highwater.log_storage.log.log import Log

CONFIG = LogConfig(segment_bytes=500, compacts=True, deletes=False, min_cleanable_ratio=0.0)
RECORD_COUNT = 57  # position in a batch; under the CRC
BASE_OFFSET = 7  # the lowest byte of it; not under the CRC


def filled(directory: Path) -> Log:
    """Four batches of one record a segment, of four keys in turn."""
    log = make_log(directory / "t-0", CONFIG)
    for number in range(18):
        lead(log, batch(value=b"%d" % number * 20, keys=(b"key-%d" % (number % 4),)))
    log.flush()
    log.offsets.raise_high_watermark(log.log_end_offset)
    return log


def job_of(log: Log) -> CleanJob:
    return clean_job(log, as_seen(None, log, 0).range, 0)[0]


def change(path: Path, position: int, made: Callable[[int], int]) -> None:
    """One byte of a file that others may have open."""
    descriptor = os.open(path, os.O_RDWR)
    [found] = os.pread(descriptor, 1, position)
    os.pwrite(descriptor, bytes([made(found)]), position)
    os.close(descriptor)


def positions(log: Log, segment: int) -> list[int]:
    return [position for position, _ in log.segments[segment].headers(0)]


@pytest.mark.parametrize("cleaned_before", [False, True])
@pytest.mark.parametrize("slots", [3, 1000])
@pytest.mark.parametrize(
    ("place", "made"),
    [
        pytest.param(RECORD_COUNT + 3, lambda found: 0, id="a record count of 0"),
        pytest.param(BASE_OFFSET, lambda found: found + 100, id="an offset of a later segment"),
        pytest.param(BASE_OFFSET, lambda found: 0, id="an offset of an earlier segment"),
        pytest.param(30, lambda found: found ^ 1, id="a timestamp"),
        pytest.param(75, lambda found: found ^ 1, id="the payload"),
    ],
)
def test_a_damaged_batch_ends_the_pass(
    tmp_path: Path, place: int, made: Callable[[int], int], slots: int, cleaned_before: bool
) -> None:
    """Also in the part that was cleaned before, and where the map has no room for all keys."""
    log = filled(tmp_path)
    where, number = (0, 3) if slots == 3 else (1, 1)  # behind the end of the map, or within it
    segment = log.segments[where]
    if cleaned_before:
        log.offsets.cleaned_to = log.segments[2].base_offset
    position = positions(log, where)[number]
    change(segment.path, position + place, made)
    with pytest.raises(DamagedSegmentError, match=f"{segment.path.name} is damaged: .* {position}: ") as raised:
        run_pass(job_of(log), PassLimits(map_bytes=slots * ENTRY_BYTES), _ignored, _ignored)
    assert raised.value.base_offset == segment.base_offset
    assert not list(segment.path.parent.glob(f"{segment.path.stem}*.cleaned"))


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_batch_that_is_gone_ends_the_pass_unless_compaction_may_have_taken_it(tmp_path: Path, number: int) -> None:
    log = filled(tmp_path)
    segment = log.segments[1]
    starts = [*positions(log, 1), segment.size_bytes]
    content = segment.path.read_bytes()
    segment.path.write_bytes(content[: starts[number]] + content[starts[number + 1] :])
    segment.size_bytes = segment.path.stat().st_size
    with pytest.raises(DamagedSegmentError, match="is expected|no batch has the offsets"):
        run_pass(job_of(log), PassLimits(), _ignored, _ignored)
    log.segment_list.note_gaps()
    run_pass(job_of(log), PassLimits(), _ignored, _ignored)


def _ignored(_: Answer | int) -> None:
    pass


async def test_damage_is_reported_and_the_log_left_alone_until_it_is_dropped(tmp_path: Path) -> None:
    async with running(tmp_path, **SETTINGS | {"log_cleaner_min_cleanable_ratio": "1.0"}) as storage:
        await storage.create(key(), **COMPACT)
        await storage.fence(LEADER, 1, [key()])
        await fill(storage, 21)
        log = log_of(storage)
        manager = storage.service._manager
        [hosted] = manager.logs
        segment = log.segments[1]
        before = segment.path.read_bytes()
        [position, *_] = positions(log, 1)
        change(segment.path, position + RECORD_COUNT + 3, lambda found: 0)
        log.config = log.config.with_topic({"min.cleanable.dirty.ratio": "0"})

        await until(lambda: hosted.uncleanable)

        assert segment.path.name in hosted.uncleanable
        assert [(found.first_offset, found.last_offset) for found in hosted.known_damage] == [
            (segment.base_offset, segment.base_offset)
        ]
        assert manager.logs.damaged_logs == 1
        assert log.segments[1] is segment
        changed = segment.path.read_bytes()
        assert [number for number, byte in enumerate(before) if changed[number] != byte] == [
            position + RECORD_COUNT + 3
        ]
        assert not hosted.offline_reason

        # What the broker does then (RULES 7.6): it drops the range, to have it copied anew.
        async with hosted.alone():
            manager.drop_damaged(hosted)
        assert not hosted.uncleanable
        assert not hosted.known_damage


async def test_what_only_the_way_from_the_disk_had_damaged_is_tried_again(tmp_path: Path) -> None:
    """A pass says that a segment is damaged, and it is not: nothing is reported, nothing given up for good."""
    settings = {"log_cleaner_enable": "false", **SETTINGS}
    async with running(tmp_path, **settings) as storage:
        await storage.create(key(), **COMPACT)
        await storage.fence(LEADER, 1, [key()])
        await fill(storage, 21)
        manager = storage.service._manager
        [hosted] = manager.logs
        log = hosted.online()
        cleaner = cleaner_of(storage)
        assert hosted.cleaning.begin()
        with pytest.raises(OSError, match="not found again"):
            await cleaner._report_damage(hosted, log, log.segments[0], "a bad day")
        hosted.end_cleaning()
        assert not hosted.known_damage

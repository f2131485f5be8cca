"""Between the choice of a log and its pass the loop has turns: what was chosen may be gone."""

from __future__ import annotations

from pathlib import Path

import pytest
from log_storage_client import LEADER, Storage, key, running
from test_cleaner_service import COMPACT, SETTINGS, fill, log_of, until

from highwater.log_storage.compaction import cleaner_scheduler
from highwater.log_storage.compaction.cleaner_job import PassLimits
from highwater.log_storage.compaction.cleaner_scheduler import CleanerSettings, LogCleaner
from highwater.log_storage.compaction.cleaner_worker import CleanerWorker
from highwater.log_storage.log_manager.hosted_log import HostedLog
from highwater.telemetry.metrics import Metrics
from highwater.v1 import log_storage_pb2

WITHOUT_CLEANER = SETTINGS | {"log_cleaner_enable": "false"}


def cleaner_of(storage: Storage) -> LogCleaner:
    """One that is asked for each pass."""

    async def cleaned(hosted: HostedLog) -> None:
        pass

    manager = storage.service._manager
    settings = CleanerSettings(1, PassLimits(), 20)
    return LogCleaner(manager.logs, storage.service._threads, Metrics("test"), settings, cleaned=cleaned)


async def delete_records(storage: Storage, offset: int) -> None:
    request = log_storage_pb2.RaiseLogStartRequest(partition=key(), leader_epoch=1, log_start_offset=offset)
    assert not (await storage.stub.RaiseLogStart(request)).error.code


@pytest.mark.parametrize("offset", [5, 37, 41])
async def test_records_that_are_deleted_after_the_choice_are_not_cleaned(
    tmp_path: Path, offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of the sealed segments, or all of them."""
    async with running(tmp_path, **WITHOUT_CLEANER) as storage:
        await storage.create(key(), **COMPACT)
        await storage.fence(LEADER, 1, [key()])
        await fill(storage, 41)
        cleaner = cleaner_of(storage)
        choose = cleaner._choose

        async def choose_and_lose() -> object:
            chosen = await choose()
            await delete_records(storage, offset)
            return chosen

        monkeypatch.setattr(cleaner, "_choose", choose_and_lose)
        worker = CleanerWorker(PassLimits())
        try:
            while await cleaner.clean_next(worker):
                pass
        finally:
            await worker.close()
        log = log_of(storage)
        sealed = log.segments[0].base_offset < log.segments[-1].base_offset
        assert log.cleaned_to == (log.segments[-1].base_offset if sealed else None)
        [hosted] = storage.service._manager.logs
        assert hosted.cleaning.begin()
        assert not hosted.uncleanable


async def test_a_log_whose_pass_goes_wrong_keeps_no_other_from_being_cleaned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is: it is counted, and the cleaner begins anew with the other logs."""
    swapped = cleaner_scheduler.swap_in

    def swap_in(log: object, *arguments: object) -> bool:
        if log is broken:
            raise ValueError("a bug")
        return swapped(log, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(cleaner_scheduler, "swap_in", swap_in)
    settings = SETTINGS | {"log_cleaner_min_cleanable_ratio": "1.0"}
    async with running(tmp_path, **settings) as storage:
        for partition in (0, 1):
            await storage.create(key(partition), **COMPACT)
        await storage.fence(LEADER, 1, [key(0), key(1)])
        for partition in (0, 1):
            await fill(storage, 41, partition=partition)
        broken, sound = log_of(storage), log_of(storage, 1)
        for log in (broken, sound):
            log.config = log.config.with_topic({"min.cleanable.dirty.ratio": "0"})

        await until(lambda: sound.cleaned_to == sound.segments[-1].base_offset)
        failures = storage.service.metrics.registry.get_sample_value
        await until(lambda: (failures("highwater_log_storage_task_failures_total", {"task": "cleaner"}) or 0) >= 2)
        assert broken.cleaned_to is None
        monkeypatch.setattr(cleaner_scheduler, "swap_in", swapped)
        await until(lambda: broken.cleaned_to == broken.segments[-1].base_offset)

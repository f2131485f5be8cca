"""What is set for a broker while it runs: each key of log-storage's has its effect without a restart, and is gone with
the process."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from log_storage_client import LEADER, Storage, filled, key, running
from test_cleaner_service import COMPACT, SETTINGS, THROTTLED, fill, log_of, until

from highwater.configuration.dynamic_keys import LOG_STORAGE_KEYS
from highwater.errors import ErrorCode
from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.scrubbing import scrubber
from highwater.v1 import common_pb2, log_storage_pb2

LONG = 10**15
# Of a log's own configuration: the key, a value, the field and what is there then.
DEFAULTS = [
    ("file.delete.delay.ms", "5", "file_delete_delay_ms", 5),
    ("log.cleaner.delete.retention.ms", "5", "delete_retention_ms", 5),
    ("log.cleaner.max.compaction.lag.ms", "5", "max_compaction_lag_ms", 5),
    ("log.cleaner.min.cleanable.ratio", "0.25", "min_cleanable_ratio", 0.25),
    ("log.cleaner.min.compaction.lag.ms", "5", "min_compaction_lag_ms", 5),
    ("log.cleanup.policy", "compact", "compacts", True),
    ("log.flush.interval.messages", "5", "flush_messages", 5),
    ("log.flush.interval.ms", "5", "flush_ms", 5),
    ("log.index.interval.bytes", "5", "index_interval_bytes", 5),
    ("log.index.size.max.bytes", "24", "index_max_bytes", 24),
    ("log.retention.bytes", "5", "retention_bytes", 5),
    ("log.retention.ms", "5", "retention_ms", 5),
    ("log.roll.jitter.ms", "5", "roll_jitter_ms", 5),
    ("log.roll.ms", "5", "roll_ms", 5),
    ("log.segment.bytes", "2048", "segment_bytes", 2048),
    ("message.max.bytes", "2048", "message_max_bytes", 2048),
]
ELSEWHERE = {  # of which this module has a test of its own
    "log.cleaner.backoff.ms",
    "log.cleaner.dedupe.buffer.size",
    "log.cleaner.io.buffer.load.factor",
    "log.cleaner.io.buffer.size",
    "log.cleaner.io.max.bytes.per.second",
    "log.cleaner.threads",
    "log.scrub.bytes.per.second",
    "log.scrub.interval.ms",
    "replica.alter.log.dirs.io.max.bytes.per.second",
}


async def alter(storage: Storage, **values: str) -> log_storage_pb2.AlterBrokerConfigResponse:
    config = common_pb2.DynamicConfig(values={name.replace("_", "."): value for name, value in values.items()})
    return await storage.stub.AlterBrokerConfig(log_storage_pb2.AlterBrokerConfigRequest(config=config))


def test_every_key_has_its_test() -> None:
    assert {each[0] for each in DEFAULTS} | ELSEWHERE == LOG_STORAGE_KEYS.keys() | {
        "log.cleanup.policy",
        "message.max.bytes",
    }


@pytest.mark.parametrize(("name", "value", "field", "found"), DEFAULTS, ids=[each[0] for each in DEFAULTS])
async def test_a_default_counts_for_logs_that_are_there_and_those_that_come(
    tmp_path: Path, name: str, value: str, field: str, found: object
) -> None:
    async with running(tmp_path) as storage:
        await storage.create(key())
        before = getattr(log_of(storage).config, field)
        assert before != found
        await alter(storage, **{name: value})
        await storage.create(key(1))
        assert [getattr(log_of(storage, number).config, field) for number in (0, 1)] == [found, found]
        await alter(storage)
        assert [getattr(log_of(storage, number).config, field) for number in (0, 1)] == [before, before]


async def test_what_a_topic_sets_itself_goes_before_it(tmp_path: Path) -> None:
    async with running(tmp_path, log_segment_bytes="9000") as storage:
        await storage.create(key(), segment_bytes="1024")
        await alter(storage, log_segment_bytes="2048", log_retention_ms="7")
        assert log_of(storage).config == LogConfig(
            segment_bytes=1024, retention_ms=7, producer_limits=log_of(storage).config.producer_limits
        )
        request = log_storage_pb2.AlterLogConfigRequest(partition=key())
        assert not (await storage.stub.AlterLogConfig(request)).error.code
        assert log_of(storage).config.segment_bytes == 2048
        await alter(storage)
        assert log_of(storage).config.segment_bytes == 9000


async def test_it_has_an_effect_on_what_is_appended(tmp_path: Path) -> None:
    async with running(tmp_path) as storage:
        await storage.create(key())
        await storage.fence(LEADER, 1, [key()])
        await fill(storage, 20)
        assert len(log_of(storage).segments) == 1
        await alter(storage, log_segment_bytes="1024")
        await fill(storage, 20, first=20)
        assert len(log_of(storage).segments) > 3
        await alter(storage, message_max_bytes="1024")
        result = await storage.append(
            LEADER, partition=key(), leader_epoch=1, expected_offset=40, records=_large_batch()
        )
        assert "message.max.bytes" in result.error.message or "1024" in result.error.message


def _large_batch() -> bytes:
    from test_cleaner_service import rows

    return rows((b"key", b"x" * 2_000))


async def test_it_comes_with_the_logs_and_ends_with_the_process(tmp_path: Path) -> None:
    """A retention that was raised while running: nothing goes at a restart before it is known again."""
    settings = {"log_retention_check_interval_ms": "20", "log_retention_ms": "1"}
    config = common_pb2.DynamicConfig(values={"log.retention.ms": str(LONG)})
    create = log_storage_pb2.CreateLogsRequest(broker_config=config)
    create.logs.add(topic="t", partition=key(), config={"segment.bytes": "1024"})
    async with running(tmp_path, **settings) as storage:
        await storage.stub.CreateLogs(create)
        await storage.fence(LEADER, 1, [key()])
        await fill(storage, 20)
        many = len(log_of(storage).segments)
        assert many > 3
    async with running(tmp_path, **settings) as storage:
        assert log_of(storage).config.retention_ms == 1
        await asyncio.sleep(0.2)  # ten looks of retention: a state that is to stay
        assert len(log_of(storage).segments) == many
        await storage.stub.CreateLogs(create)
        assert log_of(storage).config.retention_ms == LONG
        await asyncio.sleep(0.2)
        assert len(log_of(storage).segments) == many
        await alter(storage)
        await storage.fence(LEADER, 2, [key()])
        await until(lambda: len(log_of(storage).segments) < many)


async def test_it_tells_what_it_was_started_with(tmp_path: Path) -> None:
    async with running(tmp_path, log_segment_bytes="9000") as storage:
        answer = await alter(storage, log_segment_bytes="2048")
        told = {each.key: each for each in answer.settings}
        assert answer.incarnation == storage.service.incarnation
        assert (told["log.segment.bytes"].value, told["log.segment.bytes"].is_default) == ("9000", False)
        assert (told["log.roll.ms"].value, told["log.roll.ms"].is_default) == ("604800000", True)
        assert told["log.cleaner.enable"].value == "true"
        assert {each.service for each in answer.settings} == {"log-storage"}


async def test_values_that_are_none_and_keys_of_others_are_left_out(tmp_path: Path) -> None:
    async with running(tmp_path) as storage:
        await storage.create(key())
        before = log_of(storage).config
        await alter(
            storage, log_segment_bytes="many", min_insync_replicas="3", log_dirs="/x", replica_fetch_max_bytes="1"
        )
        assert log_of(storage).config == before


async def test_where_a_log_does_not_take_it_the_call_fails_and_may_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as storage:
        await storage.create(key())
        await storage.create(key(1))
        hosted = next(each for each in storage.service._manager.logs if each.key.partition == 0)

        def full(*_: object) -> None:
            raise OSError("no space")

        with monkeypatch.context() as patched:
            patched.setattr(hosted, "allow_unflushed", full)
            with pytest.raises(grpc.aio.AioRpcError):
                await alter(storage, log_roll_ms="5")
        assert [log_of(storage, number).config.roll_ms for number in (0, 1)] == [604_800_000, 5]
        await alter(storage, log_roll_ms="5")
        assert [log_of(storage, number).config.roll_ms for number in (0, 1)] == [5, 5]


async def test_a_log_that_does_not_take_it_keeps_no_others_from_being_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as storage:
        await storage.create(key())
        hosted = next(iter(storage.service._manager.logs))

        def full(*_: object) -> None:
            raise LogError(ErrorCode.STORAGE_FULL, "no space")

        monkeypatch.setattr(hosted, "allow_unflushed", full)
        request = log_storage_pb2.CreateLogsRequest(
            logs=[log_storage_pb2.CreateLogRequest(topic="t", partition=key(1))],
            broker_config=common_pb2.DynamicConfig(values={"log.roll.ms": "5"}),
        )
        response = await storage.stub.CreateLogs(request)
        assert response.results[0].created
        assert log_of(storage, 1).config.roll_ms == 5


async def test_what_was_taken_in_part_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as storage:
        await storage.create(key())
        await storage.create(key(1))
        await alter(storage, log_roll_ms="7")
        hosted = next(each for each in storage.service._manager.logs if each.key.partition == 0)

        def full(*_: object) -> None:
            raise OSError("no space")

        with monkeypatch.context() as patched:
            patched.setattr(hosted, "allow_unflushed", full)
            with pytest.raises(grpc.aio.AioRpcError):
                await alter(storage, log_roll_ms="5")
        assert [log_of(storage, number).config.roll_ms for number in (0, 1)] == [7, 5]
        await alter(storage, log_roll_ms="7")
        assert [log_of(storage, number).config.roll_ms for number in (0, 1)] == [7, 7]


async def test_a_log_that_is_deleted_meanwhile_holds_nothing_up(tmp_path: Path) -> None:
    async with running(tmp_path) as storage:
        await storage.create(key())
        hosted = next(iter(storage.service._manager.logs))
        async with hosted.maintenance:  # so that the deletion waits, with the log alone or about to be
            deleting = asyncio.ensure_future(
                storage.stub.DeleteLog(log_storage_pb2.DeleteLogRequest(partition=key(), leader_epoch=-1))
            )
            altering = asyncio.ensure_future(alter(storage, log_roll_ms="5"))
            await asyncio.sleep(0.05)
        async with asyncio.timeout(5):
            await asyncio.gather(deleting, altering)
        await storage.create(key(1))
        assert log_of(storage, 1).config.roll_ms == 5


# The cleaner


def cleaned_by(storage: Storage) -> Any:
    return storage.service._cleaner._settings


async def test_the_cleaners_numbers_are_shared_out_anew(tmp_path: Path) -> None:
    async with running(tmp_path, log_cleaner_backoff_ms=str(LONG)) as storage:
        await alter(
            storage,
            log_cleaner_threads="2",
            log_cleaner_dedupe_buffer_size="4096",
            log_cleaner_io_buffer_size="2048",
            log_cleaner_io_buffer_load_factor="0.5",
            log_cleaner_io_max_bytes_per_second="100.0",
            log_cleaner_backoff_ms="20",
        )
        settings = cleaned_by(storage)
        limits = settings.limits
        assert (settings.processes, settings.backoff_ms) == (2, 20)
        assert (limits.map_bytes, limits.io_bytes, limits.load_factor, limits.bytes_per_second) == (2048, 1024, 0.5, 50)
        assert storage.service._cleaners == 2
        await alter(storage)
        assert (cleaned_by(storage).processes, cleaned_by(storage).backoff_ms) == (1, LONG)


async def test_a_rate_that_was_too_low_is_raised_for_the_next_pass(tmp_path: Path) -> None:
    async with running(tmp_path, **SETTINGS | THROTTLED) as storage:
        await alter(storage, log_cleaner_io_max_bytes_per_second="1e12")
        await storage.create(key(), **COMPACT)
        await storage.fence(LEADER, 1, [key()])
        await fill(storage, 40)
        await until(lambda: log_of(storage).offsets.cleaned_to)


async def test_a_pause_that_was_long_ends(tmp_path: Path) -> None:
    async with running(tmp_path, **SETTINGS | {"log_cleaner_backoff_ms": str(3_600_000)}) as storage:
        await storage.create(key(), **COMPACT)
        await storage.fence(LEADER, 1, [key()])
        await fill(storage, 40)
        await alter(storage, log_cleaner_backoff_ms="20")
        await until(lambda: log_of(storage).offsets.cleaned_to)


async def test_two_processes_clean_two_logs_at_once_and_one_is_idle_again(tmp_path: Path) -> None:
    async with running(tmp_path, **SETTINGS | {"log_cleaner_io_max_bytes_per_second": "400"}) as storage:
        await alter(storage, log_cleaner_threads="2")
        for partition in (0, 1):
            await storage.create(key(partition), **COMPACT)
            await storage.fence(LEADER, 1, [key(partition)])
            await fill(storage, 20, partition=partition)
        cleaning = [each.cleaning for each in storage.service._manager.logs]
        await until(lambda: all(each.state.name == "IN_PROGRESS" for each in cleaning))


# Scrubbing, moves, the log's level


async def test_scrubbing_begins_and_ends_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrubber, "FIRST_PASS_MS", 10)

    def passes(storage: Storage) -> float:
        return storage.service.metrics.registry.get_sample_value("highwater_log_storage_scrub_passes_total") or 0.0

    async with running(tmp_path, log_scrub_bytes_per_second="0") as storage:
        await filled(storage, 20)
        await asyncio.sleep(0.1)  # a state that is to stay
        assert passes(storage) == 0
        await alter(storage, log_scrub_bytes_per_second="1e12")
        await until(lambda: passes(storage) == 1)
        await alter(storage, log_scrub_bytes_per_second="1e12", log_scrub_interval_ms="10")
        await until(lambda: passes(storage) > 3)
        await alter(storage)
        before = passes(storage)
        await asyncio.sleep(0.1)
        assert passes(storage) <= before + 1


async def test_moves_take_another_rate(tmp_path: Path) -> None:
    async with running(tmp_path, replica_alter_log_dirs_io_max_bytes_per_second="1") as storage:
        await alter(storage, replica_alter_log_dirs_io_max_bytes_per_second="1000.0")
        throttle = storage.service._servicer.moves._throttle
        assert throttle.delay_s(1_000, 0.0) == 1.0
        await alter(storage)
        assert storage.service._servicer.moves._throttle.delay_s(1_000, 0.0) == 1000.0


async def test_the_level_of_its_log(tmp_path: Path) -> None:
    root = logging.getLogger()
    before = root.level
    try:
        async with running(tmp_path) as storage:
            await alter(storage, log_level="DEBUG")
            assert root.level == logging.DEBUG
            await alter(storage)
            assert root.level == logging.INFO
    finally:
        root.setLevel(before)

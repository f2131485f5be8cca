"""A look-up by time expands batches in threads: however long that takes, other calls are answered meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from log_storage_batches import batch
from log_storage_client import LEADER, Storage, key, running

from highwater.errors import ErrorCode
from highwater.log_storage.log import timestamp_lookup
from highwater.log_storage.log.timestamp_lookup import LookedInto
from highwater.records import CorruptBatchError, Record, encode_rows
from highwater.records.codec import Codec
from highwater.records.payload_scan import PayloadScan
from highwater.rpc.partition_keys import from_key
from highwater.v1 import log_storage_pb2

NOW = 1_000


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[Storage]:
    async with running(tmp_path) as served:
        await served.create(key())
        await served.fence(LEADER, 1, [key()])
        yield served


async def appended(storage: Storage, records: bytes, offset: int) -> None:
    result = await storage.append(LEADER, partition=key(), leader_epoch=1, expected_offset=offset, records=records)
    assert not result.error.code


def look_up(timestamp: int) -> log_storage_pb2.LogListOffsetsRequest:
    asked = log_storage_pb2.LogListOffsetsRequest()
    asked.partitions.add(partition=key(), timestamp=timestamp, max_offset=-1)
    return asked


class Gate:
    """Holds the thread of a scan until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[int] = []
        self.entered, self.opened = threading.Event(), threading.Event()
        scan = LookedInto.scan

        def gated(looked_into: LookedInto) -> PayloadScan | CorruptBatchError:
            self.threads.append(threading.get_ident())
            self.entered.set()
            assert self.opened.wait(10)
            return scan(looked_into)

        monkeypatch.setattr(LookedInto, "scan", gated)


async def test_others_are_answered_while_a_batch_is_expanded(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [Record(0, NOW + number, b"k", b"v" * 100) for number in range(100)]
    await appended(storage, encode_rows(records, codec=Codec.ZSTD), 0)
    gate = Gate(monkeypatch)
    for timestamp in (NOW + 7, timestamp_lookup.MAX_TIMESTAMP):
        gate.opened.clear()
        gate.entered.clear()
        looking = asyncio.ensure_future(storage.stub.ListOffsets(look_up(timestamp)))
        assert await asyncio.to_thread(gate.entered.wait, 10)
        assert len((await storage.read(key(), 0)).records)
        assert not looking.done()
        gate.opened.set()
        [found] = (await looking).results
        assert found.offset == (7 if timestamp > 0 else 99)
    assert threading.get_ident() not in gate.threads


async def test_a_small_batch_is_worth_no_thread(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    await appended(storage, batch(3, timestamp=NOW), 0)
    gate = Gate(monkeypatch)
    gate.opened.set()
    [found] = (await storage.stub.ListOffsets(look_up(NOW + 1))).results
    assert (found.offset, gate.threads) == (1, [threading.get_ident()])


async def test_a_log_that_changes_hands_meanwhile_is_to_be_asked_again(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await appended(storage, encode_rows([Record(0, NOW, b"k", b"v")], codec=Codec.ZSTD), 0)
    gate = Gate(monkeypatch)
    looking = asyncio.ensure_future(storage.stub.ListOffsets(look_up(NOW)))
    assert await asyncio.to_thread(gate.entered.wait, 10)
    async with storage.service._manager.logs.get(from_key(key())).alone():
        gate.opened.set()
        [answer] = (await looking).results
    assert (answer.error.code, answer.error.message) == (
        ErrorCode.LOG_STORAGE_ERROR,
        "the log is being changed: try again",
    )
    [found] = (await storage.stub.ListOffsets(look_up(NOW))).results
    assert found.offset == 0

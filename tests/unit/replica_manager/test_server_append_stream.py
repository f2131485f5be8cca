"""The append stream to a log-storage that was away for long."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from append_server import TRANSPORTS, AppendServer

from highwater.log_storage_client.values import Append, AppendAnswer, StorageUnavailableError
from highwater.model.partition import PartitionKey
from highwater.replica_manager.storage.leader_appends import LeaderAppends
from highwater.v1 import log_storage_pb2


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_probes_that_timed_out_are_not_sent_when_log_storage_is_back(tmp_path: Path, transport: str) -> None:
    address = f"unix:{tmp_path}/log-storage"
    asked = []

    async def append(request_iterator: Any, context: Any) -> None:
        while (request := await context.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
            asked.append(request.correlation_id)
            await context.write(
                log_storage_pb2.AppendResponse(correlation_id=request.correlation_id, incarnation="new")
            )

    stream = LeaderAppends(address, lambda incarnation: None)
    stream.start()
    for _ in range(20):
        with pytest.raises(StorageUnavailableError):
            await stream.probe(0.001)
    server = AppendServer(address, transport, append)
    await server.start()
    assert await stream.probe(10) == "new"
    assert len(asked) == 2  # the message that opens the stream, and this probe
    await stream.stop()
    await server.stop()


async def test_a_probe_that_is_cancelled_as_it_is_answered_is_cancelled(tmp_path: Path) -> None:
    """Else who renews a lease goes on for ever, and who waits for its end, too: the broker never registers again."""
    stream = LeaderAppends(f"unix:{tmp_path}/nobody", lambda incarnation: None)
    probing = asyncio.create_task(stream.probe(10))
    await asyncio.sleep(0)
    stream._probes[0].set_result("new")
    probing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probing
    await stream.stop()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("mistake", ["another message's answer", "who is told raises"])
async def test_what_an_answer_that_cannot_be_taken_belongs_to_is_settled(
    tmp_path: Path, mistake: str, transport: str
) -> None:
    """The stream breaks, and the appends of just that message were forgotten: their partition, and the producers there,
    waited for ever."""
    address = f"unix:{tmp_path}/log-storage"

    async def append(request_iterator: Any, context: Any) -> None:
        while (request := await context.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
            wrong = bool(request.partitions)
            await context.write(
                log_storage_pb2.AppendResponse(
                    correlation_id=request.correlation_id + (wrong and mistake == "another message's answer"),
                    incarnation="unheard of" if wrong else "one",
                    results=[log_storage_pb2.AppendResult() for _ in request.partitions],
                )
            )

    def told(incarnation: str) -> None:
        assert incarnation == "one", "a mistake of ours"

    server = AppendServer(address, transport, append)
    await server.start()
    stream = LeaderAppends(address, told)
    stream.start()
    assert await stream.probe(10) == "one"
    settled: asyncio.Future[AppendAnswer | None] = asyncio.get_running_loop().create_future()
    stream.send(Append(PartitionKey(b"a" * 16, 0), 1, 0, b"records"), settled.set_result)
    async with asyncio.timeout(5):
        assert await settled is None
    assert await stream.probe(10) == "one"  # over a new stream
    await stream.stop()
    await server.stop()


async def test_as_many_damaged_logs_of_another_incarnation_are_asked_for(tmp_path: Path) -> None:
    told: list[tuple[str, int]] = []
    stream = LeaderAppends(
        f"unix:{tmp_path}/nobody",
        lambda _: None,
        lambda count: told.append(("offline", count)),
        lambda count: told.append(("damaged", count)),
    )
    for incarnation in ("first", "first", "second"):
        stream._answer_seen(incarnation, 2, 1)
    assert told == [("offline", 2), ("damaged", 1)] * 2
    await stream.stop()


async def test_as_many_damaged_logs_after_one_was_mended_are_asked_for(tmp_path: Path) -> None:
    """Another one was found damaged before an answer could tell that there were fewer."""
    told: list[int] = []
    stream = LeaderAppends(f"unix:{tmp_path}/nobody", lambda _: None, damaged_logs=told.append)
    stream._answer_seen("one", 0, 1)
    stream.damage_dropped()
    stream._answer_seen("one", 0, 1)
    stream._answer_seen("one", 0, 1)
    assert told == [1, 1]
    await stream.stop()

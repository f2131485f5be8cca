"""A mistake of ours about one partition is loud, and wedges neither it nor the others: what was asked for is settled as
after any break."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from highwater.errors import ErrorCode
from highwater.log_storage_client.values import FencedLog, StorageError
from highwater.model.fence_role import Role
from highwater.model.log_state import LogState
from highwater.model.partition import PartitionKey
from highwater.replica_manager.membership.liveness import Liveness
from highwater.replica_manager.partition.actions import Fence, FenceAnswer
from highwater.replica_manager.storage.fencer import Fencer

FIRST, SECOND = PartitionKey(b"a" * 16, 0), PartitionKey(b"b" * 16, 0)


class Answering:
    """Stands where log-storage's client stands; the fencer asks it for nothing but `fence`."""

    def __init__(self, failure: Exception | None = None) -> None:
        self._failure = failure

    async def fence(self, role: Role, partitions: list[tuple[PartitionKey, int]], **_: Any) -> list[FencedLog]:
        if self._failure is not None:
            raise self._failure
        return [FencedLog(StorageError(ErrorCode.NONE), LogState(0, -1, 0, 0), (), "one", False) for _ in partitions]


async def test_an_answer_that_one_partition_cannot_take_reaches_the_others(caplog: pytest.LogCaptureFixture) -> None:
    taken = []

    def answered(key: PartitionKey, answer: FenceAnswer) -> None:
        assert key != FIRST, "a mistake of ours"
        taken.append(key)

    fencer = Fencer(Answering(), "rm")  # type: ignore[arg-type]
    futures = [fencer.submit(key, Fence(Role.LEADER, 3), answered) for key in (FIRST, SECOND)]
    async with asyncio.timeout(5):
        assert [(await future).error for future in futures] == [ErrorCode.NONE, ErrorCode.NONE]
    assert taken == [SECOND]
    assert any(record.levelno == logging.ERROR and record.exc_info for record in caplog.records)


async def test_a_fence_that_cannot_be_asked_for_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    answers = []
    fencer = Fencer(
        Answering(ValueError("a mistake of ours")),  # type: ignore[arg-type]
        "rm",
    )
    future = fencer.submit(FIRST, Fence(Role.LEADER, 3), lambda key, answer: answers.append(answer.error))
    async with asyncio.timeout(5):
        assert (await future).error is ErrorCode.LOG_STORAGE_ERROR
    assert answers == [ErrorCode.LOG_STORAGE_ERROR]
    assert any(record.levelno == logging.ERROR and record.exc_info for record in caplog.records)


async def test_a_broker_that_cannot_register_for_a_mistake_of_ours_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alive without a registration it would never come back by itself; started anew it may."""

    async def mistaken(liveness: Liveness) -> None:
        raise KeyError("a mistake of ours")

    class Unregistered:
        broker_epoch = None

        def registration_lost(self) -> None:
            pass

    failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(Liveness, "_register", mistaken)
    nothing: Any = None
    liveness = Liveness(
        Unregistered(),  # type: ignore[arg-type]
        nothing,
        nothing,
        listeners=dict,
        internal_listener="",
        rack="",
        session_timeout_ms=1_000,
        registered=lambda: None,
        failed=failed.set_result,
    )
    liveness.start()
    async with asyncio.timeout(5):
        assert isinstance(await failed, KeyError)
    await liveness.stop(deregister=False)

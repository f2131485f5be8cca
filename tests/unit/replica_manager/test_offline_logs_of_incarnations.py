"""What a log-storage that is gone has said of a log says nothing of the present one's (RULES 7.7)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from leading_broker import EPOCH, Leader, key

from highwater.errors import ErrorCode
from highwater.log_storage_client.values import FencedLog, ReadAnswer, StorageError
from highwater.model.fence_role import Role
from highwater.model.log_state import LogState
from highwater.model.partition import PartitionKey
from highwater.replica_manager.partition.actions import Fence
from highwater.replica_manager.partition.partition import Phase
from highwater.replica_manager.replicas.replica_manager import ReplicaManager
from highwater.replica_manager.responses.fetch_parts import UNBOUNDED, FetchedPart, FetchPart, FetchRole
from highwater.replica_manager.responses.response_reads import PartRead
from highwater.replica_manager.server.list_batches import list_batches
from highwater.replica_manager.storage import fencer
from highwater.replica_manager.storage.fencer import Fencer
from highwater.rpc.partition_keys import to_key
from highwater.v1 import broker_pb2, log_storage_pb2


class Restarting:
    """log-storage `before` has answered; when the answer is taken, `after` is there, and has fenced the logs anew."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader

    def restarts(self) -> None:
        replica_manager = self._leader.replica_manager
        replica_manager.log_storage_restarted("after")
        self._leader.lead(0, EPOCH + 1, incarnation="after")

    async def read(self, *request: Any) -> ReadAnswer:
        self.restarts()
        return ReadAnswer(StorageError(ErrorCode.LOG_STORAGE_ERROR, "offline"), b"", 0, 0, "before", True)

    async def list_batches(self, *request: Any, **options: Any) -> log_storage_pb2.LogListBatchesResponse:
        self.restarts()
        return log_storage_pb2.LogListBatchesResponse(incarnation="before", log=log_storage_pb2.LogState(offline=True))


@pytest.fixture
async def leader() -> Leader:
    made = Leader(1)
    made.replica_manager.log_storage_restarted("before")
    made.storage = made.replica_manager.storage = Restarting(made)  # type: ignore[assignment]
    return made


def still_leads(replica_manager: ReplicaManager) -> bool:
    partition = replica_manager.hosted[key(0)].partition
    return key(0) not in replica_manager.offline_logs and partition.phase is Phase.LEADER


async def test_a_read(leader: Leader) -> None:
    part = FetchPart(key(0), EPOCH, 0, 100)
    admitted = FetchedPart(key(0), readable_end=UNBOUNDED)
    await leader.handler.read_places([PartRead(leader.hosted(0), part, admitted, 100)], role=FetchRole.DEBUG)
    assert still_leads(leader.replica_manager)


async def test_a_listing_of_batches(leader: Leader) -> None:
    await list_batches(leader.replica_manager, broker_pb2.ListBatchesRequest(partition=to_key(key(0))))
    assert still_leads(leader.replica_manager)


@pytest.mark.parametrize("offline", [True, False])
async def test_fences_whose_answers_are_taken_in_turns(
    leader: Leader, monkeypatch: pytest.MonkeyPatch, offline: bool
) -> None:
    """Neither is a sound log taken for an offline one, nor the other way round."""
    monkeypatch.setattr(fencer, "ANSWERED_AT_ONCE", 1)
    replica_manager = leader.replica_manager
    replica_manager.host(key(1), "t", {})

    async def fence(role: Role, partitions: list[tuple[PartitionKey, int]], **options: Any) -> list[FencedLog]:
        code = ErrorCode.LOG_STORAGE_ERROR if offline else ErrorCode.NONE
        return [FencedLog(StorageError(code), LogState(0, -1, 0, 0), (), "before", offline) for _ in partitions]

    storage: Any = SimpleNamespace(fence=fence)
    fences = Fencer(storage, "rm")
    taken: list[PartitionKey] = []

    def answered(each: PartitionKey, answer: Any) -> None:
        if not taken:  # others have their turn after the first
            asyncio.get_running_loop().call_soon(restarts)
        taken.append(each)
        replica_manager.fenced(each, answer)

    def restarts() -> None:
        replica_manager.log_storage_restarted("after")
        leader.lead(0, EPOCH + 1, incarnation="after")
        if not offline:
            replica_manager.offline_logs.seen([key(0)])

    asked = [fences.submit(each, Fence(Role.LEADER, EPOCH), answered) for each in (key(1), key(0))]
    await asyncio.gather(*asked)
    assert taken == [key(1), key(0)]
    assert (key(0) in replica_manager.offline_logs) is not offline

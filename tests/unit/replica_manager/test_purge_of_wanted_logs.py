"""A log is not deleted by a decision that is older than what wants it again (RULES 9.3)."""

from __future__ import annotations

from typing import Any

import pytest
from leading_broker import EPOCH, Leader, key

from highwater.errors import ErrorCode
from highwater.log_storage_client.values import StorageError
from highwater.model.partition import PartitionKey
from highwater.replica_manager.membership import purge
from highwater.replica_manager.membership.purge import KEPT, Purge

KEY = key(0)
NOTHING: Any = None


class LogStorage:
    def __init__(self) -> None:
        self.deleted: list[tuple[PartitionKey, int]] = []

    async def delete_log(self, deleted: PartitionKey, leader_epoch: int) -> StorageError:
        self.deleted.append((deleted, leader_epoch))
        return StorageError(ErrorCode.NONE)


@pytest.mark.parametrize("known_epoch", [EPOCH - 1, EPOCH, -1])
async def test_a_replica_instructed_since_it_was_judged_stays(
    known_epoch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was moved away, and back while the deletion of its log was under way."""
    replica_manager, storage = Leader(1).replica_manager, LogStorage()
    deleting = Purge(1, storage, NOTHING, NOTHING, cluster_id=lambda: "c", evict=replica_manager.evict_up_to)  # type: ignore[arg-type]

    async def judge(wanted: list[PartitionKey]) -> tuple[list[purge._Doom], list[PartitionKey]]:
        return [purge._Doom(KEY, known_epoch)], []

    monkeypatch.setattr(deleting, "_judge", judge)
    outcomes = await deleting.delete([KEY])
    if known_epoch == EPOCH - 1:
        assert outcomes == {KEY: KEPT}
        assert storage.deleted == []
        assert KEY in replica_manager.hosted
    else:
        assert storage.deleted == [(KEY, known_epoch)]
        assert not replica_manager.hosted

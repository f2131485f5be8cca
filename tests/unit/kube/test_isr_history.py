"""The history of ISRs ends, whatever becomes of etcd. With etcd itself: tests/integration/test_kube_isr_history.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from highwater.errors import UserError
from highwater.kube import isr_history
from highwater.metadata.schema.keys import Keys
from highwater.metadata.store.transactions import TxnResult, WatchBatch


class GoneStore:
    """One that loses its etcd once the history has begun."""

    def __init__(self) -> None:
        self.revoked: list[int] = []

    async def lease_grant(self, ttl_s: int) -> tuple[int, int]:
        return 7, ttl_s

    async def lease_revoke(self, lease: int) -> None:
        self.revoked.append(lease)

    async def txn(self, *_: object) -> TxnResult:
        return TxnResult(True, 9)

    async def watch_prefix(self, prefix: str, start_revision: int) -> AsyncGenerator[WatchBatch]:
        yield WatchBatch((), start_revision)
        await asyncio.Event().wait()


async def test_an_etcd_that_says_nothing_more_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isr_history, "SILENT_S", 0.05)
    store: Any = GoneStore()
    async with asyncio.timeout(5):
        with pytest.raises(UserError, match="nothing for 0.05 s, and there is more to come"):
            await isr_history.history(store, Keys("flights"), 2, 3)
    assert store.revoked == [7]

"""The key-value store under all metadata: etcd, asked with deadlines, and honest about writes of unknown outcome.

`aetcd` brings etcd's messages and stubs; its client is not used, since it knows one endpoint, no TLS and no watch that
resumes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from aetcd import rpc
from grpc.aio import AioRpcError

from highwater.metadata.store.blocking_leases import BlockingLeases
from highwater.metadata.store.connections import RETRY_PAUSE_S, Connections, Member, Retired
from highwater.metadata.store.etcd_errors import (
    AnswerTooLarge,
    Compacted,
    LeaseNotFound,
    OutcomeUnknown,
    Refused,
    StoreClosed,
    StoreError,
    Unavailable,
    classify,
)
from highwater.metadata.store.refusals import Refusals
from highwater.metadata.store.tls import TlsSettings
from highwater.metadata.store.transactions import (
    MAX_TXN_OPERATIONS,
    Compare,
    Delete,
    DeletePrefix,
    Entry,
    Get,
    Listing,
    Operation,
    Put,
    Target,
    TxnResult,
    WatchBatch,
    check_size,
)
from highwater.metadata.store.watch_stream import HAS_LEADER, entry_of, prefix_end, watch_range

if TYPE_CHECKING:
    from highwater.rpc.settings import EtcdSettings

DEFAULT_TIMEOUT_S = 5.0
FIRST_PAGE_ENTRIES = 100
PAGE_ENTRIES = 2_000
PAGE_BYTES = 4 << 20  # that a page is to have, going by the one before it
LISTING_ATTEMPTS = 3

__all__ = [
    "Compacted",
    "LeaseNotFound",
    "OutcomeUnknown",
    "Store",
    "StoreClosed",
    "StoreError",
    "TlsSettings",
    "Unavailable",
]


class Store:
    """An etcd cluster. Every call ends within its deadline (`timeout_s`, else the store's) or raises:

    - `Unavailable`: nothing was done. Reads, and writes that were never sent, have been tried at every endpoint.
    - `OutcomeUnknown`: a write was sent and not answered. It is never sent again by the store.
    - `Compacted`, `LeaseNotFound`, `Refused`, `StoreClosed`: see there. A refusal is told the later the longer etcd
      goes on refusing, up to 2 s and within the deadline: whoever tries again at once does no harm.

    Reads are linearizable. A cancelled write is one of unknown outcome.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        tls: TlsSettings | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self._connections = Connections(endpoints, tls)
        self._timeout_s = timeout_s
        self._refusals = Refusals()

    @classmethod
    def of(cls, settings: EtcdSettings) -> Self:
        """The etcd that a service's settings name. Raises `UserError` where the files for TLS are missing, broken, or
        do not go together."""
        files = (settings.etcd_ca_file, settings.etcd_certificate_file, settings.etcd_key_file)
        tls = TlsSettings(*(Path(each) if each else None for each in files)) if any(files) else None
        return cls(settings.etcd, tls=tls)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the connections; calls and watches in progress raise `StoreClosed`. Leases live on until they expire."""
        await self._connections.close()

    # Reads

    async def get(self, key: str, *, timeout_s: float | None = None) -> Entry | None:
        request = rpc.RangeRequest(key=key.encode())
        response = await self._read(lambda member: member.kv.Range, request, timeout_s)
        return entry_of(response.kvs[0]) if response.kvs else None

    async def get_many(self, keys: Iterable[str], *, timeout_s: float | None = None) -> tuple[dict[str, Entry], int]:
        """Entries of the keys that exist, all as of one revision, which comes second."""
        wanted = list(dict.fromkeys(keys))
        found: dict[str, Entry] = {}
        revision = start = 0
        page = MAX_TXN_OPERATIONS
        while start < len(wanted) or not revision:
            gets = [
                rpc.RequestOp(request_range=rpc.RangeRequest(key=key.encode(), revision=revision))
                for key in wanted[start : start + page]
            ]
            try:
                response = await self._read(lambda member: member.kv.Txn, rpc.TxnRequest(success=gets), timeout_s)
            except AnswerTooLarge:
                if page == 1:
                    raise
                page = max(page // 8, 1)
                continue
            start += page
            revision = revision or response.header.revision
            for answer in response.responses:
                found |= {entry.key: entry for entry in map(entry_of, answer.response_range.kvs)}
        return found, revision

    async def get_prefix(self, prefix: str, *, revision: int = 0, timeout_s: float | None = None) -> Listing:
        """All entries under the prefix as of `revision` (0: now). The deadline is that of each page of the answer.
        Raises `Compacted` where the revision was given and is no longer kept."""
        for attempt in range(LISTING_ATTEMPTS):
            try:
                return await self._list(prefix, revision, timeout_s)
            except Compacted:
                # A compaction between two pages: begin again, at the revision that is current then.
                if revision or attempt == LISTING_ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    async def _list(self, prefix: str, revision: int, timeout_s: float | None) -> Listing:
        entries: list[Entry] = []
        key, end = prefix.encode(), prefix_end(prefix)
        page = min(FIRST_PAGE_ENTRIES, PAGE_ENTRIES)
        while True:
            request = rpc.RangeRequest(key=key, range_end=end, revision=revision, limit=page)
            try:
                response = await self._read(lambda member: member.kv.Range, request, timeout_s)
            except AnswerTooLarge:
                if page == 1:
                    raise
                page = max(page // 8, 1)
                continue
            revision = revision or response.header.revision
            entries += map(entry_of, response.kvs)
            if not response.more:
                return Listing(tuple(entries), revision)
            key = response.kvs[-1].key + b"\0"
            # Entries differ: those of one kind, which are like one another, stand together.
            page = max(1, min(PAGE_ENTRIES, len(response.kvs) * PAGE_BYTES // response.ByteSize()))

    async def has_prefix(self, prefix: str, *, timeout_s: float | None = None) -> bool:
        """Tells whether there is an entry under the prefix."""
        request = rpc.RangeRequest(key=prefix.encode(), range_end=prefix_end(prefix), count_only=True)
        response = await self._read(lambda member: member.kv.Range, request, timeout_s)
        return bool(response.count)

    async def version(self, *, timeout_s: float | None = None) -> str:
        """The version of the member that answers, for example "3.5.6"."""
        response = await self._read(lambda member: member.maintenance.Status, rpc.StatusRequest(), timeout_s)
        return str(response.version)

    # Writes

    async def put(self, key: str, value: bytes, *, lease: int = 0, timeout_s: float | None = None) -> int:
        """Unconditionally; returns the revision. Nearly everything wants `txn` with a compare instead."""
        return (await self.txn((), (Put(key, value, lease),), timeout_s=timeout_s)).revision

    async def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
        *,
        timeout_s: float | None = None,
    ) -> TxnResult:
        """Does `then` if every compare holds and `otherwise` if not, atomically.

        Raises `ValueError` above 128 compares or operations, `LeaseNotFound` where a put names a lease that is gone
        (nothing was written), and as the class says.
        """
        check_size(compares, then, otherwise)
        request = rpc.TxnRequest(
            compare=[_compare(compare) for compare in compares],
            success=[_request_op(operation) for operation in then],
            failure=[_request_op(operation) for operation in otherwise],
        )
        writes = any(not isinstance(operation, Get) for operation in (*then, *otherwise))
        send = self._write if writes else self._read
        response = await send(lambda member: member.kv.Txn, request, timeout_s)
        entries = [
            entry_of(answer.response_range.kvs[0]) if answer.response_range.kvs else None
            for answer in response.responses
            if answer.HasField("response_range")
        ]
        return TxnResult(response.succeeded, response.header.revision, tuple(entries))

    async def compact(self, revision: int, *, timeout_s: float | None = None) -> None:
        """Forgets all revisions before `revision`."""
        await self._write(lambda member: member.kv.Compact, rpc.CompactionRequest(revision=revision), timeout_s)

    # Leases

    async def lease_grant(self, ttl_s: int, *, timeout_s: float | None = None) -> tuple[int, int]:
        """A new lease and the seconds that it was granted for, which are more than `ttl_s` where etcd's election
        time-out demands it. After a lost answer it asks for another: the first one expires unused."""
        response = await self._read(lambda member: member.lease.LeaseGrant, rpc.LeaseGrantRequest(TTL=ttl_s), timeout_s)
        return response.ID, response.TTL

    def blocking_leases(self) -> BlockingLeases:
        """For a thread that renews a lease, at the same members."""
        return BlockingLeases(self._connections)

    async def lease_revoke(self, lease: int, *, timeout_s: float | None = None) -> None:
        """Ends a lease and deletes its keys at once. A lease that is gone already is none to complain of."""
        try:
            await self._read(lambda member: member.lease.LeaseRevoke, rpc.LeaseRevokeRequest(ID=lease), timeout_s)
        except LeaseNotFound:
            return

    # Watches

    def watch(self, key: str, start_revision: int) -> AsyncGenerator[WatchBatch]:
        """Every event of the key from `start_revision` on, see `watch_prefix`."""
        return watch_range(self._connections, self._refusals, key.encode(), b"", start_revision)

    def watch_prefix(self, prefix: str, start_revision: int) -> AsyncGenerator[WatchBatch]:
        """Every event under the prefix from `start_revision` on (a listing's revision + 1), without gap or repetition:
        after a broken connection it resumes behind the last revision seen, at another endpoint if need be, for as
        long as it takes.

        Ends by raising `Compacted`: list again, and compare by (id, create revision) (RULES 1.5, 8.4); or `Refused`,
        `StoreClosed`. Use with `contextlib.aclosing`, so that leaving the loop ends the stream.
        """
        return watch_range(self._connections, self._refusals, prefix.encode(), prefix_end(prefix), start_revision)

    # How calls are made

    async def _read(self, method: Callable[[Member], Any], request: Any, timeout_s: float | None) -> Any:
        """A call that may be repeated: tried at one endpoint after the other until the deadline."""
        deadline = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        while True:
            member = await self._connections.member(deadline)
            remaining = max(deadline - time.monotonic(), 0.001)
            # With several endpoints, one that hangs may use up half of the time only.
            attempt_s = remaining if len(self._connections.endpoints) == 1 else remaining / 2
            try:
                with self._connections.using(member):
                    return await method(member)(request, timeout=attempt_s, metadata=HAS_LEADER)
            except AioRpcError as broken:
                await self._fail_over(member, classify(broken, wrote=False), deadline, broken)
            except Retired as retired:
                await self._fail_over(member, Unavailable(str(retired)), deadline, retired)

    async def _write(self, method: Callable[[Member], Any], request: Any, timeout_s: float | None) -> Any:
        """A call that is sent at most once, unless etcd says that it did nothing."""
        deadline = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        while True:
            member = await self._connections.member(deadline)
            remaining = max(deadline - time.monotonic(), 0.001)
            try:
                with self._connections.using(member):
                    return await method(member)(request, timeout=remaining, metadata=HAS_LEADER)
            except AioRpcError as broken:
                await self._fail_over(member, classify(broken, wrote=True), deadline, broken)
            except Retired as retired:
                await self._fail_over(member, OutcomeUnknown(str(retired)), deadline, retired)

    async def _fail_over(self, member: Member, error: StoreError, deadline: float, cause: Exception) -> None:
        """Returns where the call may be repeated, at the next member; raises `error` otherwise."""
        if isinstance(error, Unavailable | OutcomeUnknown):
            self._connections.failed(member)
        if isinstance(error, Refused) and not isinstance(error, AnswerTooLarge):
            await self._refusals.pause(error, deadline - time.monotonic())
        if not isinstance(error, Unavailable) or time.monotonic() + RETRY_PAUSE_S >= deadline:
            raise error from cause
        await asyncio.sleep(RETRY_PAUSE_S)


def _compare(compare: Compare) -> Any:
    key = compare.key.encode()
    match compare.target:
        case Target.CREATE_REVISION:
            return rpc.Compare(
                key=key,
                target=rpc.Compare.CREATE,
                result=rpc.Compare.EQUAL,
                create_revision=compare.expected,
            )
        case Target.MOD_REVISION:
            return rpc.Compare(key=key, target=rpc.Compare.MOD, result=rpc.Compare.EQUAL, mod_revision=compare.expected)
        case Target.VALUE:
            return rpc.Compare(key=key, target=rpc.Compare.VALUE, result=rpc.Compare.EQUAL, value=compare.expected)


def _request_op(operation: Operation) -> Any:
    match operation:
        case Put(key, value, lease):
            return rpc.RequestOp(request_put=rpc.PutRequest(key=key.encode(), value=value, lease=lease))
        case Delete(key):
            return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key.encode()))
        case DeletePrefix(prefix):
            request = rpc.DeleteRangeRequest(key=prefix.encode(), range_end=prefix_end(prefix))
            return rpc.RequestOp(request_delete_range=request)
        case Get(key):
            return rpc.RequestOp(request_range=rpc.RangeRequest(key=key.encode()))

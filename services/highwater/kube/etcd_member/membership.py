"""The members of an etcd cluster as the cluster names them, and changes of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from aetcd import rpc
from grpc.aio import AioRpcError

from highwater.metadata.store.connections import CONNECT_TIMEOUT_S, Member
from highwater.metadata.store.etcd_errors import StoreError, Unavailable, classify
from highwater.metadata.store.tls import TlsSettings
from highwater.rpc.connections.tls import Certificates

LIST_TIMEOUT_S = 3.0
CHANGE_TIMEOUT_S = 5.0  # etcd sets none: it never answers for a change that was lost with its leader
_HTTPS = "https://"


@dataclass(frozen=True, slots=True)
class NamedMember:
    id: int
    name: str
    """Empty where it was added, until it has been started and has told the others. Those that a cluster began with have
    theirs from the beginning."""
    peer_urls: tuple[str, ...]
    client_urls: tuple[str, ...]
    """Empty until it has been started and has told the others."""


class Membership:
    """The cluster behind some of its members' client URLs."""

    def __init__(self, client_urls: Sequence[str], tls: TlsSettings | None) -> None:
        self._client_urls = tuple(client_urls)
        self._tls = tls
        self._connections: list[Member] = []

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[Membership]:
        for url in self._client_urls:
            encrypted = url.startswith(_HTTPS)
            credentials = Certificates(self._tls or TlsSettings()).credentials() if encrypted else None
            self._connections.append(Member(url.split("://", 1)[-1].rstrip("/"), credentials))
        try:
            yield self
        finally:
            for connection in self._connections:
                await connection.close()
            self._connections.clear()

    async def members(self) -> list[NamedMember]:
        """As a majority agrees that they are. Raises `Unavailable` where none answers, whatever the reason."""
        return await self._first(lambda connection: self._list(connection, linearizable=True))

    async def members_by_hearsay(self) -> list[NamedMember]:
        """As one of the members knows them, which may be long ago. Raises `Unavailable`."""
        return await self._first(lambda connection: self._list(connection, linearizable=False))

    async def remove(self, member_id: int) -> None:
        """Raises `StoreError`: it may have been done or not; list the members."""
        await self._change(lambda cluster: cluster.MemberRemove, rpc.MemberRemoveRequest(ID=member_id))

    async def add(self, peer_url: str) -> None:
        """Adds a voting member. Raises `StoreError`: it may have been done or not; list the members."""
        await self._change(lambda cluster: cluster.MemberAdd, rpc.MemberAddRequest(peerURLs=[peer_url]))

    async def update(self, member_id: int, peer_url: str) -> None:
        """Raises `StoreError`: it may have been done or not; list the members."""
        request = rpc.MemberUpdateRequest(ID=member_id, peerURLs=[peer_url])
        await self._change(lambda cluster: cluster.MemberUpdate, request)

    async def _list(self, connection: Member, *, linearizable: bool) -> list[NamedMember]:
        if not await connection.connected(CONNECT_TIMEOUT_S):
            raise Unavailable(f"etcd cannot be reached at {connection.endpoint}")
        cluster: Any = rpc.ClusterStub(connection.channel)
        try:
            answer = await cluster.MemberList(rpc.MemberListRequest(linearizable=linearizable), timeout=LIST_TIMEOUT_S)
        except AioRpcError as error:
            raise classify(error, wrote=False) from error
        return [
            NamedMember(member.ID, member.name, tuple(member.peerURLs), tuple(member.clientURLs))
            for member in answer.members
        ]

    async def _first(self, call: Callable[[Member], Coroutine[Any, Any, list[NamedMember]]]) -> list[NamedMember]:
        """The first answer of any member. All are asked at once: one that is cut off answers late or never."""
        calls = [asyncio.ensure_future(call(connection)) for connection in self._connections]
        said: list[str] = []
        try:
            for done in asyncio.as_completed(calls):
                try:
                    return await done
                except StoreError as error:
                    said.append(str(error))
        finally:
            for one in calls:
                one.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        raise Unavailable("; ".join(said) or "there is no other member to ask")

    async def _change(self, method: Callable[[Any], Any], request: object) -> None:
        """Sent to one member only: twice, a change that was done would look refused."""
        for connection in self._connections:
            if await connection.connected(CONNECT_TIMEOUT_S):
                try:
                    await method(rpc.ClusterStub(connection.channel))(request, timeout=CHANGE_TIMEOUT_S)
                except AioRpcError as error:
                    self._connections.remove(connection)  # the next change is asked of another member first
                    self._connections.append(connection)
                    raise classify(error, wrote=True) from error
                return
        raise Unavailable("no etcd member can be reached")

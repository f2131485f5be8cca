"""The way to the active controller, as etcd names it: one connection, kept until it is doubted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic

import grpc.aio

from highwater.metadata.leases.controller_election import read_controller
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import ControllerRegistration
from highwater.metadata.store.etcd_errors import StoreError
from highwater.metadata.store.store import Store
from highwater.rpc.connections.channel import open_channel
from highwater.rpc.connections.tls import Certificates
from highwater.v1 import controller_pb2_grpc

LOOK_INTERVAL_S = 0.1  # between two looks into etcd, however many ask for one


class ControllerLink:
    """A connection to one controller in office; closed when it is retired and its last call has ended."""

    def __init__(self, controller: ControllerRegistration, certificates: Certificates | None) -> None:
        self.controller = controller
        self._channel: grpc.aio.Channel = open_channel(controller.address, certificates)
        self.stub: controller_pb2_grpc.ControllerAsyncStub = controller_pb2_grpc.ControllerStub(self._channel)
        self._calls = 0
        self._retired = False

    @asynccontextmanager
    async def used(self) -> AsyncIterator[None]:
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            if self._retired and not self._calls:
                await self._channel.close(None)

    async def retire(self) -> None:
        self._retired = True
        if not self._calls:
            await self._channel.close(None)

    async def close(self) -> None:
        """At once, whatever is under way."""
        await self._channel.close(None)


class ActiveControllerLookup:
    """Reads etcd only where nothing is known or what is known is doubted, once for all who wait for it."""

    def __init__(self, store: Store, keys: Keys, certificates: Certificates | None = None) -> None:
        self._store = store
        self._certificates = certificates
        self._keys = keys
        self._link: ControllerLink | None = None
        self._doubted = True
        self._looking = asyncio.Lock()
        # The last look: when it began and ended, and how it failed.
        self._began_s = self._ended_s = float("-inf")
        self._failure: StoreError | None = None

    async def find(self) -> ControllerLink | None:
        """None: nobody acts now. Raises `StoreError`."""
        if self._doubted:
            asked_s = monotonic()
            async with self._looking:
                if self._doubted and self._ended_s < asked_s:
                    await self._look()
                if self._doubted and self._failure is not None:
                    raise self._failure
        return self._link

    def doubt(self, link: ControllerLink) -> None:
        """It does not act, or does not answer."""
        if link is self._link:
            self._doubted = True

    async def close(self) -> None:
        link, self._link, self._doubted = self._link, None, True
        if link is not None:
            await link.close()

    async def _look(self) -> None:
        await asyncio.sleep(max(0.0, self._began_s + LOOK_INTERVAL_S - monotonic()))
        self._began_s = monotonic()
        try:
            await self._take(await read_controller(self._store, self._keys))
            self._failure = None
        except StoreError as error:
            self._failure = error
        self._ended_s = monotonic()  # one that was cancelled has not ended: the next of those who wait looks

    async def _take(self, found: ControllerRegistration | None) -> None:
        before = self._link
        if before is None or found != before.controller:
            self._link = None if found is None else ControllerLink(found, self._certificates)
            if before is not None:
                await before.retire()
        self._doubted = self._link is None

"""Which connections a client keeps as brokers come, go and register anew."""

from __future__ import annotations

import asyncio

from highwater.client.cluster.broker_connections import BrokerConnections
from highwater.client.cluster.connection import Connection


class Opened(Connection):
    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.closed = False
        self.may_close = asyncio.Event()
        self.may_close.set()

    async def close(self) -> None:
        await self.may_close.wait()
        self.closed = True


async def test_one_for_each_address() -> None:
    connections = BrokerConnections(Opened)
    assert connections.to("a:1") is connections.to("a:1")
    assert connections.to("a:1") is not connections.to("b:1")
    assert [each.address for each in connections] == ["a:1", "b:1"]


async def test_those_of_brokers_that_have_gone_and_of_former_registrations_are_closed() -> None:
    connections = BrokerConnections(Opened)
    kept, gone, anew = connections.to("a:1"), connections.to("b:1"), connections.to("c:1")
    connections.follow({"a:1": 5, "b:1": 6, "c:1": 7}, frozenset(), began_anew=False)
    connections.follow({"a:1": 5, "c:1": 9}, {"b:1"}, began_anew=False)
    assert connections.to("a:1") is kept
    assert connections.to("b:1") is not gone
    assert connections.to("c:1") is not anew
    connections.follow({"a:1": 4, "c:1": 8}, frozenset(), began_anew=False)  # of a broker that lags
    assert connections.to("a:1") is kept
    connections.follow({"a:1": 1}, frozenset(), began_anew=True)
    assert connections.to("a:1") is not kept


async def test_the_end_waits_for_those_that_are_being_closed() -> None:
    connections = BrokerConnections(Opened)
    gone = connections.to("a:1")
    assert isinstance(gone, Opened)
    gone.may_close.clear()
    connections.follow({}, {"a:1"}, began_anew=False)
    ending = asyncio.create_task(connections.close())
    await asyncio.sleep(0)
    assert not ending.done()
    gone.may_close.set()
    await ending
    assert gone.closed

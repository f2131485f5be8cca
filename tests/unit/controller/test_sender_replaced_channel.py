"""A broker whose connection says goodbye while a request is under way on it, and that is there again later, under the
same registration: what the replaced channel cancels is sent again (RULES 8.8)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest

from highwater.controller.sending import wire
from highwater.controller.sending.metadata_messages import MetadataMessages
from highwater.controller.sending.sender import BrokerSender
from highwater.controller.state_machines.actions import SendLeaderAndIsr, SendMetadata
from highwater.controller.state_machines.cluster import Cluster
from highwater.controller.state_machines.election import ElectionPolicy
from highwater.metadata.schema.models import BrokerRegistration, LiveBroker
from highwater.model.partition import PartitionKey
from highwater.rpc.process.local_process import free_ports
from highwater.v1 import replica_control_pb2, replica_control_pb2_grpc

_GRACE_S = 30.0
_SOON_S = 15.0
_BROKER, _EPOCH = 1, 7
_CALLS = ("LeaderAndIsr", "UpdateMetadata")


class FakeBroker(replica_control_pb2_grpc.ReplicaControlServicer):
    """Takes everything; `silent` names the call that it does not answer."""

    def __init__(self, silent: str = "") -> None:
        self._silent = silent
        self.called = {name: asyncio.Event() for name in _CALLS}

    @contextlib.asynccontextmanager
    async def serving(self, address: str) -> AsyncIterator[grpc.aio.Server]:
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        replica_control_pb2_grpc.add_ReplicaControlServicer_to_server(self, server)
        assert server.add_insecure_port(address)
        await server.start()
        try:
            yield server
        finally:
            await server.stop(0)

    async def LeaderAndIsr(self, request: Any, context: Any) -> replica_control_pb2.LeaderAndIsrResponse:
        await self._take("LeaderAndIsr")
        return replica_control_pb2.LeaderAndIsrResponse()

    async def UpdateMetadata(self, request: Any, context: Any) -> replica_control_pb2.UpdateMetadataResponse:
        await self._take("UpdateMetadata")
        return replica_control_pb2.UpdateMetadataResponse()

    async def _take(self, call: str) -> None:
        self.called[call].set()
        if call == self._silent:
            await asyncio.sleep(_GRACE_S)


class NoAnswers:
    def instructed(self, *_: Any) -> None: ...
    def stopped(self, *_: Any) -> None: ...
    def metadata_told(self) -> None: ...
    def deposed(self, reason: str) -> None: ...


def make_sender(address: str) -> BrokerSender:
    broker = LiveBroker(BrokerRegistration(_BROKER, address, "i", "s", listeners={"INTERNAL": address}), _EPOCH)
    cluster = Cluster(1, 1, ElectionPolicy())
    now_ms = lambda: time.monotonic_ns() // 1_000_000  # noqa: E731
    return BrokerSender(broker, cluster, NoAnswers(), wire.Endpoints(), MetadataMessages(), "c:1", now_ms)


def tell(sender: BrokerSender, call: str) -> None:
    send = (
        SendMetadata(_BROKER, _EPOCH, full=True)
        if call == "UpdateMetadata"
        else SendLeaderAndIsr(_BROKER, _EPOCH, (PartitionKey(b"t" * 16, 0),))
    )
    sender.outbox.add(send, time.monotonic_ns() // 1_000_000)
    sender.wake()


@pytest.mark.parametrize(("under_way", "other"), [_CALLS, _CALLS[::-1]])
async def test_what_is_cancelled_with_the_channel_is_sent_again(
    under_way: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "highwater.controller.sending.sender.METADATA_TIMEOUT_S", _GRACE_S
    )  # longer than until it is replaced
    monkeypatch.setattr("highwater.controller.sending.sender.CONTROL_TIMEOUT_S", _GRACE_S)
    monkeypatch.setattr("highwater.rpc.connections.channel.REPLACE_AFTER_S", 0.2)
    monkeypatch.setattr("highwater.rpc.connections.channel.CLOSE_GRACE_S", 0.2)
    address = f"127.0.0.1:{free_ports(1)[0]}"
    sender = make_sender(address)
    before, after = FakeBroker(silent=under_way), FakeBroker()
    running = asyncio.ensure_future(sender.run())
    try:
        async with before.serving(address) as server:
            tell(sender, under_way)
            await asyncio.wait_for(before.called[under_way].wait(), _SOON_S)
            stopping = asyncio.create_task(server.stop(_GRACE_S))  # no new connections; what is under way may end
            await asyncio.sleep(0.1)
            tell(sender, other)  # which looks for a connection, and replaces the one that cannot be had
            await asyncio.sleep(1.0)  # it is replaced, its grace is over
            async with after.serving(address):
                await asyncio.wait_for(after.called[other].wait(), _SOON_S)
                await asyncio.wait_for(after.called[under_way].wait(), _SOON_S)
            stopping.cancel()
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

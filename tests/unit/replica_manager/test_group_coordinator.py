"""What a broker without groups answers to who asks for them."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from highwater.replica_manager.server import group_coordinator
from highwater.rpc.channel import open_channel
from highwater.rpc.server import RpcServer
from highwater.v1 import group_pb2

CALLS = [method.name for method in group_pb2.DESCRIPTOR.services_by_name["GroupCoordinator"].methods]


async def test_every_call_is_unimplemented_in_a_sentence(tmp_path: Path) -> None:
    server = RpcServer([f"unix:{tmp_path}/s"])
    group_coordinator.add_to(server.grpc)
    await server.start([])
    try:
        async with open_channel(server.addresses[0]) as channel:
            assert len(CALLS) == 9
            for call in CALLS:
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await channel.unary_unary(f"/highwater.v1.GroupCoordinator/{call}")(b"", timeout=5)
                assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
                assert refused.value.details() == group_coordinator.NO_GROUPS
    finally:
        await server.stop()

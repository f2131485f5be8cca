from __future__ import annotations

import asyncio
import resource
import socket
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from highwater.rpc.connections.channel import open_channel
from highwater.rpc.process.open_files import connections_within
from highwater.rpc.server import AddressInUseError, RpcServer, ServerLimits

NAME = "highwater.v1.LogStorage"


async def test_health_follows_set_serving_on_tcp_and_unix_addresses(tmp_path: Path) -> None:
    server = RpcServer(["127.0.0.1:0", f"unix:{tmp_path}/s"])
    await server.start([NAME])
    try:
        assert not server.addresses[0].endswith(":0")
        for address in server.addresses:
            async with open_channel(address) as channel:
                check = health_pb2_grpc.HealthStub(channel).Check
                before = await check(health_pb2.HealthCheckRequest(service=NAME), wait_for_ready=True)
                await server.set_serving(True)
                after = await check(health_pb2.HealthCheckRequest(service=NAME))
                await server.set_serving(False)
                assert (before.status, after.status) == (
                    health_pb2.HealthCheckResponse.NOT_SERVING,
                    health_pb2.HealthCheckResponse.SERVING,
                )
    finally:
        await server.stop(0)


async def test_a_health_listener_answers_health_checks_and_no_service() -> None:
    server = RpcServer(["127.0.0.1:0"], health_listen="127.0.0.1:0")
    await server.start([NAME])
    try:
        await server.set_serving(True)
        async with open_channel(server.health_address) as channel:
            check = health_pb2_grpc.HealthStub(channel).Check
            for name in ("live", NAME):
                answer = await check(health_pb2.HealthCheckRequest(service=name), wait_for_ready=True, timeout=10)
                assert answer.status == health_pb2.HealthCheckResponse.SERVING
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await channel.unary_unary(f"/{NAME}/DescribeLogs")(b"", timeout=10)
            assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
    finally:
        await server.stop(0)
    assert RpcServer(["127.0.0.1:0"]).health_address == ""


async def test_a_taken_port_is_told_in_one_sentence() -> None:
    first = RpcServer(["127.0.0.1:0"])
    await first.start([NAME])
    second = RpcServer([first.addresses[0]])
    try:
        with pytest.raises(AddressInUseError, match="cannot listen on 127.0.0.1"):
            await second.start([NAME])
    finally:
        await first.stop(0)
        await second.stop(0)


async def test_a_process_that_listens_is_live_whatever_it_serves(tmp_path: Path) -> None:
    server = RpcServer([f"unix:{tmp_path}/s"])
    await server.start([NAME])
    try:
        async with open_channel(server.addresses[0]) as channel:
            answer = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service="live"), wait_for_ready=True
            )
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    finally:
        await server.stop(0)


async def test_the_socket_of_a_process_that_listens_is_not_taken_from_it(tmp_path: Path) -> None:
    """Of one that was killed it is."""
    path = tmp_path / "s"
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.listen()
    dead.close()
    assert path.is_socket()
    first, second = RpcServer([f"unix:{path}"]), RpcServer([f"unix:{path}"])
    await first.start([NAME])
    try:
        with pytest.raises(AddressInUseError, match="another process"):
            await second.start([NAME])
        async with open_channel(first.addresses[0]) as channel:
            await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=NAME), wait_for_ready=True, timeout=5
            )
    finally:
        await first.stop(0)
        await second.stop(0)


async def test_an_rpc_that_is_not_served_is_unimplemented() -> None:
    from highwater.v1 import fetcher_pb2, fetcher_pb2_grpc

    server = RpcServer(["127.0.0.1:0"])
    fetcher_pb2_grpc.add_FetcherServicer_to_server(fetcher_pb2_grpc.FetcherServicer(), server.grpc)
    await server.start(["highwater.v1.Fetcher"])
    try:
        async with open_channel(server.addresses[0]) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await fetcher_pb2_grpc.FetcherStub(channel).SetThrottle(fetcher_pb2.SetThrottleRequest())
            assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
    finally:
        await server.stop(0)


async def test_a_message_too_large_and_a_call_or_connection_too_many_are_refused(tmp_path: Path) -> None:
    server = RpcServer([f"unix:{tmp_path}/s"], limits=ServerLimits(1 << 20, max_calls=2, max_connections=1))
    await server.start([NAME])
    try:
        async with open_channel(server.addresses[0]) as channel, open_channel(server.addresses[0]) as another:
            stub = health_pb2_grpc.HealthStub(channel)
            await stub.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=10)
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await stub.Check(health_pb2.HealthCheckRequest(service="x" * (1 << 20)), timeout=10)
            assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            watches = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(2)]
            for watch in watches:
                await watch.read()
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await stub.Check(health_pb2.HealthCheckRequest(), timeout=10)
            assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await health_pb2_grpc.HealthStub(another).Check(health_pb2.HealthCheckRequest(), timeout=10)
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
            for watch in watches:
                watch.cancel()
    finally:
        await server.stop(0)


async def closed(connection: socket.socket) -> bool:
    """Waits until the other end has closed it."""
    connection.setblocking(False)
    async with asyncio.timeout(10):
        while await asyncio.get_running_loop().sock_recv(connection, 4096):
            pass
    return True


async def test_a_connection_that_says_nothing_is_closed(tmp_path: Path) -> None:
    server = RpcServer([f"unix:{tmp_path}/s"], limits=ServerLimits(max_silent_ms=200))
    await server.start([NAME])
    try:
        with socket.socket(socket.AF_UNIX) as silent:
            silent.connect(f"{tmp_path}/s")
            assert await closed(silent)
    finally:
        await server.stop(0)


async def test_an_idle_connection_is_closed_and_its_client_comes_back_by_itself(tmp_path: Path) -> None:
    server = RpcServer([f"unix:{tmp_path}/s"], limits=ServerLimits(max_connections=1, max_idle_ms=300))
    await server.start([NAME])
    try:
        async with open_channel(server.addresses[0]) as channel, open_channel(server.addresses[0]) as another:
            first, second = (health_pb2_grpc.HealthStub(each) for each in (channel, another))
            await first.Check(health_pb2.HealthCheckRequest(), timeout=10)
            while channel.get_state() is grpc.ChannelConnectivity.READY:
                await asyncio.wait_for(channel.wait_for_state_change(grpc.ChannelConnectivity.READY), 10)
            # The only connection that there may be is free again: another takes it, and in its turn the first.
            await second.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=10)
            await first.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=10)
    finally:
        await server.stop(0)


def test_clients_leave_the_process_descriptors() -> None:
    assert connections_within(1024, 1) == 768
    assert connections_within(1024, 3) == 256
    assert connections_within(1, 1) == 1


OPEN_FILES = """
import asyncio, resource
from highwater.rpc.server import run_service

_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))

async def main(stop):
    print(*resource.getrlimit(resource.RLIMIT_NOFILE))

run_service(main)
"""


def test_every_service_may_open_as_many_files_as_it_is_allowed_to() -> None:
    done = subprocess.run([sys.executable, "-c", OPEN_FILES], capture_output=True, text=True, check=True, timeout=60)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert done.stdout.split() == [str(hard), str(hard)]

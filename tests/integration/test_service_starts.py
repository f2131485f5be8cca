"""Starts that wait, for etcd, for peers, for a recovery: the port is open and says `live`, and SIGTERM ends them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from replica_manager_cluster import eventually

from highwater.log_storage.config import LogConfig
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.model.partition import PartitionKey
from highwater.rpc.connections.channel import open_channel
from highwater.v1 import (
    common_pb2,
    log_storage_pb2,
    log_storage_pb2_grpc,
    replica_control_pb2,
    replica_control_pb2_grpc,
)

pytestmark = pytest.mark.alone

NOWHERE = "127.0.0.1:1"
SERVING = health_pb2.HealthCheckResponse.SERVING
STOP_S = 10
# Recovery goes on for ever: what is scanned is told, as it is of real batches.
ENDLESS_RECOVERY = """
import sys, time
from highwater.log_storage.log_manager import log_loader
def open_log(directory, config, known, now_ms, wall_offset_ms, scanned, tail_lost, disk):
    print("recovering", file=sys.stderr, flush=True)
    while True:
        scanned(1)
        time.sleep(0.01)
log_loader.open_log = open_log
from highwater.rpc.process.entry import run_program
run_program("highwater.log_storage.process")
"""


@asynccontextmanager
async def started(*command: str, **settings: object) -> AsyncIterator[asyncio.subprocess.Process]:
    arguments = [f"--set={key.replace('_', '.')}={value}" for key, value in settings.items()]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, *arguments, stderr=asyncio.subprocess.PIPE, env={**os.environ}
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def is_live(address: str) -> bool:
    return await health(address, "live") == SERVING


async def health(address: str, name: str) -> int:
    async with open_channel(address) as channel:
        try:
            answer = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=name), timeout=2
            )
        except grpc.aio.AioRpcError:
            return -1
    return int(answer.status)


async def ends(process: asyncio.subprocess.Process) -> bytes:
    """What it has said until its end, which SIGTERM brings."""
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(STOP_S):
        _, said = await process.communicate()
    assert process.returncode == 0, said
    assert b"Traceback" not in said
    return said


async def refuses_instructions(address: str) -> None:
    """RULES 1.2: before it has read the controller epoch, it may be a deposed controller that speaks."""
    async with open_channel(address) as channel:
        control = replica_control_pb2_grpc.ReplicaControlStub(channel)
        instruction = replica_control_pb2.LeaderAndIsrRequest(controller_id=1, controller_epoch=7, broker_epoch=7)
        metadata = replica_control_pb2.UpdateMetadataRequest(controller_id=1, controller_epoch=7, full=True)
        for answer in (
            await control.LeaderAndIsr(instruction, timeout=5),
            await control.UpdateMetadata(metadata, timeout=5),
        ):
            assert answer.error.code == common_pb2.ERROR_CODE_STALE_BROKER_EPOCH


SERVICES = {
    "replica_manager": ({"etcd": NOWHERE, "log_storage": NOWHERE, "broker_id": 1}, "highwater.v1.Broker"),
    "fetcher": ({"replica_manager": NOWHERE, "log_storage": NOWHERE, "broker_id": 1}, "highwater.v1.Fetcher"),
    "controller": ({"etcd": NOWHERE, "controller_id": 1}, "highwater.v1.Controller"),
}


@pytest.mark.parametrize("service", SERVICES)
async def test_a_service_without_its_peers_is_live_and_ends(service: str, tmp_path: Path) -> None:
    settings, name = SERVICES[service]
    address = f"unix:{tmp_path}/s"
    if service == "replica_manager":
        settings = {**settings, "listeners": f"INTERNAL://{address}"}
    else:
        settings = {**settings, "listen": address}
    if service == "controller":
        settings = {**settings, "advertised_listener": address}
    async with started("-m", f"highwater.{service}", **settings) as process:
        await eventually(lambda: is_live(address), f"{service} is live")
        if service == "replica_manager":
            assert await health(address, name) == await health(address, "ready") != SERVING
            await refuses_instructions(address)
        await ends(process)


async def test_log_storage_is_live_while_it_recovers_and_ends(tmp_path: Path) -> None:
    data, address = tmp_path / "data", f"unix:{tmp_path}/s"
    manager = LogManager([data], LogConfig(), broker_id=1)
    manager.load()
    for number in range(3):
        manager.create("t", PartitionKey(b"t" * 16, number), {})
    manager.close()
    async with started("-c", ENDLESS_RECOVERY, listen=address, broker_id=1, log_dirs=data) as process:
        assert process.stderr is not None
        async with asyncio.timeout(20):
            while b"recovering" not in await process.stderr.readline():
                pass
        assert await is_live(address)
        assert await health(address, "highwater.v1.LogStorage") != SERVING
        async with open_channel(address) as channel:
            described = await log_storage_pb2_grpc.LogStorageStub(channel).DescribeLogs(
                log_storage_pb2.DescribeLogsRequest(), timeout=5
            )
        assert described.opening
        assert b"while the logs were being opened" in await ends(process)
    again = LogManager([data], LogConfig(), broker_id=1)  # the lock is free
    again.load()
    assert len(again.logs) == 3
    again.close()

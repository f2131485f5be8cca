"""A client that means harm, and what its attacks must leave as it is; and the bytes of its batches."""

from __future__ import annotations

import struct
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
from running_cluster import HEAL_S, KEYS, Deployment, Traffic, deployment, traffic
from test_request_memory import memory

from highwater.cli.local_cluster import LocalCluster
from highwater.metadata.state.brokers import read_brokers
from highwater.records import Codec, Record, encode_columns, encode_rows
from highwater.records.header import crc32c
from highwater.rpc.connections.channel import open_channel
from highwater.v1 import broker_pb2, broker_pb2_grpc, common_pb2, controller_pb2_grpc

MIB = 1 << 20
NOW_MS = 1_767_225_600_000
PREY = "prey"
MOST_MIB = 512  # that an attack has a process grow by, at its peak
OTHERS = "others"  # their topic


class Attacker:
    """Speaks to the broker that leads the prey, with what no client of ours sends."""

    def __init__(self, deployed: Deployment, key: common_pb2.PartitionKey, channel: Any) -> None:
        self.deployed = deployed
        self.key = key
        self.channel = channel
        self.broker = broker_pb2_grpc.BrokerStub(channel)
        self.controller = controller_pb2_grpc.ControllerStub(channel)
        self.said: list[str] = []  # all that it was told

    def part(self, records: bytes) -> broker_pb2.ProducePartition:
        return broker_pb2.ProducePartition(partition=self.key, records=records)

    async def call(self, method: Callable[..., Any], request: Any) -> Any:
        """The answer; or the name of the status and what it says."""
        try:
            return await method(request, timeout=60)
        except grpc.aio.AioRpcError as error:
            self.said.append(error.details() or "")
            return f"{error.code().name}: {error.details()}"

    def sends(self, method: str) -> Callable[..., Any]:
        """The method of the Broker, for a request that is bytes already."""
        response = getattr(broker_pb2, f"{method}Response")
        return self.channel.unary_unary(f"/highwater.v1.Broker/{method}", response_deserializer=response.FromString)

    async def produce(self, records: bytes) -> common_pb2.Error:
        request = broker_pb2.ProduceRequest(acks=-1, timeout_ms=20_000, partitions=[self.part(records)])
        response = await self.call(self.broker.Produce, request)
        assert isinstance(response, broker_pb2.ProduceResponse), response
        if response.HasField("error") and response.error.code:
            error = response.error
        else:
            (result,) = response.results
            error = result.error
        self.said.append(error.message)
        return error

    async def refused(self, records: bytes, code: common_pb2.ErrorCode, saying: str) -> None:
        error = await self.produce(records)
        assert error.code == code, error
        assert saying in error.message, error


@asynccontextmanager
async def neighbours(cluster: LocalCluster) -> AsyncGenerator[Traffic]:
    """What is attacked is made; the one producer of others goes on through all attacks, and what follows them. In the
    end each of its records is there once."""
    async with deployment(cluster) as deployed:
        await deployed.create_topic(PREY, [[1, 2, 3]])
        await deployed.create_topic(OTHERS, [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
        await deployed.healed(PREY)
        await deployed.healed(OTHERS, 3)
    async with traffic(cluster.bootstrap, OTHERS, 3, delivery_timeout_ms=120_000, pace_s=0.03) as others:
        yield others


@asynccontextmanager
async def attack(deployed: Deployment, others: Traffic, topic: str = PREY) -> AsyncGenerator[Attacker]:
    """When the body is through, all that an attack must leave as it is, is looked at."""
    cluster = deployed.cluster
    (found,) = await deployed.admin.describe_topics([topic])
    key = common_pb2.PartitionKey(topic_id=found.topic_id, partition=0)
    address = next(
        each.address
        for each in (await deployed.admin.describe_cluster()).brokers
        if each.broker_id == found.partitions[0].leader
    )
    before = await held(deployed)
    pids = {name: each.pid for name, each in cluster.processes.items()}
    running = {name: pid for name, pid in pids.items() if pid}
    sizes = {name: _begin_peak(pid) for name, pid in running.items()}
    others.longest_pause_s.clear()
    async with open_channel(address) as channel:
        attacker = Attacker(deployed, key, channel)
        yield attacker
        await others.until_acked(20)
        assert max(others.longest_pause_s.values()) < HEAL_S, others.longest_pause_s
        grown = {name: (memory(pid, "VmHWM") - sizes[name]) // MIB for name, pid in running.items()}
        assert max(grown.values()) < MOST_MIB, grown
    assert {name: each.pid for name, each in cluster.processes.items() if each.running} == pids
    assert await held(deployed) == before, "no lease and no leadership is lost"
    assert {PREY, OTHERS} <= {each.topic for each in await deployed.admin.describe_topics()}
    assert not [each for each in attacker.said if str(cluster.settings.data) in each], "paths are not for clients"


def _begin_peak(pid: int) -> int:
    """The memory of a process in bytes, and from here on its peak (VmHWM) begins with that."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return memory(pid)


async def held(deployed: Deployment) -> tuple[list[tuple[int, int]], dict[int, int], int]:
    """What changes where a lease or a leadership is lost: the leaders and their epochs, the epoch of each broker, and
    the controller's, 0 where there is none."""
    states = [*await deployed.states(PREY), *await deployed.states(OTHERS, 3)]
    leaders = [(state.leader, state.leader_epoch) for state in states]
    brokers = {number: each.broker_epoch for number, each in (await read_brokers(deployed.store, KEYS)).items()}
    controller = await deployed.store.get(KEYS.controller)
    return leaders, brokers, 0 if controller is None else controller.create_revision


def header(batch: bytes, **fields: int) -> bytes:
    """The batch with other fields in its header, and the CRC that fits."""
    places = {"last_offset_delta": (23, ">i"), "max_timestamp": (35, ">q"), "record_count": (57, ">i")}
    changed = bytearray(batch)
    for name, value in fields.items():
        place, layout = places[name]
        struct.pack_into(layout, changed, place, value)
    return sealed(bytes(changed))


def sealed(batch: bytes) -> bytes:
    changed = bytearray(batch)
    struct.pack_into(">i", changed, 8, len(batch) - 12)
    struct.pack_into(">I", changed, 17, crc32c(bytes(changed[21:])))
    return bytes(changed)


def with_payload(batch: bytes, payload: bytes, codec: Codec) -> bytes:
    """Another payload behind the header, which says how it is compressed."""
    changed = bytearray(batch[:61])
    changed[22] = changed[22] & ~7 | codec
    return sealed(bytes(changed) + payload)


def one(timestamp_ms: int = NOW_MS, value: bytes = b"v", producer_id: int = -1) -> bytes:
    """A batch of one record; the first one of the producer, if it has one."""
    record, nothing = Record(0, timestamp_ms, None, value, ()), min(producer_id, 0)
    return encode_rows(
        [record], codec=Codec.NONE, producer_id=producer_id, producer_epoch=nothing, base_sequence=nothing
    )


def columns(rows: int, value: bytes) -> bytes:
    table = pa.table(
        {
            "timestamp": pa.array([NOW_MS] * rows, pa.int64()),
            "key": pa.nulls(rows, pa.binary()),
            "value": pa.array([value] * rows, pa.binary()),
        }
    )
    return encode_columns(table, codec=Codec.ZSTD)


def varint(number: int) -> bytes:
    zigzag = number << 1
    found = bytearray()
    while zigzag > 0x7F:
        found.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    return bytes([*found, zigzag])

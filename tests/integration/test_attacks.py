"""One client means harm, on a cluster with default settings; others go on.

Each attack once took down what others use, or could. It is made as it was made then, by bare messages, while another
client produces with `acks=all`. Each is refused with a sentence or survived: nobody else's record is lost or refused,
no process ends, no lease and no leadership changes, and metadata of all topics is there afterwards. In the end whatever
the attacks left has to let controller and brokers start again.
"""

from __future__ import annotations

import asyncio
import os
import pty
import socket
import stat
import struct
import subprocess
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from itertools import count, pairwise
from typing import Any

import grpc
import pyarrow as pa
import pytest
from running_cluster import HIGHWATER, KEYS, Deployment, Traffic, deployment, running_cluster, traffic
from test_request_memory import memory

from highwater.cli.local_cluster import LocalCluster
from highwater.client import Producer
from highwater.metadata.state.brokers import read_brokers
from highwater.records import Codec, Record, encode_columns, encode_rows
from highwater.records.codecs import compress
from highwater.records.header import crc32c
from highwater.rpc.connections.channel import open_channel
from highwater.v1 import broker_pb2, broker_pb2_grpc, common_pb2, controller_pb2, controller_pb2_grpc

MIB = 1 << 20
NOW_MS = 1_767_225_600_000
WEEK_MS = 7 * 24 * 3600 * 1000
PREY = "prey"
_numbers = count(1)
MOST_MIB = 400  # that an attack has a process grow by


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(tmp_path_factory.mktemp("attacked")) as running:
        yield running


@pytest.fixture
async def deployed(cluster: LocalCluster) -> AsyncGenerator[Deployment]:
    async with deployment(cluster) as found:
        if PREY not in await found.admin.list_topics():
            await found.create_topic(PREY, [[1, 2, 3]])
            await found.healed(PREY)
        yield found


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
async def attack(deployed: Deployment, topic: str = PREY) -> AsyncGenerator[tuple[Attacker, Traffic]]:
    """While the body runs, another client produces; then all that an attack must leave as it is, is looked at."""
    cluster, others = deployed.cluster, f"others-{next(_numbers)}"
    await deployed.create_topic(others, [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    await deployed.healed(others, 3)
    (found,) = await deployed.admin.describe_topics([topic])
    key = common_pb2.PartitionKey(topic_id=found.topic_id, partition=0)
    address = next(
        each.address
        for each in (await deployed.admin.describe_cluster()).brokers
        if each.broker_id == found.partitions[0].leader
    )
    before = await _held(deployed, others)
    pids = {name: each.pid for name, each in cluster.processes.items()}
    sizes = {name: memory(pid) for name, pid in pids.items() if pid}
    async with traffic(cluster.bootstrap, others, 3) as producing, open_channel(address) as channel:
        attacker = Attacker(deployed, key, channel)
        yield attacker, producing
        grown = {name: (memory(pid) - sizes[name]) // MIB for name, pid in pids.items() if pid}
        assert max(grown.values()) < MOST_MIB, grown
    assert {name: each.pid for name, each in cluster.processes.items() if each.running} == pids
    assert await _held(deployed, others) == before, "no lease and no leadership is lost"
    assert {PREY, others} <= {each.topic for each in await deployed.admin.describe_topics()}
    assert not [each for each in attacker.said if str(cluster.settings.data) in each], "paths are not for clients"


async def _held(deployed: Deployment, others: str) -> Any:
    """What changes where a lease or a leadership is lost."""
    states = [*await deployed.states(PREY), *await deployed.states(others, 3)]
    leaders = [(state.leader, state.leader_epoch) for state in states]
    brokers = {number: each.broker_epoch for number, each in (await read_brokers(deployed.store, KEYS)).items()}
    controller = await deployed.store.get(KEYS.controller)
    assert controller is not None
    return leaders, brokers, controller.create_revision


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


def one(timestamp_ms: int = NOW_MS, value: bytes = b"v") -> bytes:
    return encode_rows([Record(0, timestamp_ms, None, value, ())], codec=Codec.NONE)


def varint(number: int) -> bytes:
    zigzag = number << 1
    found = bytearray()
    while zigzag > 0x7F:
        found.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    return bytes([*found, zigzag])


async def test_configurations_that_no_listing_can_hold(deployed: Deployment) -> None:
    """Fifty-two topics with a value of 1.3 MB in one request: the next controller could not list them."""
    key, value = "follower.replication.throttled.replicas", "0:1," * 325_000

    def request(topics: int) -> controller_pb2.CreateTopicsRequest:
        made = (
            controller_pb2.NewTopic(topic=f"large-{number}", partitions=1, replication_factor=1, config={key: value})
            for number in range(topics)
        )
        return controller_pb2.CreateTopicsRequest(topics=made)

    async with attack(deployed) as (attacker, _):
        answer = await attacker.call(attacker.controller.CreateTopics, request(52))
        assert "4194304 are the most, send several" in answer.error.message, answer
        answer = await attacker.call(attacker.controller.CreateTopics, request(2))
        assert {each.error.code for each in answer.results} == {common_pb2.ERROR_CODE_INVALID_CONFIG}, answer
        assert "4096" in answer.results[0].error.message
        attacker.said += [each.error.message for each in answer.results]


async def test_batches_that_claim_more_records_than_they_hold(deployed: Deployment) -> None:
    """Sixty-one bytes and 2^31-1 offsets each: a segment began with each of them."""
    liar = header(one()[:61], last_offset_delta=2**31 - 2, record_count=2**31 - 1)
    async with attack(deployed) as (attacker, _):
        await attacker.refused(liar * 1000, common_pb2.ERROR_CODE_CORRUPT_MESSAGE, "can hold 0 at the most")
        await attacker.refused(
            header(one(), last_offset_delta=2**31 - 2, record_count=2**31 - 1),
            common_pb2.ERROR_CODE_CORRUPT_MESSAGE,
            "claims 2147483647 records",
        )


async def test_records_that_are_a_week_apart(deployed: Deployment) -> None:
    """Each of 400 in 37 KB was a reason for a segment, with three files open for good; 1,000 at once took a second."""
    weeks = b"".join(one(NOW_MS - number * WEEK_MS) for number in range(400, 0, -1))
    logs = [each for name, each in deployed.cluster.processes.items() if name.startswith("log-storage")]

    def open_files() -> list[int]:
        return [len(os.listdir(f"/proc/{each.pid}/fd")) for each in logs]

    async with attack(deployed) as (attacker, _):
        before = open_files()
        for batches in (weeks, weeks, weeks * 2):
            assert not (await attacker.produce(batches)).code
        assert all(now - then < 200 for now, then in zip(open_files(), before, strict=True)), (before, open_files())
        segments = [
            path for directory in deployed.cluster.log_dirs(1) for path in directory.glob("**/*.log") if path.is_file()
        ]
        assert len(segments) < 120, len(segments)
        await attacker.refused(one() * 4000, common_pb2.ERROR_CODE_INVALID_REQUEST, "more than 1000 batches")


async def test_one_row_with_six_million_headers(deployed: Deployment) -> None:
    """1,191 bytes: whoever expanded them stood still for 17 s."""
    headers = 6_000_000
    record = b"\0" + varint(0) + varint(0) + b"\1" + varint(1) + b"v" + varint(headers) + bytes(2 * headers)
    payload = compress(Codec.ZSTD, varint(len(record)) + record)
    batch = with_payload(one(), bytes(payload), Codec.ZSTD)
    assert len(batch) < 4096
    await deployed.create_topic("compacted", [[1, 2, 3]])
    await deployed.admin.alter_topic_config("compacted", {"cleanup.policy": "compact"})
    for topic in (PREY, "compacted"):
        async with attack(deployed, topic) as (attacker, _):
            await attacker.refused(batch, common_pb2.ERROR_CODE_INVALID_RECORD, "the limit is 1000")


async def test_columns_that_expand_to_250_mb(deployed: Deployment) -> None:
    """A reader held 250 MB for 7.8 KB."""
    table = pa.table(
        {
            "timestamp": pa.array([NOW_MS] * 250, pa.int64()),
            "key": pa.nulls(250, pa.binary()),
            "value": pa.array([bytes(1_000_000)] * 250, pa.binary()),
        }
    )
    batch = encode_columns(table, codec=Codec.ZSTD)
    assert len(batch) < 65_536, len(batch)
    async with attack(deployed) as (attacker, _):
        await attacker.refused(batch, common_pb2.ERROR_CODE_MESSAGE_TOO_LARGE, "expands to")


async def test_garbage_behind_a_header_that_fits(deployed: Deployment) -> None:
    """Every reader stopped at its offset."""
    async with attack(deployed) as (attacker, _):
        for codec in (Codec.NONE, Codec.GZIP, Codec.LZ4, Codec.ZSTD):
            poison = with_payload(one(), b"\xff" * 500, codec)
            await attacker.refused(poison, common_pb2.ERROR_CODE_CORRUPT_MESSAGE, "cannot be decoded")


async def test_a_time_that_is_not_the_records(deployed: Deployment) -> None:
    """Retention kept whatever was behind it, and ListOffsets did not find what had been found before."""
    async with attack(deployed) as (attacker, _):
        await attacker.refused(
            header(one(), max_timestamp=2**63 - 1), common_pb2.ERROR_CODE_INVALID_TIMESTAMP, "it is ms since 1970"
        )
        await attacker.refused(
            header(one(), max_timestamp=NOW_MS + 1), common_pb2.ERROR_CODE_INVALID_TIMESTAMP, "its records' is"
        )
        assert not (await attacker.produce(one())).code
        asked = broker_pb2.ListOffsetsPartition(partition=attacker.key, leader_epoch=-1, timestamp=-3)
        response = await attacker.call(
            attacker.broker.ListOffsets, broker_pb2.ListOffsetsRequest(partitions=[asked], replica_id=-1)
        )
        (result,) = response.results
        assert result.offset >= 0, result


async def test_a_million_parts(deployed: Deployment) -> None:
    """A fetch of so many held the loop for 10.8 s."""
    million = 1_000_000
    async with attack(deployed) as (attacker, _):
        broker, key, consumer = attacker.broker, attacker.key, broker_pb2.ConsumerRole()
        fetched = broker_pb2.FetchPartition(partition=key, leader_epoch=-1, max_bytes=1)
        asked = broker_pb2.ListOffsetsPartition(partition=key, leader_epoch=-1, timestamp=-1)
        answers = {
            "Fetch": await attacker.call(
                broker.Fetch,
                broker_pb2.FetchRequest(consumer=consumer, max_bytes=1, partitions=[fetched] * million),
            ),
            "ListOffsets": await attacker.call(
                broker.ListOffsets, broker_pb2.ListOffsetsRequest(partitions=[asked] * million, replica_id=-1)
            ),
            "Metadata": await attacker.call(
                broker.Metadata, broker_pb2.MetadataRequest(topics=[f"t{number}" for number in range(million)])
            ),
            "Produce": await attacker.call(
                broker.Produce,
                broker_pb2.ProduceRequest(acks=-1, timeout_ms=1000, partitions=[attacker.part(b"")] * million),
            ),
        }
        for method, answer in answers.items():
            assert "INVALID_REQUEST" in _outcome(answer) or "RESOURCE_EXHAUSTED" in _outcome(answer), (method, answer)


def _outcome(answer: Any) -> str:
    if isinstance(answer, str):
        return answer
    return f"{common_pb2.ErrorCode.Name(answer.error.code)}: {answer.error.message}"


async def test_thirty_streams_that_are_never_read(deployed: Deployment) -> None:
    """201 MB became 3,464."""
    value = os.urandom(900_000)
    async with attack(deployed) as (attacker, others):
        for _ in range(60):
            assert not (await attacker.produce(one(value=value))).code
        request = broker_pb2.FetchRequest(
            correlation_id=1,
            consumer=broker_pb2.ConsumerRole(),
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=55 * MIB,
            partitions=[
                broker_pb2.FetchPartition(partition=attacker.key, leader_epoch=-1, fetch_offset=0, max_bytes=55 * MIB)
            ],
        )
        streams = [attacker.broker.FetchStream() for _ in range(30)]
        for stream in streams:
            for _ in range(4):
                await stream.write(request)
        await others.until_acked(500)
        for stream in streams:
            stream.cancel()


async def test_eleven_hundred_connections_that_say_nothing(deployed: Deployment) -> None:
    """They locked everybody out of a replica-manager."""
    async with attack(deployed) as (_, others):
        addresses = deployed.cluster.bootstrap.split(",")
        with ExitStack() as held:
            for number in range(1_100 * len(addresses)):
                host, port = addresses[number % len(addresses)].rsplit(":", 1)
                held.enter_context(socket.create_connection((host, int(port)), timeout=10))
            async with Producer(deployed.cluster.bootstrap) as late:
                await late.send_and_wait(PREY, b"one more", partition=0)
            await others.until_acked(200)


async def test_what_is_stored_does_not_reach_a_terminal(deployed: Deployment) -> None:
    """Escape sequences in a record were obeyed, and `[/nope]` ended `topics describe`."""
    hostile = b"\x1b]0;owned\x07\x1b[2J[/nope]\r\n"
    await deployed.create_topic("shown", [[1, 2, 3]])
    async with Producer(deployed.cluster.bootstrap) as producer:
        await producer.send_and_wait("shown", hostile, key=hostile, partition=0)
    async with attack(deployed) as (attacker, _):
        new = controller_pb2.NewTopic(
            topic="named", partitions=1, replication_factor=1, config={"retention.ms": hostile.decode()}
        )
        answer = await attacker.call(attacker.controller.CreateTopics, controller_pb2.CreateTopicsRequest(topics=[new]))
        assert answer.results[0].error.code == common_pb2.ERROR_CODE_INVALID_CONFIG
        for command in (("consume", "shown", "--last", "1"), ("topics", "describe", "shown")):
            shown = await asyncio.to_thread(_on_a_terminal, *command, "--bootstrap", deployed.cluster.bootstrap)
            assert b"\x1b]0" not in shown, shown
            assert b"\x07" not in shown, shown
            assert b"shown" in shown, shown


def _on_a_terminal(*command: str) -> bytes:
    """All that it prints there."""
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen:
        process = subprocess.Popen(
            [HIGHWATER, *command], stdout=theirs, stderr=theirs, env={**os.environ, "NO_COLOR": "1"}
        )
        os.close(theirs)
        found = b""
        with suppress(OSError):  # the last who could write has gone
            while piece := screen.read(4096):
                found += piece
        assert process.wait(60) == 0, found
    return found


async def test_producer_ids_cannot_be_guessed(deployed: Deployment) -> None:
    """They began at 0: another client's epoch 32767 ended a producer."""
    async with attack(deployed) as (attacker, _):
        request = broker_pb2.InitProducerIdRequest()
        given = [(await attacker.call(attacker.broker.InitProducerId, request)).producer_id for _ in range(8)]
        assert len({*given}) == len(given)
        assert all(abs(one - two) > 1 for one, two in pairwise(given)), given
        assert min(given) > 1_000, given


async def test_what_is_on_disk_is_the_services_alone(deployed: Deployment) -> None:
    for broker in (1, 2, 3):
        for directory in deployed.cluster.log_dirs(broker):
            for path in (directory, *directory.rglob("*")):
                mode = stat.S_IMODE(path.stat().st_mode)
                assert not mode & 0o077, (path, oct(mode))


async def test_all_of_it_starts_again(deployed: Deployment) -> None:
    """With whatever the attacks before have left: one broker, the controller, then everything at once."""
    cluster = deployed.cluster
    afterwards, names = "afterwards", [f"others-{number}" for number in range(1, next(_numbers))]
    await deployed.create_topic(afterwards, [[1, 2, 3]])
    for victims in ((1,), (1, 2, 3)):
        for broker in victims:
            cluster.kill_broker(broker)
        for broker in victims:
            cluster.start_broker(broker)
        cluster.processes["controller"].kill()
        cluster.processes["controller"].start()
        await deployed.registered()
        for name in (PREY, afterwards, *names):
            await deployed.healed(name)
    async with traffic(cluster.bootstrap, afterwards):
        pass
    assert {PREY, *names} <= {*await deployed.admin.list_topics()}

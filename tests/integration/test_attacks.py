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
import subprocess
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import count, pairwise, product
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from attacker import (
    MIB,
    NOW_MS,
    OTHERS,
    PREY,
    attack,
    columns,
    header,
    held,
    neighbours,
    one,
    varint,
    with_payload,
)
from replica_manager_cluster import eventually
from running_cluster import HEAL_S, HIGHWATER, Deployment, Traffic, deployment, running_cluster

from highwater.cli.local_cluster import LocalCluster
from highwater.client import Producer
from highwater.records import Codec
from highwater.records.codecs import compress
from highwater.v1 import broker_pb2, common_pb2, controller_pb2

WEEK_MS = 7 * 24 * 3600 * 1000
pytestmark = pytest.mark.asyncio(loop_scope="module")  # one producer of others lives through all attacks


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(tmp_path_factory.mktemp("attacked")) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def others(cluster: LocalCluster) -> AsyncGenerator[Traffic]:
    async with neighbours(cluster) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def deployed(cluster: LocalCluster) -> AsyncGenerator[Deployment]:
    async with deployment(cluster) as found:
        yield found


async def test_configurations_that_no_listing_can_hold(deployed: Deployment, others: Traffic) -> None:
    """Fifty-two topics with a value of 1.3 MB in one request: the next controller could not list them."""
    key, value = "follower.replication.throttled.replicas", "0:1," * 325_000

    def request(topics: int) -> controller_pb2.CreateTopicsRequest:
        made = (
            controller_pb2.NewTopic(topic=f"large-{number}", partitions=1, replication_factor=1, config={key: value})
            for number in range(topics)
        )
        return controller_pb2.CreateTopicsRequest(topics=made)

    async with attack(deployed, others) as attacker:
        answer = await attacker.call(attacker.controller.CreateTopics, request(52))
        assert "4194304 are the most, send several" in answer, answer
        answer = await attacker.call(attacker.controller.CreateTopics, request(2))
        assert {each.error.code for each in answer.results} == {common_pb2.ERROR_CODE_INVALID_CONFIG}, answer
        assert "4096" in answer.results[0].error.message
        attacker.said += [each.error.message for each in answer.results]
        resource = controller_pb2.ConfigResource(type=controller_pb2.CONFIG_RESOURCE_TYPE_TOPIC, name=PREY)
        for longest in (value, "0:1," * 400_000):  # etcd takes the first, and the second was a traceback
            changed = controller_pb2.AlterConfigsRequest(resource=resource, set={key: longest})
            answer = await attacker.call(attacker.controller.AlterConfigs, changed)
            assert answer.error.code == common_pb2.ERROR_CODE_INVALID_CONFIG, answer
            assert "4096" in answer.error.message
            attacker.said.append(answer.error.message)


async def test_millions_of_messages_in_one_request(deployed: Deployment, others: Traffic) -> None:
    """Sixty-four MiB of elements without content are 33 million messages: seconds of the interpreter, and two gigabytes
    at least. They are counted before any is made."""
    unary = {"Broker/Produce": 5, "Broker/Metadata": 1, "Broker/ListOffsets": 1, "Controller/DeleteTopics": 1}
    streams = {"Broker/ProduceStream": 5, "Broker/FetchStream": 9}
    async with attack(deployed, others) as attacker:
        for path, field in {**unary, "GroupCoordinator/CommitOffsets": 4}.items():
            request = bytes([field << 3 | 2, 0]) * (32 * MIB)
            answer = await attacker.call(attacker.channel.unary_unary(f"/highwater.v1.{path}"), request)
            assert answer.startswith("INVALID_ARGUMENT: a request "), answer
            assert answer.endswith("send several"), answer
        for path, field in streams.items():
            stream = attacker.channel.stream_stream(f"/highwater.v1.{path}")(timeout=60)
            await stream.write(bytes([field << 3 | 2, 0]) * (32 * MIB))
            assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert (await stream.details()).endswith("send several")
        logs = (
            each.log_file.read_text() for name, each in attacker.deployed.cluster.processes.items() if "replica" in name
        )
        assert not [line for log in logs for line in log.splitlines() if "stream failed" in line]


async def test_as_many_configurations_as_large_as_they_may_be(deployed: Deployment, others: Traffic) -> None:
    """At 110 topics metadata of all failed for everybody; nearly 8 KB each is what is left of it, and is served."""
    value = ",".join(f"{number}:1" for number in range(680))
    assert len(value) > 3900
    large = {f"{side}.replication.throttled.replicas": value for side in ("leader", "follower")}
    names = [f"heavy-{number}" for number in range(110)]
    async with attack(deployed, others) as attacker:
        made = (controller_pb2.NewTopic(topic=name, partitions=1, replication_factor=1, config=large) for name in names)
        answer = await attacker.call(attacker.controller.CreateTopics, controller_pb2.CreateTopicsRequest(topics=made))
        assert [each.error.code for each in answer.results] == [common_pb2.ERROR_CODE_NONE] * 110, answer

        async def everywhere() -> bool:
            return {*names} <= {*await deployed.admin.list_topics()}

        await eventually(everywhere, "metadata of all topics names them", HEAL_S)


async def test_batches_that_claim_more_records_than_they_hold(deployed: Deployment, others: Traffic) -> None:
    """Sixty-one bytes and 2^31-1 offsets each: a segment began with each of them."""
    liar = header(one()[:61], last_offset_delta=2**31 - 2, record_count=2**31 - 1)
    async with attack(deployed, others) as attacker:
        await attacker.refused(liar * 1000, common_pb2.ERROR_CODE_CORRUPT_MESSAGE, "can hold 0 at the most")
        await attacker.refused(
            header(one(), last_offset_delta=2**31 - 2, record_count=2**31 - 1),
            common_pb2.ERROR_CODE_CORRUPT_MESSAGE,
            "claims 2147483647 records",
        )


async def test_records_that_are_a_week_apart(deployed: Deployment, others: Traffic) -> None:
    """Each of 400 in 37 KB was a reason for a segment, with three files open for good, even when its topic was gone;
    1,000 at once took a second, and 122 KB from producers of their own left 104 MB of snapshots of these."""
    await deployed.create_topic("weeks", [[1, 2, 3]])
    await deployed.healed("weeks")
    cluster = deployed.cluster
    logs = [each for name, each in cluster.processes.items() if name.startswith("log-storage")]

    def open_files() -> list[int]:
        return [len(os.listdir(f"/proc/{each.pid}/fd")) for each in logs]

    def files(suffix: str) -> list[int]:
        """How large they are, on one broker."""
        return [
            path.stat().st_size for directory in cluster.log_dirs(1) for path in directory.glob(f"weeks-0/*{suffix}")
        ]

    def weeks(producers: Sequence[int]) -> bytes:
        """A batch of each."""
        times = count(NOW_MS - len(producers) * WEEK_MS, WEEK_MS)
        return b"".join(one(next(times), producer_id=each) for each in producers)

    async with attack(deployed, others, "weeks") as attacker:
        before = open_files()
        for batches in (weeks([-1] * 400), weeks([-1] * 800), weeks(range(1000)), weeks(range(1000, 2000))):
            assert not (await attacker.produce(batches)).code
        assert all(now - then < 200 for now, then in zip(open_files(), before, strict=True)), (before, open_files())
        assert len(files(".log")) < 120
        assert sum(files(".snapshot")) < 2 * MIB, files(".snapshot")
        await attacker.refused(one() * 4000, common_pb2.ERROR_CODE_INVALID_REQUEST, "more than 1000 batches")
    await deployed.admin.delete_topics(["weeks"])

    async def closed() -> bool:
        return all(now - then < 20 for now, then in zip(open_files(), before, strict=True))

    await eventually(closed, "files of a deleted topic are closed", HEAL_S)


async def test_one_row_with_six_million_headers(deployed: Deployment, others: Traffic) -> None:
    """1,191 bytes: whoever expanded them stood still for 17 s."""
    headers = 6_000_000
    record = b"\0" + varint(0) + varint(0) + b"\1" + varint(1) + b"v" + varint(headers) + bytes(2 * headers)
    payload = compress(Codec.ZSTD, varint(len(record)) + record)
    batch = with_payload(one(), bytes(payload), Codec.ZSTD)
    assert len(batch) < 4096
    await deployed.create_topic("compacted", [[1, 2, 3]])
    await deployed.admin.alter_topic_config("compacted", {"cleanup.policy": "compact"})
    for topic in (PREY, "compacted"):
        async with attack(deployed, others, topic) as attacker:
            await attacker.refused(batch, common_pb2.ERROR_CODE_INVALID_RECORD, "the limit is 1000")


async def test_columns_that_expand_to_250_mb(deployed: Deployment, others: Traffic) -> None:
    """A reader held 250 MB for 7.8 KB."""
    batch = columns(250, bytes(1_000_000))
    assert len(batch) < 65_536, len(batch)
    async with attack(deployed, others) as attacker:
        await attacker.refused(batch, common_pb2.ERROR_CODE_MESSAGE_TOO_LARGE, "expands to")


async def test_garbage_behind_a_header_that_fits(deployed: Deployment, others: Traffic) -> None:
    """Every reader stopped at its offset: of rows, and of columns."""
    async with attack(deployed, others) as attacker:
        for whole, codec in product((one(), columns(1, b"v")), (Codec.NONE, Codec.GZIP, Codec.LZ4, Codec.ZSTD)):
            poison = with_payload(whole, b"\xff" * 500, codec)
            await attacker.refused(poison, common_pb2.ERROR_CODE_CORRUPT_MESSAGE, "cannot be decoded")


async def test_a_time_that_is_not_the_records(deployed: Deployment, others: Traffic) -> None:
    """Retention kept whatever was behind it, and ListOffsets did not find what had been found before."""
    async with attack(deployed, others) as attacker:
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


async def test_a_million_parts(deployed: Deployment, others: Traffic) -> None:
    """A fetch of so many held the loop for 10.8 s."""
    async with attack(deployed, others) as attacker:
        key = attacker.key
        fetched = broker_pb2.FetchPartition(partition=key, leader_epoch=-1, max_bytes=1)
        asked = broker_pb2.ListOffsetsPartition(partition=key, leader_epoch=-1, timestamp=-1)
        epoch = broker_pb2.EpochPartition(partition=key, current_leader_epoch=-1, leader_epoch=0)
        requests = {
            "Fetch": (
                broker_pb2.FetchRequest(consumer=broker_pb2.ConsumerRole(), max_bytes=1),
                broker_pb2.FetchRequest(partitions=[fetched]),
            ),
            "ListOffsets": (
                broker_pb2.ListOffsetsRequest(replica_id=-1),
                broker_pb2.ListOffsetsRequest(partitions=[asked]),
            ),
            "OffsetForLeaderEpoch": (
                broker_pb2.OffsetForLeaderEpochRequest(),
                broker_pb2.OffsetForLeaderEpochRequest(partitions=[epoch]),
            ),
            "Metadata": (broker_pb2.MetadataRequest(), broker_pb2.MetadataRequest(topics=["t1234567"])),
            "Produce": (
                broker_pb2.ProduceRequest(acks=-1, timeout_ms=1000),
                broker_pb2.ProduceRequest(partitions=[attacker.part(b"")]),
            ),
        }
        for method, (request, part) in requests.items():
            # Messages one behind the other are one, with all that they repeat.
            written = request.SerializeToString() + part.SerializeToString() * 1_000_000
            answer = await attacker.call(attacker.sends(method), written)
            assert str(answer).startswith("INVALID_ARGUMENT: a request of "), (method, answer)
            assert str(answer).endswith("send several"), (method, answer)


async def test_thirty_streams_that_are_never_read(deployed: Deployment, others: Traffic) -> None:
    """201 MB became 3,464."""
    value = os.urandom(900_000)
    async with attack(deployed, others) as attacker:
        for _ in range(6):
            assert not (await attacker.produce(one(value=value) * 10)).code
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
        await others.until_acked(100)
        for stream in streams:
            stream.cancel()


async def test_eleven_hundred_connections_that_say_nothing(deployed: Deployment, others: Traffic) -> None:
    """They locked everybody out of a replica-manager."""
    async with attack(deployed, others):
        addresses = deployed.cluster.bootstrap.split(",")
        with ExitStack() as held:
            for number in range(1_100 * len(addresses)):
                host, port = addresses[number % len(addresses)].rsplit(":", 1)
                held.enter_context(socket.create_connection((host, int(port)), timeout=10))
            async with Producer(deployed.cluster.bootstrap) as late:
                await late.send_and_wait(PREY, b"one more", partition=0)


async def test_what_is_stored_does_not_reach_a_terminal(deployed: Deployment, others: Traffic) -> None:
    """Escape sequences in a record were obeyed, and `[/nope]` ended `topics describe`."""
    hostile = b"\x1b]0;owned\x07\x1b[2J[/nope]\r\n"
    await deployed.create_topic("shown", [[1, 2, 3]])
    async with Producer(deployed.cluster.bootstrap) as producer:
        await producer.send_and_wait("shown", hostile, key=hostile, partition=0)
    async with attack(deployed, others) as attacker:
        new = controller_pb2.NewTopic(
            topic="named", partitions=1, replication_factor=1, config={"retention.ms": hostile.decode()}
        )
        answer = await attacker.call(attacker.controller.CreateTopics, controller_pb2.CreateTopicsRequest(topics=[new]))
        assert answer.results[0].error.code == common_pb2.ERROR_CODE_INVALID_CONFIG
    commands = (("consume", "shown", "--last", "1"), ("topics", "describe", "shown"))
    bootstrap = ("--bootstrap", deployed.cluster.bootstrap)
    for shown in await asyncio.gather(*(asyncio.to_thread(_on_a_terminal, *each, *bootstrap) for each in commands)):
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


async def test_producer_ids_cannot_be_guessed(deployed: Deployment, others: Traffic) -> None:
    """They began at 0: another client's epoch 32767 ended a producer."""
    async with attack(deployed, others) as attacker:
        request = broker_pb2.InitProducerIdRequest()
        given = [(await attacker.call(attacker.broker.InitProducerId, request)).producer_id for _ in range(8)]
        assert len({*given}) == len(given)
        assert all(abs(one - two) > 1 for one, two in pairwise(given)), given
        assert min(given) > 1_000, given


async def test_what_is_on_disk_is_the_services_alone(deployed: Deployment, others: Traffic) -> None:
    """Records, and what etcd has of tokens and ACLs, could be read by every user of the machine."""
    cluster = deployed.cluster
    directories = [cluster.settings.data / "etcd", *(each for broker in (1, 2, 3) for each in cluster.log_dirs(broker))]
    found = {path: mode for directory in directories for path, mode in _modes(directory)}
    assert {path.name for path in found} >= {"etcd", "member", "db", f"{PREY}-0", f"{'0' * 20}.log"}
    assert not {str(path): oct(mode) for path, mode in found.items() if mode & 0o077}


def _modes(directory: Path) -> Iterator[tuple[Path, int]]:
    """Of the directory and all in it, but what goes meanwhile."""
    for parent, _, names in os.walk(directory):
        for path in (Path(parent), *(Path(parent, name) for name in names)):
            with suppress(FileNotFoundError):
                yield path, stat.S_IMODE(path.lstat().st_mode)


async def test_all_of_it_starts_again(deployed: Deployment, others: Traffic) -> None:
    """With whatever the attacks before have left: everything at once, but for one broker, which comes when the others
    lead."""
    cluster, topics = deployed.cluster, await deployed.admin.list_topics()
    _, epochs, term = await held(deployed)

    async def new(*brokers: int) -> bool:
        """All of these, and the controller: what is registered of before is there until its lease ends."""
        _, now, present = await held(deployed)
        return present not in (term, 0) and all(now.get(each, 0) > epochs[each] for each in brokers)

    for broker in (1, 2, 3):
        cluster.kill_broker(broker)
    cluster.processes["controller"].kill()
    cluster.processes["controller"].start()
    for broker in (2, 3):
        cluster.start_broker(broker)
    await eventually(lambda: new(2, 3), "the controller and two brokers are there again", HEAL_S)
    cluster.start_broker(1)
    await eventually(lambda: new(1, 2, 3), "the third broker is there again", HEAL_S)
    await deployed.healed(PREY)
    await deployed.healed(OTHERS, 3)
    await others.until_acked(100)
    assert {*topics} <= {*await deployed.admin.list_topics()}

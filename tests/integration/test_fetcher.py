"""The fetcher's service between a real log-storage and a leader written by the test."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from fake_leader import FakeLeader, FakeReplicaControl, LeaderLog

from highwater.errors import ErrorCode
from highwater.fetcher.service import FetcherService
from highwater.fetcher.settings import FetcherSettings
from highwater.log_storage.service import LogStorageService
from highwater.log_storage.settings import LogStorageSettings
from highwater.model.partition import PartitionKey
from highwater.rpc.connections.channel import open_channel
from highwater.rpc.errors import from_proto
from highwater.rpc.settings import load
from highwater.v1 import common_pb2, fetcher_pb2, fetcher_pb2_grpc, log_storage_pb2, log_storage_pb2_grpc

TOPIC_ID = uuid.uuid4().bytes
FLIGHTS = PartitionKey(TOPIC_ID, 0)
DELAYS = PartitionKey(TOPIC_ID, 1)
LEADER, OTHER_LEADER = 1, 2


async def eventually(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """For what only another process's answers show, and no event tells."""
    try:
        async with asyncio.timeout(10):
            while not await condition():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    except TimeoutError:
        pytest.fail(f"never came true: {what}")


class Broker:
    """A broker without a replica-manager: log-storage and fetcher are real, the test publishes what to follow."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._address = f"unix:{data / 'log-storage.sock'}"
        self.control = FakeReplicaControl()

    async def start(self, **settings: int) -> None:
        await self.start_log_storage()
        values = {
            "broker_id": "3",
            "listen": "127.0.0.1:0",
            "replica_manager": await self.control.start(),
            "log_storage": self._address,
            **{name: str(value) for name, value in settings.items()},
        }
        self._fetcher = FetcherService(load(FetcherSettings, values))
        await self._fetcher.start()
        self._fetcher_channel = open_channel(self._fetcher.addresses[0])
        self.fetcher = fetcher_pb2_grpc.FetcherStub(self._fetcher_channel)

    async def stop(self) -> None:
        await self._fetcher_channel.close()
        await self._fetcher.stop()
        await self.control.stop()
        await self.stop_log_storage()

    async def start_log_storage(self) -> None:
        values = {"broker_id": "3", "listen": self._address, "log_dirs": str(self._data / "logs")}
        self._log_storage = LogStorageService(load(LogStorageSettings, values))
        await self._log_storage.start()
        self._channel = open_channel(self._address)
        self.logs = log_storage_pb2_grpc.LogStorageStub(self._channel)

    async def stop_log_storage(self) -> None:
        await self._channel.close()
        await self._log_storage.stop()

    async def host(self, key: PartitionKey, leader_epoch: int) -> str:
        """What the replica-manager does before it publishes (RULES 3.3). Returns log-storage's incarnation."""
        named = common_pb2.PartitionKey(topic_id=key.topic_id, partition=key.partition)
        created = await self.logs.CreateLog(log_storage_pb2.CreateLogRequest(topic="flights", partition=named))
        assert from_proto(created.error) is ErrorCode.NONE, created.error
        fenced = await self.logs.FenceEpoch(
            log_storage_pb2.FenceEpochRequest(
                role=log_storage_pb2.ROLE_FOLLOWER,
                partitions=[log_storage_pb2.FencePartition(partition=named, leader_epoch=leader_epoch)],
            )
        )
        assert from_proto(fenced.results[0].error) is ErrorCode.NONE, fenced.results[0].error
        return fenced.incarnation

    async def follow(self, key: PartitionKey, leader: int, address: str, leader_epoch: int, **more: int) -> None:
        incarnation = await self.host(key, leader_epoch)
        await self.control.publish(incarnation, {key: (leader, address, leader_epoch)}, **more)

    async def log(self, key: PartitionKey = FLIGHTS) -> log_storage_pb2.LogState:
        described = await self.logs.DescribeLogs(
            log_storage_pb2.DescribeLogsRequest(
                partitions=[common_pb2.PartitionKey(topic_id=key.topic_id, partition=key.partition)]
            )
        )
        return described.logs[0].log

    async def read(self, key: PartitionKey = FLIGHTS) -> bytes:
        log = await self.log(key)
        records, offset = b"", log.log_start_offset
        while offset < log.log_end_offset:
            answer = await self.logs.Read(
                log_storage_pb2.ReadRequest(
                    partition=common_pb2.PartitionKey(topic_id=key.topic_id, partition=key.partition),
                    offset=offset,
                    max_offset=-1,
                    max_bytes=1 << 30,
                )
            )
            records += answer.records
            offset = answer.log.log_end_offset
        return records

    async def describe(self, key: PartitionKey = FLIGHTS) -> fetcher_pb2.FollowedPartitionDescription | None:
        answer = await self.fetcher.Describe(fetcher_pb2.DescribeFetcherRequest())
        for fetcher in answer.fetchers:
            for partition in fetcher.partitions:
                if (partition.partition.topic_id, partition.partition.partition) == key:
                    return partition
        return None


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    broker = Broker(tmp_path)
    await broker.start(replica_fetch_wait_max_ms=5_000)
    yield broker
    await broker.stop()


@pytest.fixture
async def leader() -> AsyncIterator[FakeLeader]:
    leader = FakeLeader()
    yield leader
    await leader.stop()


def bytes_of(log: LeaderLog) -> bytes:
    return b"".join(batch.data for batch in log.batches)


async def test_what_the_leader_has_is_appended_and_acknowledged(broker: Broker, leader: FakeLeader) -> None:
    log = leader.logs[FLIGHTS] = LeaderLog(5)
    log.write(3)
    log.write(2)
    await broker.follow(FLIGHTS, LEADER, await leader.start(), 5)

    await leader.until_acked(FLIGHTS, 5)

    first = leader.requests[0]
    assert (first.replica.broker_id, first.replica.broker_epoch, first.replica.fetcher_id) == (3, 7, 0)
    assert (first.partitions[0].fetch_offset, first.partitions[0].acked_offset) == (0, 0)
    assert first.partitions[0].last_epoch == -1
    assert leader.requests[-1].partitions[0].last_epoch == 5
    assert await broker.read() == bytes_of(log)


async def test_a_lone_record_costs_one_request(broker: Broker, leader: FakeLeader) -> None:
    log = leader.logs[FLIGHTS] = LeaderLog(5)
    await broker.follow(FLIGHTS, LEADER, await leader.start(), 5)
    await leader.until_asked(1)
    for record in range(1, 21):
        await leader.write(FLIGHTS)
        await leader.until_acked(FLIGHTS, record)
        assert len(leader.requests) == 1 + record
        part = leader.requests[-1].partitions[0]
        assert (part.fetch_offset, part.acked_offset) == (record, record)
    assert log.log_end_offset == 20


async def test_the_high_watermark_comes_with_data_and_without(tmp_path: Path, leader: FakeLeader) -> None:
    broker = Broker(tmp_path)
    await broker.start(replica_fetch_wait_max_ms=20)
    try:
        log = leader.logs[FLIGHTS] = LeaderLog(5)
        log.write(3)
        log.write(3)
        log.high_watermark = 3
        await broker.follow(FLIGHTS, LEADER, await leader.start(), 5)
        await leader.until_acked(FLIGHTS, 6)
        assert (await broker.log()).high_watermark == 3

        log.high_watermark = 6

        async def advanced() -> bool:
            return (await broker.log()).high_watermark == 6

        await eventually(advanced, "high watermark 6 through empty responses")
        log.log_start_offset = 3

        async def raised() -> bool:
            return (await broker.log()).log_start_offset == 3

        await eventually(raised, "log start 3 through empty responses")
    finally:
        await broker.stop()


async def test_a_long_stream_overlaps_fetch_and_append(broker: Broker, leader: FakeLeader) -> None:
    log = leader.logs[FLIGHTS] = LeaderLog(5)
    for _ in range(200):
        log.write(1, value=os.urandom(60_000))
    await broker.follow(FLIGHTS, LEADER, await leader.start(), 5)

    await leader.until_acked(FLIGHTS, 200)

    parts = [request.partitions[0] for request in leader.requests]
    assert all(part.acked_offset <= part.fetch_offset for part in parts)  # RULES 4.1
    assert any(part.acked_offset < part.fetch_offset for part in parts)
    asked = [part.fetch_offset for part in parts if part.fetch_offset < 200]
    assert asked == sorted(set(asked)), "no data was asked for twice"
    assert await broker.read() == bytes_of(log)


async def test_a_diverging_tail_is_cut_by_epochs(broker: Broker, leader: FakeLeader) -> None:
    """The follower holds 0..3 of epoch 1, 4..6 of epoch 2 and 7..8 of epoch 3; the new leader never saw 2 and 3."""
    old = leader.logs[FLIGHTS] = LeaderLog(3)
    for epoch, records in ((1, 2), (1, 2), (2, 3), (3, 2)):
        old.write(records, leader_epoch=epoch)
    address = await leader.start()
    await broker.follow(FLIGHTS, LEADER, address, 3)
    await leader.until_acked(FLIGHTS, 9)

    new = leader.logs[FLIGHTS] = LeaderLog(4)
    new.batches = old.batches[:2]
    new.write(5, leader_epoch=4)
    await broker.follow(FLIGHTS, LEADER, address, 4)

    await leader.until_acked(FLIGHTS, 9)
    assert await broker.read() == bytes_of(new)


async def test_committed_records_are_not_cut(
    broker: Broker, leader: FakeLeader, caplog: pytest.LogCaptureFixture
) -> None:
    old = leader.logs[FLIGHTS] = LeaderLog(3)
    old.write(5)
    old.write(5)
    old.high_watermark = 8
    address = await leader.start()
    await broker.follow(FLIGHTS, LEADER, address, 3)
    await leader.until_acked(FLIGHTS, 10)

    new = leader.logs[FLIGHTS] = LeaderLog(4)
    new.batches = old.batches[:1]
    new.write(9, leader_epoch=4)
    with caplog.at_level(logging.CRITICAL):
        await broker.follow(FLIGHTS, LEADER, address, 4)

        async def offline() -> bool:
            described = await broker.describe()
            return described is not None and described.state == fetcher_pb2.FOLLOWER_STATE_OFFLINE

        async def is_told() -> bool:
            return "partition is OFFLINE" in caplog.text

        await eventually(offline, "OFFLINE in Describe")
        await eventually(is_told, "OFFLINE in the log")
    described = await broker.describe()
    assert described is not None
    assert from_proto(described.error) is ErrorCode.TRUNCATION_BELOW_HIGH_WATERMARK
    assert await broker.read() == bytes_of(old)

    # An unclean election above its last epoch lets it follow again (RULES 4.4).
    new.leader_epoch = 5
    await broker.follow(FLIGHTS, LEADER, address, 5, unclean_epoch=5)
    await leader.until_acked(FLIGHTS, 14)
    assert await broker.read() == bytes_of(new)


async def test_a_follower_behind_the_leaders_log_start_starts_anew(broker: Broker, leader: FakeLeader) -> None:
    log = leader.logs[FLIGHTS] = LeaderLog(5)
    log.write(4)
    address = await leader.start()
    await broker.follow(FLIGHTS, LEADER, address, 5)
    await leader.until_acked(FLIGHTS, 4)

    for _ in range(5):
        log.write(10)
    log.batches = log.batches[3:]
    log.log_start_offset = 24
    log.high_watermark = 54
    await leader.wake()

    await leader.until_acked(FLIGHTS, 54)
    assert (await broker.log()).log_start_offset == 24
    assert await broker.read() == bytes_of(log)


async def test_a_leader_whose_log_starts_inside_a_batch(broker: Broker, leader: FakeLeader) -> None:
    """DeleteRecords moved the log start to 15, within the batch 10..19."""
    log = leader.logs[FLIGHTS] = LeaderLog(5)
    log.write(10)
    log.write(10)
    log.write(10)
    log.batches = log.batches[1:]
    log.log_start_offset, log.high_watermark = 15, 30
    await broker.follow(FLIGHTS, LEADER, await leader.start(), 5)

    await leader.until_acked(FLIGHTS, 30)
    assert (await broker.log()).log_start_offset == 15


async def test_a_truncation_that_arrives_late_cuts_nothing(broker: Broker, leader: FakeLeader) -> None:
    """It was decided on a log that ended at 4; its sender gave it up, and 5 records were acknowledged since."""
    log = leader.logs[FLIGHTS] = LeaderLog(5)
    log.write(5)
    await broker.follow(FLIGHTS, LEADER, await leader.start(), 5)
    await leader.until_acked(FLIGHTS, 5)

    answer = await broker.logs.TruncateTo(
        log_storage_pb2.TruncateToRequest(
            partition=common_pb2.PartitionKey(topic_id=FLIGHTS.topic_id, partition=FLIGHTS.partition),
            leader_epoch=5,
            offset=0,
            unclean_epoch=-1,
            expected_log_end_offset=4,
            expected_last_epoch=4,
        )
    )
    assert from_proto(answer.error) is ErrorCode.OFFSET_MISMATCH
    assert await broker.read() == bytes_of(log)


async def test_a_changed_leader_address_replaces_the_fetcher(broker: Broker, leader: FakeLeader) -> None:
    log = leader.logs[FLIGHTS] = LeaderLog(5)
    log.write(5)
    await broker.follow(FLIGHTS, LEADER, await leader.start(), 5)
    await leader.until_acked(FLIGHTS, 5)

    elsewhere = FakeLeader()
    elsewhere.logs[FLIGHTS] = log
    try:
        address = await elsewhere.start()
        await leader.stop()
        await broker.follow(FLIGHTS, LEADER, address, 5)
        await elsewhere.until_asked(1)
        part = elsewhere.requests[0].partitions[0]
        assert (part.fetch_offset, part.acked_offset, part.last_epoch) == (5, 5, 5)  # RULES 4.9
        await elsewhere.write(FLIGHTS, 3)
        await elsewhere.until_acked(FLIGHTS, 8)
        answer = await broker.fetcher.Describe(fetcher_pb2.DescribeFetcherRequest())
        assert [(f.leader, f.leader_address, f.connected) for f in answer.fetchers] == [(LEADER, address, True)]
    finally:
        await elsewhere.stop()


async def test_a_leader_that_comes_back_is_found_again(broker: Broker, leader: FakeLeader) -> None:
    log = leader.logs[FLIGHTS] = LeaderLog(5)
    log.write(5)
    address = await leader.start()
    await broker.follow(FLIGHTS, LEADER, address, 5)
    await leader.until_acked(FLIGHTS, 5)
    await leader.stop()
    log.write(5)

    again = FakeLeader()
    again.logs[FLIGHTS] = log
    try:
        await again.start(address)
        await again.until_acked(FLIGHTS, 10)
        assert again.requests[0].partitions[0].acked_offset == 5
    finally:
        await again.stop()


async def test_log_storage_restarted_alone(broker: Broker, leader: FakeLeader) -> None:
    log = leader.logs[FLIGHTS] = LeaderLog(5)
    log.write(5)
    address = await leader.start()
    await broker.follow(FLIGHTS, LEADER, address, 5)
    await leader.until_acked(FLIGHTS, 5)

    await broker.stop_log_storage()
    await leader.write(FLIGHTS, 5)  # fetched, and not to be appended
    await broker.start_log_storage()
    # A registration with the new incarnation is another broker epoch (RULES 1.4).
    await broker.follow(FLIGHTS, LEADER, address, 5, broker_epoch=8)

    await leader.until_acked(FLIGHTS, 10)
    assert leader.sessions[-1] == 8
    assert await broker.read() == bytes_of(log)


async def test_without_its_log_storage_a_fetcher_leaves_its_leaders(broker: Broker, leader: FakeLeader) -> None:
    """RULES 5.6: an open session keeps the broker in the ISR, and acks=all waiting, for replica.lag.time.max.ms."""
    leader.logs[FLIGHTS] = LeaderLog(5)
    address = await leader.start()
    await broker.follow(FLIGHTS, LEADER, address, 5)
    await leader.until_acked(FLIGHTS, 0)

    async def gone() -> bool:
        return leader.open_streams == 0

    await broker.stop_log_storage()
    await eventually(gone, "the session is closed")
    sessions = len(leader.sessions)
    await broker.start_log_storage()
    await broker.follow(FLIGHTS, LEADER, address, 5, broker_epoch=8)
    await leader.write(FLIGHTS, 5)
    await leader.until_acked(FLIGHTS, 5)
    assert len(leader.sessions) > sessions


async def test_without_a_registration_of_its_incarnation_nothing_is_acknowledged(
    broker: Broker, leader: FakeLeader
) -> None:
    """RULES 1.4, 4.1: the broker epoch stands for one incarnation of log-storage."""
    leader.logs[FLIGHTS] = LeaderLog(5)
    address = await leader.start()
    incarnation = await broker.host(FLIGHTS, 5)
    await broker.control.publish("another", {FLIGHTS: (LEADER, address, 5)})

    async def delayed() -> bool:
        described = await broker.describe()
        return described is not None and described.state == fetcher_pb2.FOLLOWER_STATE_DELAYED

    await eventually(delayed, "DELAYED")
    assert leader.requests == []
    await broker.control.publish(incarnation, {FLIGHTS: (LEADER, address, 5)})
    await leader.until_asked(1)


async def test_a_new_broker_epoch_reopens_the_session(broker: Broker, leader: FakeLeader) -> None:
    leader.logs[FLIGHTS] = LeaderLog(5)
    address = await leader.start()
    await broker.follow(FLIGHTS, LEADER, address, 5)
    await leader.until_asked(1)
    await broker.follow(FLIGHTS, LEADER, address, 5, broker_epoch=9)
    await leader.until_asked(2)
    assert leader.sessions == [7, 9]


async def test_a_slow_leader_holds_up_nobody_elses_partitions(broker: Broker, leader: FakeLeader) -> None:
    leader.answering.clear()
    leader.logs[FLIGHTS] = LeaderLog(5)
    leader.logs[FLIGHTS].write(5)
    quick = FakeLeader()
    quick.logs[DELAYS] = LeaderLog(5)
    quick.logs[DELAYS].write(5)
    try:
        slow_address, quick_address = await leader.start(), await quick.start()
        await broker.host(FLIGHTS, 5)
        incarnation = await broker.host(DELAYS, 5)
        await broker.control.publish(
            incarnation, {FLIGHTS: (LEADER, slow_address, 5), DELAYS: (OTHER_LEADER, quick_address, 5)}
        )
        await leader.until_asked(1)
        await quick.until_acked(DELAYS, 5)
        await quick.write(DELAYS)
        await quick.until_acked(DELAYS, 6)
        assert len(leader.requests) == 1
        leader.answering.set()
        await leader.until_acked(FLIGHTS, 5)
    finally:
        await quick.stop()


async def test_a_partition_that_joins_does_not_wait_for_the_long_poll(broker: Broker, leader: FakeLeader) -> None:
    leader.logs[FLIGHTS], leader.logs[DELAYS] = LeaderLog(5), LeaderLog(5)
    address = await leader.start()
    await broker.follow(FLIGHTS, LEADER, address, 5)
    await leader.until_asked(1)  # and waits for 5 s
    incarnation = await broker.host(DELAYS, 5)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await broker.control.publish(incarnation, {FLIGHTS: (LEADER, address, 5), DELAYS: (LEADER, address, 5)})
    await leader.until_asked(2)
    assert loop.time() - began < 2
    assert len(leader.requests[-1].partitions) == 2


async def test_errors_of_one_partition_leave_the_others_alone(broker: Broker, leader: FakeLeader) -> None:
    leader.logs[FLIGHTS], leader.logs[DELAYS] = LeaderLog(5, error=ErrorCode.NOT_LEADER_OR_FOLLOWER), LeaderLog(5)
    leader.logs[DELAYS].write(5)
    address = await leader.start()
    await broker.host(FLIGHTS, 5)
    incarnation = await broker.host(DELAYS, 5)
    await broker.control.publish(incarnation, {FLIGHTS: (LEADER, address, 5), DELAYS: (LEADER, address, 5)})
    await leader.until_acked(DELAYS, 5)
    described = await broker.describe(FLIGHTS)
    assert described is not None
    assert from_proto(described.error) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    leader.logs[FLIGHTS].error = ErrorCode.NONE
    await leader.until_acked(FLIGHTS, 0)


async def test_corrupt_data_is_refused_and_fetched_again(tmp_path: Path, leader: FakeLeader) -> None:
    broker = Broker(tmp_path)
    await broker.start(replica_fetch_backoff_ms=20)
    try:
        log = leader.logs[FLIGHTS] = LeaderLog(5)
        good = log.write(5)
        flipped = bytearray(good.data)
        flipped[-1] ^= 1
        log.batches[0] = type(good)(good.base_offset, good.next_offset, good.leader_epoch, bytes(flipped))
        await broker.follow(FLIGHTS, LEADER, await leader.start(), 5)

        async def refused() -> bool:
            described = await broker.describe()
            return described is not None and from_proto(described.error) is ErrorCode.CORRUPT_MESSAGE

        await eventually(refused, "CORRUPT_MESSAGE in Describe")
        assert (await broker.log()).log_end_offset == 0
        log.batches[0] = good
        await leader.until_acked(FLIGHTS, 5)
        assert await broker.read() == good.data
    finally:
        await broker.stop()


async def test_a_refused_session_is_not_hammered(broker: Broker, leader: FakeLeader) -> None:
    leader.session_error = ErrorCode.STALE_BROKER_EPOCH
    leader.logs[FLIGHTS] = LeaderLog(5)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await broker.follow(FLIGHTS, LEADER, await leader.start(), 5)
    await leader.until_asked(4)
    assert loop.time() - began > 0.1 + 0.2 + 0.4 - 0.05
    leader.session_error = ErrorCode.NONE
    await leader.until_acked(FLIGHTS, 0)


async def test_an_unreachable_leader_shows_in_describe(broker: Broker) -> None:
    with socket.socket() as taken:  # bound and not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        await broker.follow(FLIGHTS, LEADER, f"127.0.0.1:{taken.getsockname()[1]}", 5)

        async def described() -> bool:
            return await broker.describe() is not None

        await eventually(described, "the partition in Describe")
        answer = await broker.fetcher.Describe(fetcher_pb2.DescribeFetcherRequest())
        assert (answer.broker_id, answer.broker_epoch) == (3, 7)
        assert not answer.fetchers[0].connected


async def test_a_throttle_below_0_is_refused(broker: Broker) -> None:
    given = await broker.fetcher.SetThrottle(fetcher_pb2.SetThrottleRequest(bytes_per_second=1))
    assert not given.HasField("error")
    refused = await broker.fetcher.SetThrottle(fetcher_pb2.SetThrottleRequest(bytes_per_second=-1))
    assert refused.error.code == ErrorCode.INVALID_REQUEST

"""A cluster in one process for the SDK's tests: real gRPC servers in front of lists.

It keeps the rules that a client can see: leaders and their epochs (RULES 5.7), sequences by log-storage's own
`ProducerStates` (RULES 6.1), answers in any order on ProduceStream and in order on FetchStream. Faults are injected by
a function a broker: it sees each produce request and says what is to go wrong with it.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Self

import grpc.aio

from highwater.errors import ErrorCode
from highwater.log_storage.producers.producer_states import Duplicate, ProducerStates
from highwater.records import BatchHeader, decode, iter_batches, stamp
from highwater.rpc.connections.channel import COMMON_OPTIONS
from highwater.rpc.errors import to_proto
from highwater.v1 import broker_pb2, broker_pb2_grpc, common_pb2, controller_pb2, controller_pb2_grpc


class Fault(Enum):
    """A fault of one produce request."""

    CUT_BEFORE = auto()  # the stream breaks, nothing of the request is appended
    CUT_AFTER = auto()  # appended, then the stream breaks: the response is lost
    REPEAT = auto()  # appended twice, as if the network had doubled it; answered once
    SILENCE = auto()  # appended, never answered


@dataclass(slots=True)
class PartitionDouble:
    """`leader` serves; the log is one for all replicas."""

    leader: int
    leader_epoch: int = 0
    log_start_offset: int = 0
    batches: list[tuple[BatchHeader, bytes]] = field(default_factory=list)
    producers: ProducerStates = field(default_factory=ProducerStates)
    end_offset: int = 0
    high_watermark: int | None = None  # None: the log end offset
    max_message_bytes: int = 1 << 30

    def append(self, header: BatchHeader, batch: bytes) -> tuple[ErrorCode, int]:
        """(error, base offset), as log-storage answers."""
        if header.size_bytes > self.max_message_bytes:
            return ErrorCode.MESSAGE_TOO_LARGE, -1
        checked = self.producers.check(header)
        if isinstance(checked, Duplicate):
            return ErrorCode.NONE, checked.base_offset
        if checked is not ErrorCode.NONE:
            return checked, -1
        base = self.end_offset
        stamped = stamp(header, base, self.leader_epoch) + batch[16:]
        self.batches.append((next(iter_batches(stamped))[1], stamped))
        self.producers.update(header, base)
        self.end_offset += header.last_offset_delta + 1
        return ErrorCode.NONE, base

    @property
    def readable_to(self) -> int:
        return self.end_offset if self.high_watermark is None else self.high_watermark

    def read(self, offset: int, max_bytes: int) -> bytes:
        found = b""
        for header, batch in self.batches:
            if header.next_offset <= offset or header.base_offset < self.log_start_offset:
                continue
            if header.last_offset >= self.readable_to or (found and len(found) + len(batch) > max_bytes):
                break
            found += batch
        return found

    def values(self) -> list[bytes | None]:
        return [record.value for _, batch in self.batches for record in decode(batch).records()]

    def truncate(self, offset: int) -> None:
        """As an election can: batches from `offset` on are gone, and what producers did in them."""
        self.batches = [entry for entry in self.batches if entry[0].base_offset < offset]
        self.end_offset = offset
        self.producers = ProducerStates()
        for header, _ in self.batches:
            self.producers.update(header, header.base_offset)


@dataclass(slots=True)
class TopicDouble:
    name: str
    partitions: list[PartitionDouble]
    config: dict[str, str] = field(default_factory=dict)
    topic_id: bytes = field(default_factory=lambda: uuid.uuid4().bytes)


class BrokerDouble(broker_pb2_grpc.BrokerServicer, controller_pb2_grpc.ControllerServicer):
    def __init__(self, cluster: ClusterDouble, broker_id: int) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.broker_epoch = 1
        self.address = ""
        self.controller_address = ""  # of the controller of the same number
        self.server: grpc.aio.Server | None = None
        self.controller_server: grpc.aio.Server | None = None
        # What a test may change.
        self.fault: Callable[[broker_pb2.ProduceRequest], Fault | None] = lambda request: None
        self.produce_error: Callable[[broker_pb2.ProducePartition, BatchHeader], ErrorCode] = lambda p, h: (
            ErrorCode.NONE
        )
        self.fetch_error: Callable[[broker_pb2.FetchPartition], ErrorCode] = lambda partition: ErrorCode.NONE
        self.before_append: Callable[[], Awaitable[object]] | None = None
        self.before_answer: Callable[[], Awaitable[object]] | None = None
        self.metadata_view: Callable[[broker_pb2.MetadataResponse], None] = lambda response: None
        self.credentials: grpc.ServerCredentials | None = None  # before it starts: it speaks TLS
        self.way_to_controller = True  # False: it finds none that acts
        self.awake = asyncio.Event()  # cleared: fetches, offsets and metadata get no answer until it is set
        self.awake.set()
        self.leads_anyway: dict[tuple[str, int], PartitionDouble] = {}  # a zombie's own log
        self.remembers = True  # what streams say (RULES 4.13); False: it is of before that
        # What a test may look at.
        self.produce_requests: list[broker_pb2.ProduceRequest] = []
        self.fetch_requests: list[broker_pb2.FetchRequest] = []
        self.metadata_requests = 0

    async def start(self, address: str = "127.0.0.1:0") -> None:
        self.server = grpc.aio.server(options=COMMON_OPTIONS)
        broker_pb2_grpc.add_BrokerServicer_to_server(self, self.server)
        for add_service in self.cluster.services:
            add_service(self.server)
        if self.cluster.forwards:
            controller_pb2_grpc.add_ControllerServicer_to_server(self, self.server)
        if self.credentials is None:
            port = self.server.add_insecure_port(address)
        else:
            port = self.server.add_secure_port(address, self.credentials)
        self.address = f"127.0.0.1:{port}"
        await self.server.start()
        if not self.cluster.forwards:
            self.controller_server = grpc.aio.server(options=COMMON_OPTIONS)
            controller_pb2_grpc.add_ControllerServicer_to_server(self, self.controller_server)
            self.controller_address = f"127.0.0.1:{self.controller_server.add_insecure_port('127.0.0.1:0')}"
            await self.controller_server.start()

    async def stop(self) -> None:
        if self.controller_server is not None:
            controller, self.controller_server = self.controller_server, None
            await controller.stop(None)
        if self.server is not None:
            server, self.server = self.server, None
            await server.stop(None)

    # Leadership

    def _partition(
        self, key: common_pb2.PartitionKey, leader_epoch: int | None = None
    ) -> tuple[PartitionDouble | None, ErrorCode]:
        topic = self.cluster.topic_of(key.topic_id)
        if topic is None:
            return None, ErrorCode.UNKNOWN_TOPIC_ID
        if key.partition >= len(topic.partitions):
            return None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        partition = self.leads_anyway.get((topic.name, key.partition), topic.partitions[key.partition])
        if partition.leader != self.broker_id:
            return partition, ErrorCode.NOT_LEADER_OR_FOLLOWER
        if leader_epoch is not None and leader_epoch >= 0:
            if leader_epoch < partition.leader_epoch:
                return partition, ErrorCode.FENCED_LEADER_EPOCH
            if leader_epoch > partition.leader_epoch:
                return partition, ErrorCode.UNKNOWN_LEADER_EPOCH
        return partition, ErrorCode.NONE

    # Produce

    async def ProduceStream(
        self, request_iterator: AsyncIterator[broker_pb2.ProduceRequest], context: Any
    ) -> AsyncIterator[broker_pb2.ProduceResponse]:
        answers: asyncio.Queue[broker_pb2.ProduceResponse | None] = asyncio.Queue()

        async def answer(response: broker_pb2.ProduceResponse) -> None:
            if self.before_answer is not None:
                await self.before_answer()
            answers.put_nowait(response)

        async def take() -> None:
            waiting: set[asyncio.Task[None]] = set()
            async for request in request_iterator:
                if self.before_append is not None:
                    await self.before_append()
                fault = self.fault(request)
                if fault is Fault.CUT_BEFORE:
                    break
                response = self._append(request)
                if fault is Fault.REPEAT:
                    self._append(request)
                if fault is Fault.CUT_AFTER:
                    break
                if fault is not Fault.SILENCE:
                    task = asyncio.create_task(answer(response))
                    waiting.add(task)
                    task.add_done_callback(waiting.discard)
            answers.put_nowait(None)

        taking = asyncio.create_task(take())
        try:
            while (response := await answers.get()) is not None:
                yield response
        finally:
            taking.cancel()
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the stream was cut")

    def _append(self, request: broker_pb2.ProduceRequest) -> broker_pb2.ProduceResponse:
        self.produce_requests.append(request)
        response = broker_pb2.ProduceResponse(correlation_id=request.correlation_id)
        for item in request.partitions:
            partition, error = self._partition(item.partition)
            base, last = -1, -1
            for position, header in iter_batches(item.records):
                error = error or self.produce_error(item, header)
                if error is ErrorCode.NONE:
                    assert partition is not None
                    batch = item.records[position : position + header.size_bytes]
                    error, base = partition.append(header, batch)
                    last = base + header.last_offset_delta
            result = response.results.add(
                partition=item.partition,
                error=to_proto(error),
                base_offset=base if error is ErrorCode.NONE else -1,
                last_offset=last,
                log_append_time_ms=-1,
                leader=-1 if partition is None else partition.leader,
                leader_epoch=-1 if partition is None else partition.leader_epoch,
            )
            assert result.partition.partition == item.partition.partition
        self.cluster.changed()
        return response

    # Fetch

    async def FetchStream(
        self, request_iterator: AsyncIterator[broker_pb2.FetchRequest], context: Any
    ) -> AsyncIterator[broker_pb2.FetchResponse]:
        requests: deque[broker_pb2.FetchRequest] = deque()
        places: dict[tuple[bytes, int], broker_pb2.FetchPartition] | None = None
        arrived = asyncio.Event()
        ended = False

        async def take() -> None:
            nonlocal ended
            async for request in request_iterator:
                self.fetch_requests.append(request)
                requests.append(request)
                arrived.set()
                self.cluster.changed()
            ended = True
            arrived.set()

        taking = asyncio.create_task(take())
        try:
            while True:
                arrived.clear()
                while not requests:
                    if ended:
                        return
                    arrived.clear()
                    await arrived.wait()
                request = requests.popleft()
                if request.incremental and self.remembers:
                    places = {} if places is None else places
                    request = _whole(places, request)
                loop = asyncio.get_running_loop()
                deadline = loop.time() + request.max_wait_ms / 1000
                while True:
                    response, answer_now = self._read(request)
                    if answer_now or requests or loop.time() >= deadline:
                        break
                    await self.cluster.wait_for_change(deadline - loop.time())
                await self.awake.wait()
                if places is not None:
                    response.incremental = True
                    for result in response.results:
                        del places[result.partition.topic_id, result.partition.partition]
                yield response
        finally:
            taking.cancel()

    def _read(self, request: broker_pb2.FetchRequest) -> tuple[broker_pb2.FetchResponse, bool]:
        response = broker_pb2.FetchResponse(correlation_id=request.correlation_id)
        answer_now = False
        for item in request.partitions:
            partition, error = self._partition(item.partition, item.leader_epoch)
            error = error or self.fetch_error(item)
            result = broker_pb2.FetchResult(partition=item.partition)
            if partition is not None:
                result.leader, result.leader_epoch = partition.leader, partition.leader_epoch
                result.high_watermark, result.log_start_offset = partition.readable_to, partition.log_start_offset
            if error is ErrorCode.NONE and partition is not None:
                if not partition.log_start_offset <= item.fetch_offset <= partition.end_offset:
                    error = ErrorCode.OFFSET_OUT_OF_RANGE
                else:
                    result.records = partition.read(item.fetch_offset, item.max_bytes)
            result.error.CopyFrom(to_proto(error))
            if result.records or error is not ErrorCode.NONE:
                answer_now = True
                response.results.append(result)
        return response, answer_now

    async def ListOffsets(self, request: broker_pb2.ListOffsetsRequest, context: Any) -> broker_pb2.ListOffsetsResponse:
        await self.awake.wait()
        response = broker_pb2.ListOffsetsResponse()
        for item in request.partitions:
            partition, error = self._partition(item.partition, item.leader_epoch)
            result = response.results.add(partition=item.partition, error=to_proto(error), offset=-1, timestamp=-1)
            if partition is None or error is not ErrorCode.NONE:
                continue
            result.leader_epoch = partition.leader_epoch
            if item.timestamp == -1:
                result.offset = partition.readable_to
            elif item.timestamp == -2:
                result.offset = partition.log_start_offset
            else:
                for record in itertools.chain.from_iterable(decode(batch).records() for _, batch in partition.batches):
                    if record.timestamp >= item.timestamp:
                        result.offset, result.timestamp = record.offset, record.timestamp
                        break
        return response

    # Metadata

    async def Metadata(self, request: broker_pb2.MetadataRequest, context: Any) -> broker_pb2.MetadataResponse:
        self.metadata_requests += 1
        await self.awake.wait()
        response = self.cluster.metadata(request)
        self.metadata_view(response)
        return response

    async def InitProducerId(self, request: Any, context: Any) -> broker_pb2.InitProducerIdResponse:
        return broker_pb2.InitProducerIdResponse(producer_id=next(self.cluster.producer_ids), producer_epoch=0)

    # Controller

    def _refusal(self) -> tuple[common_pb2.Error, controller_pb2.ControllerHint]:
        acting = self.cluster.brokers[self.cluster.controller]
        acts = self.cluster.acts and (acting is self or (self.cluster.forwards and self.way_to_controller))
        code = ErrorCode.NONE if acts else ErrorCode.NOT_CONTROLLER
        hint = controller_pb2.ControllerHint(controller_id=acting.broker_id, address=acting.controller_address)
        return to_proto(code), hint

    async def CreateTopics(
        self, request: controller_pb2.CreateTopicsRequest, context: Any
    ) -> controller_pb2.CreateTopicsResponse:
        error, hint = self._refusal()
        response = controller_pb2.CreateTopicsResponse(error=error, controller=hint)
        for new in request.topics if error.code == 0 else ():
            if new.topic in self.cluster.topics:
                message = f"topic {new.topic} exists"
                response.results.add(topic=new.topic, error=to_proto(ErrorCode.TOPIC_ALREADY_EXISTS, message))
                continue
            topic = self.cluster.create(new.topic, new.partitions if new.partitions > 0 else 1, dict(new.config))
            response.results.add(
                topic=new.topic, topic_id=topic.topic_id, partitions=len(topic.partitions), replication_factor=1
            )
        return response

    async def CreatePartitions(
        self, request: controller_pb2.CreatePartitionsRequest, context: Any
    ) -> controller_pb2.CreatePartitionsResponse:
        error, hint = self._refusal()
        response = controller_pb2.CreatePartitionsResponse(error=error, controller=hint)
        for new in request.topics if error.code == 0 else ():
            self.cluster.growth_requests.append(new)
            topic = self.cluster.topics.get(new.topic)
            if topic is None:
                response.results.add(topic=new.topic, error=to_proto(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
                continue
            if new.total <= len(topic.partitions):
                message = f"topic {new.topic} has {len(topic.partitions)}"
                response.results.add(topic=new.topic, error=to_proto(ErrorCode.INVALID_PARTITIONS, message))
                continue
            if not request.validate_only:
                self.cluster.grow(new.topic, new.total)
            response.results.add(topic=new.topic, topic_id=topic.topic_id, partitions=new.total, replication_factor=1)
        if self.cluster.lose_answers:
            self.cluster.lose_answers -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the answer was lost")
        return response

    async def ElectLeaders(
        self, request: controller_pb2.ElectLeadersRequest, context: Any
    ) -> controller_pb2.ElectLeadersResponse:
        """Broker 1 is everyone's preferred leader, and not in the ISR of odd partitions."""
        error, hint = self._refusal()
        response = controller_pb2.ElectLeadersResponse(error=error, controller=hint)
        there = [
            (name, number) for name, topic in self.cluster.topics.items() for number in range(len(topic.partitions))
        ]
        named = [(each.topic, each.partition) for each in request.partitions]
        for name, number in (named or there) if error.code == 0 else ():
            result = response.results.add(partition=common_pb2.TopicPartition(topic=name, partition=number))
            partition = self.cluster.topics[name].partitions[number]
            if partition.leader == 1:
                result.error.CopyFrom(to_proto(ErrorCode.ELECTION_NOT_NEEDED))
            elif number % 2:
                result.error.CopyFrom(to_proto(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "broker 1 is not in the ISR"))
            else:
                partition.leader = 1
        return response

    async def AlterConfigs(
        self, request: controller_pb2.AlterConfigsRequest, context: Any
    ) -> controller_pb2.AlterConfigsResponse:
        error, hint = self._refusal()
        if error.code == 0 and (topic := self.cluster.topics.get(request.resource.name)) is None:
            error = to_proto(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {request.resource.name}")
        elif error.code == 0 and "bad" in request.set:
            error = to_proto(ErrorCode.INVALID_CONFIG, "unknown key 'bad'")
        elif error.code == 0 and topic is not None and not request.validate_only:
            topic.config.update(request.set)
            for key in request.unset:
                topic.config.pop(key, None)
        return controller_pb2.AlterConfigsResponse(error=error, controller=hint)

    async def DescribeConfigs(
        self, request: controller_pb2.DescribeConfigsRequest, context: Any
    ) -> controller_pb2.DescribeConfigsResponse:
        self.cluster.described.append([resource.name for resource in request.resources])
        error, hint = self._refusal()
        response = controller_pb2.DescribeConfigsResponse(error=error, controller=hint)
        for resource in request.resources if error.code == 0 else ():
            described = response.configs.add(resource=resource)
            topic = self.cluster.topics.get(resource.name)
            if topic is None:
                described.error.CopyFrom(to_proto(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is none"))
                described.absent_in_etcd = self.cluster.reads_etcd
                continue
            for key, value in topic.config.items():
                described.entries.add(key=key, value=value, source="topic")
            described.entries.add(key="min.insync.replicas", value="2", is_default=True, source="controller")
            described.entries.add(key="segment.ms", is_default=True, source="brokers")
        if self.cluster.before_described is not None:
            await self.cluster.before_described()
        return response

    async def DeleteTopics(
        self, request: controller_pb2.DeleteTopicsRequest, context: Any
    ) -> controller_pb2.DeleteTopicsResponse:
        error, hint = self._refusal()
        response = controller_pb2.DeleteTopicsResponse(error=error, controller=hint)
        for name in request.topics if error.code == 0 else ():
            gone = self.cluster.topics.pop(name, None)
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if gone is None else ErrorCode.NONE
            response.results.add(topic=name, error=to_proto(code, "" if gone else f"topic {name} does not exist"))
        return response

    async def DescribeCluster(self, request: Any, context: Any) -> controller_pb2.DescribeClusterResponse:
        error, hint = self._refusal()
        response = controller_pb2.DescribeClusterResponse(
            error=error, controller=hint, cluster_id="double", topics=len(self.cluster.topics)
        )
        for broker in self.cluster.brokers.values():
            response.brokers.add(endpoint=common_pb2.BrokerEndpoint(broker_id=broker.broker_id, address=broker.address))
        return response


def _whole(
    places: dict[tuple[bytes, int], broker_pb2.FetchPartition], request: broker_pb2.FetchRequest
) -> broker_pb2.FetchRequest:
    """What a request of an incremental session stands for; `places` are those of before it, and then its own. The one
    that waited longest comes first. What is answered with something says no more before it is named anew."""
    for key in request.forgotten:
        places.pop((key.topic_id, key.partition), None)
    for item in request.partitions:
        places[item.partition.topic_id, item.partition.partition] = item
    whole = broker_pb2.FetchRequest()
    whole.CopyFrom(request)
    del whole.partitions[:]
    whole.partitions.extend(places.values())
    return whole


class ClusterDouble:
    """An async context manager. Broker ids count from 1; controller 1 acts until a test says otherwise. Brokers forward
    administration; without `forwards` they are of before that, and there is a controller for each of them."""

    def __init__(self, brokers: int = 1, *, forwards: bool = True, remembers: bool = True) -> None:
        self.forwards = forwards
        self.brokers = {
            broker_id: BrokerDouble(self, broker_id)  # type: ignore[abstract]  # gRPC answers UNIMPLEMENTED for the rest
            for broker_id in range(1, brokers + 1)
        }
        for broker in self.brokers.values():
            broker.remembers = remembers
        self.services: list[Callable[[grpc.aio.Server], None]] = []  # what the brokers serve besides
        self.topics: dict[str, TopicDouble] = {}
        self.controller = 1
        self.acts = True  # False: no controller does
        self.reads_etcd = True  # before it says that there is no topic (RULES 9.5); False: it is of before that
        self.before_described: Callable[[], Awaitable[object]] | None = None  # an answer of DescribeConfigs goes out
        self.described: list[list[str]] = []  # the topics of each DescribeConfigs
        self.known_controller = 1  # as Metadata tells it
        self.lose_answers = 0  # of the next so many CreatePartitions
        self.growth_requests: list[controller_pb2.NewPartitions] = []
        self.producer_ids = itertools.count(1000)
        self._change: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        for broker in self.brokers.values():
            await broker.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        for broker in self.brokers.values():
            await broker.stop()

    @property
    def bootstrap(self) -> list[str]:
        return [broker.address for broker in self.brokers.values()]

    def create(self, name: str, partitions: int = 1, config: dict[str, str] | None = None) -> TopicDouble:
        ids = list(self.brokers)
        topic = TopicDouble(
            name, [PartitionDouble(ids[index % len(ids)]) for index in range(partitions)], dict(config or {})
        )
        self.topics[name] = topic
        return topic

    def grow(self, name: str, total: int) -> None:
        ids = list(self.brokers)
        partitions = self.topics[name].partitions
        partitions += [PartitionDouble(ids[index % len(ids)]) for index in range(len(partitions), total)]

    def topic_of(self, topic_id: bytes) -> TopicDouble | None:
        return next((topic for topic in self.topics.values() if topic.topic_id == topic_id), None)

    def move_leader(self, name: str, partition: int, leader: int) -> None:
        moved = self.topics[name].partitions[partition]
        moved.leader = leader
        moved.leader_epoch += 1

    def metadata(self, request: broker_pb2.MetadataRequest) -> broker_pb2.MetadataResponse:
        response = broker_pb2.MetadataResponse(
            cluster_id="double",
            controller_id=self.known_controller,
            controller_address=self.brokers[self.known_controller].controller_address,
        )
        for broker in self.brokers.values():
            response.brokers.add(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, address=broker.address)
        for name in self.topics if request.all_topics else request.topics:
            topic = self.topics.get(name)
            if topic is None:
                response.topics.add(topic=name, error=to_proto(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
                continue
            message = response.topics.add(topic=name, topic_id=topic.topic_id, config=topic.config)
            for index, partition in enumerate(topic.partitions):
                message.partitions.add(
                    partition=index, leader=partition.leader, leader_epoch=partition.leader_epoch, replicas=[1], isr=[1]
                )
        return response

    def changed(self) -> None:
        if self._change is not None and not self._change.done():
            self._change.set_result(None)
        self._change = None

    async def until(self, condition: Callable[[], bool], timeout_s: float = 5) -> None:
        """Raises `TimeoutError` where the condition does not come true in time."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                await self.wait_for_change(0.02)  # the client's own changes are not announced here

    async def wait_for_change(self, timeout_s: float) -> None:
        if self._change is None:
            self._change = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._change], timeout=max(timeout_s, 0))

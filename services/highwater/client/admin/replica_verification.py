"""Reads the batch headers of every replica of a partition, page by page, and has them compared."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from highwater.client.admin.replica_comparison import Batch, BatchSource, Findings, compare
from highwater.client.cluster.cluster import Cluster
from highwater.client.cluster.connection import Connection
from highwater.client.cluster.metadata import PartitionInfo, TopicInfo
from highwater.client.exceptions import HighwaterError, error_for
from highwater.client.notebook import ShownAsTable
from highwater.errors import ErrorCode
from highwater.records import decode, read_header
from highwater.rpc.errors import from_proto
from highwater.v1 import broker_pb2, common_pb2

PAGE_BATCHES = 5_000
PAGE_TIMEOUT_S = 30.0
ATTEMPTS = 3
RETRY_S = 0.5


@dataclass(frozen=True, slots=True)
class DamagedRange:
    first_offset: int
    last_offset: int
    problem: str


@dataclass(frozen=True, slots=True)
class ReplicaVerification(ShownAsTable):
    """One replica. `ok`: what it has up to the high watermark is what the leader has; it may have less (`behind`)."""

    broker_id: int
    leads: bool
    in_sync: bool
    error: HighwaterError | None = None  # it could not be read: why; the numbers say nothing then
    log_start_offset: int = -1
    log_end_offset: int = -1
    behind: int = 0  # offsets below the high watermark that it does not have yet
    compared: int = 0  # batches, with those of the reference; the reference's own count is 0
    problems: tuple[str, ...] = ()  # the first ten differences
    more_problems: int = 0
    damaged: tuple[DamagedRange, ...] = ()

    @property
    def ok(self) -> bool:
        return self.error is None and not self.problems and not self.damaged


@dataclass(frozen=True, slots=True)
class PartitionVerification(ShownAsTable):
    topic: str
    partition: int
    high_watermark: int  # up to which was compared; -1 where no replica could be read
    reference: int | None  # the broker that the others were compared with: the leader, where it answers
    replicas: tuple[ReplicaVerification, ...]

    @property
    def ok(self) -> bool:
        return self.reference is not None and all(replica.ok for replica in self.replicas)


async def verify_partition(
    cluster: Cluster,
    topic: TopicInfo,
    partition: int,
    *,
    check_crcs: bool,
    progress: Callable[[int, int], None],
) -> PartitionVerification:
    """`progress` is called with the offset that the comparison has come to and the high watermark."""
    info = topic.partitions[partition]
    key = common_pb2.PartitionKey(topic_id=topic.topic_id, partition=partition)
    sources: list[_Replica] = []
    errors: dict[int, HighwaterError] = {}
    for broker_id in info.replicas:
        broker = cluster.metadata.brokers.get(broker_id)
        if broker is None:
            errors[broker_id] = error_for(ErrorCode.REPLICA_NOT_AVAILABLE, f"broker {broker_id} is not registered")
            continue
        source = _Replica(broker_id, cluster.connection(broker.address), key, check_crcs=check_crcs)
        try:
            await source.open()
        except HighwaterError as error:
            errors[broker_id] = error
        else:
            sources.append(source)
    if not sources:
        return PartitionVerification(topic.topic, partition, -1, None, _results(info, [], {}, errors, -1))
    reference = max(sources, key=lambda source: (source.broker_id == info.leader, source.high_watermark))
    high_watermark = reference.high_watermark
    found = await _compare(reference, sources, high_watermark, lambda offset: progress(offset, high_watermark), errors)
    results = _results(info, sources, found, errors, high_watermark)
    return PartitionVerification(topic.topic, partition, high_watermark, reference.broker_id, results)


async def _compare(
    reference: _Replica,
    sources: Sequence[_Replica],
    high_watermark: int,
    progress: Callable[[int], None],
    errors: dict[int, HighwaterError],
) -> dict[int, Findings]:
    """Compares without those that fail on the way: then the others are compared anew."""
    while True:
        others = [each for each in sources if each is not reference and each.broker_id not in errors]
        try:
            return await compare(reference, others, high_watermark, _same_records, progress)
        except _ReplicaFailedError as failure:
            errors[failure.broker_id] = failure.error
            if failure.broker_id == reference.broker_id:
                return {}
            for source in (reference, *others):
                source.rewind()


def _results(
    info: PartitionInfo,
    sources: Sequence[_Replica],
    found: dict[int, Findings],
    errors: dict[int, HighwaterError],
    high_watermark: int,
) -> tuple[ReplicaVerification, ...]:
    opened = {source.broker_id: source for source in sources}
    results = []
    for broker_id in info.replicas:
        leads, in_sync = broker_id == info.leader, broker_id in info.isr
        source = opened.get(broker_id)
        if source is None or broker_id in errors:
            results.append(ReplicaVerification(broker_id, leads, in_sync, errors.get(broker_id)))
            continue
        findings = found.get(broker_id, Findings())
        results.append(
            ReplicaVerification(
                broker_id,
                leads,
                in_sync,
                None,
                source.log_start_offset,
                source.log_end_offset,
                max(high_watermark - source.log_end_offset, 0),
                findings.compared,
                tuple(findings.problems),
                findings.more_problems,
                tuple(each for each in source.found_damaged if each.first_offset < high_watermark),
            )
        )
    return tuple(results)


class _ReplicaFailedError(Exception):
    """A replica that had answered does not any more."""

    def __init__(self, broker_id: int, error: HighwaterError) -> None:
        super().__init__(broker_id)
        self.broker_id = broker_id
        self.error = error


class _Replica:
    """A `BatchSource` over ListBatches; one page is held at a time."""

    def __init__(
        self, broker_id: int, connection: Connection, key: common_pb2.PartitionKey, *, check_crcs: bool
    ) -> None:
        self.broker_id = broker_id
        self.log_start_offset = -1
        self.log_end_offset = -1
        self.high_watermark = -1
        self.cleaned_to = 0
        self.found_damaged: list[DamagedRange] = []
        self.connection = connection
        self.key = key
        self._check_crcs = check_crcs
        self._page: deque[Batch] = deque()
        self._next_offset = 0

    async def open(self) -> None:
        """Raises `HighwaterError`."""
        await self._turn_page()

    def rewind(self) -> None:
        self._page.clear()
        self._next_offset = 0
        self.found_damaged.clear()

    async def head(self) -> Batch | None:
        while not self._page:
            if 0 <= self.log_end_offset <= self._next_offset:
                return None
            try:
                await self._turn_page()
            except HighwaterError as error:
                raise _ReplicaFailedError(self.broker_id, error) from error
        return self._page[0]

    def advance(self) -> None:
        self._page.popleft()

    async def refresh(self) -> None:
        try:
            self._learn(await self._ask(self._next_offset, 1, check_crcs=False))
        except HighwaterError as error:
            raise _ReplicaFailedError(self.broker_id, error) from error

    def damaged(self, batch: Batch) -> bool:
        return any(
            found.first_offset <= batch.last_offset and batch.base_offset <= found.last_offset
            for found in self.found_damaged
        )

    async def _turn_page(self) -> None:
        response = await self._ask(self._next_offset, PAGE_BATCHES, check_crcs=self._check_crcs)
        self._learn(response)
        listed = response.batches
        self._page.extend(map(Batch, listed.base_offsets, listed.last_offsets, listed.leader_epochs, listed.crcs))
        self.found_damaged += (
            DamagedRange(each.first_offset, each.last_offset, each.problem) for each in listed.damaged
        )
        if listed.next_offset > self._next_offset:
            self._next_offset = listed.next_offset
        elif not self._page:
            self._next_offset = max(self._next_offset, response.log_start_offset)
            await asyncio.sleep(RETRY_S)  # a segment was put in another's place meanwhile

    def _learn(self, response: broker_pb2.ListBatchesResponse) -> None:
        if self.log_end_offset < 0:  # what is written from here on is not looked at
            self.log_end_offset = response.log_end_offset
            self.high_watermark = response.high_watermark
        self.log_start_offset = max(self.log_start_offset, response.log_start_offset)
        if response.batches.HasField("cleaned_to"):
            self.cleaned_to = max(self.cleaned_to, response.batches.cleaned_to)

    async def _ask(self, offset: int, max_batches: int, *, check_crcs: bool) -> broker_pb2.ListBatchesResponse:
        request = broker_pb2.ListBatchesRequest(
            partition=self.key, offset=offset, max_batches=max_batches, check_crcs=check_crcs
        )
        for attempt in range(ATTEMPTS):
            try:
                response: broker_pb2.ListBatchesResponse = await self.connection.call(
                    self.connection.stub.ListBatches, request, PAGE_TIMEOUT_S
                )
                code = from_proto(response.error)
                if code is ErrorCode.NONE:
                    return response
                raise error_for(code, f"broker {self.broker_id}: {response.error.message or code.name}")
            except HighwaterError as error:
                if not error.retriable or attempt == ATTEMPTS - 1:
                    raise
            await asyncio.sleep(RETRY_S)
        raise AssertionError("unreachable")


async def _same_records(first: BatchSource, second: BatchSource, offset: int) -> str:
    assert isinstance(first, _Replica)
    assert isinstance(second, _Replica)
    ours, theirs = await _records_at(first, offset), await _records_at(second, offset)
    for number in sorted(ours.keys() & theirs.keys()):
        if ours[number] != theirs[number]:
            return f"offset {number}: another record than broker {first.broker_id} has"
    return ""


async def _records_at(source: _Replica, offset: int) -> dict[int, tuple[object, ...]]:
    """The records of the batch that begins at `offset`; none where there is none any more."""
    request = broker_pb2.FetchRequest(
        debug=broker_pb2.DebugRole(),
        accepts=[broker_pb2.PAYLOAD_ROWS, broker_pb2.PAYLOAD_COLUMNS],
        partitions=[broker_pb2.FetchPartition(partition=source.key, leader_epoch=-1, fetch_offset=offset, max_bytes=1)],
    )
    try:
        response = await source.connection.call(source.connection.stub.Fetch, request, PAGE_TIMEOUT_S)
    except HighwaterError as error:
        raise _ReplicaFailedError(source.broker_id, error) from error
    refused = from_proto(response.error)
    if refused is not ErrorCode.NONE:  # by every broker: this is not the internal listener
        raise error_for(refused, response.error.message)
    (result,) = response.results
    records = result.records
    if from_proto(result.error) is not ErrorCode.NONE or not records:
        return {}
    header = read_header(records)
    batch = decode(records[: header.size_bytes])
    return {record.offset: (record.timestamp, record.key, record.value, record.headers) for record in batch.records()}

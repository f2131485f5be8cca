"""A consumer's session with one leader: what it is asked for, and what the next request has to say (RULES 4.13).

A request names the partitions whose place has changed, and the leader remembers the others. One that does not know this
is told all places in each request. One request waits at the leader; a second one is sent only to end its wait at once,
when another partition has become hungry.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from time import monotonic
from typing import Any, NamedTuple

from highwater.client.cluster.connection import Connection, RequestStream
from highwater.client.consumer.fetch_buffer import FetchBuffer
from highwater.client.exceptions import HighwaterError
from highwater.client.topic_partition import TopicPartition
from highwater.errors import ErrorCode
from highwater.model.named_places import NamedPlaces
from highwater.model.partition import PartitionKey
from highwater.rpc.errors import error_names, from_proto
from highwater.rpc.partition_keys import from_key, to_key
from highwater.rpc.requests.request_limits import MAX_WHOLE_FETCH
from highwater.telemetry.application_span import Parent, no_span
from highwater.telemetry.tracing import Span, Tracer
from highwater.v1 import broker_pb2


@dataclass(frozen=True, slots=True)
class FetcherSettings:
    client_id: str
    min_bytes: int
    max_wait_ms: int
    max_bytes: int
    max_partition_bytes: int
    request_timeout_ms: float
    backoff_ms: float
    backoff_max_ms: float
    reset_timestamp: int | None  # where a position outside the log goes; None: an error


class FetchPlace(NamedTuple):
    """The point from which one partition is to be fetched."""

    generation: int
    leader_epoch: int
    fetch_offset: int


class FetchedPlace(NamedTuple):
    """A part of an answer."""

    buffer: FetchBuffer
    place: FetchPlace  # that it is about
    result: broker_pb2.FetchResult
    records: bytes  # those of `result`, which copies them each time


@dataclass(slots=True)
class _Member:
    buffer: FetchBuffer
    leader_epoch: int
    high_watermark: int = -1  # as told in this stream, under this epoch: another leader's may be ahead of it


class _Request(NamedTuple):
    """A request without its answer."""

    number: int
    sent_s: float
    has_data_coming: bool  # some partition is behind its high watermark: the answer does not wait
    span: Span | None  # where it is traced


class FetchSession:
    """`on_answer` gets each response, or the error that ended the stream: it then calls `take`, or `fail`. Costs what
    has changed since the last request; nothing for a partition without traffic."""

    def __init__(
        self,
        connection: Connection,
        settings: FetcherSettings,
        on_answer: Callable[[FetchSession, broker_pb2.FetchResponse | HighwaterError], None],
        tracer: Tracer | None = None,
        parent: Callable[[], Parent | None] = no_span,
    ) -> None:
        """`parent` tells which span of the application's a request goes below."""
        self._tracer = tracer
        self._parent = parent
        self._connection = connection
        self._settings = settings
        self._on_answer = on_answer
        self._stream: RequestStream[broker_pb2.FetchRequest, broker_pb2.FetchResponse] | None = None
        # Who returned data last comes last: the others are served first (RULES 4.8).
        self._members: dict[PartitionKey, _Member] = {}
        self._partitions: dict[TopicPartition, None] = {}  # those of the requests without an answer among them
        self._departed: set[TopicPartition] = set()  # no members any more, of requests without an answer
        self._places: NamedPlaces[FetchPlace] = NamedPlaces(parks=True)
        self._requests: deque[_Request] = deque()
        self._sent = 0
        self.took_s = 0.0  # of the latest answer
        # The leader remembers what it was told in this stream; None: it has not answered yet.
        self._incremental: bool | None = None
        self._left_some = False  # its latest response had not room for all

    # Partitions

    @property
    def is_over(self) -> bool:
        """Nobody needs it: it has no partitions, and no leader that has to forget any."""
        ended = self._stream is None or self._stream.broken is not None
        return ended and not self._members and not self._requests

    def put(self, key: PartitionKey, leader_epoch: int, buffer: FetchBuffer) -> None:
        """Fetches it from now on, under this epoch; also where anything about it may have changed."""
        member = self._members.get(key)
        if member is None or member.buffer is not buffer or member.leader_epoch != leader_epoch:
            if member is not None and member.buffer is not buffer:
                self.remove(key)
            self._members[key] = _Member(buffer, leader_epoch)
            self._partitions[buffer.partition] = None
            self._departed.discard(buffer.partition)
        self._places.changed(key)

    def changed(self, key: PartitionKey) -> None:
        self._places.changed(key)

    def remove(self, key: PartitionKey) -> None:
        """Answers for it that are under way find nobody who wants them."""
        member = self._members.pop(key, None)
        if member is not None:
            self._places.removed(key)
            if self._requests:
                self._departed.add(member.buffer.partition)
            else:
                self._partitions.pop(member.buffer.partition, None)

    # Requests

    @property
    def paused_until_ms(self) -> float:
        """Until then the leader has asked to be sent nothing, for a quota."""
        return self._connection.fetch_throttle.until_s * 1000

    def request(self, now_ms: float) -> None:
        """Sends the request that is due now, if one is."""
        if len(self._requests) > 1:
            return
        if self._stream is not None and self._stream.broken is not None:
            self._begin()
        place_of = functools.partial(self._place, now_ms)
        if self._requests and (self._requests[0].has_data_coming or not self._places.moved(place_of)):
            return
        whole = self._whole()
        said = self._places.next_request(place_of, whole=whole)
        if said is None:
            return
        if whole is not None and len(whole) < len(self._members):
            for key in whole:  # the others have their turn next
                self._members[key] = self._members.pop(key)
        settings = self._settings
        message = broker_pb2.FetchRequest(
            client_id=settings.client_id,
            consumer=broker_pb2.ConsumerRole(),
            max_wait_ms=settings.max_wait_ms,
            min_bytes=settings.min_bytes,
            max_bytes=settings.max_bytes,
            accepts=[broker_pb2.PAYLOAD_ROWS, broker_pb2.PAYLOAD_COLUMNS],  # no reader of rows only (RULES 10.1)
            partitions=[
                broker_pb2.FetchPartition(
                    partition=to_key(key),
                    leader_epoch=place.leader_epoch,
                    fetch_offset=place.fetch_offset,
                    max_bytes=settings.max_partition_bytes,
                )
                for key, place in said.named.items()
            ],
            incremental=True,
            forgotten=map(to_key, said.forgotten),
        )
        has_data_coming = self._left_some or any(
            place.fetch_offset < self._members[key].high_watermark for key, place in said.named.items()
        )
        span = None
        if self._tracer is not None and self._tracer.samples(parent := self._parent()):
            span = self._tracer.begin("fetch", parent=parent, partitions=len(self._members), named=len(said.named))
            message.traceparent = span.traceparent
        self._sent += 1
        request = _Request(self._sent, monotonic(), has_data_coming, span)
        self._requests.append(request)
        if self._stream is None:
            self._stream = self._connection.fetch_stream()
        self._stream.send(message, functools.partial(self._answered, request), self._partitions)

    def _whole(self) -> Collection[PartitionKey] | None:
        """The partitions of a request that stands for itself; None: it is one of a session. The first may begin one,
        and names all. A leader that has too many sessions looks at so many of a request: it is sent no more."""
        if self._incremental:
            return None
        if self._incremental is None:
            return self._members
        return dict.fromkeys(islice(self._members, MAX_WHOLE_FETCH))

    def _place(self, now_ms: float, key: PartitionKey) -> FetchPlace | None:
        """None: it is not to be fetched now."""
        member = self._members.get(key)
        if member is None or not member.buffer.fetchable(now_ms, self._settings.max_partition_bytes):
            return None
        buffer = member.buffer
        assert buffer.fetch_offset is not None
        return FetchPlace(buffer.generation, member.leader_epoch, buffer.fetch_offset)

    def _begin(self) -> None:
        """Another stream: its leader knows nothing."""
        self._stream = None
        self._requests.clear()
        self._places.open(self._members)
        self._partitions = dict.fromkeys(member.buffer.partition for member in self._members.values())
        self._departed.clear()
        for member in self._members.values():
            member.high_watermark = -1
        self._incremental, self._left_some = None, False

    # Answers

    def _answered(self, request: _Request, response: broker_pb2.FetchResponse | HighwaterError) -> None:
        if request.span is not None:
            _end(request.span, response)
        if request in self._requests:  # else of a stream that has failed before
            self._on_answer(self, response)

    def take(self, response: broker_pb2.FetchResponse) -> Iterator[FetchedPlace]:
        """Of an answer those parts that somebody asked for."""
        self.took_s = monotonic() - self._requests.popleft().sent_s
        for partition in self._departed:
            self._partitions.pop(partition, None)
        self._departed.clear()
        self._places.answered()
        self._incremental, self._left_some = response.incremental, response.more
        for result in response.results:
            key = from_key(result.partition)
            member, place = self._members.get(key), self._places.asked(key)
            if member is None or place is None:
                continue
            records = result.records
            if from_proto(result.error) is not ErrorCode.NONE:
                self._places.refused(key)
            else:
                member.high_watermark = result.high_watermark
                if records:
                    self._places.returned_data(key)
                    self._members[key] = self._members.pop(key)
            yield FetchedPlace(member.buffer, place, result, records)

    def fail(self, error: HighwaterError) -> list[FetchBuffer]:
        """Ends the stream, and begins anew with the next request. Returns the partitions that wait for an answer."""
        waiting: list[Any] = []
        for key, member in self._members.items():
            place = self._places.latest(key)
            if place is not None and member.buffer.wants(place.generation, place.fetch_offset):
                waiting.append(member.buffer)
        stream = self._stream
        self._begin()
        if stream is not None:
            stream.fail(error)
        return waiting


def _end(span: Span, response: broker_pb2.FetchResponse | HighwaterError) -> None:
    if isinstance(response, HighwaterError):
        span.end(error=str(response))
        return
    span.end(error=error_names(response), bytes=response.ByteSize())

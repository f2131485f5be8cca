"""The sender of accumulated batches: has them encoded, groups them by leader, sends, takes the answers.

One pass (`_pass`) looks at the partitions of which something changed: a batch was opened, closed or encoded, an answer
came, a time has come; at all that have something to do where metadata changed. It is a plain function, run on the event
loop. What waits is in the queues; nothing waits in a task, and a partition that waits for an answer costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from logging import INFO
from time import monotonic

from highwater.client.cluster.cluster import Cluster
from highwater.client.cluster.connection import Connection, whole_error
from highwater.client.exceptions import AuthorizationError, HighwaterError, RetriableError, error_for
from highwater.client.producer.accumulator import (
    NEVER_DUE,
    OpenTable,
    PartitionAccumulator,
    TopicAccumulator,
)
from highwater.client.producer.batch_encoder import BatchEncoder, pieces_of
from highwater.client.producer.buffer_memory import BufferMemory
from highwater.client.producer.delivery import BatchDelivery, TablePart
from highwater.client.producer.encoding import halve
from highwater.client.producer.partition_queue import ProduceAnswer, ProducerBatch
from highwater.client.producer.produce_span import ProduceSpan, produce_span
from highwater.client.producer.statistics import ProducerStatistics
from highwater.client.producer.table_batches import MOST_OF_BATCH, TableChunk
from highwater.errors import ErrorCode
from highwater.records import with_producer
from highwater.rpc.errors import from_proto
from highwater.rpc.requests.request_limits import MAX_PRODUCED
from highwater.telemetry.log import get_logger, pairs
from highwater.telemetry.summed_log import SummedLog
from highwater.v1 import broker_pb2, common_pb2

_log = get_logger(__name__)
_retries = SummedLog(_log)

# Time-outs are looked for this often.
SWEEP_MS = 250.0
# Rows of a table that are fewer bytes wait for others of their partition, as records do: each batch costs every broker
# on its way as much as some hundred KB.
SMALL_CHUNK_BYTES = 64 * 1024
# After a refusal of a producer id, before the next question.
PRODUCER_ID_PAUSE_S = 0.2
# Failed deliveries that nobody has awaited yet, kept for `flush` to raise.
MAX_UNRETRIEVED = 1000


@dataclass(frozen=True, slots=True)
class SenderSettings:
    client_id: str
    acks: int  # 0, 1, -1
    linger_ms: float
    batch_bytes: int
    request_timeout_ms: float
    idempotent: bool


class Sender:
    """Owned by one producer; runs on its event loop."""

    def __init__(
        self, cluster: Cluster, memory: BufferMemory, settings: SenderSettings, on_failure: Callable[[], None]
    ) -> None:
        self._on_failure = on_failure
        self.failure: HighwaterError | None = None  # a bug of ours has ended it
        self._cluster = cluster
        self._memory = memory
        self._settings = settings
        self._active: dict[PartitionAccumulator, None] = {}  # those with something that is not settled, in order
        self._changed: dict[PartitionAccumulator, None] = {}  # those of them that the next pass looks at
        self._leaderless: dict[PartitionAccumulator, None] = {}  # looked at with each sweep
        self._due: list[tuple[float, int, PartitionAccumulator]] = []  # a heap: when time changes something
        self._due_count = 0  # makes the order of equals that of arrival
        self.statistics = ProducerStatistics()
        self.encoder = BatchEncoder(memory, failed=self._settled, ready=self.activate)
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._next_sweep_ms = 0.0
        self._producer_id: tuple[int, int] | None = None
        self._producer_id_task: asyncio.Task[None] | None = None
        self._asked_id_s = float("-inf")
        self._closing = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self.unretrieved: list[BatchDelivery] = []

    # What the producer calls

    @property
    def producer_id(self) -> int:
        return -1 if self._producer_id is None else self._producer_id[0]

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    def activate(self, accumulator: PartitionAccumulator) -> None:
        """The partition has a batch that was opened, closed or encoded."""
        self._active[accumulator] = None
        self._changed[accumulator] = None
        self._wake()

    def look_at_all(self) -> None:
        """Something changed that may concern every partition: metadata, a producer id."""
        self._changed |= self._active
        self._wake()

    def _wake(self) -> None:
        if not self._scheduled and not self._closing:
            assert self._loop is not None
            self._scheduled = True
            self._loop.call_soon(self._pass)

    def add_chunk(self, topic: TopicAccumulator, chunk: TableChunk) -> TablePart:
        """Rows of a table, behind everything that their partition already has."""
        accumulator = topic.of(chunk.partition)
        self._memory.used_bytes += chunk.size_bytes
        part = self._join(accumulator, chunk) if chunk.size_bytes < SMALL_CHUNK_BYTES else self._own(accumulator, chunk)
        self.activate(accumulator)
        return part

    def _own(self, accumulator: PartitionAccumulator, chunk: TableChunk) -> TablePart:
        """A batch of their own."""
        accumulator.close()
        delivery = BatchDelivery(accumulator.topic.name, chunk.partition, accumulator.topic.parent())
        batch = ProducerBatch(delivery, chunk.records, self._now_ms(), charged_bytes=chunk.size_bytes)
        accumulator.queue.add(batch)
        self.encoder.encode_chunk(accumulator, batch, chunk)
        return TablePart(delivery, 0, chunk.records)

    def _join(self, accumulator: PartitionAccumulator, chunk: TableChunk) -> TablePart:
        """A batch with those that came before them and have not gone yet. They are gathered at once: what waits must
        not keep whole tables from being freed."""
        full_bytes = accumulator.topic.full_bytes
        opened = accumulator.open
        if type(opened) is not OpenTable or opened.size_bytes + chunk.size_bytes > MOST_OF_BATCH * full_bytes:
            accumulator.close()
            delivery = BatchDelivery(accumulator.topic.name, chunk.partition, accumulator.topic.parent())
            opened = accumulator.open = OpenTable(delivery, self._now_ms())
        part = TablePart(opened.delivery, opened.records, chunk.records)
        opened.add(chunk.rows(), chunk.size_bytes)
        if opened.size_bytes >= full_bytes:
            accumulator.close()
        return part

    def outstanding(self) -> list[BatchDelivery]:
        """Deliveries that are not settled. Closes the open batches, so that they go at once."""
        found = []
        for accumulator in self._active:
            accumulator.close()
            queue = accumulator.queue
            found += [batch.delivery for batch in (*queue.unacknowledged, *queue.fresh)]
        self.look_at_all()
        return found

    def waiting_records(self) -> int:
        """The number of records that are not settled."""
        return sum(
            (0 if accumulator.open is None else accumulator.open.records)
            + sum(batch.records for batch in (*accumulator.queue.unacknowledged, *accumulator.queue.fresh))
            for accumulator in list(self._active)  # another thread may ask, for the statistics
        )

    async def close(self, error: HighwaterError) -> None:
        """Fails what is left with `error`."""
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        if self._producer_id_task is not None:
            self._producer_id_task.cancel()
            await asyncio.gather(self._producer_id_task, return_exceptions=True)
        for accumulator in self._active:
            accumulator.close()
            for batch in accumulator.queue.give_up_all(error):
                self._forget(batch)
        self.encoder.close()

    # The pass

    def _now_ms(self) -> float:
        return monotonic() * 1000

    def _pass(self) -> None:
        self._scheduled = False
        if self._closing:
            return
        try:
            self._look_at_all()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Ends the sender: whoever waits is told, and nothing is taken in any more, as nothing would send it."""
        _log.error("the producer %s has failed", self._settings.client_id, exc_info=error)
        self._closing = True
        self.failure = HighwaterError(f"the producer has failed, by a bug of its own: {error!r}; make another")
        if self._timer is not None:
            self._timer.cancel()
        for accumulator in self._active:
            accumulator.close()
            for batch in accumulator.queue.give_up_all(self.failure):
                self._settled(batch)
        self._on_failure()

    def _look_at_all(self) -> None:
        now_ms = self._now_ms()
        if now_ms >= self._next_sweep_ms:
            self._sweep(now_ms)
        while self._due and self._due[0][0] <= now_ms:
            accumulator = heappop(self._due)[2]
            accumulator.due_ms = NEVER_DUE
            self._changed[accumulator] = None
        changed, self._changed = self._changed, {}
        by_leader: dict[Connection, list[PartitionAccumulator]] = {}
        for accumulator in changed:
            if self._open_batch_due(accumulator, now_ms):
                accumulator.close()
            self.encoder.encode_closed(accumulator)
            queue = accumulator.queue
            if accumulator.idle:
                self._active.pop(accumulator, None)
            elif queue.fresh or queue.unacknowledged:
                leader = self._leader(accumulator)
                if leader is None:
                    self._is_leaderless(accumulator)
                else:
                    by_leader.setdefault(leader, []).append(accumulator)
        for leader, accumulators in by_leader.items():
            paused_until_ms = leader.produce_throttle.until_s * 1000
            if paused_until_ms > now_ms:
                for accumulator in accumulators:
                    self._due_at(accumulator, paused_until_ms)
            else:
                self._send(leader, accumulators, now_ms)
        for accumulator in changed:
            self._note_due(accumulator, now_ms)
        if self._active:
            due_ms = self._due[0][0] if self._due else NEVER_DUE
            self._set_timer(min(self._next_sweep_ms, due_ms), now_ms)

    def _open_batch_due(self, accumulator: PartitionAccumulator, now_ms: float) -> bool:
        """An open batch goes when nothing of its partition is on its way, else when it has lingered.

        So a lone record never waits, and records that come while others are on their way share a batch.
        """
        batch, queue = accumulator.open, accumulator.queue
        if batch is None or queue.fresh or queue.saturated or queue.retrying:
            return False
        return queue.idle or now_ms >= batch.opened_ms + self._settings.linger_ms

    def _note_due(self, accumulator: PartitionAccumulator, now_ms: float) -> None:
        """Has the partition looked at when time changes something by itself: a linger, a back-off."""
        batch, queue = accumulator.open, accumulator.queue
        if queue.retry_at_ms > now_ms:
            due_ms = queue.retry_at_ms
        elif batch is not None and not (queue.fresh or queue.saturated or queue.retrying):
            due_ms = batch.opened_ms + self._settings.linger_ms
        else:
            return
        self._due_at(accumulator, due_ms)

    def _due_at(self, accumulator: PartitionAccumulator, due_ms: float) -> None:
        if due_ms < accumulator.due_ms:
            accumulator.due_ms = due_ms
            self._due_count += 1
            heappush(self._due, (due_ms, self._due_count, accumulator))

    def _leader(self, accumulator: PartitionAccumulator) -> Connection | None:
        queue = accumulator.queue
        found = self._cluster.leader(queue.topic, queue.partition)
        if found is None:
            return None
        connection, info = found
        if info.leader_epoch != accumulator.leader_epoch:
            accumulator.leader_epoch = info.leader_epoch
            queue.retry_now()
        return connection

    def _is_leaderless(self, accumulator: PartitionAccumulator) -> None:
        """Batches that wait for a leader wait for the next answer, and fail where that is that this client may not know
        of the topic (any more)."""
        refusal = self._cluster.refusal(accumulator.queue.topic)
        if refusal is not None:
            self._refuse(accumulator, refusal.error, refusal.asked_s)
        self._leaderless[accumulator] = None
        self._cluster.request_refresh()

    def _refuse(self, accumulator: PartitionAccumulator, error: HighwaterError, asked_s: float) -> None:
        refused = accumulator.queue.refuse(error, asked_s * 1000)
        for batch in refused:
            self._settled(batch)
        if refused:
            self.activate(accumulator)  # it may have an open batch, or be idle now

    def _sweep(self, now_ms: float) -> None:
        self._next_sweep_ms = now_ms + SWEEP_MS
        self._cluster.fail_overdue(self._settings.request_timeout_ms / 1000)
        self._cluster.leave_silent_leaders()
        for accumulator in self._active:
            for batch in accumulator.queue.expire(now_ms):
                self._changed[accumulator] = None
                self._settled(batch)
        leaderless, self._leaderless = self._leaderless, {}
        self._changed |= leaderless

    def _set_timer(self, at_ms: float, now_ms: float) -> None:
        if self._timer is not None and self._timer_at > now_ms:
            if self._timer_at <= at_ms:
                return
            self._timer.cancel()
        assert self._loop is not None
        self._timer_at = at_ms
        self._timer = self._loop.call_later(max(at_ms - now_ms, 0.0) / 1000, self._wake)

    # Sending

    def _send(self, connection: Connection, accumulators: list[PartitionAccumulator], now_ms: float) -> None:
        """Sends one batch of each partition in turn, in requests of about `batch_bytes`."""
        waiting = accumulators
        while waiting:
            request: list[tuple[PartitionAccumulator, ProducerBatch]] = []
            size = 0
            again = []
            for accumulator in waiting:
                batch = accumulator.queue.next_to_send(now_ms)
                if batch is None:
                    if accumulator.queue.needs_producer_id:
                        self._give_producer_id(accumulator)
                    continue
                assert batch.payload is not None
                full = len(request) >= MAX_PRODUCED or size + len(batch.payload) > self._settings.batch_bytes
                if request and full:
                    self._send_request(connection, request)
                    request, size = [], 0
                request.append((accumulator, batch))
                size += len(batch.payload)
                again.append(accumulator)
            if request:
                self._send_request(connection, request)
            waiting = again

    def _send_request(self, connection: Connection, batches: list[tuple[PartitionAccumulator, ProducerBatch]]) -> None:
        settings = self._settings
        message = broker_pb2.ProduceRequest(
            client_id=settings.client_id,
            acks=settings.acks,
            timeout_ms=int(settings.request_timeout_ms * 0.9),
        )
        for accumulator, batch in batches:
            queue = accumulator.queue
            topic = self._cluster.metadata.topic(queue.topic)
            assert topic is not None
            assert batch.payload is not None
            payload = batch.payload
            if settings.idempotent:
                payload = with_producer(payload, queue.producer_id, queue.producer_epoch, batch.wire_sequence)
            key = common_pb2.PartitionKey(topic_id=topic.topic_id, partition=queue.partition)
            # Made in place: appending a message copies it, field by field and bytes and all.
            message.partitions.add(partition=key, records=payload)
        partitions = [(accumulator.queue.topic, accumulator.queue.partition) for accumulator, _ in batches]
        sent_s = monotonic()
        self.statistics.sent([(batch.records, len(batch.payload or b"")) for _, batch in batches])
        tracer = self._cluster.tracer
        span = None if tracer is None else produce_span(tracer, message, batches)
        on_answer = partial(self._on_answer, batches, sent_s, span)
        connection.produce_stream().send(message, on_answer, partitions)

    # Answers

    def _on_answer(
        self,
        batches: list[tuple[PartitionAccumulator, ProducerBatch]],
        sent_s: float,
        span: ProduceSpan | None,
        response: broker_pb2.ProduceResponse | HighwaterError,
    ) -> None:
        if span is not None:
            span.end(response)
        if self._closing:
            return
        if not isinstance(response, HighwaterError):
            self.statistics.answered(monotonic() - sent_s)
            self.statistics.throttled(response.throttle_ms)
        try:
            self._take_answer(batches, response)
        except Exception as error:
            self._fail(error)

    def _take_answer(
        self,
        batches: list[tuple[PartitionAccumulator, ProducerBatch]],
        response: broker_pb2.ProduceResponse | HighwaterError,
    ) -> None:
        now_ms = self._now_ms()
        if not isinstance(response, HighwaterError) and (refused := whole_error(response)) is not None:
            response = refused
        if isinstance(response, HighwaterError):
            self._cluster.request_refresh()
            code = response.code if isinstance(response, RetriableError) else ErrorCode.UNKNOWN_SERVER_ERROR
            answers = [ProduceAnswer(code, str(response))] * len(batches)
        else:
            answers = [self._answer(result) for result in response.results]
            if len(answers) != len(batches):
                message = f"the broker answered for {len(answers)} of {len(batches)} batches"
                answers = [ProduceAnswer(ErrorCode.NETWORK_EXCEPTION, message)] * len(batches)
            else:
                self._learn(batches, response)
        for (accumulator, batch), answer in zip(batches, answers, strict=True):
            self._changed[accumulator] = None
            if answer.error is ErrorCode.MESSAGE_TOO_LARGE and batch.records > 1:
                self._halve(accumulator, batch)
            elif accumulator.queue.answered(batch, answer, now_ms):
                self._settled(batch)
            elif answer.error is not ErrorCode.NONE:
                self._is_retried(accumulator, batch, answer)
        self._wake()

    def _is_retried(self, accumulator: PartitionAccumulator, batch: ProducerBatch, answer: ProduceAnswer) -> None:
        self.statistics.retried(batch.records)
        queue = accumulator.queue
        _retries.note(
            INFO,
            "batches are sent again",
            pairs(topic=queue.topic, partition=queue.partition, error=answer.error.name, reason=repr(answer.message)),
            cause=answer.error.name,
        )

    def _answer(self, result: broker_pb2.ProduceResult) -> ProduceAnswer:
        code = from_proto(result.error)
        return ProduceAnswer(
            code,
            result.error.message,
            result.base_offset if self._settings.acks != 0 else -1,
            result.log_append_time_ms,
        )

    def _learn(
        self, batches: list[tuple[PartitionAccumulator, ProducerBatch]], response: broker_pb2.ProduceResponse
    ) -> None:
        """Leaders from the answers' hints; a refresh where an answer shows that what is known is old."""
        for (accumulator, _), result in zip(batches, response.results, strict=True):
            code = from_proto(result.error)
            if code is ErrorCode.NONE or not code.retriable:
                continue
            queue = accumulator.queue
            known = self._cluster.metadata.topic(queue.topic)
            news = (
                code is ErrorCode.NOT_LEADER_OR_FOLLOWER
                and known is not None
                and self._cluster.metadata.learn_leader(
                    queue.topic, known.topic_id, queue.partition, result.leader, result.leader_epoch
                )
            )
            if not news or self._cluster.leader(queue.topic, queue.partition) is None:
                self._cluster.request_refresh()

    def _halve(self, accumulator: PartitionAccumulator, batch: ProducerBatch) -> None:
        """The topic's `max.message.bytes` is smaller than `max_request_size`."""
        assert batch.payload is not None
        pieces = pieces_of(batch, halve(accumulator.topic.batch_format, batch.payload))
        was_settled = not batch.charged_bytes
        accumulator.queue.split(batch, pieces)
        if not was_settled:
            self._memory.used_bytes += sum(piece.charged_bytes for piece in pieces)
            self._forget(batch)

    def _settled(self, batch: ProducerBatch) -> None:
        self._forget(batch)
        delivery = batch.delivery
        if delivery.error is not None:
            self.statistics.failed(batch.records)
        if delivery.error is not None and len(self.unretrieved) < MAX_UNRETRIEVED:
            self.unretrieved.append(delivery)

    def _forget(self, batch: ProducerBatch) -> None:
        charged, batch.charged_bytes = batch.charged_bytes, 0
        batch.payload = None
        self._memory.release(charged)

    # Producer ids

    def _give_producer_id(self, accumulator: PartitionAccumulator) -> None:
        """All partitions share one producer id, each with its own epoch (RULES 6.3); one whose epochs are used up makes
        the producer take another."""
        queue = accumulator.queue
        if self._producer_id is not None and self._producer_id[0] != queue.producer_id:
            queue.renew(*self._producer_id)
            self.activate(accumulator)
        elif self._producer_id_task is None:
            self._producer_id_task = asyncio.create_task(self._obtain_producer_id())

    async def _obtain_producer_id(self) -> None:
        """Tried until it is there; batches that wait for it expire meanwhile. They fail where it is refused."""
        try:
            self._producer_id = await self._ask_producer_id()
        except AuthorizationError as error:
            for accumulator in list(self._active):
                if accumulator.queue.needs_producer_id:
                    self._refuse(accumulator, error, self._asked_id_s)
            await asyncio.sleep(PRODUCER_ID_PAUSE_S)  # whoever sends on has it asked for again
        except Exception as error:
            self._fail(error)
        finally:
            self._producer_id_task = None
        self.look_at_all()

    async def _ask_producer_id(self) -> tuple[int, int]:
        attempt = 0
        while True:
            brokers = list(self._cluster.metadata.brokers.values())
            if brokers:
                connection = self._cluster.connection(brokers[attempt % len(brokers)].address)
                self._asked_id_s = monotonic()
                try:
                    response = await connection.call(
                        connection.stub.InitProducerId,
                        broker_pb2.InitProducerIdRequest(),
                        min(5.0, self._settings.request_timeout_ms / 1000),
                    )
                    code = from_proto(response.error)
                    if code is ErrorCode.NONE:
                        return response.producer_id, response.producer_epoch
                    raise error_for(code, f"no producer id: {response.error.message or code.name}")
                except AuthorizationError:
                    raise
                except HighwaterError as error:
                    self._note(error)
            self._cluster.request_refresh()
            attempt += 1
            await asyncio.sleep(min(1.0, 0.05 * 2 ** min(attempt, 5)))

    def _note(self, error: HighwaterError) -> None:
        """Keeps the reason that a delivery names when it times out."""
        for accumulator in self._active:
            for batch in accumulator.queue.fresh:
                batch.last_error = error

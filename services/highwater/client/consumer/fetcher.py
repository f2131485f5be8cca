"""Keeps the buffers of a consumer filled: one FetchStream a leader, the next request sent while the last is decoded.

As in the sender, one plain function (`_pass`) looks at what has changed, whenever something has: buffers tell of
themselves. What has no traffic costs nothing (RULES 4.13).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from logging import INFO, WARNING
from random import random
from time import monotonic

from highwater.client.cluster.cluster import Cluster
from highwater.client.cluster.connection import Connection
from highwater.client.cluster.metadata import NO_LEADER
from highwater.client.cluster.offset_lookup import lookup_offsets
from highwater.client.consumer.fetch_buffer import FetchBuffer
from highwater.client.consumer.fetch_session import FetchedPlace, FetcherSettings, FetchPlace, FetchSession
from highwater.client.consumer.statistics import ConsumerStatistics
from highwater.client.exceptions import (
    HighwaterError,
    OffsetOutOfRangeError,
    RetriableError,
    UnknownTopicError,
    error_for,
)
from highwater.client.topic_partition import LATEST_TIMESTAMP, OffsetAndTimestamp, TopicPartition
from highwater.errors import ErrorCode
from highwater.model.partition import PartitionKey
from highwater.rpc.errors import from_proto
from highwater.supervision import TaskSupervisor
from highwater.telemetry.application_span import Parent
from highwater.telemetry.log import get_logger, pairs
from highwater.telemetry.summed_log import SummedLog
from highwater.v1 import broker_pb2

_log = get_logger(__name__)
_incidents = SummedLog(_log)

SWEEP_MS = 250.0
# For one round of looking up positions; then those that have an answer go on and the others are asked again.
LOOKUP_S = 5.0
_NEVER_MS = float("inf")


@dataclass(slots=True)
class _Kept:
    """The state of one partition, as of the last look at it."""

    fetched: tuple[FetchSession, PartitionKey] | None = None  # by whom, and under which key
    buffered_bytes: int = 0
    leaderless_s: float | None = None  # since when it looks for a leader


class Fetcher:
    """Owned by one consumer; runs on its event loop. `on_change` is called when there may be something to hand out;
    `on_reset` is told of a position that was not in the log any more."""

    def __init__(
        self,
        cluster: Cluster,
        settings: FetcherSettings,
        on_change: Callable[[], None],
        on_reset: Callable[[TopicPartition], None] = lambda _: None,
    ) -> None:
        self.buffers: dict[TopicPartition, FetchBuffer] = {}
        # In the order of their turns. All that are ready are in it; those that are not any more, until they are met.
        self.statistics = ConsumerStatistics()
        self.ready: dict[TopicPartition, FetchBuffer] = {}
        self.parent: Parent | None = None  # the application's span, while it waits for records
        self._cluster = cluster
        self._settings = settings
        self._on_change = on_change
        self._on_reset = on_reset
        self._kept: dict[TopicPartition, _Kept] = {}
        self._sessions: dict[Connection, FetchSession] = {}
        self._buffered_bytes = 0  # as of the last look at each
        # Those to look at: what tells of itself, what waits for its time, for a leader, and for a position.
        self._changed: dict[TopicPartition, FetchBuffer] = {}
        self._delayed: dict[TopicPartition, FetchBuffer] = {}
        self._retry_at_ms = _NEVER_MS  # the first of `_delayed`
        self._leaderless: dict[TopicPartition, FetchBuffer] = {}
        self._to_reset: dict[TopicPartition, FetchBuffer] = {}
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = TaskSupervisor()
        self._resetting = False
        self._running = False

    def start(self) -> None:
        self._running = True
        self.wake()

    async def close(self) -> None:
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.stop()

    @property
    def is_traced(self) -> bool:
        """Tells whether its requests may have spans."""
        return self._cluster.tracer is not None

    def wake(self) -> None:
        if self._running and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._pass)

    def changed(self, buffer: FetchBuffer) -> None:
        """The buffer is looked at in the next pass."""
        if self.buffers.get(buffer.partition) is buffer:
            self._changed[buffer.partition] = buffer
            if buffer.ready:
                self.ready.setdefault(buffer.partition, buffer)

    def metadata_changed(self) -> None:
        """Any partition may have another leader."""
        self._changed |= self.buffers
        self.wake()

    # The pass

    def _pass(self) -> None:
        self._scheduled = False
        if not self._running:
            return
        try:
            self._look_at_what_changed()
        except Exception as error:
            self._fail(error)

    def _look_at_what_changed(self) -> None:
        settings = self._settings
        now_ms = monotonic() * 1000
        self._cluster.fail_overdue((settings.max_wait_ms + settings.request_timeout_ms) / 1000)
        self._cluster.leave_silent_leaders(settings.max_wait_ms / 1000)
        if now_ms >= self._retry_at_ms:
            self._end_delays(now_ms)
        changed, self._changed = self._changed, {}
        for buffer in changed.values():
            self._look_at(buffer, now_ms)
        if self._leaderless:
            self._cluster.request_refresh()
        due_ms = self._retry_at_ms
        if self._buffered_bytes < settings.max_bytes:
            for session in self._sessions.values():
                if session.paused_until_ms > now_ms:
                    due_ms = min(due_ms, session.paused_until_ms)
                else:
                    session.request(now_ms)
        self._set_timer(min(SWEEP_MS, due_ms - now_ms))

    def _look_at(self, buffer: FetchBuffer, now_ms: float) -> None:
        partition = buffer.partition
        kept = self._kept[partition]
        # What is paused may stay so for ever: the others are not to wait for its room.
        buffered_bytes = 0 if buffer.paused else buffer.buffered_bytes
        self._buffered_bytes += buffered_bytes - kept.buffered_bytes
        kept.buffered_bytes = buffered_bytes
        self._leaderless.pop(partition, None)
        if buffer.reset_timestamp is not None:
            self._to_reset[partition] = buffer
            self._start_resets()
        if buffer.retry_at_ms > now_ms:
            self._delayed[partition] = buffer
            self._retry_at_ms = min(self._retry_at_ms, buffer.retry_at_ms)
        if not buffer.fetchable(now_ms, self._settings.max_partition_bytes):
            kept.leaderless_s = None
            if kept.fetched is not None:
                session, key = kept.fetched
                session.changed(key)
            return
        leader = self._cluster.leader(*partition)
        topic = self._cluster.metadata.topic(partition.topic)
        if leader is None or topic is None or buffer.topic_id not in (None, topic.topic_id):
            self._leave(kept)
            self._is_leaderless(buffer, kept)
            return
        kept.leaderless_s = None
        connection, info = leader
        session, key = self._session(connection), PartitionKey(topic.topic_id, partition.partition)
        if kept.fetched != (session, key):
            self._leave(kept)
            kept.fetched = (session, key)
        session.put(key, info.leader_epoch, buffer)

    def _is_leaderless(self, buffer: FetchBuffer, kept: _Kept) -> None:
        """It waits for a leader, and fails where a broker says meanwhile that this client may not know of the topic."""
        if kept.leaderless_s is None:
            kept.leaderless_s = monotonic()
        refusal = self._cluster.refusal(buffer.partition.topic)
        if refusal is None or refusal.asked_s < kept.leaderless_s:
            self._leaderless[buffer.partition] = buffer
        else:
            kept.leaderless_s = None  # should it be fetched again
            buffer.fail(refusal.error)
            self._on_change()

    def _session(self, connection: Connection) -> FetchSession:
        found = self._sessions.get(connection)
        if found is None:
            for other in [other for other, session in self._sessions.items() if session.is_over]:
                del self._sessions[other]
            found = self._sessions[connection] = FetchSession(
                connection, self._settings, self._answered, self._cluster.tracer, lambda: self.parent
            )
        return found

    @staticmethod
    def _leave(kept: _Kept) -> None:
        if kept.fetched is not None:
            session, key = kept.fetched
            session.remove(key)
            kept.fetched = None

    def _end_delays(self, now_ms: float) -> None:
        delayed, self._delayed = self._delayed, {}
        self._retry_at_ms = _NEVER_MS
        for partition, buffer in delayed.items():
            if buffer.retry_at_ms <= now_ms:
                self.changed(buffer)
            elif self.buffers.get(partition) is buffer:
                self._delayed[partition] = buffer
                self._retry_at_ms = min(self._retry_at_ms, buffer.retry_at_ms)

    def _set_timer(self, delay_ms: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self.wake)

    # Answers

    def _answered(self, session: FetchSession, response: broker_pb2.FetchResponse | HighwaterError) -> None:
        if not self._running:
            return
        try:
            self._take_answer(session, response)
        except Exception as error:
            self._fail(error)
        self._on_change()
        self.wake()

    def _take_answer(self, session: FetchSession, response: broker_pb2.FetchResponse | HighwaterError) -> None:
        if isinstance(response, HighwaterError):
            self._fail_all(session, response)
        elif (code := from_proto(response.error)) is not ErrorCode.NONE:
            self._fail_all(session, error_for(code, response.error.message))
        else:
            size_bytes = 0
            for fetched in session.take(response):
                size_bytes += len(fetched.records)
                if fetched.buffer.wants(fetched.place.generation, fetched.place.fetch_offset):
                    self._on_result(fetched)
            self.statistics.fetched(size_bytes, session.took_s)
            self.statistics.throttled(response.throttle_ms)

    def _fail_all(self, session: FetchSession, error: HighwaterError) -> None:
        self._cluster.request_refresh()
        jitter = _jitter()  # one for all, so that they go in one request again
        for buffer in session.fail(error):
            if isinstance(error, RetriableError):
                self._is_retried(buffer, error.code.name, str(error))
                self._back_off(buffer, jitter)
            else:
                buffer.fail(error)

    def _on_result(self, fetched: FetchedPlace) -> None:
        buffer, place, result, records = fetched
        code = from_proto(result.error)
        if code is ErrorCode.NONE:
            before = buffer.highest_epoch
            buffer.accept(records, result.high_watermark, result.log_start_offset)
            if buffer.highest_epoch > max(before, place.leader_epoch):
                self._learn(buffer, NO_LEADER, buffer.highest_epoch)
            return
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            buffer.hold()
            self._tasks.run_once("confirm_out_of_range", lambda: self._confirm_out_of_range(buffer, place), self._fail)
            return
        if code.retriable:
            # RULES 5.7: fenced and unknown epochs among them. The position stays.
            if result.leader_epoch > place.leader_epoch:
                self._learn(buffer, result.leader, result.leader_epoch)
            self._is_retried(buffer, code.name, result.error.message)
            self._back_off(buffer, _jitter())
            self._cluster.request_refresh()
            return
        topic, partition = buffer.partition
        message = result.error.message or code.name
        self._back_off(buffer, _jitter())  # should it be fetched again
        buffer.fail(error_for(code, f"{topic}-{partition} at offset {place.fetch_offset}: {message}"))

    def _learn(self, buffer: FetchBuffer, leader: int, leader_epoch: int) -> None:
        """A higher leader epoch exists: nobody under a lower one is believed from now on."""
        topic, partition = buffer.partition
        known = self._cluster.metadata.topic(topic)
        if known is not None:
            self._cluster.metadata.learn_leader(topic, known.topic_id, partition, leader, leader_epoch)

    def _is_retried(self, buffer: FetchBuffer, error: str, reason: str) -> None:
        self.statistics.retried()
        topic, partition = buffer.partition
        details = pairs(topic=topic, partition=partition, offset=buffer.fetch_offset, error=error, reason=repr(reason))
        _incidents.note(INFO, "partitions are fetched again", details, cause=error)

    def _back_off(self, buffer: FetchBuffer, jitter: float) -> None:
        settings = self._settings
        delay_ms = min(settings.backoff_ms * 2 ** min(buffer.failures, 16), settings.backoff_max_ms)
        buffer.back_off(monotonic() * 1000 + delay_ms * jitter)

    # Positions

    async def _confirm_out_of_range(self, buffer: FetchBuffer, place: FetchPlace) -> None:
        """A deposed leader with a short log says the same (RULES 5.7): only one that every broker which answers still
        calls the leader, under the same epoch, is believed."""
        await self._cluster.confirm()
        if not buffer.wants(place.generation, place.fetch_offset):
            return
        info = self._cluster.metadata.partition(*buffer.partition)
        if info is None or info.leader_epoch != place.leader_epoch:
            buffer.release()
            self._back_off(buffer, _jitter())
        elif buffer.position != place.fetch_offset:
            # What is buffered before it is handed out first; then it is asked for again.
            buffer.release()
            self._back_off(buffer, _jitter())
        elif self._settings.reset_timestamp is None:
            topic, partition = buffer.partition
            buffer.release()
            buffer.fail(
                OffsetOutOfRangeError(
                    f"{topic}-{partition}: offset {place.fetch_offset} is outside the log; seek to one that is in it, "
                    "or set auto_offset_reset to earliest or latest"
                )
            )
        else:
            self.statistics.was_reset()
            topic, partition = buffer.partition
            details = pairs(topic=topic, partition=partition, offset=place.fetch_offset)
            _incidents.note(WARNING, "positions that are outside the log are reset", details)
            buffer.reset(self._settings.reset_timestamp)
            self._on_reset(buffer.partition)
        self._on_change()
        self.wake()

    def _start_resets(self) -> None:
        if not self._resetting:
            self._resetting = True
            self._tasks.run_once("reset_positions", self._reset_positions, self._fail)

    async def _reset_positions(self) -> None:
        """Looks up the position of every buffer that waits for one, until none does."""
        try:
            while wanted := self._still_to_reset():
                found: dict[TopicPartition, OffsetAndTimestamp] = {}
                error: HighwaterError | None = None
                timestamps = {partition: asked for partition, (_, asked) in wanted.items()}
                try:
                    await lookup_offsets(self._cluster, timestamps, LOOKUP_S, found)
                except HighwaterError as failure:
                    error = failure
                for partition, (generation, _) in wanted.items():
                    buffer = self.buffers.get(partition)
                    if buffer is None or buffer.generation != generation:
                        continue
                    answer = found.get(partition)
                    if answer is None:
                        unknown = self._cluster.metadata.partition(*partition) is None
                        if error is not None and (
                            unknown if isinstance(error, UnknownTopicError) else not isinstance(error, RetriableError)
                        ):
                            buffer.fail(error)
                    elif answer.offset < 0:
                        buffer.reset(LATEST_TIMESTAMP)  # nothing at or after that time: what comes next
                    else:
                        buffer.seek(answer.offset)
                if error is not None:
                    self._cluster.request_refresh()
                    await asyncio.sleep(self._settings.backoff_ms / 1000)
                self._on_change()
                self.wake()
        finally:
            self._resetting = False

    def _still_to_reset(self) -> dict[TopicPartition, tuple[int, int]]:
        """Generation and timestamp of each."""
        waiting, self._to_reset = self._to_reset, {}
        wanted = {}
        for partition, buffer in waiting.items():
            timestamp = buffer.reset_timestamp
            if timestamp is not None and buffer.error is None and self.buffers.get(partition) is buffer:
                self._to_reset[partition] = buffer
                wanted[partition] = (buffer.generation, timestamp)
        return wanted

    def _fail(self, error: Exception) -> None:
        """Gives up fetching for a bug of ours: `poll` raises it, until a seek."""
        _log.error("the consumer %s has failed", self._settings.client_id, exc_info=error)
        for buffer in self.buffers.values():
            if buffer.error is None:
                buffer.fail(HighwaterError(f"the consumer has failed, by a bug of its own: {error!r}; seek to retry"))
        self._on_change()
        self._set_timer(SWEEP_MS)

    def assign(self, buffers: Iterable[FetchBuffer]) -> None:
        """Replaces all there is. Answers for what is gone find nobody who wants them; what stays is not interrupted."""
        before, self.buffers = self.buffers, {buffer.partition: buffer for buffer in buffers}
        for partition, old in before.items():
            if self.buffers.get(partition) is not old:
                old.generation += 1
                self._forget(partition)
        self._take_up(self.buffers)

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Takes these away, where they are there; the others are not interrupted."""
        for partition in partitions:
            old = self.buffers.pop(partition, None)
            if old is not None:
                old.generation += 1
                self._forget(partition)
        self.wake()

    def _forget(self, partition: TopicPartition) -> None:
        kept = self._kept.pop(partition)
        self._leave(kept)
        self._buffered_bytes -= kept.buffered_bytes
        for others in (self._changed, self._delayed, self._leaderless, self._to_reset, self.ready):
            others.pop(partition, None)

    def add(self, buffers: Iterable[FetchBuffer]) -> None:
        """Takes up more partitions, beside those there are."""
        added = {buffer.partition: buffer for buffer in buffers}
        self.buffers |= added
        self._take_up(added)

    def _take_up(self, buffers: Mapping[TopicPartition, FetchBuffer]) -> None:
        for partition, buffer in buffers.items():
            self._kept.setdefault(partition, _Kept())
            self.changed(buffer)
        self.wake()


def _jitter() -> float:
    return 0.8 + 0.4 * random()

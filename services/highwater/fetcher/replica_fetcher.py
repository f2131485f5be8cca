"""One fetcher: it copies the partitions of one leader that are its own, over one FetchStream.

How messages flow (RULES 4.5). A lone record costs one response, one append with its answer, and one request, which
carries the new acked offset and then waits at the leader for the next record:

    response ─► append ─► answered ─► request (acked offset moved on)

Where the leader's response left data behind, the next request goes out together with the append, with a fetch offset
ahead of the acked one, so that a long stream overlaps the two. It is answered at once, and the request after it carries
the acked offset. A request that waits at the leader while a partition joins is ended by another that names it.

The session is incremental (RULES 4.10): a request names the partitions whose place has changed, and what a round costs
is what has changed in it. A leader that does not know this is told all places in each request.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from logging import CRITICAL, INFO, WARNING
from typing import TypeVar

from highwater.errors import ErrorCode
from highwater.fetcher.copy_spans import CopySpans
from highwater.fetcher.fetch_budget import FetchBudget
from highwater.fetcher.fetcher_metrics import FetcherMetrics
from highwater.fetcher.follower.actions import (
    Action,
    Append,
    Delayed,
    Fence,
    FetchPosition,
    LogAnswer,
    TruncateFullyAndStartAt,
    TruncateTo,
    WentOffline,
)
from highwater.fetcher.follower.fetch_order import FetchOrder
from highwater.fetcher.follower.follower import Follower
from highwater.fetcher.follower.following import FetcherId, LeaderEndpoint
from highwater.fetcher.follower.retry_times import RetryTimes
from highwater.fetcher.follower_throttle import FollowerThrottle
from highwater.fetcher.log_storage import LogStorage
from highwater.fetcher.settings import FetcherSettings
from highwater.fetcher.wire import from_fetch_result, to_fetch_partition
from highwater.log_storage_client.values import StorageUnavailableError
from highwater.model.named_places import NamedPlaces
from highwater.model.partition import PartitionKey
from highwater.rpc.bidirectional_stream import OverdueError, StreamEndedError, drive_stream
from highwater.rpc.connections.channel import ReplaceableChannel, open_channel
from highwater.rpc.connections.tls import Certificates
from highwater.rpc.errors import from_proto
from highwater.rpc.partition_keys import from_key, to_key
from highwater.supervision import TaskSupervisor
from highwater.telemetry.log import get_logger, pairs
from highwater.telemetry.summed_log import SummedLog
from highwater.telemetry.tracing import Span, Tracer
from highwater.v1 import broker_pb2, broker_pb2_grpc

logger = get_logger("fetcher.replica_fetcher")
partition_lines = SummedLog(logger)

MESSAGE_PARTITIONS = 250  # of one message to log-storage
APPENDS_IN_FLIGHT = 2  # with data, of one fetcher; what bounds the memory of all is `FetchBudget`
REQUESTS_IN_FLIGHT = 2  # one that waits and one that ends its wait
UNDER_WAY = APPENDS_IN_FLIGHT + REQUESTS_IN_FLIGHT
LONGEST_HOLD_S = 0.5  # then the throttle is looked at anew: its rate may be another
SHORTEST_HOLD_S = 0.005
LET_GO_AT_ONCE = 500  # of what is held back: there may be thousands, and each is asked for its position again
FIRST_RECONNECT_MS = 100
LAST_RECONNECT_MS = 1_000
FIRST_OVERDUE_MS = 1_500  # beyond what the leader may hold a fetch

Step = tuple[Follower, Action]
StepT = TypeVar("StepT")


@dataclass(frozen=True, slots=True)
class _Asked:
    correlation_id: int
    answered_at_once: bool  # the leader had more when it was sent
    granted: int  # of the budget, for its response
    asked_s: float


class ReplicaFetcher:
    """`now_ms` is the monotonic clock, `budget` all fetchers' own; None: this one's alone. The leader's endpoint is the
    same for the fetcher's whole life (RULES 4.9)."""

    def __init__(
        self,
        identity: FetcherId,
        leader: LeaderEndpoint,
        settings: FetcherSettings,
        log_storage: LogStorage,
        metrics: FetcherMetrics,
        now_ms: Callable[[], int],
        *,
        budget: FetchBudget | None = None,
        throttle: FollowerThrottle | None = None,
        supervisor: TaskSupervisor | None = None,
        certificates: Certificates | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._spans = None if tracer is None else CopySpans(tracer, settings.broker_id)
        self._budget = budget or FetchBudget(settings.replica_fetch_total_max_bytes, UNDER_WAY)
        self._budget.join()
        self._throttle = throttle or FollowerThrottle(now_ms)
        self._held_back: asyncio.TimerHandle | None = None  # the next look at what the throttle holds back
        self._supervisor = supervisor or TaskSupervisor()
        self.identity = identity
        self.leader = leader
        self.connected = False  # the present session has been answered
        self._settings = settings
        self._log_storage = log_storage
        self._metrics = metrics
        self._fetch_times = metrics.fetches.labels(str(identity.leader))
        self._now_ms = now_ms
        self._link = ReplaceableChannel(lambda: open_channel(leader.address, certificates))
        self._overdue_ms = FIRST_OVERDUE_MS
        self._broker_epoch = -1
        self._followers: dict[PartitionKey, Follower] = {}
        self._fetch_order = FetchOrder()
        self._places: NamedPlaces[FetchPosition] = NamedPlaces()
        self._incremental = False  # the leader remembers what it was told in this session
        self._leader_left_some = False  # its latest response had not room for all
        self._leader_pauses_until_ms = 0  # it holds back what it throttles, and answers at once for nothing of it
        # Those of the followers of which it says so: a round goes over these alone.
        self._leader_has_more: dict[PartitionKey, None] = {}
        self._marks_behind: dict[PartitionKey, None] = {}
        self._retries = RetryTimes()
        self._throttled: dict[PartitionKey, None] = {}  # held back at the last look
        self._asked: deque[_Asked] = deque()
        self._acked_since_asked = False  # the request that waits at the leader does not tell the acked offset
        self._appends_in_flight = 0
        self._last_correlation_id = 0
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0
        self._reconnect_ms = FIRST_RECONNECT_MS
        self._session: asyncio.Task[None] | None = None
        self._calls: set[asyncio.Task[None]] = set()

    # The face to the fetcher manager.

    @property
    def followers(self) -> Iterable[Follower]:
        return self._followers.values()

    def configure(self, settings: FetcherSettings) -> None:
        """Takes other settings, from its next request on."""
        self._settings = settings

    def open_session(self, broker_epoch: int) -> None:
        """Ends the session and opens another at once: under a new broker epoch (RULES 4.1), or where log-storage is out
        of reach, once it is back. A broker that cannot append shall not look like a follower that is about to: its
        leaders would wait replica.lag.time.max.ms for it instead of 500 ms (RULES 5.6)."""
        self._broker_epoch = broker_epoch
        self._reconnect_ms = FIRST_RECONNECT_MS
        before = self._session
        if before is not None:
            before.cancel()
        self._session = self._supervisor.run_forever(
            f"session-with-{self.identity.leader}", lambda: self._run(broker_epoch, before)
        )

    async def stop(self) -> None:
        tasks = [*self._calls] if self._session is None else [self._session, *self._calls]
        for task in tasks:
            task.cancel()
        for timer in (self._timer, self._held_back):
            if timer is not None:
                timer.cancel()
        self._followers.clear()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._forget_requests()
        self._budget.leave()
        await self._link.close()

    def add(self, follower: Follower) -> None:
        self._followers[follower.key] = follower
        self._fetch_order.add(follower.key)
        self.changed(follower)

    def changed(self, follower: Follower) -> None:
        """After each event of a follower: what may have come of it for the next request."""
        key = follower.key
        self._places.changed(key)
        _keep(self._leader_has_more, key, follower.leader_has_more)
        _keep(self._marks_behind, key, follower.marks_are_behind)
        self._retries.set(key, follower.retry_at_ms)
        if follower.retry_at_ms is not None:
            self._set_timer()
        self._wake.set()

    def remove(self, key: PartitionKey) -> None:
        """Forgets a follower: what is under way for it is dropped when it is answered (RULES 4.7)."""
        self._followers.pop(key, None)
        self._fetch_order.remove(key)
        self._places.removed(key)
        for kept in (self._leader_has_more, self._marks_behind, self._throttled):
            kept.pop(key, None)
        self._retries.set(key, None)
        if self._spans is not None:
            self._spans.forget(key)
        self._wake.set()

    def perform(self, steps: Sequence[Step]) -> None:
        """Sends what the followers ask for: fences in few calls, appends in few requests."""
        fences: list[tuple[Follower, Fence]] = []
        appends: list[tuple[Follower, Append]] = []
        for follower, action in steps:
            match action:
                case Fence():
                    fences.append((follower, action))
                case Append():
                    appends.append((follower, action))
                case TruncateTo() | TruncateFullyAndStartAt():
                    self._call(functools.partial(self._truncate, follower, action), [(follower, action.generation)])
                case Delayed():
                    self._log_delay(follower, action)
                case WentOffline():
                    self._metrics.went_offline.inc()
                    details = pairs(topic=follower.topic, partition=follower.key, reason=repr(action.message))
                    partition_lines.note(CRITICAL, "partition is OFFLINE", details)
        for some in _in_pieces(appends):
            self._append(some)
        for piece in _in_pieces(fences):
            asked = [(follower, fence.generation) for follower, fence in piece]
            self._call(functools.partial(self._fence, piece), asked)
        self._wake.set()

    # The session with the leader.

    async def _run(self, broker_epoch: int, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.gather(before, return_exceptions=True)
        while True:
            await self._log_storage.reachable.wait()
            self._forget_requests()
            self._places.open(self._fetch_order)
            self._incremental = self._leader_left_some = False
            reason = ""
            try:
                call = broker_pb2_grpc.BrokerStub(self._link.channel).FetchStream(None, wait_for_ready=True)
                await drive_stream(
                    call,
                    self._requests(broker_epoch),
                    self._received,
                    oldest=lambda: self._asked[0] if self._asked else None,
                    limit_s=self._limit_ms / 1000,
                )
            except OverdueError as error:
                reason = str(error)
                self._connect_anew()
            except StreamEndedError as error:
                reason = str(error)
            except Exception:  # a mistake of ours: loud, but the other partitions go on
                logger.exception("session failed %s", pairs(leader=self.identity.leader))
            finally:
                self.connected = False
                self._forget_requests()
            pause_ms = self._reconnect_ms
            self._reconnect_ms = min(2 * pause_ms, LAST_RECONNECT_MS)
            logger.info(
                "session ended %s",
                pairs(
                    leader=self.identity.leader, address=self.leader.address, reason=repr(reason), retry_in_ms=pause_ms
                ),
            )
            await asyncio.sleep(pause_ms / 1000)

    def _forget_requests(self) -> None:
        """Nobody takes an answer to them any more."""
        self._budget.give_back(sum(asked.granted for asked in self._asked))
        self._asked.clear()

    @property
    def _limit_ms(self) -> int:
        """For the leader's next answer. It holds a fetch for replica.fetch.wait.max.ms at most; what comes on top grows
        while it answers nothing at all, as its disk or the link may be slow."""
        settings = self._settings
        return settings.replica_fetch_wait_max_ms + min(self._overdue_ms, settings.replica_socket_timeout_ms)

    def _connect_anew(self) -> None:
        """Another stream over the same connection would wait as long: its other end may be gone. A leader that cannot
        be connected to is not slow: nothing is gained by waiting for it longer."""
        if not self._link.cannot_connect():
            self._overdue_ms = min(2 * self._overdue_ms, self._settings.replica_socket_timeout_ms)
        self._link.replace()

    async def _requests(self, broker_epoch: int) -> AsyncIterator[broker_pb2.FetchRequest]:
        while True:
            request = self._next_request(broker_epoch)
            if request is None:
                self._wake.clear()
                await self._wake.wait()
            else:
                yield request

    def _next_request(self, broker_epoch: int) -> broker_pb2.FetchRequest | None:
        """The request that is due now, None while there is none."""
        if self._asked:
            if len(self._asked) >= REQUESTS_IN_FLIGHT or not (
                self._acked_since_asked or self._places.joined(self._position)
            ):
                return None
        elif self._appends_in_flight >= (APPENDS_IN_FLIGHT if self._is_answered_at_once() else 1):
            return None  # the append's answer brings the acked offset that the next request is to carry
        said = self._places.next_request(self._position, whole=None if self._incremental else self._fetch_order)
        self._acked_since_asked = False
        if said is None:
            return None
        # Asked with what this request says: what the leader has more of may be what it holds back (RULES 4.14).
        answered_at_once = self._is_answered_at_once() and not (self._throttled and said.forgotten)
        settings = self._settings
        self._last_correlation_id += 1
        granted = self._budget.grant(settings.replica_fetch_response_max_bytes, more=answered_at_once)
        self._asked.append(_Asked(self._last_correlation_id, answered_at_once, granted, time.perf_counter()))
        return broker_pb2.FetchRequest(
            correlation_id=self._last_correlation_id,
            client_id=f"fetcher-{settings.broker_id}-{self.identity.fetcher_id}",
            replica=broker_pb2.ReplicaRole(
                broker_id=settings.broker_id, broker_epoch=broker_epoch, fetcher_id=self.identity.fetcher_id
            ),
            max_wait_ms=settings.replica_fetch_wait_max_ms,
            min_bytes=settings.replica_fetch_min_bytes,
            max_bytes=granted,
            partitions=[
                to_fetch_partition(key, position, settings.replica_fetch_max_bytes)
                for key, position in said.named.items()
            ],
            accepts=[broker_pb2.PAYLOAD_ROWS, broker_pb2.PAYLOAD_COLUMNS],
            incremental=True,
            forgotten=map(to_key, said.forgotten),
        )

    def _position(self, key: PartitionKey) -> FetchPosition | None:
        follower = self._followers.get(key)
        if follower is None:
            return None
        if held_back_ms := self._throttle.held_back_ms(follower):
            self._hold_back(key, held_back_ms)
            return None
        return follower.position()

    def _hold_back(self, key: PartitionKey, held_back_ms: int) -> None:
        """Nothing of it is fetched now (RULES 4.14): to the leader it is forgotten, and named again later."""
        self._throttled[key] = None
        if self._held_back is None:
            self._let_go_in(held_back_ms)

    @property
    def held_back(self) -> list[PartitionKey]:
        return list(self._throttled)

    def _let_go_in(self, held_back_ms: int) -> None:
        pause_s = min(max(held_back_ms / 1000, SHORTEST_HOLD_S), LONGEST_HOLD_S)
        self._held_back = asyncio.get_running_loop().call_later(pause_s, self._let_go)

    def _let_go(self) -> None:
        """Has those that have waited longest looked at again."""
        self._held_back = None
        for key in list(islice(self._throttled, LET_GO_AT_ONCE)):
            del self._throttled[key]
            self._places.changed(key)
        if self._throttled:
            self._let_go_in(self._throttle.owed_ms())
        self._wake.set()

    def _is_answered_at_once(self) -> bool:
        """Tells whether the leader has more for the next request, so that no acked offset waits behind it."""
        if self._settings.replica_fetch_min_bytes > 1:
            return False
        # While either end throttles, nobody knows which of them it has more for (RULES 4.14). What a leader had no room
        # for may be what it holds back from now on.
        pausing = self._now_ms() < self._leader_pauses_until_ms
        has_more = bool(self._leader_has_more) and not self._throttled
        return (self._leader_left_some or has_more) and not pausing

    def _received(self, response: broker_pb2.FetchResponse) -> None:
        if not self._asked or response.correlation_id != self._asked[0].correlation_id:
            raise StreamEndedError(f"the leader answered request {response.correlation_id} out of turn")
        asked = self._asked.popleft()
        self._budget.give_back(asked.granted)
        self._fetch_times.observe(time.perf_counter() - asked.asked_s)
        error = from_proto(response.error)
        if error is not ErrorCode.NONE:
            raise StreamEndedError(f"the leader refuses the session: {error.name} {response.error.message}")
        self._places.answered()
        self._incremental, self._leader_left_some = response.incremental, response.more
        self._leader_pauses_until_ms = self._now_ms() + response.throttle_ms
        self.connected = True
        self._reconnect_ms = FIRST_RECONNECT_MS
        self._overdue_ms = FIRST_OVERDUE_MS
        now_ms = self._now_ms()
        steps: list[Step] = []
        for result in response.results:
            key = from_key(result.partition)
            follower, position = self._followers.get(key), self._places.asked(key)
            if follower is None or position is None:
                continue  # RULES 4.7: no longer followed here
            fetched = functools.partial(self._fetched, follower, position, result, now_ms)
            steps += self._told(follower, position.generation, fetched)
        # What the leader has told before, and the log could not take then (RULES 4.6).
        for key in list(self._marks_behind):
            follower = self._followers[key]
            steps += [(follower, action) for action in follower.take_marks()]
        self.perform(steps)

    def _fetched(
        self, follower: Follower, position: FetchPosition, result: broker_pb2.FetchResult, now_ms: int
    ) -> Sequence[Action]:
        answer = from_fetch_result(result, position)
        if answer.error is not ErrorCode.NONE or answer.diverging is not None:
            self._places.refused(follower.key)
        elif answer.fetched is not None or follower.position() is None:  # backing off, it takes nothing of it
            self._places.returned_data(follower.key)
        if answer.fetched is not None:
            self._fetch_order.returned_data(follower.key)  # RULES 4.8
            self._metrics.fetched_bytes.inc(len(answer.fetched.records))
            if self._spans is not None and result.traceparents:
                self._spans.begin(follower, result.traceparents, len(answer.fetched.records))
            awaited = result.awaited or position.fetch_offset >= answer.high_watermark
            self._throttle.copied(follower.key, len(answer.fetched.records), awaited=awaited)
        return follower.fetched(answer, now_ms)

    def _told(self, follower: Follower, generation: int, tell: Callable[[], Sequence[Action]]) -> list[Step]:
        """Returns what follows from an answer to one follower. A mistake of ours about one is its own: what the others
        have decided is carried out, and it begins anew as after an answer that was lost."""
        try:
            actions = tell()
        except Exception as error:
            logger.exception("an answer could not be taken %s", pairs(topic=follower.topic, partition=follower.key))
            reason = f"an answer could not be taken: {error!r}"
            actions = follower.outcome_unknown(generation, reason, self._now_ms())
        self.changed(follower)
        return [(follower, action) for action in actions]

    # Calls to log-storage.

    def _append(self, appends: Sequence[tuple[Follower, Append]]) -> None:
        with_data = any(append.records is not None for _, append in appends)
        size = sum(len(append.records) for _, append in appends if append.records is not None)
        self._appends_in_flight += with_data
        self._budget.hold(size)
        copied: Sequence[Span] = ()
        if self._spans is not None and with_data:
            appends, copied = self._spans.appending(appends)

        def answered(answers: Sequence[LogAnswer] | None, reason: str) -> None:
            self._appends_in_flight -= with_data
            self._budget.give_back(size)
            now_ms = self._now_ms()
            steps: list[Step] = []
            for index, (follower, append) in enumerate(appends):
                if self._followers.get(follower.key) is not follower:
                    continue
                if answers is None:
                    tell = functools.partial(follower.outcome_unknown, append.generation, reason, now_ms)
                else:
                    tell = functools.partial(follower.appended, answers[index], now_ms)
                steps += self._told(follower, append.generation, tell)
            for span in copied:
                span.end(error=reason)
            if self._asked and not self._asked[-1].answered_at_once and self._tells_more(appends):
                self._acked_since_asked = True
            self.perform(steps)

        self._log_storage.append([(follower.key, append) for follower, append in appends], answered)

    def _tells_more(self, appends: Sequence[tuple[Follower, Append]]) -> bool:
        """Tells whether a request would tell the leader more than the latest. Of a log start that lags it would not:
        each would end the wait of the one before, and be answered with that log start, as fast as brokers can."""
        return any(follower.position() not in (None, self._places.latest(follower.key)) for follower, _ in appends)

    async def _fence(self, fences: Sequence[tuple[Follower, Fence]]) -> None:
        try:
            answers = await self._log_storage.fence([(follower.key, fence) for follower, fence in fences])
        except StorageUnavailableError as error:
            self._outcome_unknown([(follower, fence.generation) for follower, fence in fences], str(error))
            return
        now_ms = self._now_ms()
        steps: list[Step] = []
        for (follower, fence), answer in zip(fences, answers, strict=True):
            if self._followers.get(follower.key) is follower:
                steps += self._told(follower, fence.generation, functools.partial(follower.fenced, answer, now_ms))
        self.perform(steps)

    async def _truncate(self, follower: Follower, action: TruncateTo | TruncateFullyAndStartAt) -> None:
        partition_lines.note(
            INFO,
            "truncating",
            pairs(
                topic=follower.topic,
                partition=follower.key,
                to=action.offset,
                fully=isinstance(action, TruncateFullyAndStartAt),
                log_end_offset=action.expected_log_end_offset,
                last_epoch=action.expected_last_epoch,
            ),
        )
        try:
            answer = await self._log_storage.truncate(follower.key, action)
        except StorageUnavailableError as error:
            self._outcome_unknown([(follower, action.generation)], str(error))
            return
        if self._followers.get(follower.key) is follower:
            actions = follower.truncated(answer, self._now_ms())
            self.changed(follower)
            self.perform([(follower, next_action) for next_action in actions])

    def _outcome_unknown(self, asked: Iterable[tuple[Follower, int]], reason: str) -> None:
        now_ms = self._now_ms()
        steps: list[Step] = []
        for follower, generation in asked:
            if self._followers.get(follower.key) is follower:
                steps += [(follower, action) for action in follower.outcome_unknown(generation, reason, now_ms)]
                self.changed(follower)
        self.perform(steps)

    def _call(self, call: Callable[[], Awaitable[None]], asked: Sequence[tuple[Follower, int]]) -> None:
        """A call to log-storage for these followers and generations. A mistake of ours in it is of unknown outcome, as
        a lost answer is: the followers fence again, and do not wait for ever for an answer that nobody will take."""
        task = self._supervisor.run_once(
            "log-storage-call", call, lambda error: self._outcome_unknown(asked, f"the call failed: {error!r}")
        )
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    # Back-off.

    def _set_timer(self) -> None:
        """One timer, for the earliest retry."""
        at_ms = self._retries.next_ms
        if at_ms is None or (self._timer is not None and self._timer_at_ms <= at_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = at_ms
        delay_s = max(1, at_ms - self._now_ms()) / 1000
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now_ms = self._now_ms()
        steps: list[Step] = []
        for key in self._retries.take_due(now_ms, MESSAGE_PARTITIONS):  # thousands may be due, after a lost connection
            follower = self._followers[key]
            steps += [(follower, action) for action in follower.tick(now_ms)]
            self.changed(follower)
        self._set_timer()
        self.perform(steps)

    def _log_delay(self, follower: Follower, action: Delayed) -> None:
        partition_lines.note(
            WARNING,
            "delayed",
            pairs(
                topic=follower.topic,
                partition=follower.key,
                leader=self.identity.leader,
                error=action.error.name,
                retry_in_ms=action.retry_in_ms,
                message=repr(action.message),
            ),
            cause=action.error.name,
        )


def _in_pieces(steps: Sequence[StepT]) -> Iterator[Sequence[StepT]]:
    """Log-storage and this process work off a message in one turn of their event loops."""
    return (steps[first : first + MESSAGE_PARTITIONS] for first in range(0, len(steps), MESSAGE_PARTITIONS))


def _keep(keys: dict[PartitionKey, None], key: PartitionKey, is_one: bool) -> None:
    """An ordered set of those that are one."""
    if is_one:
        keys[key] = None
    else:
        keys.pop(key, None)

"""The cluster as a client reaches it: metadata that is refreshed when it must be, and a connection a broker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import NamedTuple

from highwater.client.cluster.absent_topics import AbsentTopics, read_absent_topics
from highwater.client.cluster.bootstrap import bootstrap_addresses
from highwater.client.cluster.broker_connections import BrokerConnections
from highwater.client.cluster.connection import UNRESOLVED, Connection, UnreachableError, check_whole
from highwater.client.cluster.last_word import say
from highwater.client.cluster.metadata import Metadata, MetadataAnswer, PartitionInfo, TopicError, TopicInfo
from highwater.client.cluster.metadata_response import read_metadata_answer
from highwater.client.cluster.refresh_pace import MIN_REFRESH_INTERVAL_S, RefreshPace
from highwater.client.cluster.tls import tls_problem
from highwater.client.cluster.token import Token
from highwater.client.cluster.tracing import Tracing
from highwater.client.exceptions import (
    AuthorizationError,
    ClientClosedError,
    HighwaterError,
    LeaderNotAvailableError,
    NetworkError,
    RequestTimedOutError,
    RetriableError,
    SslAuthenticationError,
    UnknownTopicError,
    error_for,
)
from highwater.errors import ErrorCode
from highwater.rpc.connections.tls import Certificates
from highwater.rpc.process import forking
from highwater.supervision import TaskSupervisor
from highwater.telemetry.log import get_logger, pairs
from highwater.telemetry.otlp.start import open_tracer
from highwater.telemetry.summed_log import SummedLog
from highwater.telemetry.tracing import Tracer
from highwater.v1 import broker_pb2

_log = get_logger(__name__)
_failures = SummedLog(_log)

# One broker's time for a metadata request. The next one is asked long before: the first may be gone without a word, and
# whoever looks for the successors of a lost node has less than a second (RULES 8.9).
METADATA_TIMEOUT_S = 2.0
METADATA_PATIENCE_S = 0.5
# How long a broker that was waited for, patiently or not, is asked last.
ASKED_LAST_S = 10.0
# An answer so much later than it should be makes a client ask whether the leader has changed; again after the latter
# where the broker answers other requests meanwhile, and is merely slow.
SILENT_AFTER_S = 2.0
SLOW_ASK_AGAIN_S = 10.0
# While no broker can be reached at the start: longest pause between tries, and how often the log says so.
START_PAUSE_MAX_S = 1.0
STILL_TRYING_EVERY_S = 5.0
# While no broker can be reached that could be: between two looks whether TLS is why, and at how many addresses.
DIAGNOSE_AGAIN_S = 10.0
MAX_DIAGNOSED = 5
# A topic that no broker knows may just have been made: how long to look for it where no controller says that there is
# none, and how long one has for that.
UNKNOWN_TOPIC_PATIENCE_S = 3.0
ABSENCE_TIMEOUT_S = 1.0
# Before a question that nobody answered is put again, doubled each time: a broker's connection to a former controller
# fails one question, and between two controllers none answers.
ASK_AGAIN_S = 0.1


@dataclass(slots=True)
class _Search:
    """One topic that `Cluster.topic` looks for. It is part of every refresh while anybody waits for it."""

    waiting: int = 0  # calls
    found: TopicInfo | None = None  # by an answer that came meanwhile; those of brokers that lag do not take it back
    # Of a client that allows auto-creation: requests under way that name it, and the addresses of brokers that have not
    # answered one, or otherwise than that there is none, which one that creates topics never says. Those may be making
    # it: the controller's word may be older.
    under_way: int = 0
    may_make_it: set[str] = field(default_factory=set)


class Refusal(NamedTuple):
    """Of a topic by a broker. It says nothing of what is allowed later than it was asked."""

    error: AuthorizationError
    asked_s: float


class Cluster:
    """Owned by one producer, consumer or admin. `on_change` is called whenever metadata was merged. With
    `allow_auto_topic_creation` brokers that have `auto.create.topics.enable` make the topics that are looked for;
    `certificates` are those of a client that speaks TLS."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        client_id: str,
        request_timeout_ms: float,
        max_age_ms: float = 300_000,
        max_block_ms: float = 60_000,
        on_change: Callable[[], None] = lambda: None,
        allow_auto_topic_creation: bool = False,
        certificates: Certificates | None = None,
        token: Token | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self._certificates = certificates
        self._token = token
        self.metadata = Metadata()
        self.tracer: Tracer | None = None  # while it is started, and tracing is on
        self._tracing = tracing
        self.client_id = client_id
        self.request_timeout_s = request_timeout_ms / 1000
        self._bootstrap = bootstrap_addresses(bootstrap)
        self._max_age_s = max_age_ms / 1000
        self._max_block_s = max_block_ms / 1000
        self._on_change = on_change
        self._allow_auto_topic_creation = allow_auto_topic_creation
        self._tracked: set[str] = set()
        self._searches: dict[str, _Search] = {}
        self._absent = AbsentTopics(self._absent_of)
        self._asked_for: set[str] = set()  # topics of the last refresh
        self._connections = BrokerConnections(self.new_connection)
        self._asked_last_until: dict[str, float] = {}  # by address: of brokers that did not answer in time
        self._asked = asyncio.Event()
        self._waited_for = asyncio.Event()  # the next refresh
        self._pace = RefreshPace()
        self._refreshed: asyncio.Future[None] | None = None
        self._last_error: HighwaterError | None = None
        self._answered = False  # a broker has
        self._diagnosed_s = float("-inf")
        self._tls_problem = ""  # the reason why brokers that could be reached cannot any more, where TLS is why
        self._closed = False
        self._turn = 0
        self._answering = self._bootstrap[0]
        self._tasks = TaskSupervisor()

    async def start(self) -> None:
        """Tries for `max_block_ms`, and says in the log that it does. Then raises `NetworkError` where no bootstrap
        broker is there, `RequestTimedOutError` where one is and stays silent, and the client may be started again.
        Raises `SslAuthenticationError` at once where TLS is why.
        Raises `ClientClosedError` where the process was forked from one in which gRPC ran."""
        self.check_process()
        self.tracer = open_tracer(self._tracing, self.client_id, {})
        self._closed = False
        self._tasks = TaskSupervisor()
        self._tasks.run_forever("metadata", self._keep_fresh)
        self._tasks.run_forever("absent topics", self._absent.answer)
        try:
            await self._first_answer()
        except BaseException:
            await self.close()
            raise

    async def _first_answer(self) -> None:
        began = monotonic()
        told, pause_s = float("-inf"), MIN_REFRESH_INTERVAL_S
        while True:
            try:
                return await self.refresh()
            except RetriableError as error:
                if monotonic() - told >= STILL_TRYING_EVERY_S and (
                    problem := await tls_problem(self._bootstrap, self._certificates)
                ):
                    raise SslAuthenticationError(problem) from error
                now = monotonic()
                left_s = began + self._max_block_s - now
                if left_s <= 0:
                    raise
                if now - told >= STILL_TRYING_EVERY_S:
                    told = now
                    say(_log, logging.WARNING, "%s: %s; trying for another %.0f s", self.client_id, error, left_s)
                await asyncio.sleep(min(pause_s, left_s))
                pause_s = min(2 * pause_s, START_PAUSE_MAX_S)

    async def close(self) -> None:
        self._closed = True
        await self._tasks.stop()
        if self._refreshed is not None and not self._refreshed.done():
            self._last_error = ClientClosedError(f"{self.client_id} was stopped")
            self._refreshed.set_result(None)
        self._refreshed = None
        await self._connections.close()
        tracer, self.tracer = self.tracer, None
        if tracer is not None:
            await asyncio.to_thread(tracer.close)

    def check_process(self) -> None:
        """Raises `ClientClosedError` where the process was forked from one in which gRPC ran."""
        refusal = forking.refusal()
        if refusal is not None:
            raise ClientClosedError(refusal)

    # Connections

    def connection(self, address: str) -> Connection:
        return self._connections.to(address)

    def new_connection(self, address: str) -> Connection:
        """One that nobody else uses, for its caller to close."""
        return Connection(address, self._certificates, self._token, client_id=self.client_id)

    @property
    def answering(self) -> Connection:
        """The connection to the broker that answered last; where it does not any more, a refresh finds another."""
        return self.connection(self._answering)

    def leader(self, topic: str, partition: int) -> tuple[Connection, PartitionInfo] | None:
        """The leader's connection and what is known of the partition; None: ask for a refresh and try later."""
        info = self.metadata.partition(topic, partition)
        address = self.metadata.leader_address(topic, partition)
        return None if info is None or address is None else (self.connection(address), info)

    def refusal(self, topic: str) -> Refusal | None:
        """The reason why the topic has no leader for this client, where that is that it may not DESCRIBE it."""
        missing = self.metadata.missing.get(topic)
        error = None if missing is None else error_for(missing.error.code, missing.error.about(topic))
        return Refusal(error, missing.asked_s) if missing and isinstance(error, AuthorizationError) else None

    def fail_overdue(self, timeout_s: float) -> None:
        """See `Connection.fail_overdue`, for every connection."""
        for connection in self._connections:
            connection.fail_overdue(timeout_s)

    def leave_silent_leaders(self, expected_wait_s: float = 0.0) -> None:
        """Leaves leaders that are paused or cut off, which answer nothing; to be called again and again. When an answer
        is `SILENT_AFTER_S` late the successor is asked for, and the stream is ended as soon as there is one, whichever
        came first. `expected_wait_s` is how long a broker may hold a request by design."""
        patience_s = expected_wait_s + SILENT_AFTER_S
        for connection in self._connections:
            for stream in connection.overdue(patience_s):
                leaders = (self.leader(topic, partition) for topic, partition in stream.partitions())
                if any(leader is not None and leader[0] is not connection for leader in leaders):
                    stream.fail(NetworkError(f"the broker at {connection.address} no longer leads and does not answer"))
                elif stream.silent_s > patience_s or monotonic() >= stream.ask_again_at_s:
                    stream.ask_again_at_s = monotonic() + SLOW_ASK_AGAIN_S
                    self.request_refresh()

    # Metadata

    def track(self, topics: Iterable[str]) -> None:
        """These topics are part of every refresh from now on."""
        self._tracked.update(topics)

    def request_refresh(self) -> None:
        """Begins a refresh soon, at most every `MIN_REFRESH_INTERVAL_S`, rarer while the answers stay the same.
        Does not wait."""
        self._asked.set()

    async def refresh(self) -> None:
        """A refresh that begins after this call. Raises the last error where no broker answered, and
        `ClientClosedError` once this is closed."""
        await asyncio.shield(self._next_refresh())
        if self._last_error is not None:
            raise self._last_error

    def _next_refresh(self) -> asyncio.Future[None]:
        if self._closed:
            raise ClientClosedError(f"{self.client_id} was stopped")
        if self._refreshed is None:
            self._refreshed = asyncio.get_running_loop().create_future()
        self._asked.set()
        self._waited_for.set()
        return self._refreshed

    async def topic(self, name: str, timeout_s: float) -> TopicInfo:
        """The topic, looked for until the deadline.

        Raises:
            UnknownTopicError: the controller says that there is none, or says nothing, and no broker knows it for
                `UNKNOWN_TOPIC_PATIENCE_S`.
            LeaderNotAvailableError: the controller says that there is one, and no broker knows it until the deadline.
            NetworkError: no broker could be reached in `timeout_s`.
        """
        found = self._described(name)
        if found is None:
            search = self._searches.get(name)
            if search is None or search.found is not None:  # what was found before is not what is there now
                search = self._searches[name] = _Search()
            search.waiting += 1
            try:
                found = await self._look_for(name, search, timeout_s)
            finally:
                search.waiting -= 1
                if not search.waiting and self._searches.get(name) is search:
                    del self._searches[name]
                    self._absent.forget(name)
                    if name not in self._tracked:
                        self.metadata.forget(name)
        self.track([name])
        return found

    def _described(self, name: str) -> TopicInfo | None:
        """The topic, unless the latest answer that spoke of it does not know it, or knows it without partitions."""
        found = self.metadata.topic(name)
        return found if found is not None and found.partitions else None

    async def _look_for(self, name: str, search: _Search, timeout_s: float) -> TopicInfo:
        begun = monotonic()
        absent: asyncio.Future[bool | None] | None = None
        there = False  # as the controller said last
        ask_at_s, pause_s = 0.0, ASK_AGAIN_S
        while True:
            error: HighwaterError | None = None
            refreshed = True
            try:
                if absent is None or absent.done():
                    await self.refresh()
                else:
                    refreshed = await self._refresh_or(absent)
            except RetriableError as failure:
                error = failure
            if search.found is not None:
                return search.found
            waited = monotonic() - begun
            missing = self.metadata.missing.get(name)
            told = TopicError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) if missing is None else missing.error
            code = told.code
            said = absent.result() if absent is not None and absent.done() else None
            if said is not None:
                there = not said
            if error is None and code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not search.may_make_it:
                if (absent is None or absent.done()) and not said and waited >= ask_at_s:
                    absent = self._absent.ask(name)
                    ask_at_s, pause_s = waited + pause_s, 2 * pause_s
                elif said and not search.under_way:
                    raise UnknownTopicError(f"topic {name!r} does not exist; create it first")
            if not refreshed:
                continue  # no broker has said anything since: what they said before ends no patience
            patience_s = timeout_s if there else min(UNKNOWN_TOPIC_PATIENCE_S, timeout_s)
            if error is None and (not code.retriable or waited > patience_s):
                if there and code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise LeaderNotAvailableError(f"topic {name!r} was made, but no broker knows it yet: try again")
                if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise UnknownTopicError(f"topic {name!r} does not exist; create it first")
                raise error_for(code, told.about(name))
            if error is not None and waited > timeout_s:
                raise error

    async def _refresh_or(self, answered: asyncio.Future[bool | None]) -> bool:
        """As `refresh`; or returns before it where the answer is there. Tells whether it was refreshed."""
        refreshed = self._next_refresh()
        await asyncio.wait((refreshed, answered), return_when=asyncio.FIRST_COMPLETED)
        if refreshed.done() and self._last_error is not None:
            raise self._last_error
        return refreshed.done()

    async def _absent_of(self, names: Sequence[str]) -> Mapping[str, bool]:
        timeout_s = min(ABSENCE_TIMEOUT_S, self.request_timeout_s)
        return await read_absent_topics(self.answering, names, timeout_s)

    async def confirm(self) -> list[MetadataAnswer]:
        """Asks every broker known, so that a leader that was deposed cannot speak for itself alone (RULES 5.7). What
        those say that answer."""
        addresses = {broker.address for broker in self.metadata.brokers.values()} or set(self._bootstrap)
        asked_s = monotonic()
        answers = await asyncio.gather(*(self._ask(address) for address in addresses), return_exceptions=True)
        found = []
        for answer in answers:
            if isinstance(answer, MetadataAnswer):
                self._merge(answer, asked_s)
                found.append(answer)
            elif not isinstance(answer, HighwaterError):
                raise answer
        if found:
            self._on_change()
        return found

    async def answer_of_all_topics(self) -> MetadataAnswer:
        """Every topic there is, from the first broker that answers; for administration."""
        return await self._ask_in_turn(broker_pb2.MetadataRequest(all_topics=True))

    async def _keep_fresh(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._max_age_s):
                    await self._asked.wait()
            except TimeoutError:
                pass
            await self._await_turn()
            self._asked.clear()
            self._asked_for = self._wanted()
            waiting, self._refreshed = self._refreshed, None
            began_s = self._pace.began()
            try:
                answer = await self._ask_in_turn(self._request())
                self._pace.answered(answer)
                self._merge(answer, began_s)
                if self._last_error is not None:
                    _log.info("metadata is there again %s", pairs(client_id=self.client_id))
                self._last_error = None
            except HighwaterError as error:
                self._last_error = error
                details = pairs(client_id=self.client_id, reason=repr(str(error)))
                _failures.note(logging.INFO, "no broker tells the metadata", details, cause=self.client_id)
            except asyncio.CancelledError:
                self._last_error = ClientClosedError(f"{self.client_id} was stopped")
                raise
            except Exception as error:
                self._last_error = HighwaterError(f"metadata could not be refreshed: {error!r}")
                raise  # to the supervisor, which begins anew
            finally:
                if waiting is not None and not waiting.done():
                    waiting.set_result(None)
            self._on_change()

    async def _await_turn(self) -> None:
        self._pace.asked()
        while self._wanted() <= self._asked_for:
            left_s = self._pace.left_s(waited_for=self._refreshed is not None)
            if left_s <= 0:
                return
            self._waited_for.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._waited_for.wait()

    def _wanted(self) -> set[str]:
        return self._tracked | self._searches.keys()

    def _request(self) -> broker_pb2.MetadataRequest:
        return broker_pb2.MetadataRequest(
            topics=sorted(self._wanted()), allow_auto_topic_creation=self._allow_auto_topic_creation
        )

    async def _ask_in_turn(self, request: broker_pb2.MetadataRequest) -> MetadataAnswer:
        known = [broker.address for broker in self.metadata.brokers.values()]
        self._turn += 1
        start = self._turn % max(len(known), 1)
        addresses = list(dict.fromkeys([*known[start:], *known[:start], *self._bootstrap]))
        now = monotonic()
        addresses.sort(key=lambda address: self._asked_last_until.get(address, now) > now)
        failures: list[HighwaterError] = []
        reasons: dict[str, list[str]] = {}  # addresses by why they cannot be reached
        asking: set[asyncio.Task[MetadataAnswer]] = set()
        asked: dict[asyncio.Task[MetadataAnswer], str] = {}
        left = iter(addresses)
        try:
            while (address := next(left, None)) is not None or asking:
                if address is not None:
                    task = asyncio.create_task(self._ask(address, request))
                    asking.add(task)
                    asked[task] = address
                patience_s = METADATA_PATIENCE_S if address is not None else None
                done, asking = await _first_of(asking, patience_s)
                if not done and address is not None:
                    self._asked_last_until[address] = monotonic() + ASKED_LAST_S
                errors = {task: task.exception() for task in done}
                for task, error in errors.items():
                    if not isinstance(error, HighwaterError):
                        return task.result()
                    failures.append(error)
                    if isinstance(error, RequestTimedOutError):
                        self._asked_last_until[asked[task]] = monotonic() + ASKED_LAST_S
                    elif isinstance(error, UnreachableError):
                        reasons.setdefault(error.reason, []).append(asked[task])
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        if all(isinstance(failure, RetriableError) for failure in failures):
            if any(isinstance(failure, RequestTimedOutError) for failure in failures):
                raise RequestTimedOutError(f"no broker answered in time (tried {', '.join(addresses)})")
            self._look_for_tls_problem(addresses)
            why = f": {self._tls_problem}" if self._tls_problem else _why(reasons)
            raise NetworkError(f"no broker could be reached (tried {', '.join(addresses)}){why}")
        raise next(failure for failure in failures if not isinstance(failure, RetriableError))

    def _look_for_tls_problem(self, addresses: Sequence[str]) -> None:
        """Beside whatever waits; where the client starts it is looked for there."""
        if self._answered and monotonic() - self._diagnosed_s >= DIAGNOSE_AGAIN_S:
            self._diagnosed_s = monotonic()
            self._tasks.run_once("tls diagnosis", lambda: self._diagnose(addresses[:MAX_DIAGNOSED]))

    async def _diagnose(self, addresses: Sequence[str]) -> None:
        problem = await tls_problem(addresses, self._certificates)
        if problem and problem != self._tls_problem:
            _log.warning("%s: %s", self.client_id, problem)
        self._tls_problem = problem

    async def _ask(self, address: str, request: broker_pb2.MetadataRequest | None = None) -> MetadataAnswer:
        connection = self.connection(address)
        request = request or self._request()
        searches = {}
        if request.allow_auto_topic_creation:
            searches = {name: self._searches[name] for name in request.topics if name in self._searches}
        for search in searches.values():
            search.under_way += 1
        try:
            response = await connection.call(
                connection.stub.Metadata, request, min(METADATA_TIMEOUT_S, self.request_timeout_s)
            )
            check_whole(response)
        except UnreachableError:
            raise  # it was not sent
        except BaseException:
            for search in searches.values():
                search.may_make_it.add(address)
            raise
        finally:
            for search in searches.values():
                search.under_way -= 1
        self._answering = address
        self._answered, self._tls_problem = True, ""
        answer = read_metadata_answer(response)
        for name, search in searches.items():
            missing = answer.missing.get(name)
            if missing is not None and missing.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                search.may_make_it.discard(address)
            else:
                search.may_make_it.add(address)
        return answer

    def _merge(self, answer: MetadataAnswer, asked_s: float) -> None:
        former = {broker.address for broker in self.metadata.brokers.values()}
        self.metadata.merge(answer, asked_s)
        for name, search in self._searches.items():
            search.found = self._described(name) or search.found
        present = {broker.address: broker.broker_epoch for broker in self.metadata.brokers.values()}
        gone = former - present.keys() - set(self._bootstrap)
        for address in gone:
            self._asked_last_until.pop(address, None)
        self._connections.follow(present, gone, began_anew=self.metadata.began_anew)


def _why(reasons: Mapping[str, Sequence[str]]) -> str:
    """The rest of the sentence that no broker could be reached: addresses by why, and what to look at."""
    if list(reasons) == [UNRESOLVED]:
        return f": {UNRESOLVED}; is it spelt right?"
    told = "; ".join(
        f"{', '.join(tried)}: {reason}" if len(reasons) > 1 else reason for reason, tried in reasons.items()
    )
    return f"{told and ': '}{told}; is the cluster up?"


async def _first_of(
    asking: set[asyncio.Task[MetadataAnswer]], patience_s: float | None
) -> tuple[set[asyncio.Task[MetadataAnswer]], set[asyncio.Task[MetadataAnswer]]]:
    """Those that have ended, none after `patience_s`, and the others. Where this process itself was late by as much,
    the answers may have come and are read first: a process that cannot keep up must not ask more."""
    while True:
        began_s = monotonic()
        done, left = await asyncio.wait(asking, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
        if done or patience_s is None or monotonic() - began_s < 2 * patience_s:
            return done, left

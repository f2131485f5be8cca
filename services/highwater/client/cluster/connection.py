"""One broker: a channel, its requests, and the two streams of the data path.

A stream carries many requests at once, matched to their answers by correlation id. When it breaks, or an answer is
overdue, everything in flight on it fails as retriable, and the next request opens a new one.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from logging import INFO
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import quote

import grpc
import grpc.aio

from highwater.client.cluster.throttle import Throttle
from highwater.client.cluster.tls import target
from highwater.client.cluster.token import Token
from highwater.client.exceptions import (
    AuthenticationError,
    HighwaterError,
    NetworkError,
    RequestTimedOutError,
    RetriableError,
    error_for,
)
from highwater.errors import ErrorCode
from highwater.rpc.connections.channel import ReplaceableChannel, open_channel
from highwater.rpc.connections.tls import Certificates
from highwater.rpc.connections.wake_ups import with_wake_ups_taken
from highwater.rpc.errors import from_proto
from highwater.rpc.process import forking
from highwater.supervision import is_cancelled
from highwater.telemetry.log import get_logger, pairs
from highwater.telemetry.summed_log import SummedLog
from highwater.v1 import broker_pb2, broker_pb2_grpc

_log = get_logger(__name__)
_losses = SummedLog(_log)

# Anything else may be a broker that was killed: gRPC then says UNAVAILABLE, INTERNAL or UNKNOWN, as it happens.
_REFUSALS = (
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.FAILED_PRECONDITION,
)
_ENDED_WITH_TOKEN = "highwater-token-ended"  # in the trailing metadata: it may be opened again with the token of now
CLIENT_ID = "client-id"  # in a call's metadata, percent-encoded
HANG_UP_TIMEOUT_S = 0.5  # for a broker to end a stream that the client has ended
END_OF_STREAM: Any = grpc.aio.EOF  # type: ignore[attr-defined]


class Correlated(Protocol):
    correlation_id: int


class Answer(Correlated, Protocol):
    throttle_ms: int


RequestT = TypeVar("RequestT", bound=Correlated)
ResponseT = TypeVar("ResponseT", bound=Answer)


class NotServedError(HighwaterError):
    """The peer has no such call: it is of an older version. Nothing was done."""


class UnreachableError(NetworkError):
    """There is no connection to an address. `reason` says what of it, and what to look at."""

    def __init__(self, message: str, reason: str = "") -> None:  # pickle gives the message alone
        super().__init__(message)
        self.reason = reason


UNRESOLVED = "the name cannot be resolved"
# Parts of what gRPC says, in lower case, and what they mean to whoever gave the address.
_REASONS = (
    ("connection refused", "nothing listens there"),
    ("certificate_verify_failed", "its certificate is not one for this address by an authority in ssl_ca_file"),
    ("handshake failed", "TLS does not come about"),
    ("resol", UNRESOLVED),
    ("lookup failed", UNRESOLVED),
    ("no such file", "there is no such socket"),
    ("no route", "there is no route to it"),
    ("network is unreachable", "there is no route to it"),
)


def _unreachable(address: str, code: grpc.StatusCode, details: str) -> NetworkError:
    message = f"the broker at {address} cannot be reached: {code.name}: {details}"
    # The address itself may contain any of these words.
    said = details.lower().replace(address.lower(), "")
    reason = next((reason for part, reason in _REASONS if part in said), None)
    return NetworkError(message) if reason is None else UnreachableError(message, reason)


def transport_error(error: BaseException, address: str) -> HighwaterError:
    """A gRPC failure as an exception of the SDK."""
    if isinstance(error, grpc.aio.AioRpcError):
        code, details = error.code(), error.details() or ""
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return RequestTimedOutError(f"the broker at {address} did not answer in time")
        if code is grpc.StatusCode.UNAUTHENTICATED and _has_ended_with_token(error):
            return NetworkError(f"the broker at {address} ended the stream with its token: {details}")
        if code is grpc.StatusCode.UNAUTHENTICATED:
            return AuthenticationError(f"the broker at {address} does not know this client: {details}")
        if code in _REFUSALS:
            refusal = NotServedError if code is grpc.StatusCode.UNIMPLEMENTED else HighwaterError
            return refusal(f"the broker at {address} refused the call: {code.name}: {details}")
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return RetriableError(f"the broker at {address} is overloaded: {details}", ErrorCode.OVERLOADED)
        return _unreachable(address, code, details)
    return NetworkError(f"the connection to {address} broke: {error or type(error).__name__}")


def _has_ended_with_token(error: grpc.aio.AioRpcError) -> bool:
    """Tells a stream that was ended from one that was never taken."""
    return _ENDED_WITH_TOKEN in (error.trailing_metadata() or grpc.aio.Metadata())


def whole_error(response: Any) -> HighwaterError | None:
    """The error of a response as a whole; None: each of its results has its own."""
    code = from_proto(response.error)
    return None if code is ErrorCode.NONE else error_for(code, response.error.message)


def check_whole(response: Any) -> None:
    """Raises the error of a response as a whole."""
    error = whole_error(response)
    if error is not None:
        raise error


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[ResponseT]):
    """A request without an answer."""

    sent_s: float
    on_answer: Callable[[ResponseT | HighwaterError], None]
    partitions: Iterable[tuple[str, int]]


class RequestStream(Generic[RequestT, ResponseT]):
    """A bidirectional stream. `send` returns at once; `on_answer` gets the response, or the error that ended it all.

    The queue of requests to write is bounded by its callers: so many requests a partition.
    """

    def __init__(
        self, call: grpc.aio.StreamStreamCall[RequestT, ResponseT], address: str, throttle: Throttle | None = None
    ) -> None:
        self._call: grpc.aio.StreamStreamCall[RequestT, ResponseT] | None = call
        self._address = address
        self._throttle = throttle or Throttle()
        self._waiting: dict[int, _Waiting[ResponseT]] = {}
        self._outgoing: deque[RequestT] = deque()
        self._wake = asyncio.Event()
        self._next_id = 0
        self._answered_s = float("-inf")  # when the last answer came
        self.ask_again_at_s = float("-inf")  # kept for whoever asks others about a broker that is late
        self.broken: HighwaterError | None = None
        self._tasks = {asyncio.create_task(self._write(call)), asyncio.create_task(self._read(call))}
        for task in self._tasks:
            task.add_done_callback(self._has_ended)

    def send(
        self,
        request: RequestT,
        on_answer: Callable[[ResponseT | HighwaterError], None],
        partitions: Iterable[tuple[str, int]] = (),
    ) -> None:
        """Sets the request's correlation id and sends it after all earlier ones. `partitions`: (topic, partition) that
        the broker is asked for as their leader; kept, not copied."""
        assert self.broken is None
        self._next_id += 1
        request.correlation_id = self._next_id
        self._waiting[self._next_id] = _Waiting(time.monotonic(), on_answer, partitions)
        self._outgoing.append(request)
        self._wake.set()

    @property
    def oldest_wait_s(self) -> float:
        """Seconds that the oldest request has gone without an answer, those aside for which the broker has said that it
        reads none."""
        for waiting in self._waiting.values():
            return max(0.0, time.monotonic() - max(waiting.sent_s, self._throttle.until_s))
        return 0.0

    @property
    def silent_s(self) -> float:
        """Seconds without any answer while one is waited for."""
        return min(self.oldest_wait_s, time.monotonic() - self._answered_s)

    def partitions(self) -> Iterator[tuple[str, int]]:
        """(topic, partition) of the requests without an answer."""
        for waiting in self._waiting.values():
            yield from waiting.partitions

    def fail(self, error: HighwaterError) -> None:
        """Ends the stream; everything in flight gets `error`."""
        if self.broken is None:
            _losses.note(
                INFO,
                "a stream has ended",
                pairs(address=self._address, waiting=len(self._waiting), reason=repr(str(error))),
                cause=self._address,
            )
            self._refuse_all(error)
            self._abort()

    async def close(self, error: HighwaterError) -> None:
        """Fails as `fail` does, but hangs up in order and waits for the broker's end of it: what a cancelled call still
        has under way would reach an event loop that may be closed by then."""
        if self.broken is None:
            self._refuse_all(error)
            self._wake.set()
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=HANG_UP_TIMEOUT_S)
            self._abort()

    def _refuse_all(self, error: HighwaterError) -> None:
        self.broken = error
        self._outgoing.clear()
        waiting, self._waiting = self._waiting, {}
        for request in waiting.values():
            request.on_answer(error)

    def _abort(self) -> None:
        if self._call is not None:
            self._call.cancel()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        """Lets go of the call when both have: a call keeps its channel, see `Connection.call`."""
        self._tasks.discard(task)
        if not self._tasks:
            self._call = None

    async def _write(self, call: grpc.aio.StreamStreamCall[RequestT, ResponseT]) -> None:
        try:
            while self.broken is None:
                while self._outgoing:
                    await call.write(self._outgoing.popleft())
                self._wake.clear()
                if self.broken is None:
                    await self._wake.wait()
            await call.done_writing()
        except asyncio.CancelledError:
            self.fail(NetworkError(f"the connection to {self._address} was closed"))
            raise
        except (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            # The reader knows why: the status of the call.
            self.fail(transport_error(await _cause(call, error), self._address))
        except Exception as error:
            self._failed(error)

    async def _read(self, call: grpc.aio.StreamStreamCall[RequestT, ResponseT]) -> None:
        try:
            while True:
                response: Any = await call.read()
                if response is END_OF_STREAM:
                    cause = await _cause(call, ConnectionResetError("the broker ended the stream"))
                    self.fail(transport_error(cause, self._address))
                    return
                self._answered_s = time.monotonic()
                self._throttle.answered(response.throttle_ms)
                waiting = self._waiting.pop(response.correlation_id, None)
                if waiting is not None:
                    waiting.on_answer(response)
        except asyncio.CancelledError:
            self.fail(NetworkError(f"the connection to {self._address} was closed"))
            raise
        except grpc.aio.AioRpcError as error:
            self.fail(transport_error(error, self._address))
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        """Breaks the stream for a bug of ours, not the broker's. The requests go again, on another stream."""
        _log.error("a stream to %s has failed", self._address, exc_info=error)
        self.fail(NetworkError(f"the stream to {self._address} failed, by a bug of the client: {error!r}"))


async def _cause(call: grpc.aio.StreamStreamCall[Any, Any], error: Exception) -> Exception:
    """The call's own status where it ended with one."""
    if isinstance(error, grpc.aio.AioRpcError) or not call.done():
        return error
    code = await call.code()
    if code is grpc.StatusCode.OK:
        return error
    details = str(await call.details() or "")
    trailing = await call.trailing_metadata() or grpc.aio.Metadata()
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), details, None)


class Connection:
    """One channel to one address, opened at the first use, and anew where it cannot connect. Requests raise
    `HighwaterError`s only. `client_id` is how the client names itself to the broker."""

    def __init__(
        self,
        address: str,
        certificates: Certificates | None = None,
        token: Token | None = None,
        *,
        client_id: str = "",
    ) -> None:
        """`certificates`: those of a client that speaks TLS. `token`: that which every call carries."""
        self.address = address
        self._certificates = certificates
        self._token = token
        self._client_id = ((CLIENT_ID, quote(client_id)),) if client_id else ()
        self.produce_throttle, self.fetch_throttle = Throttle(), Throttle()
        self._link: ReplaceableChannel | None = None
        self._stub: Any = None
        self._produce: RequestStream[broker_pb2.ProduceRequest, broker_pb2.ProduceResponse] | None = None
        self._fetch: RequestStream[broker_pb2.FetchRequest, broker_pb2.FetchResponse] | None = None

    @property
    def channel(self) -> grpc.aio.Channel:
        if self._link is None:
            forking.opened(self)
            opened = target(self.address, self._certificates)
            self._link = ReplaceableChannel(
                lambda: with_wake_ups_taken(lambda: open_channel(opened, self._certificates))
            )
        else:
            self.rest()
        return self._link.channel

    def rest(self) -> None:
        """Ends the attempts to connect where they fail: gRPC goes on with them by itself, with the certificates that
        the channel was opened with, whether or not anybody asks anything. The next request connects."""
        if self._link is not None and self._link.replace_failed():
            self._stub = None

    @property
    def stub(self) -> Any:
        channel = self.channel
        if self._stub is None:
            self._stub = broker_pb2_grpc.BrokerStub(channel)
        return self._stub

    @property
    def call_options(self) -> dict[str, Any]:
        """The options that each call is to have beside its request."""
        metadata = (*self._client_id, *(() if self._token is None else self._token.metadata))
        return {"metadata": metadata} if metadata else {}

    def produce_stream(self) -> RequestStream[broker_pb2.ProduceRequest, broker_pb2.ProduceResponse]:
        """The stream in use, or a new one where it broke."""
        if self._produce is None or self._produce.broken is not None:
            self._produce = RequestStream(
                self.stub.ProduceStream(**self.call_options), self.address, self.produce_throttle
            )
        return self._produce

    def fetch_stream(self) -> RequestStream[broker_pb2.FetchRequest, broker_pb2.FetchResponse]:
        if self._fetch is None or self._fetch.broken is not None:
            self._fetch = RequestStream(self.stub.FetchStream(**self.call_options), self.address, self.fetch_throttle)
        return self._fetch

    def overdue(self, timeout_s: float) -> list[RequestStream[Any, Any]]:
        """The streams whose oldest request has gone longer than that without an answer."""
        return [
            stream
            for stream in (self._produce, self._fetch)
            if stream is not None and stream.broken is None and stream.oldest_wait_s > timeout_s
        ]

    def fail_overdue(self, timeout_s: float) -> None:
        """Breaks the streams whose oldest request is older than that."""
        for stream in self.overdue(timeout_s):
            stream.fail(RequestTimedOutError(f"the broker at {self.address} did not answer within {timeout_s:g} s"))

    async def call(self, method: Callable[..., Awaitable[Any]], request: Any, timeout_s: float) -> Any:
        """One request. Raises `NetworkError`, `RequestTimedOutError` or `HighwaterError`."""
        try:
            return await method(request, timeout=max(timeout_s, 0.001), **self.call_options)
        except grpc.aio.AioRpcError as error:
            failure = transport_error(error, self.address)
        except asyncio.CancelledError:
            # A closed channel cancels its calls, which looks as if the caller were cancelled.
            if is_cancelled():
                raise
            failure = NetworkError(f"the connection to {self.address} was closed")
        except (grpc.aio.UsageError, asyncio.InvalidStateError):
            failure = NetworkError(f"the connection to {self.address} was closed")
        # Raised here, it has no context: the trace of that would keep the call, and a call keeps its channel, which
        # goes on connecting with the certificates that it was opened with, closed or not.
        raise failure

    async def close(self) -> None:
        closed = NetworkError(f"the connection to {self.address} was closed")
        await asyncio.gather(*(stream.close(closed) for stream in (self._produce, self._fetch) if stream is not None))
        if self._link is not None:
            await self._link.close()
            self._link = self._stub = None
            forking.closed(self)

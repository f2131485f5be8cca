"""Fetches in protobuf, in and out, and the streams of them."""

from __future__ import annotations

import asyncio
import functools
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from time import thread_time
from typing import Any

from highwater.errors import ErrorCode
from highwater.quotas.client_quotas import Quota
from highwater.replica_manager.admission.throttling import MAX_THROTTLE_S, CallCharges
from highwater.replica_manager.partition.actions import FetchSession
from highwater.replica_manager.replicas.replica_manager import ReplicaManager
from highwater.replica_manager.replicas.traced_batches import TracedBatches
from highwater.replica_manager.requests.fetch import FetchHandler, FetchParams
from highwater.replica_manager.requests.session_fetch import SessionFetch
from highwater.replica_manager.requests.session_roles import ConsumerRole, ReplicaRole
from highwater.replica_manager.responses.fetch_parts import FetchedPart, FetchPart, FetchRole
from highwater.replica_manager.responses.response_room import ResponseRoom, Turn
from highwater.replica_manager.server.partition_errors import partition_error
from highwater.rpc.embedding import Piece, embed, size_of
from highwater.rpc.errors import to_proto
from highwater.rpc.listeners import Listener
from highwater.rpc.partition_keys import from_key, to_key
from highwater.rpc.requests.request_limits import MAX_WHOLE_FETCH, too_large
from highwater.security.access import Access
from highwater.security.acls import CLUSTER_NAME, Operation, ResourceType
from highwater.telemetry.tracing import Span, Tracer, under_way
from highwater.v1 import broker_pb2

# Requests of one stream that are read before the first of them is answered.
MAX_STREAM_FETCHES = 16
PARTS_AT_ONCE = 500  # of a request: then others have their turn
_RESULTS_FIELD = 2  # FetchResponse.results
_RECORDS_FIELD = 5  # FetchResult.records


class FetchStream:
    """One FetchStream: requests are noted as they come, answered in their order, one after the other."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        fetch_handler: FetchHandler,
        listener: Listener,
        access: Access | None = None,
        replica_refusal: Callable[[int], str] | None = None,
        charges: CallCharges | None = None,
        caller: str = "",
    ) -> None:
        """`replica_refusal` says of a broker's id why the stream is not that broker's. `caller`: whose responses these
        are; empty: nobody's part counts."""
        self._replica_refusal = replica_refusal
        self._replica_manager = replica_manager
        self._access = access
        self._fetch_handler = fetch_handler
        self._listener = listener
        self._charges = charges
        self._caller = caller
        self._opened = False
        self._session: FetchSession | None = None  # a replica's
        self._incremental: SessionFetch | None = None  # of a reader that names what has changed alone
        self._waiting: deque[tuple[int, FetchParams | bytes]] = deque()
        self._wake = asyncio.Event()
        self._room = asyncio.Semaphore(MAX_STREAM_FETCHES)
        self._answering: FetchParams | None = None
        self._turn = Turn()
        self._response_room: ResponseRoom | None = None  # of the answer that is read or written
        self._ended = False
        # What a consumer that names all was told last of each partition: it is told again only what changed.
        self._told: dict[Any, tuple[int, int]] = {}

    async def read(self, requests: AsyncIterator[broker_pb2.FetchRequest]) -> None:
        try:
            async for request in requests:
                await self._room.acquire()
                self._waiting.append((request.correlation_id, await self._take(request)))
                if self._answering is not None:
                    self._answering.wait.end()
                self._wake.set()
                if self._ended:
                    return
        finally:
            self._ended = True
            if self._answering is not None:
                self._answering.wait.end()  # nobody waits for data on a stream that is being hung up
            self._wake.set()

    async def _take(self, request: broker_pb2.FetchRequest) -> FetchParams | bytes:
        refusal = fetch_refusal(request, self._listener)
        if refusal := refusal or ("" if request.incremental else too_large_for_whole(request)):
            self._ended = True
            return fetch_error(request, ErrorCode.INVALID_REQUEST, refusal)
        params = await fetch_params(request, self._access)
        if params is None:
            self._ended = True
            return fetch_error(request, ErrorCode.INVALID_REQUEST, "the role is not set: replica, consumer or debug")
        if self._access is not None and (refusal := role_refusal(params.role, self._access)):
            self._ended = True
            return fetch_error(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, refusal)
        of_replica = params.role is FetchRole.REPLICA and not self._opened
        if of_replica and self._replica_refusal and (refusal := self._replica_refusal(request.replica.broker_id)):
            self._ended = True
            return fetch_error(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, refusal)
        params.room = self._fetch_handler.room(params.role, self._turn, self._caller)
        if request.traceparent and self._fetch_handler.tracer is not None:
            params.span = fetch_span(self._fetch_handler.tracer, request, params)
        if not self._continues(request, params.role):
            self._ended = True
            return fetch_error(request, ErrorCode.INVALID_REQUEST, "a stream is one session: open another stream")
        if self._incremental is None and len(params.parts) > MAX_WHOLE_FETCH:
            params.parts = params.parts[:MAX_WHOLE_FETCH]  # it had to name all, not knowing of too many sessions
        if params.role is FetchRole.REPLICA:
            if self._is_stale():
                return self._stale(request)
            params.session = self._session
        if self._incremental is not None:
            for _ in self._incremental.taking(params, map(from_key, request.forgotten)):
                await asyncio.sleep(0)
                if self._is_stale():  # opened meanwhile: nothing more is taken of this one
                    return self._stale(request)
        elif params.role is FetchRole.REPLICA:
            self._fetch_handler.note_follower(params)
        return params

    def _is_stale(self) -> bool:
        return self._session is not None and not self._replica_manager.sessions.is_newest(self._session)

    def _stale(self, request: broker_pb2.FetchRequest) -> bytes:
        self._ended = True
        return fetch_error(request, ErrorCode.FETCH_SESSION_STALE, "a newer stream of this session is open")

    def _continues(self, request: broker_pb2.FetchRequest, role: FetchRole) -> bool:
        """Opens what the stream's first request asks for; tells of the others whether they are of the same session."""
        if not self._opened:
            self._opened = True
            self._open(request, role)
        if role is FetchRole.REPLICA:
            of_session = (request.replica.broker_id, request.replica.broker_epoch, request.replica.fetcher_id)
            session = self._session
            if session is None or of_session != (session.broker_id, session.broker_epoch, session.fetcher_id):
                return False
            return request.incremental == (self._incremental is not None)
        if self._session is None and self._incremental is None:
            return True  # also where a consumer's session could not be opened: its requests are taken for the whole
        return self._session is None and role is FetchRole.CONSUMER and request.incremental

    def _open(self, request: broker_pb2.FetchRequest, role: FetchRole) -> None:
        replica_manager, handler = self._replica_manager, self._fetch_handler
        if role is FetchRole.REPLICA:
            replica = request.replica
            self._session = replica_manager.sessions.open(replica.broker_id, replica.broker_epoch, replica.fetcher_id)
            replica_manager.session_opened(self._session)
            if request.incremental:
                replica_role = ReplicaRole(replica_manager, self._session, handler.note_place)
                self._incremental = SessionFetch(
                    replica_manager, replica_role, handler.read_places, max_bytes=handler.max_bytes
                )
        elif role is FetchRole.CONSUMER and request.incremental and replica_manager.purgatory.sessions.open_consumers():
            read = functools.partial(
                handler.read_places, role=role, accepts_columns=broker_pb2.PAYLOAD_COLUMNS in request.accepts
            )
            self._incremental = SessionFetch(
                replica_manager, ConsumerRole(replica_manager, self._access), read, max_bytes=handler.max_bytes
            )

    async def responses(self) -> AsyncIterator[bytes]:
        while True:
            while not self._waiting:
                if self._ended:
                    return
                self._wake.clear()
                await self._wake.wait()
            if self._charges is not None and self._charges.pausing:  # soon no request is read
                await self._charges.pause()
            correlation_id, params = self._waiting.popleft()
            if isinstance(params, bytes):
                yield params
            else:
                self._answering, self._response_room = params, params.room
                if self._waiting:
                    params.wait.end()
                try:
                    began_s = time.perf_counter()
                    response = await self._response(correlation_id, params)
                    answered_s = self._fetch_handler.answered(params, began_s)
                    yield response
                    del response
                    self._fetch_handler.written(params, answered_s)
                finally:
                    params.room.release()
            self._room.release()

    async def _response(self, correlation_id: int, params: FetchParams) -> bytes:
        if params.span is None:
            return await self._made(correlation_id, params)
        return await traced(params.span, self._made(correlation_id, params))

    async def _made(self, correlation_id: int, params: FetchParams) -> bytes:
        """Leaves nothing behind of what it has read but the response itself."""
        charges = self._charges if params.role is FetchRole.CONSUMER else None
        if charges is not None and charges.may_apply:
            while charges.is_over(Quota.FETCH, params.client_id):
                await charges.pause()
        if self._incremental is not None:
            results, more, throttle_s = await self._incremental.answer(params)
            head = broker_pb2.FetchResponse(
                correlation_id=correlation_id,
                incremental=True,
                more=more,
                throttle_ms=math.ceil(1000 * min(throttle_s, MAX_THROTTLE_S)),
            )
        else:
            results = self._to_tell(params, await self._fetch_handler.answer(params))
            head = broker_pb2.FetchResponse(correlation_id=correlation_id)
        self._answering = None
        self._fetch_handler.refused(results)
        told = (self._fetch_handler.traced if params.role is FetchRole.REPLICA else None) or None
        if charges is None or not charges.may_apply:
            return fetch_response(head, results, told)
        begun_s = thread_time()
        charges.charge(Quota.FETCH, params.client_id, size_of_all(results))
        head.throttle_ms = charges.throttle_ms
        response = fetch_response(head, results)
        charges.charge(Quota.REQUEST, params.client_id, thread_time() - begun_s)
        return response

    def _to_tell(self, params: FetchParams, results: list[FetchedPart]) -> list[FetchedPart]:
        if params.role is not FetchRole.CONSUMER:
            return results
        kept = []
        for result in results:
            known = (result.high_watermark, result.log_start_offset)
            if result.error is not ErrorCode.NONE:
                kept.append(result)  # and nothing is remembered: of what does not exist there is no end
            elif result.pieces or self._told.get(result.key) != known:
                kept.append(result)
                self._told[result.key] = known
        return kept

    def access_changed(self) -> None:
        """The ACLs have changed: whoever waits for data hears what it may read no more."""
        access = self._access
        if access is None or self._session is not None:
            return
        if self._incremental is not None:
            self._incremental.access_changed(
                lambda key: access.topic_error(Operation.READ, key.topic_id) is ErrorCode.NONE
            )
        elif self._answering is not None:
            self._answering.wait.wake()

    def close(self) -> None:
        if self._response_room is not None:
            self._response_room.release()
        if self._incremental is not None:
            self._incremental.close()
        if self._session is not None:
            self._replica_manager.session_closed(self._session)


def fetch_refusal(request: broker_pb2.FetchRequest, listener: Listener) -> str:
    """Tells why a request of this size and role is not taken on this listener; empty: it is."""
    if refusal := too_large(request):
        return refusal
    role = request.WhichOneof("role")
    return "" if role in (None, "consumer") else listener.refusal(f"the {role} role of fetch")


def too_large_for_whole(request: broker_pb2.FetchRequest) -> str:
    """Tells why a request names too much to be no incremental session's; empty: it does not."""
    count = len(request.partitions)
    if count <= MAX_WHOLE_FETCH:
        return ""
    most = f"{MAX_WHOLE_FETCH} are the most, send several"
    return f"a request with {count} partitions, and no incremental session: {most}"


def role_refusal(role: FetchRole, access: Access) -> str:
    """The sentence for whoever may not fetch in this role; empty: it may, a consumer as far as it may read topics."""
    if role is not FetchRole.DEBUG or access.may_cluster(Operation.ALTER):
        return ""
    return f"the debug role: {access.refusal(Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)}"


async def fetch_params(request: broker_pb2.FetchRequest, access: Access | None = None) -> FetchParams | None:
    """None: it names no role. Of many partitions others have their turn in between."""
    name = request.WhichOneof("role")
    if name is None:
        return None
    role, parts = FetchRole(name), []
    for number, part in enumerate(request.partitions, 1):
        parts.append(
            FetchPart(
                from_key(part.partition),
                part.leader_epoch,
                part.fetch_offset,
                part.max_bytes,
                part.acked_offset,
                part.last_epoch,
                part.log_start_offset,
            )
        )
        if number % PARTS_AT_ONCE == 0:
            await asyncio.sleep(0)
    return FetchParams(
        role,
        parts,
        request.max_wait_ms,
        request.min_bytes,
        request.max_bytes,
        broker_pb2.PAYLOAD_COLUMNS in request.accepts,
        access=access if role is FetchRole.CONSUMER else None,
        client_id=request.client_id,
    )


def fetch_error(request: broker_pb2.FetchRequest, code: ErrorCode, message: str, *, throttle_ms: int = 0) -> bytes:
    response = broker_pb2.FetchResponse(
        correlation_id=request.correlation_id, error=to_proto(code, message), throttle_ms=throttle_ms
    )
    return response.SerializeToString()


def size_of_all(results: Sequence[FetchedPart]) -> int:
    """The bytes of batches in an answer."""
    return sum(size_of(result.pieces) for result in results)


def fetch_span(tracer: Tracer, request: broker_pb2.FetchRequest, params: FetchParams) -> Span | None:
    """None: the request's trace is not sampled."""
    return tracer.go_on("fetch", request.traceparent, role=params.role.value, partitions=len(params.parts))


async def traced(span: Span, response: Coroutine[Any, Any, bytes]) -> bytes:
    """Makes a response within its span, which ends with it."""
    token = under_way.set(span)
    try:
        made = await response
    except BaseException as error:
        span.end(error=type(error).__name__)
        raise
    finally:
        under_way.reset(token)
    span.end(bytes=len(made))
    return made


def fetch_response(
    head: broker_pb2.FetchResponse, results: Sequence[FetchedPart], traced: TracedBatches | None = None
) -> bytes:
    """`head`: all of the response but its results. `traced`: a follower is told of these."""
    out: list[Piece] = [head.SerializeToString()]
    for result in results:
        small = broker_pb2.FetchResult(
            partition=to_key(result.key),
            high_watermark=result.high_watermark,
            log_start_offset=result.log_start_offset,
            leader=result.leader,
            leader_epoch=result.leader_epoch,
            log_end_offset=result.log_end_offset,
            awaited=result.awaited,
        )
        if result.error is not ErrorCode.NONE:
            leader = (result.leader, result.leader_epoch)
            small.error.CopyFrom(partition_error(result.key, result.error, result.message, leader))
        if result.diverging is not None:
            small.diverging.leader_epoch = result.diverging.leader_epoch
            small.diverging.end_offset = result.diverging.end_offset
        if traced is not None and (traceparents := traced.among(result.key, result.pieces)):
            small.traceparents.extend(traceparents)
        embed(out, _RESULTS_FIELD, small.SerializeToString(), _RECORDS_FIELD, result.pieces)
    return b"".join(out)

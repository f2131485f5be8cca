"""The `Broker` service's edge: protobuf in and out, streams, nothing decided."""

from __future__ import annotations

import asyncio
import functools
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import grpc
import grpc.aio

from highwater.errors import ErrorCode
from highwater.metadata.state.producer_ids import ProducerIdAllocator
from highwater.metadata.store.etcd_errors import StoreError
from highwater.model.partition import PartitionKey
from highwater.quotas.client_quotas import Quota
from highwater.replica_manager.admission.throttling import CallCharges, Throttling
from highwater.replica_manager.membership.topic_creation import TopicCreation
from highwater.replica_manager.replicas.replica_manager import ReplicaManager
from highwater.replica_manager.requests.delete_records import DeletedRecords, DeleteRecordsHandler
from highwater.replica_manager.requests.fetch import FetchHandler, FetchParams
from highwater.replica_manager.requests.offsets import (
    CONSUMER,
    DEBUG,
    EpochQuery,
    ListedOffset,
    OffsetQuery,
    OffsetsHandler,
)
from highwater.replica_manager.requests.produce import ProduceHandler
from highwater.replica_manager.responses.fetch_parts import FetchRole
from highwater.replica_manager.server.fetch_stream import (
    FetchStream,
    fetch_error,
    fetch_params,
    fetch_refusal,
    fetch_response,
    fetch_span,
    role_refusal,
    size_of_all,
    too_large_for_whole,
    traced,
)
from highwater.replica_manager.server.list_batches import list_batches
from highwater.replica_manager.server.log_dirs import LogDirsHandler
from highwater.replica_manager.server.metadata_answers import MetadataAnswers
from highwater.replica_manager.server.partition_errors import NOT_KNOWN, partition_error
from highwater.replica_manager.server.produce_requests import ProduceRequests
from highwater.replica_manager.server.refused import Divided, cluster_error, error_of_key, key_refusal
from highwater.replica_manager.server.unread_responses import UnreadResponses
from highwater.rpc.errors import to_proto
from highwater.rpc.listeners import Listener
from highwater.rpc.partition_keys import from_key, to_key
from highwater.rpc.process.loop_turn import by_turns
from highwater.rpc.requests.request_limits import limited, too_large
from highwater.rpc.requests.unread_requests import UnreadableRequestError
from highwater.security.access import Access, Authorization
from highwater.security.acls import Operation, ResourceType
from highwater.security.caller import caller_with_part
from highwater.security.guard_calls import ReplicaIdentity
from highwater.supervision import TaskGroup
from highwater.telemetry.log import get_logger
from highwater.v1 import broker_pb2, broker_pb2_grpc, common_pb2

logger = get_logger("replica_manager.broker_servicer")

_SERVICE = "highwater.v1.Broker"

Context = grpc.aio.ServicerContext[Any, Any]


class BrokerServicer(broker_pb2_grpc.BrokerServicer):
    """Of one listener: by which one a call came in is known without asking the caller."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        produce_handler: ProduceHandler,
        fetch_handler: FetchHandler,
        offsets: OffsetsHandler,
        delete_records_handler: DeleteRecordsHandler,
        producer_ids: ProducerIdAllocator,
        topic_creation: TopicCreation,
        cluster_id: Callable[[], str],
        listener: Listener,
        unread: UnreadResponses | None = None,
        authorization: Authorization | None = None,
        replicas: ReplicaIdentity | None = None,
        throttling: Throttling | None = None,
    ) -> None:
        self._replicas = replicas
        self._authorization = authorization
        self._replica_manager = replica_manager
        self._produce_handler = produce_handler
        self._fetch_handler = fetch_handler
        self._offsets = offsets
        self._delete_records_handler = delete_records_handler
        self._producer_ids = producer_ids
        self._metadata = MetadataAnswers(replica_manager, topic_creation, cluster_id, listener)
        self._listener = listener
        self._unread = unread or UnreadResponses()
        self._log_dirs = LogDirsHandler(replica_manager)
        self._throttling = throttling or Throttling()
        self._produces = ProduceRequests(produce_handler)

    def add_to(self, server: grpc.aio.Server) -> None:
        generated = _GeneratedHandlers()
        broker_pb2_grpc.add_BrokerServicer_to_server(self, cast(grpc.aio.Server, generated))
        # These responses come from here as bytes already.
        handlers = generated.handlers | {
            "Fetch": grpc.unary_unary_rpc_method_handler(
                self.Fetch, request_deserializer=broker_pb2.FetchRequest.FromString, response_serializer=bytes
            ),
            "FetchStream": grpc.stream_stream_rpc_method_handler(
                self.FetchStream, request_deserializer=broker_pb2.FetchRequest.FromString, response_serializer=bytes
            ),
            "Metadata": grpc.unary_unary_rpc_method_handler(
                self.Metadata, request_deserializer=broker_pb2.MetadataRequest.FromString, response_serializer=bytes
            ),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))

    def _access(self, context: Context) -> Access | None:
        """None: nobody is asked what the caller may do."""
        return None if self._authorization is None else self._authorization.access(context)

    # Produce

    async def Produce(self, request: broker_pb2.ProduceRequest, context: Context) -> broker_pb2.ProduceResponse:
        done: asyncio.Future[broker_pb2.ProduceResponse] = asyncio.get_running_loop().create_future()

        def respond(response: broker_pb2.ProduceResponse) -> None:
            if not done.done():
                done.set_result(response)

        # gRPC holds the request as long as its call.
        handed_over = self._produces.submit(
            request, respond, self._throttling.of(context), self._access(context), caller_with_part(), until_done=True
        )
        if handed_over is not None:
            await handed_over
        return await done

    async def ProduceStream(
        self, request_iterator: AsyncIterator[broker_pb2.ProduceRequest], context: Context
    ) -> AsyncIterator[broker_pb2.ProduceResponse]:
        access, caller = self._access(context), caller_with_part()
        responses: deque[tuple[float, broker_pb2.ProduceResponse]] = deque()  # with the time when it was there
        written = self._produce_handler.written_times
        charges = self._throttling.of(context)
        wake = asyncio.Event()
        room = asyncio.Semaphore(
            self._produce_handler.room.max_requests
        )  # a peer that reads no responses is not read either
        open_requests = 0
        ended = False
        failure: Exception | None = None

        def respond(response: broker_pb2.ProduceResponse) -> None:
            responses.append((time.perf_counter(), response))
            wake.set()

        async def read() -> None:
            nonlocal open_requests, ended, failure
            try:
                requests = aiter(request_iterator)
                while True:
                    if charges.pausing:
                        await charges.pause()
                    await self._produce_handler.room.wait(caller)
                    try:
                        request = await anext(requests)
                    except StopAsyncIteration:
                        return
                    await room.acquire()
                    open_requests += 1
                    handed_over = self._produces.submit(request, respond, charges, access, caller)
                    del request  # the records are counted from here on
                    if handed_over is not None:
                        await asyncio.wait((handed_over,))  # where the stream ends, the request goes on all the same
                        handed_over.result()
            except Exception as error:  # a request without its answer would be waited for: the stream ends
                failure = error
            finally:
                ended = True
                wake.set()

        reading = asyncio.create_task(read(), name="produce-stream")
        try:
            while True:
                while responses:
                    answered_s, response = responses.popleft()
                    yield response
                    written.observe(time.perf_counter() - answered_s)
                    open_requests -= 1
                    room.release()
                if failure is not None:
                    raise failure
                if ended and not open_requests:
                    return
                wake.clear()
                await wake.wait()
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    # Fetch

    async def Fetch(  # type: ignore[override]
        self, request: broker_pb2.FetchRequest, context: Context
    ) -> bytes:
        refusal = fetch_refusal(request, self._listener) or too_large_for_whole(request)
        if refusal:
            return fetch_error(request, ErrorCode.INVALID_REQUEST, refusal)
        if request.WhichOneof("role") == "replica":
            return fetch_error(
                request, ErrorCode.INVALID_REQUEST, "a replica fetches by FetchStream: it is its session"
            )
        access = self._access(context)
        params = await fetch_params(request, access)
        if params is None:
            return fetch_error(request, ErrorCode.INVALID_REQUEST, "the role is not set: consumer or debug")
        if access is not None and (refusal := role_refusal(params.role, access)):
            return fetch_error(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, refusal)
        charges = self._throttling.of(context) if params.role is FetchRole.CONSUMER else None
        if charges is not None and charges.is_over(Quota.FETCH, request.client_id):
            code, message = ErrorCode.THROTTLING_QUOTA_EXCEEDED, charges.refusal()
            return fetch_error(request, code, message, throttle_ms=charges.throttle_ms)
        params.room = self._fetch_handler.room(params.role, caller=caller_with_part())
        # gRPC writes the response after this method has returned; the call ends with that.
        context.add_done_callback(cast(Any, lambda _: params.room.release()))
        if request.traceparent and self._fetch_handler.tracer is not None:
            params.span = fetch_span(self._fetch_handler.tracer, request, params)
        making = self._unary_response(request.correlation_id, params, charges)
        response = await (making if params.span is None else traced(params.span, making))
        self._fetch_handler.answered(params, params.taken_s)
        self._unread.watch_unary(context, len(response))
        return response

    async def _unary_response(self, correlation_id: int, params: FetchParams, charges: CallCharges | None) -> bytes:
        head = broker_pb2.FetchResponse(correlation_id=correlation_id)
        results = await self._fetch_handler.answer(params)
        self._fetch_handler.refused(results)
        if charges is not None:
            charges.charge(Quota.FETCH, params.client_id, size_of_all(results))
            head.throttle_ms = charges.throttle_ms
        return fetch_response(head, results)

    async def FetchStream(  # type: ignore[override]
        self, request_iterator: AsyncIterator[broker_pb2.FetchRequest], context: Context
    ) -> None:
        replicas = self._replicas
        stream = FetchStream(
            self._replica_manager,
            self._fetch_handler,
            self._listener,
            self._access(context),
            None if replicas is None else functools.partial(replicas.refusal, context),
            self._throttling.of(context),
            caller_with_part(),
        )
        forget = self._authorization.on_change(stream.access_changed) if self._authorization is not None else None
        reading = asyncio.create_task(stream.read(request_iterator), name="fetch-stream")

        # Where a client hangs up while a response is written, grpc.aio may not come back here at once: the session ends
        # with the call, or its leader would wait replica.lag.time.max.ms for it (RULES 5.6).
        def ended(_: Context) -> None:
            reading.cancel()
            stream.close()
            writing.ended()
            if forget is not None:
                forget()

        writing = self._unread.of(context)
        context.add_done_callback(cast(Any, ended))  # for the stubs it is a class, for grpc.aio any callable
        try:
            async for response in stream.responses():
                writing.begun(len(response))
                # Written here, not handed out by a generator: gRPC would hold it until the next one, be it for minutes.
                await context.write(response)
                writing.taken()
                del response
            # Where reading failed, its client hears of an error and not of an ordinary end. Of a mistake of ours the
            # log says why: the stream would be opened again and again, and nobody would know what for.
            if reading.done() and not reading.cancelled() and (error := reading.exception()) is not None:
                if not isinstance(error, UnreadableRequestError):
                    logger.error("a fetch stream failed", exc_info=error)
                raise error
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    # The rest

    @limited(broker_pb2.ListOffsetsResponse)
    async def ListOffsets(
        self, request: broker_pb2.ListOffsetsRequest, context: Context
    ) -> broker_pb2.ListOffsetsResponse:
        queries = [
            OffsetQuery(from_key(part.partition), part.leader_epoch, part.timestamp)
            async for part in by_turns(request.partitions)
        ]
        access = self._access(context)
        refused = self._offsets_refusal(request.replica_id, access, context)
        if refused is not None:
            listed = [ListedOffset(query.key, *refused) for query in queries]
        elif request.replica_id != CONSUMER:
            listed = await self._offsets.list_all(queries, request.replica_id)
        else:
            may_not = key_refusal(access, Operation.DESCRIBE)
            asked = await Divided.of_many(queries, None if may_not is None else lambda query: may_not(query.key))
            listed = asked.merged(
                await self._offsets.list_all(asked.allowed, request.replica_id),
                lambda query, refused: ListedOffset(query.key, *refused),
            )
        response = broker_pb2.ListOffsetsResponse()
        async for each in by_turns(listed):
            response.results.add(
                partition=to_key(each.key),
                error=self._partition_error(each.key, each.error, each.message),
                offset=each.offset,
                timestamp=each.timestamp,
                leader_epoch=each.leader_epoch,
            )
        return response

    def _offsets_refusal(
        self, replica_id: int, access: Access | None, context: Context
    ) -> tuple[ErrorCode, str] | None:
        """The refusal of whoever lists as a replica or in the debug role, as if it fetched so; None: there is none."""
        if replica_id == CONSUMER:
            return None
        if refusal := self._listener.refusal("the replica or debug role"):
            return ErrorCode.INVALID_REQUEST, refusal
        if replica_id == DEBUG:
            refusal = "" if access is None else role_refusal(FetchRole.DEBUG, access)
        elif self._replicas is not None:
            refusal = self._replicas.refusal(context, replica_id)
        return (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, refusal) if refusal else None

    @limited(broker_pb2.OffsetForLeaderEpochResponse)
    async def OffsetForLeaderEpoch(
        self, request: broker_pb2.OffsetForLeaderEpochRequest, context: Context
    ) -> broker_pb2.OffsetForLeaderEpochResponse:
        may_not = key_refusal(self._access(context), Operation.DESCRIBE)
        asked = await Divided.of_many(
            request.partitions, None if may_not is None else lambda part: may_not(from_key(part.partition))
        )
        results = asked.merging(
            map(self._epoch_end, asked.allowed),
            lambda part, refused: broker_pb2.EpochEndOffset(
                partition=part.partition,
                error=error_of_key(from_key(part.partition), refused),
                leader_epoch=-1,
                end_offset=-1,
            ),
        )
        response = broker_pb2.OffsetForLeaderEpochResponse()
        async for result in results:
            response.results.append(result)
        return response

    def _epoch_end(self, part: broker_pb2.EpochPartition) -> broker_pb2.EpochEndOffset:
        query = EpochQuery(from_key(part.partition), part.current_leader_epoch, part.leader_epoch)
        end = self._offsets.epoch_end(query)
        return broker_pb2.EpochEndOffset(
            partition=to_key(end.key),
            error=self._partition_error(end.key, end.error),
            leader_epoch=end.leader_epoch,
            end_offset=end.end_offset,
        )

    @limited(broker_pb2.DeleteRecordsResponse)
    async def DeleteRecords(
        self, request: broker_pb2.DeleteRecordsRequest, context: Context
    ) -> broker_pb2.DeleteRecordsResponse:
        may_not = key_refusal(self._access(context), Operation.DELETE)
        asked = await Divided.of_many(
            request.partitions, None if may_not is None else lambda part: may_not(from_key(part.partition))
        )
        delete = self._delete_records_handler.delete
        async with TaskGroup() as tasks:
            deleted = [
                tasks.create_task(delete(from_key(part.partition), part.offset, request.timeout_ms))
                async for part in by_turns(asked.allowed)
            ]
        results = asked.merging(
            (self._deleted(task.result()) for task in deleted),
            lambda part, refused: broker_pb2.DeleteRecordsResult(
                partition=part.partition, error=error_of_key(from_key(part.partition), refused), low_watermark=-1
            ),
        )
        response = broker_pb2.DeleteRecordsResponse()
        async for result in results:
            response.results.append(result)
        return response

    def _deleted(self, each: DeletedRecords) -> broker_pb2.DeleteRecordsResult:
        return broker_pb2.DeleteRecordsResult(
            partition=to_key(each.key),
            error=self._partition_error(each.key, each.error, each.message),
            low_watermark=each.low_watermark,
        )

    async def ListBatches(
        self, request: broker_pb2.ListBatchesRequest, context: Context
    ) -> broker_pb2.ListBatchesResponse:
        may_not = key_refusal(self._access(context), Operation.READ)
        key = from_key(request.partition)
        if may_not is not None and (refused := may_not(key)) is not None:
            return broker_pb2.ListBatchesResponse(error=error_of_key(key, refused))
        response = await list_batches(self._replica_manager, request)
        self._unread.watch_unary(context, response.ByteSize())
        return response

    @limited(broker_pb2.DescribeLogDirsResponse)
    async def DescribeLogDirs(
        self, request: broker_pb2.DescribeLogDirsRequest, context: Context
    ) -> broker_pb2.DescribeLogDirsResponse:
        if (error := cluster_error(self._access(context), Operation.DESCRIBE)) is not None:
            return broker_pb2.DescribeLogDirsResponse(error=error)
        return await self._log_dirs.describe([from_key(key) async for key in by_turns(request.partitions)])

    @limited(broker_pb2.AlterReplicaLogDirsResponse)
    async def AlterReplicaLogDirs(
        self, request: broker_pb2.AlterReplicaLogDirsRequest, context: Context
    ) -> broker_pb2.AlterReplicaLogDirsResponse:
        if (error := cluster_error(self._access(context), Operation.ALTER)) is not None:
            return broker_pb2.AlterReplicaLogDirsResponse(error=error)
        moves = [(from_key(move.partition), move.log_dir) async for move in by_turns(request.moves)]
        errors = await self._log_dirs.alter(moves)
        response = broker_pb2.AlterReplicaLogDirsResponse()
        async for move, outcome in by_turns(zip(request.moves, errors, strict=True)):
            response.results.add(partition=move.partition, error=to_proto(outcome.code, outcome.message))
        return response

    async def Metadata(  # type: ignore[override]
        self, request: broker_pb2.MetadataRequest, context: Context
    ) -> bytes:
        if refusal := too_large(request):
            error = to_proto(ErrorCode.INVALID_REQUEST, refusal)
            return broker_pb2.MetadataResponse(error=error).SerializeToString()
        response = await self._metadata.answer(request, context, self._access(context))
        self._unread.watch_unary(context, len(response))
        return response

    def _partition_error(self, key: PartitionKey, error: ErrorCode, message: str = "") -> common_pb2.Error:
        elsewhere = error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        return partition_error(key, error, message, self._replica_manager.leader_of(key) if elsewhere else NOT_KNOWN)

    async def InitProducerId(
        self, request: broker_pb2.InitProducerIdRequest, context: Context
    ) -> broker_pb2.InitProducerIdResponse:
        access = self._access(context)
        if access is not None and not access.may_on_any(Operation.WRITE, ResourceType.TOPIC):
            error = cluster_error(access, Operation.IDEMPOTENT_WRITE)
            if error is not None:
                return broker_pb2.InitProducerIdResponse(error=error, producer_id=-1, producer_epoch=-1)
        try:
            producer_id = await self._producer_ids.next_id()
        except StoreError as error:
            return broker_pb2.InitProducerIdResponse(
                error=to_proto(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"etcd does not answer: {error}"),
                producer_id=-1,
                producer_epoch=-1,
            )
        return broker_pb2.InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


class _GeneratedHandlers:
    """Takes the generated handlers where a server would."""

    def __init__(self) -> None:
        self.handlers: dict[str, Any] = {}

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """The same again, in a form that cannot be looked into."""

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        assert service == _SERVICE
        self.handlers = handlers

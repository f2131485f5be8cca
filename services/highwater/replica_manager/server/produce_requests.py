"""Produces in protobuf, in and out, and what they are charged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import thread_time

from highwater.errors import ErrorCode
from highwater.quotas.client_quotas import Quota
from highwater.replica_manager.admission.throttling import CallCharges
from highwater.replica_manager.requests.produce import ProduceHandler, ProducePart, ProduceResult
from highwater.replica_manager.server.partition_errors import partition_error
from highwater.rpc.errors import to_proto
from highwater.rpc.partition_keys import from_key, to_key
from highwater.rpc.process.loop_turn import LoopTurn
from highwater.rpc.requests.request_limits import too_large
from highwater.security.access import Access
from highwater.security.acls import Operation
from highwater.telemetry.log import get_logger
from highwater.v1 import broker_pb2

logger = get_logger("replica_manager.produce_requests")

RESULTS_AT_ONCE = 50  # as many are answered in the turn in which the last of them is known

Respond = Callable[[broker_pb2.ProduceResponse], None]


class ProduceRequests:
    """Hands requests to the handler, of one stream in their order."""

    def __init__(self, handler: ProduceHandler) -> None:
        self._handler = handler

    def submit(
        self,
        request: broker_pb2.ProduceRequest,
        respond: Respond,
        charges: CallCharges,
        access: Access | None = None,
        caller: str = "",
        *,
        until_done: bool = False,
    ) -> asyncio.Future[None] | None:
        """As `ProduceHandler.submit`; `respond` gets the response. `access`: what may be written; None: anything.
        `caller`: who takes the room."""
        if charges.may_apply:
            return self._charged(request, respond, charges, access, caller, until_done=until_done)
        return self._free(request, respond, access, caller, until_done=until_done)

    def _charged(
        self,
        request: broker_pb2.ProduceRequest,
        respond: Respond,
        charges: CallCharges,
        access: Access | None,
        caller: str,
        *,
        until_done: bool,
    ) -> asyncio.Future[None] | None:
        """The records count when they come, not when they are written: the stream is not read meanwhile."""
        client_id, begun_s = request.client_id, thread_time()
        if charges.is_over(Quota.PRODUCE, client_id) or charges.is_over(Quota.REQUEST, client_id):
            error = to_proto(ErrorCode.THROTTLING_QUOTA_EXCEEDED, charges.refusal())
            respond(
                broker_pb2.ProduceResponse(
                    correlation_id=request.correlation_id, error=error, throttle_ms=charges.throttle_ms
                )
            )
            return None
        charges.charge(Quota.PRODUCE, client_id, sum(len(part.records) for part in request.partitions))

        def told(response: broker_pb2.ProduceResponse) -> None:
            response.throttle_ms = charges.throttle_ms
            respond(response)

        handed_over = self._free(request, told, access, caller, until_done=until_done)
        charges.charge(Quota.REQUEST, client_id, thread_time() - begun_s)
        return handed_over

    def _free(
        self,
        request: broker_pb2.ProduceRequest,
        respond: Respond,
        access: Access | None,
        caller: str,
        *,
        until_done: bool,
    ) -> asyncio.Future[None] | None:
        correlation_id = request.correlation_id
        if refusal := too_large(request):
            error = to_proto(ErrorCode.INVALID_REQUEST, refusal)
            respond(broker_pb2.ProduceResponse(correlation_id=correlation_id, error=error))
            return None

        def done(results: Sequence[ProduceResult]) -> None:
            if len(results) > RESULTS_AT_ONCE:
                _Answer(correlation_id, results, respond).go_on()
                return
            respond(
                broker_pb2.ProduceResponse(correlation_id=correlation_id, results=[_produce_result(r) for r in results])
            )

        parts = [ProducePart(from_key(part.partition), part.records) for part in request.partitions]
        if access is not None:
            parts = [_checked(part, access) for part in parts]
        return self._handler.submit(
            request.acks,
            request.timeout_ms,
            parts,
            done,
            until_done=until_done,
            traceparent=request.traceparent,
            caller=caller,
        )


class _Answer:
    """The response about many partitions, made in turns of the event loop. Their outcomes do not change any more."""

    __slots__ = ("_made", "_respond", "_response", "_results")

    def __init__(self, correlation_id: int, results: Sequence[ProduceResult], respond: Respond) -> None:
        self._response = broker_pb2.ProduceResponse(correlation_id=correlation_id)
        self._results = results
        self._respond = respond
        self._made = 0

    def go_on(self) -> None:
        try:
            if not self._make():
                asyncio.get_running_loop().call_soon(self.go_on)
                return
        except Exception:  # a mistake of ours: its sender must not wait for ever
            logger.exception("the answer to a produce could not be made")
            error = to_proto(ErrorCode.UNKNOWN_SERVER_ERROR)
            self._response = broker_pb2.ProduceResponse(correlation_id=self._response.correlation_id, error=error)
        self._respond(self._response)

    def _make(self) -> bool:
        """Tells whether it is made; else this turn is over."""
        turn, results = LoopTurn(), self._results
        while self._made < len(results):
            if turn.over():
                return False
            self._response.results.append(_produce_result(results[self._made]))
            self._made += 1
        return True


def _checked(part: ProducePart, access: Access) -> ProducePart:
    error = access.topic_error(Operation.WRITE, part.key.topic_id)
    if error is ErrorCode.NONE:
        return part
    return part._replace(refusal=(error, access.topic_refusal(Operation.WRITE, part.key.topic_id)))


def _produce_result(result: ProduceResult) -> broker_pb2.ProduceResult:
    made = broker_pb2.ProduceResult(
        partition=to_key(result.key),
        base_offset=result.base_offset,
        last_offset=result.last_offset,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=result.log_start_offset,
        leader=result.leader,
        leader_epoch=result.leader_epoch,
    )
    if result.error is not ErrorCode.NONE:
        leader = (result.leader, result.leader_epoch)
        made.error.CopyFrom(partition_error(result.key, result.error, result.message, leader))
    return made

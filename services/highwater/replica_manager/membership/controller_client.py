"""Questions of a broker to the active controller: to take its leaderships over, and to make a topic."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc.aio

from highwater.errors import ErrorCode
from highwater.metadata.leases.controller_election import read_controller
from highwater.metadata.schema.keys import Keys
from highwater.metadata.store.etcd_errors import StoreError
from highwater.metadata.store.store import Store
from highwater.replica_manager.membership.readiness import Standing
from highwater.rpc.connections.channel import open_channel
from highwater.rpc.connections.tls import Certificates
from highwater.rpc.errors import from_proto
from highwater.telemetry.log import get_logger
from highwater.v1 import controller_pb2, controller_pb2_grpc

logger = get_logger("replica_manager.controller_client")

Answer = TypeVar("Answer")

CALL_TIMEOUT_S = 5.0


async def ask_controller(
    store: Store,
    keys: Keys,
    call: Callable[[controller_pb2_grpc.ControllerAsyncStub], Awaitable[Answer]],
    *,
    certificates: Certificates | None = None,
    log_level: int = logging.INFO,
) -> Answer | None:
    """One call, over a connection of its own, to the controller that etcd names now. None: there is none, or it did not
    answer, which is logged at `log_level`. `certificates` are this broker's own."""
    try:
        controller = await read_controller(store, keys)
        if controller is None:
            return None
        async with open_channel(controller.address, certificates) as channel:
            return await call(controller_pb2_grpc.ControllerStub(channel))
    except (StoreError, grpc.aio.AioRpcError) as error:
        logger.log(log_level, "the controller does not answer yet: %s", error)
        return None


async def ask_standing(
    store: Store, keys: Keys, broker_id: int, broker_epoch: int, certificates: Certificates | None = None
) -> Standing | None:
    """The distance between this registration and being ready (RULES 8.6); None where no controller says so."""
    request = controller_pb2.DescribeReadinessRequest(broker_id=broker_id, broker_epoch=broker_epoch)
    response = await ask_controller(
        store,
        keys,
        lambda stub: stub.DescribeReadiness(request, timeout=CALL_TIMEOUT_S),
        certificates=certificates,
        log_level=logging.DEBUG,
    )
    if response is None or from_proto(response.error) is not ErrorCode.NONE:
        return None
    sample = tuple((each.topic, each.partition) for each in response.sample)
    return Standing(response.told, response.out_of_sync, sample)

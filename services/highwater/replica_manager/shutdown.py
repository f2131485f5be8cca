"""Controlled shutdown: leadership moves first, then the process stops (DESIGN §4)."""

from __future__ import annotations

import asyncio

from highwater.errors import ErrorCode
from highwater.metadata.keys import Keys
from highwater.metadata.store import Store
from highwater.replica_manager.broker import Broker
from highwater.replica_manager.controller_client import ask_controller
from highwater.replica_manager.liveness import Liveness
from highwater.rpc.errors import from_proto
from highwater.telemetry.log import get_logger, pairs
from highwater.v1 import controller_pb2

logger = get_logger("replica_manager.shutdown")

RETRY_S = 0.1
CALL_TIMEOUT_S = 5.0


async def move_leadership_away(
    store: Store, keys: Keys, broker: Broker, liveness: Liveness, *, max_wait_ms: int
) -> bool:
    """Marks the broker as shutting down and asks the controller until it leads nothing. False: the time was up first,
    or nobody is left who could lead (the whole cluster stops)."""
    try:
        async with asyncio.timeout(max_wait_ms / 1000):
            await liveness.announce_shutdown()
            while True:
                remaining = await _ask(store, keys, broker.broker_id, broker.broker_epoch)
                if remaining == 0 or broker.broker_epoch is None:
                    return True
                if not broker.others_may_lead():
                    logger.info("no other broker is left to lead %s", pairs(still_led=remaining))
                    return False
                await asyncio.sleep(RETRY_S)
    except TimeoutError:
        logger.warning("stopping although leadership has not moved away %s", pairs(waited_ms=max_wait_ms))
        return False


async def _ask(store: Store, keys: Keys, broker_id: int, broker_epoch: int | None) -> int | None:
    """How many partitions the broker still leads; None where no controller said."""
    if broker_epoch is None:
        return None
    request = controller_pb2.ControlledShutdownRequest(broker_id=broker_id, broker_epoch=broker_epoch)
    response = await ask_controller(store, keys, lambda stub: stub.ControlledShutdown(request, timeout=CALL_TIMEOUT_S))
    if response is None:
        return None
    return None if from_proto(response.error) is not ErrorCode.NONE else len(response.remaining)

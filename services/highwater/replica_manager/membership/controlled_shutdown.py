"""Controlled shutdown: leaderships move and ISRs let go of this broker first, then the process stops (RULES 7.8)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from highwater.errors import ErrorCode
from highwater.metadata.schema.keys import Keys
from highwater.metadata.store.store import Store
from highwater.model.partition import PartitionKey
from highwater.replica_manager.membership.controller_client import CALL_TIMEOUT_S, ask_controller
from highwater.replica_manager.membership.liveness import Liveness
from highwater.replica_manager.replicas.replica_manager import ReplicaManager
from highwater.rpc.connections.tls import Certificates
from highwater.rpc.errors import from_proto
from highwater.rpc.partition_keys import from_key
from highwater.telemetry.log import get_logger, pairs
from highwater.v1 import controller_pb2

logger = get_logger("replica_manager.shutdown")

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 1.0  # between two questions: what it waits for, another broker's start, takes seconds


@dataclass(frozen=True, slots=True)
class HeldBack:
    """The controller's answer: what this broker has to wait for."""

    leads: int = 0  # partitions that another replica may lead later
    needed_by: int = 0  # partitions whose ISR would be below `min.insync.replicas` without it
    sample: tuple[PartitionKey, ...] = ()


async def await_release(
    store: Store,
    keys: Keys,
    replica_manager: ReplicaManager,
    liveness: Liveness,
    *,
    max_wait_ms: int,
    certificates: Certificates | None = None,
) -> bool:
    """Marks the broker as shutting down and asks the controller until it may stop: it leads nothing, and every ISR can
    spare it. False: the time was up first, or no broker stays that could change anything (the whole cluster stops).

    A registration that is lost meanwhile is waited for: an ISR may hold this broker all the same, where nobody else is
    left, and the next registration is marked as well. One that never was held nothing."""
    held: HeldBack | None = None
    try:
        async with asyncio.timeout(max_wait_ms / 1000):
            await liveness.announce_shutdown()
            if not liveness.has_registered:
                return True
            pause_s = FIRST_PAUSE_S
            while True:
                held = await _ask(store, keys, replica_manager.broker_id, replica_manager.broker_epoch, certificates)
                if held is not None and not held.sample:
                    return True
                if not replica_manager.others_may_lead():
                    logger.info("no other broker stays %s", _told(replica_manager, held))
                    return False
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
    except TimeoutError:
        logger.warning(
            "stopping although it leads partitions, or their ISRs need it %s %s",
            pairs(waited_ms=max_wait_ms),
            _told(replica_manager, held),
        )
        return False


def _told(replica_manager: ReplicaManager, held: HeldBack | None) -> str:
    if held is None:
        return "(no controller answered)"
    named = []
    for key in held.sample:
        hosted = replica_manager.hosted.get(key)
        named.append(str(key) if hosted is None else f"{hosted.topic}-{key.partition}")
    return pairs(leads=held.leads, needed_by=held.needed_by, partitions=",".join(named))


async def _ask(
    store: Store, keys: Keys, broker_id: int, broker_epoch: int | None, certificates: Certificates | None
) -> HeldBack | None:
    """None where no controller said."""
    if broker_epoch is None:
        return None
    request = controller_pb2.ControlledShutdownRequest(broker_id=broker_id, broker_epoch=broker_epoch)
    response = await ask_controller(
        store,
        keys,
        lambda stub: stub.ControlledShutdown(request, timeout=CALL_TIMEOUT_S),
        certificates=certificates,
    )
    if response is None or from_proto(response.error) is not ErrorCode.NONE:
        return None
    return HeldBack(response.leads, response.needed_by, tuple(map(from_key, response.remaining)))

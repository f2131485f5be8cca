"""What a broker asks of the acting controller: to take its leaderships over, and to make a topic."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc.aio

from highwater.metadata.controller_election import read_controller
from highwater.metadata.etcd_errors import StoreError
from highwater.metadata.keys import Keys
from highwater.metadata.store import Store
from highwater.rpc.channel import open_channel
from highwater.telemetry.log import get_logger
from highwater.v1 import controller_pb2_grpc

logger = get_logger("replica_manager.controller_client")

Answer = TypeVar("Answer")


async def ask_controller(
    store: Store, keys: Keys, call: Callable[[controller_pb2_grpc.ControllerAsyncStub], Awaitable[Answer]]
) -> Answer | None:
    """One call, over a connection of its own, to the controller that etcd names now. None: there is none, or it did not
    answer."""
    try:
        controller = await read_controller(store, keys)
        if controller is None:
            return None
        async with open_channel(controller.address) as channel:
            return await call(controller_pb2_grpc.ControllerStub(channel))
    except (StoreError, grpc.aio.AioRpcError) as error:
        logger.info("the controller does not answer yet: %s", error)
        return None

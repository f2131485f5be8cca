"""The stream from the broker's replica-manager that says what to follow (WatchFollowing)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import grpc.aio

from highwater.fetcher.follower.following import Following
from highwater.fetcher.wire import from_following
from highwater.rpc.connections.channel import open_channel
from highwater.rpc.connections.tls import Certificates
from highwater.telemetry.log import get_logger, pairs
from highwater.v1 import replica_control_pb2, replica_control_pb2_grpc

logger = get_logger("fetcher.following_watch")

FIRST_RECONNECT_S = 0.1
LAST_RECONNECT_S = 1.0


class FollowingWatch:
    """`apply` gets each message, one after the other. While the stream is broken what they have said stands: fetching
    goes on without the replica-manager. A stream begins with the whole, and changes are to the message before them in
    their own stream (RULES 4.12): so whatever becomes of one message, the next stream mends it."""

    def __init__(
        self,
        address: str,
        incarnation: str,
        apply: Callable[[Following], Awaitable[None]],
        certificates: Certificates | None = None,
    ) -> None:
        self._address = address
        self._certificates = certificates
        self._incarnation = incarnation
        self._apply = apply

    async def run(self) -> None:
        """Until cancelled."""
        channel = open_channel(self._address, self._certificates)
        stub = replica_control_pb2_grpc.ReplicaControlStub(channel)
        request = replica_control_pb2.WatchFollowingRequest(fetcher_incarnation=self._incarnation, takes_changes=True)
        pause_s = FIRST_RECONNECT_S
        try:
            while True:
                reason = "closed by the replica-manager"
                await channel.channel_ready()
                call = stub.WatchFollowing(request)
                begun = False
                try:
                    async for message in call:
                        if message.changes and not begun:
                            raise ValueError("the stream began with changes")
                        begun = True
                        await self._apply(from_following(message))
                        pause_s = FIRST_RECONNECT_S
                except grpc.aio.AioRpcError as error:
                    reason = f"{error.code().name}: {error.details()}"
                except Exception as error:  # a mistake of ours: loud; the next stream begins with the whole
                    logger.exception("a Following message could not be applied")
                    reason = repr(error)
                finally:
                    call.cancel()  # nothing more of it is taken
                logger.warning("watch broke %s", pairs(replica_manager=self._address, reason=repr(reason)))
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LAST_RECONNECT_S)
        finally:
            await channel.close(None)

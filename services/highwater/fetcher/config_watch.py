"""The stream from the broker's replica-manager that says what is set while the broker runs (WatchConfig)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import grpc
import grpc.aio

from highwater.rpc.connections.channel import open_channel
from highwater.rpc.connections.tls import Certificates
from highwater.telemetry.log import get_logger, pairs
from highwater.v1 import common_pb2, replica_control_pb2, replica_control_pb2_grpc

logger = get_logger("fetcher.config_watch")

FIRST_RECONNECT_S = 0.1
LAST_RECONNECT_S = 1.0
UNKNOWN_PAUSE_S = 60.0  # for a replica-manager of an older version to be replaced


class ConfigWatch:
    """`take` gets all that is set, at first and after each change. While the stream is broken it stands as it was."""

    def __init__(
        self,
        address: str,
        settings: Sequence[common_pb2.StaticSetting],
        take: Callable[[Mapping[str, str]], None],
        certificates: Certificates | None = None,
    ) -> None:
        """`settings` are those that the fetcher was started with; `certificates` of a replica-manager that speaks
        TLS."""
        self._certificates = certificates
        self._address = address
        self._settings = settings
        self._take = take

    async def run(self) -> None:
        """Until cancelled."""
        channel = open_channel(self._address, self._certificates)
        stub = replica_control_pb2_grpc.ReplicaControlStub(channel)
        request = replica_control_pb2.WatchConfigRequest(settings=self._settings)
        pause_s = FIRST_RECONNECT_S
        try:
            while True:
                reason = "closed by the replica-manager"
                call = stub.WatchConfig(request, wait_for_ready=True)
                try:
                    async for message in call:
                        self._take(dict(message.values))
                        pause_s = FIRST_RECONNECT_S
                except grpc.aio.AioRpcError as error:
                    reason = f"{error.code().name}: {error.details()}"
                    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                        pause_s = UNKNOWN_PAUSE_S
                finally:
                    call.cancel()
                logger.info("watch broke %s", pairs(replica_manager=self._address, reason=repr(reason)))
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LAST_RECONNECT_S)
        finally:
            await channel.close(None)

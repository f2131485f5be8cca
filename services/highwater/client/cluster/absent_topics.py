"""The question which of the topics that are looked for do not exist: etcd alone tells, through the active controller.

Brokers hear of a topic after it was made, each at its own time: none of them, nor all of them, prove that there is none
(RULES 9.5).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice

from highwater.client.cluster.connection import Connection
from highwater.client.exceptions import HighwaterError
from highwater.errors import ErrorCode
from highwater.rpc.errors import from_proto
from highwater.telemetry.log import get_logger
from highwater.v1 import controller_pb2, controller_pb2_grpc

_log = get_logger(__name__)

MAX_NAMES = 64  # of one question; two keys each, so that etcd is read once for it


class AbsentTopics:
    """One question at a time, for all who wait when it begins."""

    def __init__(self, absent_of: Callable[[Sequence[str]], Awaitable[Mapping[str, bool]]]) -> None:
        """`absent_of` asks of each of these names whether no topic has it, as far as it is said, or raises
        `HighwaterError`."""
        self._absent_of = absent_of
        self._waiting: dict[str, asyncio.Future[bool | None]] = {}
        self._wake = asyncio.Event()

    def ask(self, name: str) -> asyncio.Future[bool | None]:
        """True: it did not exist, at a time after this call. False: it is there. None: nobody has said either. To be
        left alone where it is not wanted any more, or told to `forget`: others may wait for it."""
        if name not in self._waiting:
            self._waiting[name] = asyncio.get_running_loop().create_future()
            self._wake.set()
        return self._waiting[name]

    def forget(self, name: str) -> None:
        """Nobody waits for it any more: if it has not been asked for yet, it will not be, nor answered."""
        self._waiting.pop(name, None)

    async def answer(self) -> None:
        """Runs for ever. What waits has not been asked for yet: an answer is only for those who came before it."""
        while True:
            await self._wake.wait()
            while names := list(islice(self._waiting, MAX_NAMES)):
                asked = {name: self._waiting.pop(name) for name in names}
                absent: Mapping[str, bool] = {}
                try:
                    absent = await self._absent_of(names)
                except HighwaterError as error:
                    _log.debug("the controller does not say which topics there are: %s", error)
                finally:
                    for name, answered in asked.items():
                        if not answered.done():
                            answered.set_result(absent.get(name))
            self._wake.clear()


async def read_absent_topics(connection: Connection, names: Sequence[str], timeout_s: float) -> dict[str, bool]:
    """By name, True where no topic has it and False where one has, by way of any broker. An error of the whole answer
    says nothing of any of them, nor does a controller of a topic that it does not know where it has not read etcd.
    Raises `HighwaterError`."""
    request = controller_pb2.DescribeConfigsRequest(
        resources=[
            controller_pb2.ConfigResource(type=controller_pb2.CONFIG_RESOURCE_TYPE_TOPIC, name=name) for name in names
        ]
    )
    stub = controller_pb2_grpc.ControllerStub(connection.channel)
    response = await connection.call(stub.DescribeConfigs, request, timeout_s)
    there = (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE)
    return {
        described.resource.name: described.absent_in_etcd
        for described in response.configs
        if described.absent_in_etcd or from_proto(described.error) in there
    }

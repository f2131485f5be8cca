"""Coordinators of groups: which broker it is, and calls that follow it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import random
from time import monotonic
from typing import Any

from highwater.client.cluster.cluster import Cluster
from highwater.client.cluster.connection import Connection
from highwater.client.exceptions import HighwaterError, NetworkError, RetriableError, error_for
from highwater.errors import ErrorCode
from highwater.rpc.errors import from_proto
from highwater.v1 import common_pb2, group_pb2, group_pb2_grpc

BACKOFF_MS = 100.0  # doubled with each failure
BACKOFF_MAX_MS = 2_000.0
# One broker's time to name a coordinator; the very first time it makes the topic of the groups.
FIND_TIMEOUT_S = 3.0

MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
"""Errors after which the coordinator is to be looked for anew."""

Method = Callable[[Any], Callable[..., Awaitable[Any]]]  # of a stub


def jitter() -> float:
    return 0.8 + 0.4 * random()


def check(error: common_pb2.Error) -> None:
    """Raises the error that it says."""
    code = from_proto(error)
    if code is not ErrorCode.NONE:
        raise error_for(code, error.message)


async def retried(attempt: Callable[[], Awaitable[Any]], timeout_s: float) -> Any:
    """Tries again after a retriable error, until the time is over."""
    deadline = monotonic() + timeout_s
    pause_s = BACKOFF_MS / 1000
    while True:
        try:
            return await attempt()
        except RetriableError:
            if monotonic() + pause_s > deadline:
                raise
        await asyncio.sleep(pause_s * jitter())
        pause_s = min(2 * pause_s, BACKOFF_MAX_MS / 1000)


async def find_coordinators(cluster: Cluster, groups: Sequence[str]) -> list[Connection | HighwaterError]:
    """One attempt, at the broker that answered last: a connection to each group's coordinator, in the order of the
    groups. Raises `HighwaterError` where that broker does not answer; the next attempt asks another."""
    asked = cluster.answering
    timeout_s = min(FIND_TIMEOUT_S, cluster.request_timeout_s)
    stub = group_pb2_grpc.GroupCoordinatorStub(asked.channel)
    try:
        response = await asked.call(
            stub.FindCoordinator, group_pb2.FindCoordinatorRequest(groups=list(groups)), timeout_s
        )
    except RetriableError:
        cluster.request_refresh()
        raise
    found: list[Connection | HighwaterError] = []
    for each in response.coordinators:
        code = from_proto(each.error)
        found.append(
            cluster.connection(each.broker.address)
            if code is ErrorCode.NONE
            else error_for(code, _about(each.group, each.error.message))
        )
    return found


def _about(group: str, said: str) -> str:
    about = f"group {group!r}"
    return said if about in said else f"{about}: {said}"


class Coordinator:
    """The coordinator of one group; remembered until it is not."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self.group = group
        self._cluster = cluster
        self._connection: Connection | None = None

    def forget(self) -> None:
        self._connection = None

    async def find(self) -> Connection:
        """One attempt. Raises `HighwaterError`."""
        if self._connection is None:
            (found,) = await find_coordinators(self._cluster, [self.group])
            if isinstance(found, HighwaterError):
                raise found
            self._connection = found
        return self._connection

    async def call(self, method: Method, request: Any, timeout_s: float) -> Any:
        """One attempt. Raises the error of the whole answer, too; the next attempt goes where the group is then."""
        connection = await self.find()
        try:
            stub = group_pb2_grpc.GroupCoordinatorStub(connection.channel)
            response = await connection.call(method(stub), request, timeout_s)
            check(response.error)
        except HighwaterError as error:
            if isinstance(error, NetworkError) or error.code in MOVED | {ErrorCode.REQUEST_TIMED_OUT}:
                if self._connection is connection:
                    self.forget()
                self._cluster.request_refresh()
            raise
        return response

"""Quotas at the edge: what a call has moved is charged, and its client told how long to pause.

A request that exceeds a quota is served, and answered at once with `throttle_ms`; the stream that it came by is not
read for so long. Nothing waits in a queue for it: a client that does not pause fills its own connection. A request that
comes by another stream, or by a unary call, while its user or client owes more than `MAX_THROTTLE_S`, is refused. Where
no quota is set, nothing is looked at.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

import grpc.aio

from highwater.configuration.entities import MAX_NAME
from highwater.quotas.client_quotas import Caller, ClientQuotas, Entity, Quota
from highwater.quotas.throttled_callers import ThrottledCallers
from highwater.security.principal import principal_of

MAX_THROTTLE_S = 10.0
"""The longest pause that a client is told, well below its request timeout: it stays able to hear of a quota that is
raised meanwhile."""
CLIENT_ID = "client-id"
"""The metadata key by which a client names itself, percent-encoded, in calls whose messages have no field for it."""

Context = grpc.aio.ServicerContext[Any, Any]


class Throttling:
    """Of one broker. `is_set`: anybody has any quota. `throttled` is told of each pause, in seconds, and by which
    quota; `refused` of what is refused for one."""

    def __init__(
        self,
        throttled: Callable[[Quota, float], object] = lambda quota, pause_s: None,
        refused: Callable[[], object] = lambda: None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.quotas = ClientQuotas()
        self.callers = ThrottledCallers()
        self.throttled = throttled
        self.refused = refused
        self.clock_s = clock_s
        self.is_set = False
        self._changed = asyncio.Event()

    def configure(self, entity: Entity, config: Mapping[str, str]) -> None:
        """All that is configured of one entity. Who pauses looks again: what it owes is paid at the new rate."""
        if self.quotas.configure(entity, config):
            self.is_set = any(map(self.quotas.is_set, Quota))
            self._changed.set()
            self._changed = asyncio.Event()

    def of(self, context: Context) -> CallCharges:
        """The charges of one call, in the task that serves it."""
        return CallCharges(self, context)

    async def await_change(self, most_s: float) -> None:
        try:
            async with asyncio.timeout(most_s):
                await self._changed.wait()
        except TimeoutError:
            pass


class CallCharges:
    """Of one call: a stream with all its requests, or a unary call."""

    __slots__ = ("_client_id", "_context", "_owing", "_throttling", "_until_s", "_user")

    def __init__(self, throttling: Throttling, context: Context) -> None:
        self._throttling = throttling
        self._context = context
        self._user: str | None = None  # asked for with the first charge
        self._client_id: str | None = None  # of the metadata; likewise
        self._owing: dict[Quota, Caller] = {}  # at most one each
        self._until_s = 0.0

    def charge(self, quota: Quota, client_id: str, amount: float) -> None:
        """To the bucket of whoever calls, by the quota; `client_id` as the request names it, empty: the call's."""
        throttling = self._throttling
        if not throttling.quotas.is_set(quota):
            return
        caller, now_s = self._caller(client_id), throttling.clock_s()
        bucket = throttling.quotas[quota].bucket(caller, now_s)
        if bucket is None:
            return
        owed_s = min(bucket.take(amount, now_s), MAX_THROTTLE_S)
        if owed_s:
            self._owing[quota] = caller
            self._until_s = max(self._until_s, now_s + owed_s)
            throttling.throttled(quota, owed_s)
            throttling.callers.add(quota, caller, owed_s, now_s)

    def is_over(self, quota: Quota, client_id: str, most_s: float = MAX_THROTTLE_S) -> bool:
        """Tells whether more is owed than may be: nothing may be added to it, and there is a pause."""
        throttling = self._throttling
        if not throttling.quotas.is_set(quota):
            return False
        caller, now_s = self._caller(client_id), throttling.clock_s()
        bucket = throttling.quotas[quota].bucket(caller, now_s)
        if bucket is None or (owed_s := bucket.owed_s(now_s)) <= most_s:
            return False
        self._owing[quota] = caller
        self._until_s = max(self._until_s, now_s + min(owed_s, MAX_THROTTLE_S))
        return True

    def refusal(self) -> str:
        """The sentence for a request that is refused now."""
        self._throttling.refused()
        return f"the quota of this user or client is exceeded: send again in {self.throttle_ms} ms"

    @property
    def may_apply(self) -> bool:
        """Tells whether anybody has any quota."""
        return self._throttling.is_set

    @property
    def throttle_ms(self) -> int:
        """The time that the client is still to pause."""
        if not self._until_s:
            return 0
        return max(0, math.ceil(1000 * (self._until_s - self._throttling.clock_s())))

    @property
    def pausing(self) -> bool:
        """Tells whether there may be anything to wait for in `pause`."""
        return self._until_s > 0

    async def pause(self, most_s: float = MAX_THROTTLE_S) -> None:
        """Returns when the pause is over, or what was owed is paid at a quota that has changed; after `most_s`."""
        throttling = self._throttling
        self._until_s = min(self._until_s, throttling.clock_s() + most_s)
        while (left_s := self._until_s - throttling.clock_s()) > 0:
            await throttling.await_change(left_s)
            now_s = throttling.clock_s()
            if now_s < self._until_s:
                self._until_s = min(self._until_s, now_s + self._owed_s(now_s))
        self._until_s = 0.0
        self._owing.clear()

    def _owed_s(self, now_s: float) -> float:
        quotas = self._throttling.quotas
        buckets = (quotas[quota].bucket(caller, now_s) for quota, caller in self._owing.items())
        return max((bucket.owed_s(now_s) for bucket in buckets if bucket is not None), default=0.0)

    def _caller(self, client_id: str) -> Caller:
        if self._user is None:
            self._user = principal_of(self._context).name
        if not client_id:
            if self._client_id is None:
                self._client_id = client_id_of(self._context)
            client_id = self._client_id
        return Caller(self._user, client_id[:MAX_NAME])  # what a request calls its client may have any size


def client_id_of(context: Context) -> str:
    """As the call's metadata has it; empty: not."""
    for key, value in context.invocation_metadata() or ():
        if key == CLIENT_ID and isinstance(value, str):
            return unquote(value)
    return ""

"""The values that are set for this broker while it runs, as its replica-manager hands them over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from highwater.v1 import common_pb2, log_storage_pb2

Take = Callable[[Mapping[str, str]], Awaitable[None]]


async def nothing_to_take(values: Mapping[str, str]) -> None:
    """Of a log-storage of which nothing can be set."""


class BrokerConfig:
    """The values that were given last, which end with the process. `take` makes them count, `settings` are those of the
    start."""

    def __init__(
        self,
        incarnation: str,
        take: Take,
        settings: Sequence[common_pb2.StaticSetting],
    ) -> None:
        self._incarnation = incarnation
        self._take = take
        self._settings = settings
        self._values: dict[str, str] | None = {}  # None: some of others count, since they could not be taken as a whole
        self._changing = asyncio.Lock()

    async def AlterBrokerConfig(
        self, request: log_storage_pb2.AlterBrokerConfigRequest, context: Any
    ) -> log_storage_pb2.AlterBrokerConfigResponse:
        if request.HasField("config"):
            await self.given(request.config)
        return log_storage_pb2.AlterBrokerConfigResponse(incarnation=self._incarnation, settings=self._settings)

    async def given(self, config: common_pb2.DynamicConfig) -> None:
        """Makes it count, where it is another than before."""
        values = dict(config.values)
        if values == self._values:
            return
        async with self._changing:
            if values != self._values:
                self._values = None
                await self._take(values)  # where that raises, or is cancelled, whatever comes next is taken
                self._values = values

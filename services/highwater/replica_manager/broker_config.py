"""The values that are set for this broker while it runs: watched in etcd, applied here, and handed to its log-storage
and its fetcher."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from highwater.configuration.entities import CLUSTER, DEFAULT_BROKER, BrokerEntity, ConfigEntity, EntityKind
from highwater.log_storage_client.client import LogStorageClient
from highwater.metadata.schema.config_view import overlaid
from highwater.metadata.state.dynamic_configs import WatchedConfigs
from highwater.replica_manager.settings import ReplicaManagerSettings
from highwater.rpc.dynamic_settings import static_settings, take_log_level, with_dynamic
from highwater.telemetry.log import get_logger, pairs
from highwater.v1 import common_pb2

logger = get_logger("replica_manager.broker_config")

FETCHER_TELLS_WITHIN_S = 1.0  # half of the time that a controller waits for a description


class BrokerConfig:
    """`apply` takes the settings that count from now on, and is called once before anything is told to others.

    Invariant: `values` are what `settings` were made of; None until etcd has been read."""

    def __init__(
        self, settings: ReplicaManagerSettings, configs: WatchedConfigs, apply: Callable[[ReplicaManagerSettings], None]
    ) -> None:
        self.settings = settings
        self.values: Mapping[str, str] | None = None
        self._static = settings
        self._configs = configs
        self._apply = apply
        self._levels = (BrokerEntity(settings.broker_id), DEFAULT_BROKER, CLUSTER)
        self._changed = asyncio.Event()
        self._told_log_storage: tuple[Mapping[str, str], str] | None = None  # the values, and whom
        self._overtaken = 0  # calls that took earlier values along, and may have been the last to be heard
        self._others: dict[str, Sequence[common_pb2.StaticSetting]] = {}  # settings of the start, by service
        self._heard: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)  # by service

    async def read(self) -> None:
        """Returns when etcd has been read, and what it holds counts."""
        await self._configs.listed()
        self._take()
        self._configs.view.subscribe(self, [EntityKind.BROKERS, EntityKind.CLUSTER])

    def on_change(self, entity: ConfigEntity, config: Mapping[str, str]) -> None:
        """A configuration in etcd is another (`ConfigListener`)."""
        if entity in self._levels:
            self._take()

    def _take(self) -> None:
        values = overlaid(self._configs.view, self._levels)
        if values == self.values:
            return
        first, self.values = self.values is None, values
        self.settings = with_dynamic(self._static, values)
        if values or not first:
            logger.info("set while running %s", pairs(**values))
            take_log_level(self.settings)
            self._apply(self.settings)
        self._changed.set()
        self._changed = asyncio.Event()

    async def watch(self, static: Sequence[common_pb2.StaticSetting]) -> AsyncIterator[Mapping[str, str]]:
        """For the fetcher, which says what it was started with: the values, at first and after every change."""
        self._hear("fetcher", static)
        told: Mapping[str, str] | None = None
        while True:
            changed = self._changed
            if self.values is not None and self.values != told:
                told = self.values
                yield told
            else:
                await changed.wait()

    def went_with_logs(self, values: Mapping[str, str] | None) -> None:
        """A call that made logs is over, and had taken these values to log-storage. Where others count by now it may
        have been overtaken by the call that said so, being larger: that is made again."""
        if values is not None and values != self.values:
            self._overtaken += 1
            self._told_log_storage = None

    async def tell_log_storage(self, storage: LogStorageClient, incarnation: str) -> None:
        """Hands over what the present log-storage has not been told. Raises `StorageUnavailableError`."""
        values = self.values
        if values is None or self._told_log_storage == (values, incarnation):
            return
        overtaken = self._overtaken
        taken_by, static = await storage.alter_broker_config(values)
        self._hear("log-storage", static)
        if overtaken == self._overtaken:
            self._told_log_storage = (values, taken_by)

    def _hear(self, service: str, static: Sequence[common_pb2.StaticSetting]) -> None:
        self._others[service] = static
        self._heard[service].set()

    async def static_settings(self) -> list[common_pb2.StaticSetting]:
        """Returns what the broker's services were started with. They tell soon after its start: who asks before that
        waits for its log-storage, and for a while for its fetcher, which may be away and is described without then."""
        await self._heard["log-storage"].wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FETCHER_TELLS_WITHIN_S):
                await self._heard["fetcher"].wait()
        return [
            *static_settings(self._static, "replica-manager"),
            *(each for service in sorted(self._others) for each in self._others[service]),
        ]

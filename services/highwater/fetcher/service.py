"""The fetcher's process: the watch of what to follow, the fetchers, and the gRPC service that describes them."""

from __future__ import annotations

import asyncio
import functools
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence

import grpc
import grpc.aio

from highwater.errors import ErrorCode
from highwater.fetcher.config_watch import ConfigWatch
from highwater.fetcher.fetch_budget import FetchBudget
from highwater.fetcher.fetcher_manager import FetcherManager
from highwater.fetcher.fetcher_metrics import FetcherMetrics
from highwater.fetcher.follower.follower import Follower, FollowerState
from highwater.fetcher.follower.following import FetcherId, Following, LeaderEndpoint
from highwater.fetcher.following_watch import FollowingWatch
from highwater.fetcher.log_storage import LogStorage
from highwater.fetcher.replica_fetcher import UNDER_WAY, ReplicaFetcher
from highwater.fetcher.settings import FetcherSettings
from highwater.rpc.connections.tls import server_credentials
from highwater.rpc.dynamic_settings import static_settings, take_log_level, with_dynamic
from highwater.rpc.errors import to_proto
from highwater.rpc.measured_calls import MeasuredCalls
from highwater.rpc.partition_keys import to_key
from highwater.rpc.server import PEERS, RpcServer
from highwater.security.call_shares import peers_shares
from highwater.supervision import TaskSupervisor
from highwater.telemetry.by_topic import partitions_by_topic
from highwater.telemetry.log import get_logger, identify, pairs
from highwater.telemetry.loop_delay import LoopDelay
from highwater.telemetry.metrics import Metrics
from highwater.telemetry.otlp.start import service_tracer
from highwater.telemetry.politely import politely
from highwater.telemetry.request_times import RequestMetrics
from highwater.v1 import fetcher_pb2, fetcher_pb2_grpc

logger = get_logger("fetcher.service")

SERVICE_NAME = "highwater.v1.Fetcher"

_STATES = {
    FollowerState.FETCHING: fetcher_pb2.FOLLOWER_STATE_FETCHING,
    FollowerState.TRUNCATING: fetcher_pb2.FOLLOWER_STATE_TRUNCATING,
    FollowerState.DELAYED: fetcher_pb2.FOLLOWER_STATE_DELAYED,
    FollowerState.OFFLINE: fetcher_pb2.FOLLOWER_STATE_OFFLINE,
}


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class FetcherService:
    """`start` and `stop` once each. Serves, and reports SERVING, from the end of `start` on."""

    def __init__(self, settings: FetcherSettings) -> None:
        self._settings = settings
        self._certificates = settings.certificates()
        self._metrics = Metrics("fetcher")
        self._server = RpcServer(
            settings.listen,
            health_listen=settings.health_listen,
            interceptors=[
                peers_shares(),
                *settings.guard(settings.broker_id),
                MeasuredCalls(RequestMetrics(self._metrics)),
            ],
            limits=PEERS,
            credentials=server_credentials(self._certificates, require=settings.requires_certificates),
        )
        self._counted = FetcherMetrics(self._metrics)
        self._tracer = service_tracer(
            settings.tracing,
            "fetcher",
            settings.broker_id,
            self._metrics.counter("spans", "Spans of traces, by what became of them", ("outcome",)),
        )
        # Everything here is begun anew: a fetcher's state is in log-storage and in what the replica-manager says, and
        # both are read again by whoever begins anew.
        self._supervisor = TaskSupervisor(self._counted.task_failures)
        self._log_storage = LogStorage(
            settings.log_storage,
            self._log_storage_lost,
            supervisor=self._supervisor,
            certificates=self._certificates,
        )
        self._budget = FetchBudget(settings.replica_fetch_total_max_bytes, UNDER_WAY)
        self.manager: FetcherManager[ReplicaFetcher] = FetcherManager(
            self._open_fetcher, settings.num_replica_fetchers, settings.replica_fetch_backoff_ms, monotonic_ms
        )
        self._watch = FollowingWatch(settings.replica_manager, uuid.uuid4().hex, self._apply, self._certificates)
        self._static = settings
        self._config_watch = ConfigWatch(
            settings.replica_manager, static_settings(settings, "fetcher"), self.take_config, self._certificates
        )

    @property
    def addresses(self) -> list[str]:
        """The bound addresses, in the order of `listen`."""
        return self._server.addresses

    def _open_fetcher(self, identity: FetcherId, leader: LeaderEndpoint) -> ReplicaFetcher:
        return ReplicaFetcher(
            identity,
            leader,
            self._settings,
            self._log_storage,
            self._counted,
            monotonic_ms,
            budget=self._budget,
            throttle=self.manager.throttle,
            supervisor=self._supervisor,
            certificates=self._certificates,
            tracer=self._tracer,
        )

    async def _apply(self, following: Following) -> None:
        await self.manager.apply(following)
        identify(broker_epoch=self.manager.broker_epoch)

    def take_config(self, values: Mapping[str, str]) -> None:
        """Takes what is set while the broker runs in place of the settings of the start."""
        before, settings = self._settings, with_dynamic(self._static, values)
        if settings == before:
            return
        self._settings = settings
        logger.info("set while running %s", pairs(**values))
        take_log_level(settings)
        self._budget.resize(settings.replica_fetch_total_max_bytes)
        for fetcher in self.manager.fetchers.values():
            fetcher.configure(settings)
        stopped = self.manager.configure(settings.num_replica_fetchers, settings.replica_fetch_backoff_ms)
        for fetcher in stopped:
            self._supervisor.run_once("stop-fetcher", fetcher.stop)
        if settings.replica_fetch_wait_max_ms != before.replica_fetch_wait_max_ms:
            self.manager.reopen_sessions()  # each has its patience with the leader by this

    def _log_storage_lost(self) -> None:
        self.manager.reopen_sessions()

    async def start(self) -> None:
        """Raises `AddressInUseError`."""
        followers = self.manager.followers
        self._counted.max_lag.set_function(
            lambda: max((follower.lag for follower in politely(list(followers.values()))), default=0)
        )
        for state in FollowerState:
            self._counted.followed.labels(state.name.lower()).set_function(functools.partial(self._in_state, state))
        if self._settings.metrics_partitions:
            self._metrics.read_gauge(
                "partition_lag_records",
                "Lag of a partition behind its leader's high watermark",
                ("topic", "partition"),
                self._lags,
            )
        self._metrics.read_gauge(
            "held_back_partitions",
            "Partitions of which nothing is fetched now: follower.replication.throttled.rate",
            ("topic",),
            self._held_back_by_topic,
        )
        self._counted.held_bytes.set_function(lambda: self._budget.held)
        fetcher_pb2_grpc.add_FetcherServicer_to_server(
            FetcherServicer(self._settings.broker_id, self.manager), self._server.grpc
        )
        await self._server.start([SERVICE_NAME])
        self._metrics.publish(self._settings, f"fetcher-{self._settings.broker_id}")
        self._log_storage.start()
        self._supervisor.run_forever("loop-delay", LoopDelay(self._metrics).watch)
        self._supervisor.run_forever("following-watch", self._watch.run)
        self._supervisor.run_forever("config-watch", self._config_watch.run)
        await self._server.set_serving(True)

    def _in_state(self, state: FollowerState) -> float:
        followers = list(self.manager.followers.values())
        return float(sum(1 for follower in politely(followers) if follower.state is state))

    def _held_back_by_topic(self) -> Iterator[tuple[Sequence[str], float]]:
        followers = self.manager.followers
        held = (followers.get(key) for each in list(self.manager.fetchers.values()) for key in each.held_back)
        return partitions_by_topic(follower.topic for follower in held if follower is not None)

    def _lags(self) -> Iterator[tuple[Sequence[str], float]]:
        some = list(self.manager.followers.values())[: self._settings.metrics_partitions]
        for follower in politely(some):
            yield (follower.topic, str(follower.key.partition)), float(follower.lag)

    async def stop(self) -> None:
        await self._supervisor.stop()
        await self.manager.stop()
        await self._log_storage.stop()
        await self._server.stop()
        self._metrics.close()
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.close)


class FetcherServicer(fetcher_pb2_grpc.FetcherServicer):
    def __init__(self, broker_id: int, manager: FetcherManager[ReplicaFetcher]) -> None:
        self._broker_id = broker_id
        self._manager = manager

    async def Describe(
        self,
        request: fetcher_pb2.DescribeFetcherRequest,
        context: grpc.aio.ServicerContext[fetcher_pb2.DescribeFetcherRequest, fetcher_pb2.DescribeFetcherResponse],
    ) -> fetcher_pb2.DescribeFetcherResponse:
        return fetcher_pb2.DescribeFetcherResponse(
            broker_id=self._broker_id,
            broker_epoch=self._manager.broker_epoch,
            fetchers=[
                fetcher_pb2.FetcherDescription(
                    fetcher_id=identity.fetcher_id,
                    leader=identity.leader,
                    leader_address=fetcher.leader.address,
                    connected=fetcher.connected,
                    partitions=[_describe(follower) for follower in fetcher.followers],
                )
                for identity, fetcher in sorted(self._manager.fetchers.items())
            ],
        )

    async def SetThrottle(
        self,
        request: fetcher_pb2.SetThrottleRequest,
        context: grpc.aio.ServicerContext[fetcher_pb2.SetThrottleRequest, fetcher_pb2.SetThrottleResponse],
    ) -> fetcher_pb2.SetThrottleResponse:
        rate = request.bytes_per_second
        if rate < 0:
            message = f"{rate} bytes a second: 0 and above are allowed"
            return fetcher_pb2.SetThrottleResponse(error=to_proto(ErrorCode.INVALID_REQUEST, message))
        self._manager.throttle.give(rate or None)
        logger.info("throttle given %s", pairs(bytes_per_second=rate))
        return fetcher_pb2.SetThrottleResponse()


def _describe(follower: Follower) -> fetcher_pb2.FollowedPartitionDescription:
    acked_offset = follower.acked_offset
    return fetcher_pb2.FollowedPartitionDescription(
        partition=to_key(follower.key),
        topic=follower.topic,
        state=_STATES[follower.state],
        fetch_offset=follower.fetch_offset,
        acked_offset=-1 if acked_offset is None else acked_offset,
        lag=follower.lag,
        error=to_proto(follower.error, follower.error_message),
    )

"""The replica-manager as a service: everything wired together, started and stopped."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
import uuid

import grpc

from highwater.configuration.entities import EntityKind
from highwater.log_storage_client.client import LogStorageClient
from highwater.log_storage_client.values import StorageUnavailableError
from highwater.metadata.leases.controller_election import read_controller_epoch
from highwater.metadata.schema.keys import Keys
from highwater.metadata.state.cluster_watch import watch_brokers
from highwater.metadata.state.dynamic_configs import WatchedConfigs
from highwater.metadata.state.producer_ids import ProducerIdAllocator
from highwater.metadata.store.etcd_errors import StoreError
from highwater.metadata.store.store import Store
from highwater.replica_manager.admission import quota_configs
from highwater.replica_manager.admission.connection_rate import ConnectionRate
from highwater.replica_manager.admission.quota_configs import QuotaConfigs
from highwater.replica_manager.admission.request_charges import RequestCharges
from highwater.replica_manager.admission.throttling import Throttling
from highwater.replica_manager.admission.unary_calls import Admission
from highwater.replica_manager.broker_config import BrokerConfig
from highwater.replica_manager.callers import Identification, authorization_of
from highwater.replica_manager.coordination import group_coordinator
from highwater.replica_manager.membership.acl_watch import AclWatch
from highwater.replica_manager.membership.active_controller import ActiveControllerLookup
from highwater.replica_manager.membership.broker_state import BrokerState, Stage, broker_state
from highwater.replica_manager.membership.controlled_shutdown import await_release
from highwater.replica_manager.membership.controller_client import ask_standing
from highwater.replica_manager.membership.liveness import Liveness
from highwater.replica_manager.membership.purge import Purge
from highwater.replica_manager.membership.readiness import Readiness
from highwater.replica_manager.membership.readiness_report import ReadinessReport
from highwater.replica_manager.membership.strays import Strays
from highwater.replica_manager.membership.topic_creation import TopicCreation
from highwater.replica_manager.partition.actions import PartitionSettings
from highwater.replica_manager.replicas.isr_writer import IsrChanges
from highwater.replica_manager.replicas.metrics import (
    ReplicaManagerMetrics,
    export_partitions,
    export_throttles,
    export_traffic,
)
from highwater.replica_manager.replicas.purgatory import Purgatory
from highwater.replica_manager.replicas.replica_manager import ReplicaManager
from highwater.replica_manager.replicas.topic_traffic import TopicTraffic
from highwater.replica_manager.replicas.traced_batches import TracedBatches
from highwater.replica_manager.requests.control import Control
from highwater.replica_manager.requests.delete_records import DeleteRecordsHandler
from highwater.replica_manager.requests.fetch import FetchHandler
from highwater.replica_manager.requests.offsets import OffsetsHandler
from highwater.replica_manager.requests.produce import ProduceHandler
from highwater.replica_manager.server.broker_servicer import BrokerServicer
from highwater.replica_manager.server.control_servicer import ReplicaControlServicer
from highwater.replica_manager.server.controller_forwarder import ControllerForwarder, Forwarding
from highwater.replica_manager.server.group_servicer import GroupServicer
from highwater.replica_manager.server.listener_servers import ListenerServers
from highwater.replica_manager.server.unread_responses import UnreadResponses
from highwater.replica_manager.settings import ReplicaManagerSettings
from highwater.replica_manager.storage.fencer import Fencer
from highwater.replica_manager.storage.leader_appends import LeaderAppends
from highwater.rpc.connections.channel import open_channel
from highwater.rpc.connections.tls import Certificates, server_credentials
from highwater.rpc.listeners import Listener
from highwater.rpc.measured_calls import MeasuredCalls
from highwater.rpc.process.loop_turn import by_turns
from highwater.rpc.process.open_files import connections_within, open_files_allowed
from highwater.rpc.server import ServerLimits
from highwater.security.call_shares import CallShares, part_of_one, peers_shares
from highwater.supervision import TaskSupervisor
from highwater.telemetry.log import get_logger, identify
from highwater.telemetry.loop_delay import LoopDelay
from highwater.telemetry.loop_idle import loop_waited_s
from highwater.telemetry.metrics import Metrics
from highwater.telemetry.otlp.start import service_tracer
from highwater.telemetry.politely import politely
from highwater.v1 import controller_pb2_grpc

logger = get_logger("replica_manager.service")

CLIENT_SERVICES = ("highwater.v1.Broker", "highwater.v1.GroupCoordinator", "highwater.v1.Controller")
INTERNAL_SERVICES = (*CLIENT_SERVICES, "highwater.v1.ReplicaControl")
MEASURED_BY_PHASE = frozenset({"Produce", "Fetch"})  # by those who answer them
MEND_S = 0.5  # between two looks for damaged logs
RETRY_S = 0.2
STORAGE_TIMEOUT_S = 5.0  # RULES 7.7: a replica whose storage does not answer for so long is not live
STRAYS_S = 0.2  # between two looks whether logs that nobody wants are to be looked for
MAX_REQUEST_WAITS = 64  # partitions of the largest produce request, on average
MAX_WAITING_FETCHES = 10_000
MAX_SILENT_MS = 20_000  # of a client's connection, before it says anything
MAX_TICK_MS = 100  # a session that is closed for 500 ms must be noticed (RULES 5.6)


class ReplicaManagerService:
    """`start` listens at once, and returns when etcd has answered; it serves, by its health, once it is registered.
    `failed` is done, with the reason, where it cannot go on."""

    def __init__(self, settings: ReplicaManagerSettings) -> None:
        self._settings = settings
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._metrics = Metrics("replica-manager")
        self._counted = ReplicaManagerMetrics(self._metrics)
        self._traffic = TopicTraffic(settings.metrics_topics)
        self._stage = Stage.SERVING
        self._tracer = service_tracer(
            settings.tracing,
            "replica-manager",
            settings.broker_id,
            self._metrics.counter("spans", "Spans of traces, by what became of them", ("outcome",)),
        )
        traced = TracedBatches()
        self._keys = Keys(settings.cluster)
        self._store = Store.of(settings)
        self._supervisor = TaskSupervisor(self._counted.task_failures)
        self._certificates = certificates = settings.certificates()
        self.configs = WatchedConfigs(self._store, self._keys, tuple(EntityKind))
        self.config = BrokerConfig(settings, self.configs, self._settings_changed)
        storage = LogStorageClient(
            open_channel(settings.log_storage, certificates),
            timeout_s=STORAGE_TIMEOUT_S,
            seen=self._log_storage_seen,
            broker_config=lambda: self.config.values,
            config_went=self.config.went_with_logs,
        )
        appends = LeaderAppends(
            settings.log_storage,
            self._log_storage_seen,
            self._offline_logs_changed,
            self._damaged_logs_changed,
            supervisor=self._supervisor,
            certificates=certificates,
        )
        incarnation = uuid.uuid4().hex
        self._fencer = Fencer(storage, incarnation)
        self._isr_changes = IsrChanges(
            self._store,
            self._keys,
            settings.broker_id,
            broker_epoch=lambda: self.replica_manager.broker_epoch,
            supervisor=self._supervisor,
            metrics=self._counted,
        )
        self.replica_manager = ReplicaManager(
            settings.broker_id,
            _partition_settings(settings),
            storage,
            appends,
            self._fencer,
            self._isr_changes,
            incarnation=incarnation,
            tail_cache_bytes=settings.tail_cache_bytes,
            purgatory=Purgatory(
                max_produces=settings.queued_max_requests * MAX_REQUEST_WAITS, max_fetches=MAX_WAITING_FETCHES
            ),
            message_max_bytes=settings.message_max_bytes,
            cleanup_policy=settings.log_cleanup_policy,
            traffic=self._traffic,
            lease_confirmed=self._lease_confirmed,
            register_anew=self._register_anew,
            report_offline_logs=self._report_offline_logs,
            now_ms=_monotonic_ms,
            supervisor=self._supervisor,
        )
        self.fetch_handler = FetchHandler(
            self.replica_manager,
            self._counted,
            max_bytes=settings.fetch_max_bytes,
            responses_max_bytes=settings.fetch_responses_max_bytes,
            tracer=self._tracer,
            traced=traced,
        )
        self.authorization = authorization_of(settings, self.replica_manager)
        self._identification = Identification(settings, self.authorization)
        trusted = settings.internal_listener if len(settings.listeners) > 1 else ""
        admission = Admission(
            ConnectionRate(
                settings.connections_max_calls_per_second,
                settings.connections_busy_calls_per_second,
                loop_waited_s,
            ),
            settings.principals_max_calls_per_second,
            self._counted.refused_calls["rate"].inc,
        )
        self._throttling = Throttling(
            throttled=self._counted.throttled, refused=self._counted.refused_calls["quota"].inc
        )
        charged = RequestCharges(self._throttling)
        measured_calls = MeasuredCalls(self._counted.requests, MEASURED_BY_PHASE)
        self.servers = ListenerServers(
            settings.listeners,
            settings.advertised_listeners,
            settings.health_listen,
            _limits_of_clients(settings),
            trusted=trusted,
            credentials=_credentials(settings, certificates),
            interceptors=lambda name: [
                *self._identification.interceptors(name),
                peers_shares() if name == trusted else _shares_of_clients(settings, self._counted),
                measured_calls,
                *(() if name == trusted else (charged, admission)),
            ],
        )
        self.liveness = Liveness(
            self.replica_manager,
            self._store,
            self._keys,
            listeners=lambda: self.servers.advertised,
            internal_listener=settings.internal_listener,
            internal_speaks_tls=settings.internal_listener in settings.tls_listeners,
            host_address=settings.host_address,
            rack=settings.rack,
            session_timeout_ms=settings.broker_session_timeout_ms,
            supervisor=self._supervisor,
            registered=self._registered,
            failed=self._fail,
        )
        self._purge = Purge(
            settings.broker_id,
            storage,
            self._store,
            self._keys,
            cluster_id=lambda: self.liveness.cluster_id,
            evict=self.replica_manager.evict_up_to,
        )
        self._strays = Strays(self._purge, self.replica_manager.hosted.keys(), _monotonic_ms)
        self.control = Control(
            self.replica_manager,
            self.liveness,
            self._purge,
            remained=self._strays.remained,
            supervisor=self._supervisor,
        )
        self._topic_creation = TopicCreation(
            self._store, self._keys, enabled=settings.auto_create_topics_enable, certificates=certificates
        )
        self._active_controller = ActiveControllerLookup(self._store, self._keys, certificates)
        self.group_coordinator = group_coordinator(
            settings, self.replica_manager, self._active_controller, self._metrics, self._supervisor
        )
        self._produce_handler = ProduceHandler(
            self.replica_manager,
            self._counted,
            max_requests=settings.queued_max_requests,
            max_bytes=settings.queued_max_request_bytes,
            tracer=self._tracer,
            traced=traced,
        )
        self.configs.view.subscribe(
            QuotaConfigs(settings.broker_id, self._throttling, self.replica_manager.replication_rates_changed),
            quota_configs.KINDS,
        )
        self.readiness = Readiness(settings.ready_max_wait_ms)
        self._readiness_report = ReadinessReport(
            self.readiness,
            broker_epoch=lambda: self.replica_manager.broker_epoch,
            ask=functools.partial(ask_standing, self._store, self._keys, settings.broker_id, certificates=certificates),
            say=self.servers.set_status,
            now_ms=_monotonic_ms,
        )

    @property
    def addresses(self) -> dict[str, str]:
        """The bound address of each listener."""
        return self.servers.addresses

    async def start(self) -> None:
        replica_manager, settings = self.replica_manager, self._settings
        offsets, delete_records_handler = OffsetsHandler(replica_manager), DeleteRecordsHandler(replica_manager)
        producer_ids = ProducerIdAllocator(self._store, self._keys)
        forwarding = Forwarding(self._active_controller)
        internal = settings.internal_listener
        for name in settings.listeners:
            server = self.servers[name].grpc
            unread = UnreadResponses(
                settings.fetch_response_timeout_ms / 1000,
                self._counted.unread_responses.inc,
                functools.partial(self.servers.port, name),
            )
            BrokerServicer(
                replica_manager,
                self._produce_handler,
                self.fetch_handler,
                offsets,
                delete_records_handler,
                producer_ids,
                self._topic_creation,
                cluster_id=lambda: self.liveness.cluster_id,
                listener=Listener(name, internal),
                unread=unread,
                authorization=self.authorization,
                replicas=self._identification.replicas(name),
                throttling=self._throttling,
            ).add_to(server)
            forwarder = ControllerForwarder(
                forwarding,
                functools.partial(replica_manager.metadata.reached_by, name),
                self.authorization,
                self._throttling,
                replica_manager.metadata.partition_count,
            )
            controller_pb2_grpc.add_ControllerServicer_to_server(forwarder, server)
            GroupServicer(
                self.group_coordinator, Listener(name, internal), self.authorization, self._throttling
            ).add_to(server)
        ReplicaControlServicer(replica_manager, self.control, self.config).add_to(self.servers[internal].grpc)
        self._count()
        self._supervisor.run_forever("loop-delay", LoopDelay(self._metrics).watch)
        await self._readiness_report.report()  # the health name is there from the first moment on
        await self.servers.start(dict.fromkeys(settings.listeners, CLIENT_SERVICES) | {internal: INTERNAL_SERVICES})
        self._metrics.publish(settings, f"replica-manager-{settings.broker_id}")
        # RULES 1.2: before any instruction is taken. It waits for etcd, perhaps for long; the port is open.
        self.control.controller_epoch = await self._controller_epoch()
        self._supervisor.run_forever("configurations", self.configs.follow)
        await self.config.read()  # what is set while the broker runs counts for its first instruction already
        replica_manager.appends.start()
        self.group_coordinator.start()
        self.liveness.start()
        supervisor = self._supervisor
        # What only reads, reports or cleans up is begun anew. The watch reads everything again.
        supervisor.run_forever("watch-brokers", self._watch_brokers)
        if self.authorization is not None:
            acl_watch = AclWatch(self._store, self._keys, self.authorization)
            self._counted.unreadable_acls.set_function(lambda: float(len(acl_watch.unreadable)))
            supervisor.run_forever("watch-acls", acl_watch.run)
        checkpoint_s = settings.replica_high_watermark_checkpoint_interval_ms / 1000
        supervisor.run_every(
            "checkpoint", checkpoint_s, replica_manager.checkpoint_high_watermarks, expected=(StorageUnavailableError,)
        )
        supervisor.run_every("log-storage-config", RETRY_S, self._tell_log_storage, expected=(StorageUnavailableError,))
        supervisor.run_every("readiness", RETRY_S, self._readiness_report.report)
        supervisor.run_every("ask-readiness", RETRY_S, self._readiness_report.ask)
        supervisor.run_every("mend-logs", MEND_S, self._mend_logs)
        supervisor.run_every("strays", STRAYS_S, self._strays.tick, expected=(StoreError, StorageUnavailableError))
        # The tick moves the partitions' state: where it raises, an invariant of one is broken, and what it holds in
        # memory is not to be gone by any more. The process ends; the next begins with etcd, the fences and the logs.
        supervisor.run_once("tick", self._tick, self._fail)

    def _count(self) -> None:
        replica_manager, counted, budget = self.replica_manager, self._counted, self.fetch_handler.budget
        counted.partitions.set_function(lambda: len(replica_manager.hosted))
        export_partitions(counted, lambda: (each.partition for each in politely(list(replica_manager.hosted.values()))))
        export_traffic(self._metrics, self._traffic)
        export_throttles(self._metrics, self._throttling.callers.values, replica_manager.held_back_by_topic)
        counted.state.set_function(self._broker_state)
        counted.ready.set_function(lambda: self.readiness.ready)
        counted.out_of_sync.set_function(lambda: self.readiness.out_of_sync)
        counted.delayed_produces.set_function(lambda: len(replica_manager.purgatory.produces))
        counted.waiting_fetches.set_function(lambda: replica_manager.purgatory.fetches)
        counted.fetch_response_bytes["replicas"].set_function(lambda: budget.replicas.held_bytes)
        counted.fetch_response_bytes["consumers"].set_function(lambda: budget.consumers.held_bytes)

    def _broker_state(self) -> BrokerState:
        registered = self.replica_manager.broker_epoch is not None
        return broker_state(self._stage, registered=registered, logs_opening=self.liveness.logs_opening)

    async def controlled_shutdown(self) -> None:
        """Leaderships move, and the ISRs let go; then `stop`."""
        self._stage = Stage.LEAVING
        self.readiness.stopping()
        await self._readiness_report.report()
        await await_release(
            self._store,
            self._keys,
            self.replica_manager,
            self.liveness,
            max_wait_ms=self._settings.controlled_shutdown_max_wait_ms,
            certificates=self._certificates,
        )

    async def stop(self, *, deregister: bool = True) -> None:
        """Without `deregister` the registration is left to its lease, as a killed process leaves it."""
        self._stage = Stage.STOPPING
        await self.servers.set_serving(False)
        await self.liveness.stop(deregister=deregister)
        self.replica_manager.registration_lost()  # what waits is answered
        self.group_coordinator.stop()
        await self._supervisor.stop()
        await self.servers.stop()
        await self._produce_handler.close()
        await self._topic_creation.stop()
        await self._active_controller.close()
        await self._isr_changes.stop()
        await self._fencer.stop()
        await self.replica_manager.offline_logs.stop()
        await self.replica_manager.damaged_logs.stop()
        await self.replica_manager.appends.stop()
        await self.replica_manager.storage.close()
        await self._store.close()
        self._metrics.close()
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.close)

    def _fail(self, error: BaseException) -> None:
        """Ends the process, with the reason."""
        if not self.failed.done():
            self.failed.set_exception(error)

    # log-storage, the replicas and the registration hear of one another: by the time of a call each of them is there.

    def _log_storage_seen(self, incarnation: str) -> None:
        self.liveness.log_storage_seen(incarnation)

    def _offline_logs_changed(self, count: int) -> None:
        self.replica_manager.offline_logs.count_changed(count)

    def _damaged_logs_changed(self, count: int) -> None:
        self.replica_manager.damaged_logs.count_changed(count)

    def _lease_confirmed(self) -> bool:
        return self.liveness.lease_confirmed()

    def _register_anew(self) -> None:
        self.liveness.register_anew()

    def _report_offline_logs(self) -> None:
        self.liveness.report_offline_logs()

    async def _mend_logs(self) -> None:
        async for _ in by_turns(self.replica_manager.damaged_logs.look()):
            pass

    def _registered(self) -> None:
        identify(broker_epoch=self.replica_manager.broker_epoch)
        self._strays.registered()
        self._supervisor.run_once("serve", lambda: self.servers.set_serving(True), self._fail)

    async def _controller_epoch(self) -> int:
        while True:
            try:
                return await read_controller_epoch(self._store, self._keys)
            except StoreError as error:
                logger.warning("waiting for etcd: %s", error)
                await asyncio.sleep(RETRY_S)

    async def _watch_brokers(self) -> None:
        async with contextlib.aclosing(watch_brokers(self._store, self._keys)) as updates:
            async for brokers in updates:
                self.replica_manager.brokers_changed(brokers)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(min(self.config.settings.replica_lag_time_max_ms / 2, MAX_TICK_MS) / 1000)
            self.replica_manager.tick()

    def _settings_changed(self, settings: ReplicaManagerSettings) -> None:
        """Other settings count from now on."""
        self.replica_manager.settings_changed(
            _partition_settings(settings),
            message_max_bytes=settings.message_max_bytes,
            cleanup_policy=settings.log_cleanup_policy,
            tail_cache_bytes=settings.tail_cache_bytes,
        )
        self.replica_manager.purgatory.produces.limit = settings.queued_max_requests * MAX_REQUEST_WAITS
        self._produce_handler.room.resize(settings.queued_max_requests, settings.queued_max_request_bytes)
        self.fetch_handler.resize(settings.fetch_max_bytes, settings.fetch_responses_max_bytes)
        self._topic_creation.enabled = settings.auto_create_topics_enable

    async def _tell_log_storage(self) -> None:
        replica_manager = self.replica_manager
        if replica_manager.broker_epoch is not None:  # else log-storage may be opening its logs, and takes nothing
            await self.config.tell_log_storage(replica_manager.storage, replica_manager.log_storage_incarnation)


def _partition_settings(settings: ReplicaManagerSettings) -> PartitionSettings:
    return PartitionSettings(
        replica_lag_time_max_ms=settings.replica_lag_time_max_ms, min_insync_replicas=settings.min_insync_replicas
    )


def _limits_of_clients(settings: ReplicaManagerSettings) -> ServerLimits:
    """Those of each listener that clients use; what connects to them leaves the broker's own work its descriptors."""
    listeners = max(1, len(settings.listeners) - 1)
    return ServerLimits(
        settings.socket_request_max_bytes,
        settings.max_open_calls,
        min(settings.max_connections, connections_within(open_files_allowed(), listeners)),
        settings.connections_max_idle_ms,
        MAX_SILENT_MS,
    )


def _shares_of_clients(settings: ReplicaManagerSettings, counted: ReplicaManagerMetrics) -> CallShares:
    """Of a listener that clients use."""
    most = settings.max_open_calls
    return CallShares(most, settings.principals_max_open_calls or part_of_one(most), counted.refused_calls["open"].inc)


def _credentials(
    settings: ReplicaManagerSettings, certificates: Certificates | None
) -> dict[str, grpc.ServerCredentials]:
    """Those of the listeners that speak TLS."""
    found = {
        name: server_credentials(certificates, require=settings.requires_certificates(name))
        for name in settings.tls_listeners
    }
    return {name: credentials for name, credentials in found.items() if credentials is not None}


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000

"""A controller's process: it stands for election, acts while it is elected, and answers either way."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable, Mapping

from highwater.configuration.entities import CLUSTER, ConfigEntity, EntityKind
from highwater.controller.administration.absent_topics import AbsentTopics
from highwater.controller.administration.acl_administration import AclAdministration
from highwater.controller.administration.administration import Administration
from highwater.controller.administration.entity_configuration import StaticValue
from highwater.controller.administration.servicer import ControllerServicer
from highwater.controller.settings import ControllerSettings
from highwater.controller.state_machines.cluster import Cluster
from highwater.controller.state_machines.election import ElectionPolicy
from highwater.controller.state_machines.partition_state_machine import PartitionStateMachine
from highwater.controller.term.active_controller import ActiveController, Rebalancing
from highwater.controller.term.election_metrics import ElectionMetrics
from highwater.metadata.leases.controller_election import ControllerElection
from highwater.metadata.schema.config_view import overlaid
from highwater.metadata.schema.controller_term import ControllerTerm
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import NO_LEADER, ControllerRegistration
from highwater.metadata.schema.reading import CorruptMetadataError
from highwater.metadata.state.cluster_id import ensure_cluster_id
from highwater.metadata.state.dynamic_configs import WatchedConfigs
from highwater.metadata.state.isr_notifications import QUIET_MS
from highwater.metadata.state.unreadable_entries import UnreadableEntries
from highwater.metadata.store.etcd_errors import ControllerDeposed, StoreError
from highwater.metadata.store.etcd_version import known_flaws
from highwater.metadata.store.store import Store
from highwater.rpc.connections.tls import server_credentials
from highwater.rpc.dynamic_settings import static_settings, with_dynamic
from highwater.rpc.measured_calls import MeasuredCalls
from highwater.rpc.server import PEERS, RpcServer
from highwater.security.call_shares import peers_shares
from highwater.supervision import TaskSupervisor
from highwater.telemetry.log import get_logger, identify, pairs
from highwater.telemetry.loop_delay import LoopDelay
from highwater.telemetry.metrics import Metrics
from highwater.telemetry.politely import politely
from highwater.telemetry.request_times import RequestMetrics
from highwater.v1 import controller_pb2_grpc

_log = get_logger(__name__)

SERVICE_NAME = "highwater.v1.Controller"
PAUSE_S = 1.0
UNREADABLE_PAUSE_S = 10.0
HEALTH_S = 0.2


class ControllerService:
    """`start`, then it serves until `stop`. An advertised port 0 stands for the port that was bound."""

    def __init__(self, settings: ControllerSettings, *, isr_quiet_ms: int = QUIET_MS) -> None:
        self.settings = settings
        self._isr_quiet_ms = isr_quiet_ms
        self.address = settings.advertised_listener
        self._keys = Keys(settings.cluster)
        self._store = Store.of(settings)
        self._absent_topics = AbsentTopics(self._store, self._keys)
        self._acls = AclAdministration(self._store, self._keys)
        self._unreadable = UnreadableEntries()
        self.configs = WatchedConfigs(self._store, self._keys, tuple(EntityKind))
        self.current_settings = settings
        """With what etcd has for the cluster in place of what this controller was started with."""
        self._static = [
            StaticValue(each.key, each.value, each.is_default) for each in static_settings(settings, "controller")
        ]
        self._certificates = settings.certificates()
        self._metrics = Metrics("controller")
        self._server = RpcServer(
            settings.listen,
            health_listen=settings.health_listen,
            interceptors=[peers_shares(), *settings.guard(), MeasuredCalls(RequestMetrics(self._metrics))],
            limits=PEERS,
            credentials=server_credentials(self._certificates, require=settings.requires_certificates),
        )
        self._election: ControllerElection | None = None
        self._active_controller: ActiveController | None = None
        self._cluster_id = ""
        self._cluster_id_asked = False  # and answered: with one, or with none that can be read
        self._serving = True
        self._started_s = time.monotonic()
        self._elections = ElectionMetrics(self._metrics)
        failures = self._metrics.counter("task_failures", "Long-lived tasks that failed", ("task",))
        self._supervisor = TaskSupervisor(failures)

    @property
    def active_controller(self) -> ActiveController | None:
        """The term in office; None while this controller does not act."""
        return self._active_controller

    async def start(self) -> None:
        """Raises `AddressInUseError`. etcd may come later."""
        servicer = ControllerServicer(self._administration, self._cluster, self._acting, lambda: self._cluster_id)
        controller_pb2_grpc.add_ControllerServicer_to_server(servicer, self._server.grpc)
        await self._server.start([SERVICE_NAME])
        if self.address.endswith(":0"):
            self.address = self._server.addresses[0]
        self._export_metrics()
        self._election = ControllerElection(
            self._store,
            self._keys,
            controller_id=self.settings.controller_id,
            address=self.address,
            incarnation=uuid.uuid4().hex,
            session_timeout_ms=self.settings.controller_session_timeout_ms,
        )
        election = self._election
        # Begun anew, not the end of the process: a candidate holds nothing that a fresh process would not read as well,
        # and what fails here (etcd's contents, etcd itself) another process would meet again.
        self.configs.view.subscribe(self, [EntityKind.CLUSTER])
        self._supervisor.run_forever("configurations", self.configs.follow)
        self._supervisor.run_forever("terms", lambda: self._serve_terms(election))
        self._supervisor.run_forever("loop-delay", LoopDelay(self._metrics).watch)
        self._supervisor.run_forever("absent topics", self._absent_topics.answer)
        self._supervisor.run_every("health", HEALTH_S, lambda: self._report_health(election))
        await self._server.set_serving(True)

    async def stop(self) -> None:
        """Resigns, so that another controller acts at once."""
        await self._supervisor.stop()
        await self._server.stop()
        await self._store.close()
        self._metrics.close()

    async def _serve_terms(self, election: ControllerElection) -> None:
        await self._await_cluster_id()
        await self.configs.listed()
        await self._warn_of_flawed_etcd()
        while True:
            term = await election.campaign()
            try:
                await self._serve_term(election, term)
            except ControllerDeposed as error:
                _log.warning("deposed %s", pairs(epoch=term.controller_epoch, reason=error))
            except Exception:
                # Another controller, or this one after a pause, lists everything anew.
                _log.error("the term ends by a fault %s", pairs(epoch=term.controller_epoch))
                raise
            finally:
                self._active_controller = None
                identify(controller_epoch=None)
                await election.resign()

    async def _serve_term(self, election: ControllerElection, term: ControllerTerm) -> None:
        identify(controller_epoch=term.controller_epoch)
        running = asyncio.create_task(self._act(term))
        losing = asyncio.create_task(election.lost())
        try:
            await asyncio.wait((running, losing), return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                if self._active_controller is None:
                    return
                self._active_controller.depose("its lease has ended")
            await running
        finally:
            for task in (running, losing):
                task.cancel()
            await asyncio.gather(running, losing, return_exceptions=True)

    async def _act(self, term: ControllerTerm) -> None:
        """The controller before may have answered that a setting is changed which this one's watch has not told of: no
        election goes by the one of before."""
        await self.configs.caught_up(CLUSTER)
        settings = self.current_settings
        active_controller = ActiveController(
            self._store,
            self._keys,
            term,
            _policy(settings),
            address=self.address,
            clock_ms=lambda: time.monotonic_ns() // 1_000_000,
            rebalancing=_rebalancing(settings),
            unreadable=self._unreadable,
            isr_quiet_ms=self._isr_quiet_ms,
            certificates=self._certificates,
            elections=self._elections,
        )
        self._active_controller = active_controller
        await active_controller.run()

    def on_change(self, entity: ConfigEntity, config: Mapping[str, str]) -> None:
        """The cluster's configuration is another (`ConfigListener`)."""
        counts = overlaid(self.configs.view, (CLUSTER,))  # where some of it cannot be read, not only what is left
        self.current_settings = with_dynamic(self.settings, counts)
        _log.info("the cluster's configuration %s", pairs(**counts))
        if self._active_controller is not None:
            self._active_controller.defaults_changed(
                _policy(self.current_settings), _rebalancing(self.current_settings)
            )

    async def _report_health(self, election: ControllerElection) -> None:
        """NOT_SERVING while it could not take over: etcd has not let it stand for election for a session's time-out."""
        patience_s = self.settings.controller_session_timeout_ms / 1000
        serving = election.stands and (self._cluster_id_asked or time.monotonic() - self._started_s < patience_s)
        if serving != self._serving:
            self._serving = serving
            _log.warning("health %s", pairs(serving=self._serving))
            await self._server.set_serving(self._serving)

    async def _await_cluster_id(self) -> None:
        """Waits for an answer. Where the id cannot be read a controller acts all the same, and goes on asking."""
        while not self._cluster_id_asked:
            try:
                await self._read_cluster_id()
            except CorruptMetadataError as error:
                _log.error("%s; everything else is served", error)
                self._cluster_id_asked = True
                self._supervisor.run_every(
                    "cluster id", UNREADABLE_PAUSE_S, self._read_cluster_id, expected=(StoreError,)
                )
            except StoreError as error:
                _log.warning("waiting for etcd: %s", error)
                await asyncio.sleep(PAUSE_S)

    async def _read_cluster_id(self) -> None:
        if not self._cluster_id:
            self._cluster_id = await ensure_cluster_id(self._store, self._keys, str(uuid.uuid4()))
            self._cluster_id_asked = True

    async def _warn_of_flawed_etcd(self) -> None:
        with contextlib.suppress(StoreError):  # etcd may not allow us to ask
            if flaws := known_flaws(await self._store.version()):
                _log.warning("%s", flaws)

    # What the servicer asks

    def _administration(self) -> Administration | None:
        active_controller = self._active_controller
        if active_controller is None or not active_controller.loaded or active_controller.ended:
            return None
        return Administration(
            active_controller,
            self._store,
            self._keys,
            self.current_settings,
            self._absent_topics,
            self._acls,
            self.configs,
            self._static,
        )

    def _cluster(self) -> Cluster | None:
        active_controller = self._active_controller
        return None if active_controller is None or not active_controller.loaded else active_controller.cluster

    def _acting(self) -> ControllerRegistration | None:
        return None if self._election is None else self._election.acting

    def _export_metrics(self) -> None:
        def gauge(what: str, documentation: str, value: Callable[[Cluster], int]) -> None:
            def read() -> float:
                cluster = self._cluster()
                return 0.0 if cluster is None else float(value(cluster))

            self._metrics.gauge(what, documentation).set_function(read)

        gauge("active", "1 while this controller acts.", lambda cluster: 1)
        gauge("live_brokers", "Registered brokers.", lambda cluster: len(cluster.brokers))
        gauge("partitions", "Partitions of all topics.", lambda cluster: len(cluster.topics.partitions()))

        def counted(counts: Callable[[PartitionStateMachine], bool]) -> Callable[[Cluster], int]:
            return lambda cluster: sum(1 for each in politely(cluster.topics.partitions()) if counts(each))

        gauge("topics", "Topics, those that are being deleted too.", lambda cluster: len(list(cluster.topics)))
        gauge("offline_partitions", "Partitions without a leader.", counted(lambda each: each.leader == NO_LEADER))
        gauge(
            "preferred_leader_imbalance",
            "Partitions that another broker leads than their preferred leader.",
            counted(lambda each: each.leader != each.replicas[0]),
        )
        gauge(
            "under_replicated_partitions",
            "Partitions with fewer in-sync than assigned replicas.",
            counted(lambda each: each.under_replicated),
        )
        unreadable = "Entries of etcd that cannot be read, and are left out; the log names them."
        self._metrics.gauge("unreadable_entries", unreadable).set_function(
            lambda: float(len(self._unreadable) + self.configs.unreadable)
        )
        self._metrics.publish(self.settings, f"controller-{self.settings.controller_id}")


def _policy(settings: ControllerSettings) -> ElectionPolicy:
    return ElectionPolicy(settings.min_insync_replicas, settings.unclean_leader_election_enable)


def _rebalancing(settings: ControllerSettings) -> Rebalancing | None:
    """None: leaderships are moved on demand alone."""
    if not settings.auto_leader_rebalance_enable:
        return None
    return Rebalancing(
        settings.leader_imbalance_check_interval_seconds, settings.leader_imbalance_per_broker_percentage
    )

"""The processes of a whole cluster on one machine, under one supervisor: etcd, a controller, and for each broker its
log-storage, replica-manager and fetcher. The same programs as in production; only the addresses are local.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from highwater.cli.child_process import ChildProcess
from highwater.cli.fork_server.forked_process import ForkServer, forks_here
from highwater.cli.local_authority import CLIENT, LocalAuthority
from highwater.controller.settings import ControllerSettings
from highwater.errors import UserError
from highwater.fetcher.settings import FetcherSettings
from highwater.log_storage.settings import LogStorageSettings
from highwater.metadata.local import etcd_command, etcd_healthy
from highwater.metadata.store.tls import TlsSettings
from highwater.replica_manager.settings import ReplicaManagerSettings
from highwater.rpc.connections.tls import Certificates, TlsFiles
from highwater.rpc.listeners import parse_listeners, with_tls, without_tls
from highwater.rpc.process.local_process import free_ports
from highwater.rpc.settings import ServiceSettings, field_name, load
from highwater.v1.controller_pb2 import DescribeClusterRequest
from highwater.v1.controller_pb2_grpc import ControllerStub

CLUSTER = "highwater"  # the default name of every service
DEFAULT_PORT = 9092
SERVICES = ("log-storage", "replica-manager", "fetcher")
OWN_SETTINGS = frozenset(
    {
        "advertised_listener",
        "advertised_listeners",
        "broker_id",
        "cluster",
        "controller_id",
        "etcd",
        "etcd_ca_file",
        "etcd_certificate_file",
        "etcd_key_file",
        "health_listen",
        "host_address",
        "inter_broker_listener_name",
        "listen",
        "listener_security_protocol_map",
        "listeners",
        "log_dir",
        "log_dirs",
        "log_storage",
        "metrics_listen",
        "replica_manager",
        "ssl_ca_file",
        "ssl_certificate_file",
        "ssl_client_auth",
        "ssl_key_file",
    }
)
"""Of the services' settings those that differ from process to process."""
CLIENT_LISTENER = "CLIENT"
INTERNAL_LISTENER = "INTERNAL"
_SECURE_LISTENERS = f"{CLIENT_LISTENER}:SSL,{INTERNAL_LISTENER}:SSL"
_REQUIRED_OF_CLIENTS: dict[bool, dict[str, str]] = {True: {"ssl.client.auth": "required"}, False: {}}
_RESTART_BACKOFF_S = 0.5
PROGRAMS = {
    f"highwater.{package}": f"highwater.{package}.process"
    for package in ("log_storage", "replica_manager", "fetcher", "controller")
}
"""The module of each service, by that which `python -m` runs."""
_SOCKETS_PREFIX = "highwater-"


@dataclass(frozen=True)
class LocalClusterSettings:
    data: Path
    brokers: int = 3
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    """Of the first broker; the others follow. 0: free ports."""
    settings: dict[str, str] = field(default_factory=dict)
    """For every service that knows the key, under Kafka's names."""
    controllers: int = 1
    """One acts, the others wait to take over."""
    tcp_only: bool = False
    """No Unix sockets: each of a broker's three processes at a `host:port`, as if on a host of its own."""
    tcp_between_brokers: bool = False
    """Unix sockets within a broker only, as if each were on a host of its own."""
    log_dirs: int = 1
    """Of each broker: `broker-<n>`, and where there are more `broker-<n>/logs-<m>`."""
    secure: bool = False
    """Mutual TLS at every port, etcd's too, by certificates that it makes in `security/`; Unix sockets within a broker
    only."""
    metrics_port: int | None = 0
    """Of the first process that serves metrics; the others follow. 0: free ports. None: none serves them."""


class LocalCluster:
    """Start, stop, kill and restart the processes of a laptop's cluster.

    Used from the main thread. `data` holds `etcd/`, `broker-<n>/`, `logs/` and `cluster.json`, a secure one's also
    `security/`; the Unix sockets are in a short temporary directory, since a socket's path may have 100 characters
    only.
    """

    def __init__(self, settings: LocalClusterSettings) -> None:
        self.settings = settings
        self.processes: dict[str, ChildProcess] = {}
        self.bootstrap = ""
        """The brokers' client listeners."""
        self.etcd = ""
        self.addresses: dict[str, str] = {}
        """Of each service's process by its name, as its peers use it: of a replica-manager the internal listener."""
        self.metrics_addresses: dict[str, str] = {}
        """The `host:port` of each process that serves metrics, by its name."""
        self._client_addresses: list[str] = []  # by broker
        self._held: set[str] = set()
        self._restart_at: dict[str, float] = {}
        self._lock: IO[str] | None = None
        self._sockets: Path | None = None
        self._free_ports: list[int] = []
        # Where it is secure; etcd has an authority of its own, since one that runs takes up no other.
        self._authority: LocalAuthority | None = None
        self._etcd_authority: LocalAuthority | None = None
        self._metrics_ports: list[int] = []
        self._cancelled: Callable[[], bool] = lambda: False
        self._fork_server: ForkServer | None = None

    def start(
        self,
        ready_timeout_s: float = 60.0,
        progress: Callable[[str], None] = lambda _: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """Starts everything and returns when every broker is registered and serves; where `cancelled` says so, it
        stops what it started and raises `KeyboardInterrupt`.

        Raises `UserError` for what the user can mend: data in use, a taken port, no etcd, a process that does not
        start."""
        self._cancelled = cancelled
        self._take_data_directory()
        try:
            self._start(ready_timeout_s, progress)
        except BaseException:
            self.kill()
            raise

    def _take_data_directory(self) -> None:
        data = self.settings.data
        try:
            data.mkdir(parents=True, exist_ok=True)
            self._lock = (data / ".lock").open("a+")
        except OSError as error:
            raise UserError(f"cannot use the data directory {data}: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            self._lock = None
            raise UserError(
                f"the data directory {data} is in use by another cluster: stop it, or give --data DIR"
            ) from None

    def _take_socket_directory(self, lock: IO[str]) -> None:
        """A new one, whose path stands in the lock file; that of a run that was killed goes."""
        lock.seek(0)
        left = Path(lock.read())
        if left.name.startswith(_SOCKETS_PREFIX) and left.parent == Path(tempfile.gettempdir()):
            shutil.rmtree(left, ignore_errors=True)
        self._sockets = Path(tempfile.mkdtemp(prefix=_SOCKETS_PREFIX))
        lock.truncate(0)
        lock.write(str(self._sockets))
        lock.flush()

    def _start(self, ready_timeout_s: float, progress: Callable[[str], None]) -> None:
        deadline = time.monotonic() + ready_timeout_s
        assert self._lock is not None
        self._take_socket_directory(self._lock)
        if forks_here():
            # First of all: it imports while etcd starts.
            self._fork_server = ForkServer(PROGRAMS, self.settings.data / "logs" / "fork-server.log")
        host, wanted = self.settings.host, self.settings
        etcd_host = self._host("etcd")
        ports = self._broker_ports()
        if wanted.secure:
            self._authority = LocalAuthority(self.security)
            self._etcd_authority = LocalAuthority(self.security / "etcd")
            self._etcd_authority.issue(CLIENT, _names_of(wanted.host))
            self._issue(CLIENT, wanted.host)
        inner = len(SERVICES) if wanted.tcp_only else int(self._tcp_between_brokers)
        measured = wanted.controllers + len(SERVICES) * wanted.brokers
        own = 2 + wanted.controllers + inner * wanted.brokers
        self._metrics_ports = self._wanted_metrics_ports(measured, ports)
        self._free_ports = free_ports(own, host, besides={*ports, *self._metrics_ports})
        etcd_client, etcd_peer = self._free_ports.pop(), self._free_ports.pop()
        self.etcd = f"{etcd_host}:{etcd_client}"
        etcd_tls = None if self._etcd_authority is None else self._etcd_authority.issue("etcd", _names_of(etcd_host))
        self._add("etcd", etcd_command(self.settings.data / "etcd", etcd_client, etcd_peer, etcd_host, tls=etcd_tls))
        self._client_addresses = []  # none of a start before this
        # All settings are checked before anything starts.
        for controller in range(wanted.controllers):
            self._add_controller(controller)
        for broker, port in enumerate(ports, start=1):
            self._add_broker(broker, port)
        self._start_process("etcd")
        progress("etcd")
        self._await("etcd", lambda: etcd_healthy(self.etcd, tls=etcd_tls), deadline, ["etcd"])
        if self._fork_server is not None:
            server = self._fork_server
            self._await("services' programs", lambda: server.ready, deadline, ["etcd"])
        for controller in range(wanted.controllers):
            self._start_process(controller_name(controller))
        for broker in range(1, len(ports) + 1):
            self.start_broker(broker)
        progress("brokers")
        self.bootstrap = ",".join(self._client_addresses)
        if self._authority is not None:
            self._authority.write_environment(self.bootstrap)
        self._await("brokers", self._all_serve, deadline, list(self.processes))
        (self.settings.data / "cluster.json").write_text(
            json.dumps(
                {
                    "bootstrap": self.bootstrap,
                    "internal_bootstrap": self.internal_bootstrap,
                    "metrics": self.metrics_addresses,
                    "pids": {name: process.pid for name, process in self.processes.items()},
                },
                indent=1,
            )
        )
        if self.metrics_addresses:
            self.metrics_file.write_text(
                json.dumps([_target(*item) for item in self.metrics_addresses.items()], indent=1)
            )

    @property
    def metrics_file(self) -> Path:
        """The list of the processes that serve metrics, for Prometheus's `file_sd_configs`."""
        return self.settings.data / "metrics.json"

    @property
    def internal_bootstrap(self) -> str:
        """The brokers' internal listeners: where what only an operator may do is done."""
        return ",".join(self.addresses[f"replica-manager-{n}"] for n in range(1, self.settings.brokers + 1))

    @property
    def security(self) -> Path:
        """The directory of a secure cluster's authority and certificates."""
        return self.settings.data / "security"

    @property
    def client_environment(self) -> dict[str, str]:
        """The variables by which a client is let in."""
        return {} if self._authority is None else self._authority.client_environment()

    @property
    def etcd_tls(self) -> TlsSettings | None:
        """The certificate by which a client is let in by etcd; None where the cluster is not secure."""
        if self._etcd_authority is None:
            return None
        files = self._etcd_authority.files(CLIENT)
        return TlsSettings(files.ca_file, files.certificate_file, files.key_file)

    @property
    def _tcp_between_brokers(self) -> bool:
        return self.settings.tcp_between_brokers or self.settings.secure

    def _issue(self, name: str, host: str) -> TlsFiles | None:
        """None where the cluster is not secure."""
        return None if self._authority is None else self._authority.issue(name, _names_of(host))

    def _etcd_settings(self) -> dict[str, str]:
        tls = self.etcd_tls
        names = ("etcd.ca.file", "etcd.certificate.file", "etcd.key.file")
        return {} if tls is None else dict(zip(names, map(str, tls.files), strict=True))

    def _address(self, address: str) -> str:
        """The address as a service is told of it."""
        return with_tls(address) if self._authority is not None and not address.startswith("unix:") else address

    def _tls_settings(self, name: str, host: str) -> dict[str, str]:
        """The settings `ssl.…file` of a service whose certificate has this name; none where it is not secure."""
        files = self._issue(name, host)
        names = ("ssl.ca.file", "ssl.certificate.file", "ssl.key.file")
        return {} if files is None else dict(zip(names, map(str, files.files), strict=True))

    def channel(self, address: str) -> grpc.Channel:
        """To a process of this cluster, at `host:port`, for calls without an event loop."""
        if self._authority is None:
            return grpc.insecure_channel(address)
        return grpc.secure_channel(address, Certificates(self._authority.files(CLIENT)).credentials())

    def _broker_ports(self) -> list[int]:
        host, first, count = self.settings.host, self.settings.port, self.settings.brokers
        if first == 0:
            return free_ports(count, host)
        ports = list(range(first, first + count))
        if ports[-1] > 65535:
            raise UserError(f"{count} brokers from port {first} on need ports above 65535: choose a lower --port")
        for port in ports:
            if not _is_free(host, port):
                raise UserError(
                    f"port {port} is taken: stop what listens there, or choose others with --port (0: any free ones)"
                )
        return ports

    def _wanted_metrics_ports(self, count: int, of_brokers: Collection[int]) -> list[int]:
        host, first = self.settings.host, self.settings.metrics_port
        if first is None:
            return []
        if first == 0:
            return free_ports(count, host, besides=of_brokers)
        ports = list(range(first, first + count))
        if ports[-1] > 65535:
            raise UserError(f"{count} processes from port {first} on need ports above 65535: choose a lower one")
        for port in ports:
            if port in of_brokers or not _is_free(host, port):
                raise UserError(f"port {port} is taken: choose other ones for metrics (0: any free ones)")
        return ports

    def _host(self, process: str) -> str:
        """The address of the machine that this process is on. Tests spread them over several."""
        return self.settings.host

    def _add_controller(self, controller: int) -> None:
        name = controller_name(controller)
        address = self._address(f"{self._host(name)}:{self._free_ports.pop()}")
        files = self._tls_settings(name, self._host(name))
        self._add_service(
            name,
            "controller",
            {
                "controller.id": str(controller),
                "listen": address,
                "advertised.listener": address,
                "etcd": self.etcd,
                **files,
                **self._etcd_settings(),
                **_REQUIRED_OF_CLIENTS[bool(files)],
            },
        )

    def _add_broker(self, broker: int, port: int) -> None:
        storage, fetcher = self._inner_address(f"{broker}-log-storage"), self._inner_address(f"{broker}-fetcher")
        host = self._host(f"replica-manager-{broker}")
        address, manager = f"{host}:{port}", self._inner_address(f"{broker}-replica-manager")
        if self._tcp_between_brokers and not self.settings.tcp_only:
            manager = f"{host}:{self._free_ports.pop()}"
        storage, fetcher = self._address(storage), self._address(fetcher)
        files = self._tls_settings(f"broker-{broker}", host)
        common = {"broker.id": str(broker), **files}
        listens_by_tls = _REQUIRED_OF_CLIENTS[bool(files) and self.settings.tcp_only]
        log_dirs = ",".join(map(str, self.log_dirs(broker)))
        self._add_service(
            f"log-storage-{broker}",
            "log_storage",
            {**common, **listens_by_tls, "listen": storage, "log.dirs": log_dirs},
        )
        self._add_service(
            f"replica-manager-{broker}",
            "replica_manager",
            {
                **common,
                "listeners": f"{CLIENT_LISTENER}://{address},{INTERNAL_LISTENER}://{manager}",
                "inter.broker.listener.name": INTERNAL_LISTENER,
                "etcd": self.etcd,
                "log.storage": storage,
                **self._etcd_settings(),
                **_REQUIRED_OF_CLIENTS[bool(files)],
                **({"listener.security.protocol.map": _SECURE_LISTENERS} if files else {}),
            },
        )
        self._add_service(
            f"fetcher-{broker}",
            "fetcher",
            {
                **common,
                **listens_by_tls,
                "listen": fetcher,
                "replica.manager": self._address(manager),
                "log.storage": storage,
            },
        )

    def _inner_address(self, name: str) -> str:
        """The address at which a broker's processes reach one another."""
        if self.settings.tcp_only:
            return f"{self.settings.host}:{self._free_ports.pop()}"
        return f"unix:{self._sockets}/{name}"

    def _add_service(self, name: str, package: str, settings: dict[str, str]) -> None:
        """Raises `UserError` for a setting with a value that the service would refuse."""
        if self._metrics_ports:
            self.metrics_addresses[name] = f"{self._host(name)}:{self._metrics_ports.pop(0)}"
            settings = {"metrics.listen": self.metrics_addresses[name], **settings}
        reports = {"csv.metrics.dir": str(self.settings.data / "metrics")}  # where a reporter writes them
        settings = {**reports, **self._identities(package), **self._common(package), **settings}
        load(service_settings(package), settings)
        if "listeners" in settings:
            listeners = parse_listeners(settings["listeners"])
            self.addresses[name] = listeners[INTERNAL_LISTENER]
            self._client_addresses.append(listeners[CLIENT_LISTENER])
        else:
            self.addresses[name] = without_tls(settings["listen"])
        self._add(
            name, [sys.executable, "-m", f"highwater.{package}", *(f"--set={k}={v}" for k, v in settings.items())]
        )

    def _identities(self, package: str) -> dict[str, str]:
        """By whose certificates services know each other, and who may everything; nothing where it is not secure."""
        if self._authority is None:
            return {}
        controllers = map(controller_name, range(self.settings.controllers))
        return {
            "broker.principal": "User:CN=broker-{id}",
            "controller.principals": ";".join(f"User:CN={name}" for name in controllers),
            "super.users": f"User:CN={CLIENT}",
            **({"authorizer.class.name": "acls"} if package == "replica_manager" else {}),
        }

    def _common(self, package: str) -> dict[str, str]:
        known = known_settings(package)
        return {key: value for key, value in self.settings.settings.items() if field_name(key) in known}

    def _add(self, name: str, command: list[str]) -> None:
        log_file = self.settings.data / "logs" / f"{name}.log"
        self.processes[name] = ChildProcess(name, command, log_file, self._fork_server)

    def _start_process(self, name: str) -> None:
        self._held.discard(name)
        self.processes[name].start()

    def _await(self, what: str, ready: Callable[[], bool], deadline: float, needed: Iterable[str]) -> None:
        while not ready():
            if self._cancelled():
                raise KeyboardInterrupt
            for name in needed:
                process = self.processes[name]
                if not process.running:
                    raise UserError(f"{name} did not start, see {process.log_file}: {process.last_words(1)}")
            if time.monotonic() > deadline:
                raise UserError(f"the {what} were not ready in time: see the files in {self.settings.data / 'logs'}")
            time.sleep(0.05)

    def _all_serve(self) -> bool:
        """Tells whether every broker serves and the controller knows all of them. A registration alone says little:
        after a kill -9 of everything those of before are still there until their leases end.

        Asked without an event loop: the caller may run, or have closed, loops of its own."""
        return all(map(self._serves, self.bootstrap.split(","))) and any(
            self._knows_all(controller) for controller in range(self.settings.controllers)
        )

    def _serves(self, address: str) -> bool:
        """Tells whether the replica-manager there is registered and takes requests."""
        try:
            with self.channel(address) as channel:
                answer = HealthStub(channel).Check(HealthCheckRequest(service="highwater.v1.Broker"), timeout=1)
        except grpc.RpcError:
            return False
        return bool(answer.status == HealthCheckResponse.SERVING)

    def _knows_all(self, controller: int) -> bool:
        try:
            with self.channel(self.addresses[controller_name(controller)]) as channel:
                found = ControllerStub(channel).DescribeCluster(DescribeClusterRequest(), timeout=1)
        except grpc.RpcError:
            return False
        return len(found.brokers) == self.settings.brokers

    # --- one broker

    def log_dirs(self, broker: int) -> list[Path]:
        directory = self.settings.data / f"broker-{broker}"
        if self.settings.log_dirs == 1:
            return [directory]
        return [directory / f"logs-{number}" for number in range(self.settings.log_dirs)]

    def broker_processes(self, broker: int) -> list[ChildProcess]:
        return [self.processes[f"{service}-{broker}"] for service in SERVICES]

    def start_broker(self, broker: int) -> None:
        for service in SERVICES:
            self._start_process(f"{service}-{broker}")

    def kill_broker(self, broker: int) -> None:
        """SIGKILL to all three processes of a broker; it stays down until `start_broker`."""
        for process in self.broker_processes(broker):
            self._held.add(process.name)
        for process in self.broker_processes(broker):
            process.kill()

    # --- all

    def restart_dead(self) -> list[str]:
        """Starts again what ended by itself, a while after it did; to be called every now and then. Returns the
        names of what it found dead."""
        now = time.monotonic()
        found = []
        for name, process in self.processes.items():
            if process.running or name in self._held:
                continue
            if name not in self._restart_at:
                self._restart_at[name] = now + _RESTART_BACKOFF_S
                found.append(name)
            elif now >= self._restart_at[name]:
                del self._restart_at[name]
                process.start()
        return found

    def stop(self, timeout_s: float = 15.0) -> None:
        """Stops in order: replica-managers (each a controlled shutdown of its own), then fetchers, log-storages, the
        controller, and etcd last. What does not end in time is killed."""
        deadline = time.monotonic() + timeout_s
        for prefix in ("replica-manager", "fetcher", "log-storage", "controller", "etcd"):
            group = [process for name, process in self.processes.items() if name.startswith(prefix)]
            for process in group:
                self._held.add(process.name)
                process.terminate()
            for process in group:
                if not process.wait(max(0.5, deadline - time.monotonic())):
                    process.kill()
        self._release()

    def kill(self) -> None:
        """SIGKILL to everything."""
        for process in self.processes.values():
            self._held.add(process.name)
            process.kill()
        self._release()

    def _release(self) -> None:
        if self._fork_server is not None:
            self._fork_server.close()
            self._fork_server = None
        (self.settings.data / "cluster.json").unlink(missing_ok=True)
        self.metrics_file.unlink(missing_ok=True)
        if self._sockets is not None:
            shutil.rmtree(self._sockets, ignore_errors=True)
            self._sockets = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _names_of(host: str) -> list[str]:
    """The names in the certificate of a process on this machine."""
    return sorted({host, "localhost", "127.0.0.1"})


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def _target(name: str, address: str) -> dict[str, Any]:
    """As `file_sd_configs` has it."""
    service, _, number = name.rpartition("-")
    labels = {"process": name, "service": service or name}
    if service in SERVICES:
        labels["broker"] = number
    return {"targets": [address], "labels": labels}


def controller_name(controller: int) -> str:
    """Of its process: `controller`, and where there are more, `controller-1`, ..."""
    return f"controller-{controller}" if controller else "controller"


def known_settings(package: str) -> set[str]:
    """The field names of a service's settings."""
    return set(service_settings(package).model_fields)


def service_settings(package: str) -> type[ServiceSettings]:
    """The class of the settings of `log_storage`, `replica_manager`, `fetcher` or `controller`."""
    services: dict[str, type[ServiceSettings]] = {
        "log_storage": LogStorageSettings,
        "replica_manager": ReplicaManagerSettings,
        "fetcher": FetcherSettings,
        "controller": ControllerSettings,
    }
    return services[package]

"""A cluster of real processes that speak mutual TLS at every port."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from time import monotonic

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from running_cluster import HIGHWATER, Deployment, deployment, running_cluster, traffic

from highwater.cli.local_authority import CLIENT, LocalAuthority
from highwater.cli.local_cluster import SERVICES, LocalCluster
from highwater.client import SslAuthenticationError
from highwater.client.blocking import Admin
from highwater.metadata.local import etcd_healthy
from highwater.rpc.connections.channel import open_channel
from highwater.rpc.connections.tls import LOOK_S, Certificates, TlsFiles

ASSIGNMENT = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
HOSTS = ("127.0.0.1", "localhost")
SETTINGS = {"broker.session.timeout.ms": "3000", "controller.session.timeout.ms": "2000"}


@pytest.fixture
def secure_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    with running_cluster(tmp_path, secure=True, tcp_only=True, settings=SETTINGS) as cluster:
        for variable, value in cluster.client_environment.items():  # of every client here
            monkeypatch.setenv(variable, value)
        yield cluster


@pytest.fixture
async def deployed(secure_cluster: LocalCluster) -> AsyncIterator[Deployment]:
    async with deployment(secure_cluster) as found:
        yield found


def client_files(cluster: LocalCluster) -> TlsFiles:
    return TlsFiles(*(cluster.security / name for name in ("ca.pem", f"{CLIENT}.pem", f"{CLIENT}.key")))


async def let_in(address: str, files: TlsFiles | None) -> bool:
    async with open_channel(address, None if files is None else Certificates(files)) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        try:
            answer = await check(health_pb2.HealthCheckRequest(service="live"), timeout=10)
        except grpc.aio.AioRpcError as error:
            return error.code() is not grpc.StatusCode.UNAVAILABLE
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def test_every_port_is_for_those_who_show_a_certificate(deployed: Deployment, tmp_path: Path) -> None:
    cluster = deployed.cluster
    ours = client_files(cluster)
    other = LocalAuthority(tmp_path / "other").issue(CLIENT, HOSTS)
    stranger = TlsFiles(ours.ca_file, other.certificate_file, other.key_file)
    addresses = [*cluster.addresses.values(), *cluster.bootstrap.split(",")]
    assert len(addresses) == 1 + 3 * (len(SERVICES) + 1)
    for address in addresses:
        assert await let_in(f"ssl:{address}", ours), address
        assert not await let_in(f"ssl:{address}", stranger), address
        assert not await let_in(f"ssl:{address}", TlsFiles(ours.ca_file)), address
        assert not await let_in(address, None), address
    assert etcd_healthy(cluster.etcd, tls=cluster.etcd_tls)
    assert not etcd_healthy(cluster.etcd)
    assert not etcd_healthy(cluster.etcd, tls=ours)  # etcd's authority is another one
    for file in cluster.security.rglob("*"):
        assert file.stat().st_mode & 0o077 == 0, file


async def test_a_broker_is_lost_and_comes_back(deployed: Deployment) -> None:
    await deployed.create_topic("spread", ASSIGNMENT)
    async with traffic(deployed.cluster.bootstrap, "spread", 3) as flow:
        deployed.cluster.kill_broker(1)
        await deployed.left_isr(1, "spread", [0, 1, 2])
        await flow.until_acked(50)
        deployed.cluster.start_broker(1)
        await deployed.healed("spread", 3)


def replace(cluster: LocalCluster, name: str, issued: TlsFiles) -> None:
    assert issued.certificate_file is not None
    assert issued.key_file is not None
    for source, kind in ((issued.certificate_file, "pem"), (issued.key_file, "key")):
        incoming = cluster.security / f"{name}.new"
        incoming.write_bytes(source.read_bytes())
        incoming.replace(cluster.security / f"{name}.{kind}")


def trust(cluster: LocalCluster, *authorities: bytes) -> None:
    incoming = cluster.security / "ca.new"
    incoming.write_bytes(b"".join(authorities))
    incoming.replace(cluster.security / "ca.pem")


async def test_leaves_and_authority_are_replaced_under_load(deployed: Deployment, tmp_path: Path) -> None:
    """No send fails and nothing is started again; then every process is shown to go by the new authority alone."""
    cluster = deployed.cluster
    await deployed.create_topic("rotated", ASSIGNMENT)
    former = client_files(cluster)
    kept = tmp_path / "kept"
    kept.mkdir()
    leavers = []
    for file in former.files:
        (kept / file.name).write_bytes(file.read_bytes())
        leavers.append(kept / file.name)
    old = leavers[0].read_bytes()
    authority = LocalAuthority(tmp_path / "next")
    new = (tmp_path / "next" / "ca.pem").read_bytes()
    pids = {name: process.pid for name, process in cluster.processes.items()}

    async with traffic(cluster.bootstrap, "rotated", 3) as flow:

        async def sent_for(seconds: float) -> None:
            until_s = monotonic() + seconds
            while monotonic() < until_s:
                await flow.until_acked(100)

        trust(cluster, old, new)
        await sent_for(LOOK_S + 1)
        for name in ("controller", "broker-1", "broker-2", "broker-3", CLIENT):
            replace(cluster, name, authority.issue(name, HOSTS))
        await sent_for(LOOK_S + 1)
        trust(cluster, new)
        await sent_for(LOOK_S + 1)
        assert {name: process.pid for name, process in cluster.processes.items()} == pids
        ours = client_files(cluster)
        for address in [*cluster.addresses.values(), *cluster.bootstrap.split(",")]:
            assert await let_in(f"ssl:{address}", ours), address
            assert not await let_in(f"ssl:{address}", TlsFiles(ours.ca_file, *leavers[1:])), address

        # The connections of before are gone with one process: those that go on connect to it anew, over channels that
        # they opened when they started (its replica-manager to a log-storage, its fetcher to a replica-manager), and
        # over others (the controller, the other brokers' fetchers and the producer).
        for name, broker in (("log-storage-2", 2), ("replica-manager-3", 3)):
            cluster.processes[name].kill()
            await deployed.replaced(broker, "rotated", 3)
            cluster.processes[name].start()
            await deployed.registered()
            await deployed.healed("rotated", 3)
            await deployed.preferred_lead("rotated", 3)
        await flow.until_acked(100)


@pytest.mark.long
async def test_tls_is_turned_on_broker_by_broker(tmp_path: Path) -> None:
    """Those that speak it already and those that do not yet work together."""
    files = LocalAuthority(tmp_path / "security").issue("broker", HOSTS)
    names = ("ssl.ca.file", "ssl.certificate.file", "ssl.key.file")
    settings = {**SETTINGS, **dict(zip(names, map(str, files.files), strict=True))}
    with running_cluster(tmp_path / "data", tcp_between_brokers=True, settings=settings) as cluster:
        async with deployment(cluster) as deployed:
            await deployed.create_topic("growing", ASSIGNMENT)
            async with traffic(cluster.bootstrap, "growing", 3) as flow:
                for broker in (1, 2, 3):
                    address = cluster.addresses[f"replica-manager-{broker}"]
                    cluster.kill_broker(broker)
                    manager = cluster.processes[f"replica-manager-{broker}"]
                    manager.command.append("--set=listener.security.protocol.map=INTERNAL:SSL")
                    cluster.processes[f"fetcher-{broker}"].command.append(f"--set=replica.manager=ssl:{address}")
                    await deployed.left_isr(broker, "growing", [0, 1, 2])
                    cluster.start_broker(broker)
                    await deployed.healed("growing", 3)
                    assert await let_in(f"ssl:{address}", files)
                    assert not await let_in(address, None)
                await flow.until_acked(100)


def test_a_newcomer_has_it_in_one_word(tmp_path: Path) -> None:
    command = [HIGHWATER, "up", "--secure", "--brokers", "1", "--data", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = next(line for line in process.stdout if "show a certificate" in line)
            bootstrap = json.loads((tmp_path / "cluster.json").read_text())["bootstrap"]
            shell = f"{said.split(': ', 1)[1].strip()}; {HIGHWATER} topics create t && {HIGHWATER} topics list"
            shell += f" && {HIGHWATER} acls add --allow-principal User:a --producer --topic t"  # ACLs count here
            environment = {name: value for name, value in os.environ.items() if not name.startswith("HIGHWATER_")}
            done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=False, env=environment)
            assert done.returncode == 0, done.stderr
            with pytest.raises(SslAuthenticationError, match="speaks TLS: set security_protocol"), Admin(bootstrap):
                pass
        finally:
            process.terminate()

"""Starts of etcd's members in Kubernetes, with real etcds: `python -m highwater.kube.etcd_member`."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme
from cryptography import x509
from etcd_pods import EtcdPods, Writer, new_network

from highwater.kube.etcd_member.volume import Held
from highwater.metadata.store.connections import TlsSettings

ALL = (0, 1, 2)


@pytest.fixture
async def pods(tmp_path: Path) -> AsyncIterator[EtcdPods]:
    async with EtcdPods(tmp_path) as made:
        yield made


@pytest.fixture
async def cluster(pods: EtcdPods) -> EtcdPods:
    """Three members at work, with one entry."""
    pods.start(*ALL)
    await pods.healthy(*ALL)
    async with pods.store() as store:
        await store.put("/before", b"1")
    return pods


async def entry(pods: EtcdPods, key: str = "/before") -> bytes | None:
    async with pods.store() as store:
        found = await store.get(key, timeout_s=10)
    return None if found is None else found.value


async def test_three_members_start_one_cluster(cluster: EtcdPods) -> None:
    assert sorted(member.name for member in await cluster.named()) == ["hw-etcd-0", "hw-etcd-1", "hw-etcd-2"]
    assert len({await cluster.cluster_id(n) for n in ALL}) == 1
    config = json.loads(cluster.config_path(0).read_text())
    assert config["initial-cluster-state"] == "new"


async def test_a_member_follows_into_the_cluster_that_the_others_have_begun(pods: EtcdPods) -> None:
    """They knew that it is prepared, and are a majority before it has looked again."""
    for ordinal, held in enumerate([Held.AGREED, Held.AGREED, Held.PREPARED]):
        pods.volume(ordinal).write(held, pods.peer_url(ordinal))
    pods.start(0, 1)
    await pods.healthy(0, 1)
    ids = {member.id for member in await pods.named(0, 1)}
    pods.start(2)
    await pods.healthy(*ALL)
    assert {member.id for member in await pods.named()} == ids
    assert "removing" not in pods.log(2)
    assert json.loads(pods.config_path(2).read_text())["initial-cluster-state"] == "new"


async def test_a_lone_member_starts_alone(pods: EtcdPods) -> None:
    pods.members = 1
    pods.start(0)
    await pods.healthy(0)
    assert len(await pods.named()) == 1


async def test_nobody_starts_before_the_last_member_has_spoken(pods: EtcdPods) -> None:
    pods.start(0, 1)
    await pods.until(lambda: all("waiting: hw-etcd-2 does not answer" in pods.log(n) for n in (0, 1)), "waiting")
    assert not any(pods.config_path(n).exists() for n in ALL)
    pods.start(2)
    await pods.healthy(*ALL)
    assert len({await pods.cluster_id(n) for n in ALL}) == 1


async def test_an_init_container_killed_at_any_time_of_the_first_start_goes_on(pods: EtcdPods) -> None:
    draw = random.Random(1)
    pods.start(*ALL)
    for _ in range(12):
        await asyncio.sleep(draw.uniform(0, 0.7))
        victim = draw.choice(ALL)
        await pods.kill(victim)
        pods.start(victim)
    await pods.healthy(*ALL)
    assert len({await pods.cluster_id(n) for n in ALL}) == 1
    assert len(await pods.named()) == 3


async def test_all_members_restart_with_their_data(cluster: EtcdPods) -> None:
    for n in ALL:
        await cluster.kill(n)
    cluster.start(*ALL)
    await cluster.healthy(*ALL)
    assert await entry(cluster) == b"1"
    assert [cluster.volume(n).held() for n in ALL] == [Held.STARTED] * 3


async def test_a_member_with_its_data_does_not_wait_for_the_others(cluster: EtcdPods) -> None:
    for n in ALL:
        await cluster.kill(n)
    async with asyncio.timeout(20):
        status, _ = await cluster.init(0, "--timeout-s=600")
    assert status == 0


async def test_a_lost_volume_is_replaced_under_another_id(cluster: EtcdPods) -> None:
    (old,) = [member.id for member in await cluster.named() if member.name == "hw-etcd-1"]
    await cluster.kill(1)
    cluster.wipe(1)
    cluster.start(1)
    await cluster.healthy(1)
    members = await cluster.named()
    assert sorted(member.name for member in members) == ["hw-etcd-0", "hw-etcd-1", "hw-etcd-2"]
    assert old not in [member.id for member in members]
    await cluster.kill(0)  # the new one counts
    assert await entry(cluster) == b"1"


async def test_a_lost_volume_while_another_member_is_down_waits_for_it(cluster: EtcdPods) -> None:
    await cluster.kill(0)
    await cluster.kill(1)
    cluster.wipe(1)
    cluster.start(1)
    await cluster.until(lambda: "hw-etcd-0 does not answer" in cluster.log(1), "waiting")
    assert not cluster.config_path(1).exists()
    cluster.start(0)
    await cluster.healthy(*ALL)
    assert await entry(cluster) == b"1"


async def test_a_killed_init_container_goes_on_between_removing_adding_and_starting(cluster: EtcdPods) -> None:
    await cluster.kill(2)
    cluster.wipe(2)
    await cluster.remove("hw-etcd-2", asked=0)
    status, _ = await cluster.init(2)  # adds, and its etcd is not started
    assert status == 0
    (added,) = [member.id for member in await cluster.named() if not member.name]
    status, _ = await cluster.init(2)
    assert status == 0
    assert [member.id for member in await cluster.named() if not member.name] == [added]
    cluster.wipe(2)  # the note is lost too: who knows whether that member was started
    cluster.start(2)
    await cluster.healthy(*ALL)
    assert added not in [member.id for member in await cluster.named()]


async def test_an_init_container_killed_at_random_replaces_all_the_same(cluster: EtcdPods) -> None:
    draw = random.Random(2)
    await cluster.kill(1)
    cluster.wipe(1)
    for _ in range(8):
        cluster.start(1)
        await asyncio.sleep(draw.uniform(0.5, 1.6))
        await cluster.kill(1)
    cluster.start(1)
    await cluster.healthy(*ALL)
    assert len(await cluster.named()) == 3
    assert await entry(cluster) == b"1"


async def test_two_lost_volumes_of_three_never_start_anew(cluster: EtcdPods) -> None:
    for n in (1, 2):
        await cluster.kill(n)
        cluster.wipe(n)
    cluster.start(2)
    status, said = await cluster.init(1, "--timeout-s=5")
    assert status == 1
    assert "only hw-etcd-0 has a log" in said.splitlines()[-1]
    assert "a majority of the volumes is lost: bring one back, or restore the backup" in said.splitlines()[-1]
    await cluster.kill(0)
    status, said = await cluster.init(1, "--timeout-s=2")
    assert status == 1
    assert "hw-etcd-0 does not answer, and may hold the cluster's data" in said.splitlines()[-1]
    assert not any(cluster.has_log(n) or cluster.config_path(n).exists() for n in (1, 2))


async def test_a_log_that_was_deleted_alone_is_no_empty_volume(cluster: EtcdPods) -> None:
    await cluster.kill(1)
    for path in (cluster.data_dir(1) / "member" / "wal").iterdir():
        path.unlink()
    assert cluster.volume(1).held() in (Held.AGREED, Held.REMAINS)
    cluster.start(1)
    await cluster.healthy(*ALL)
    assert "removing member" in cluster.log(1)
    assert len(await cluster.named()) == 3


async def test_a_removed_members_volume_is_told_and_left_alone(cluster: EtcdPods) -> None:
    await cluster.kill(2)
    await cluster.remove("hw-etcd-2", asked=0)
    status, said = await cluster.init(2)
    assert status == 1
    assert "it was removed, and cannot come back. Delete its volume" in said.splitlines()[-1]
    assert cluster.has_log(2)


async def test_a_roll_to_other_peer_urls(cluster: EtcdPods) -> None:
    """From the last member to the first, as a StatefulSet rolls. What is rolled no longer listens at its old URL."""
    cluster.peer_network = new_network()
    for n in reversed(ALL):
        await cluster.kill(n)
        cluster.start(n)
        await cluster.healthy(n)
    urls = {url for member in await cluster.named() for url in member.peer_urls}
    assert urls == {cluster.peer_url(n) for n in ALL}
    assert await entry(cluster) == b"1"


async def test_a_volume_lost_as_the_peer_url_changes(cluster: EtcdPods) -> None:
    cluster.peer_network = new_network()
    await cluster.kill(2)
    cluster.wipe(2)
    cluster.start(2)
    await cluster.healthy(*ALL)
    members = await cluster.named()
    assert len(members) == 3
    assert (cluster.peer_url(2),) in [member.peer_urls for member in members]


async def test_growing_from_one_member_to_three_and_to_five(pods: EtcdPods) -> None:
    pods.members = 1
    pods.start(0)
    await pods.healthy(0)
    async with pods.store() as store:
        await store.put("/before", b"1")
    for count in (3, 5):
        new = range(pods.members, count)
        pods.members = count
        pods.start(*new)  # at the same time: each waits until the others are well
        await pods.healthy(*range(count), within_s=90)
        assert sorted(member.name for member in await pods.named()) == [f"hw-etcd-{n}" for n in range(count)]
    assert await entry(pods) == b"1"


async def test_a_second_member_killed_before_its_start_is_started_all_the_same(pods: EtcdPods) -> None:
    """The lone first one has no majority from the moment on that the second is added: it cannot remove it any more."""
    pods.members = 1
    pods.start(0)
    await pods.healthy(0)
    pods.members = 2
    status, _ = await pods.init(1)
    assert status == 0
    pods.start(1)
    await pods.healthy(0, 1)
    assert len(await pods.named()) == 2


def speak_tls(pods: EtcdPods, directory: Path) -> tuple[trustme.CA, TlsSettings]:
    """From their next start on the members do, with one certificate for all, and want one of whoever connects."""
    authority = trustme.CA()
    ca, cert, key = (directory / name for name in ("ca.pem", "cert.pem", "key.pem"))
    authority.cert_pem.write_to_path(ca)
    write_certificate(authority, pods, cert, key)
    pods.scheme = "https"
    pods.tls = TlsSettings(ca, cert, key)
    for section in ("peer-transport-security", "client-transport-security"):
        pods.extra += [f"--set={section}.trusted-ca-file={ca}", f"--set={section}.cert-file={cert}"]
        pods.extra += [f"--set={section}.key-file={key}", f"--set={section}.client-cert-auth=true"]
    return authority, pods.tls


def write_certificate(authority: trustme.CA, pods: EtcdPods, cert: Path, key: Path) -> int:
    """Returns its serial number."""
    hosts = [urlsplit(pods.peer_url(n)).hostname or "" for n in ALL]
    issued = authority.issue_cert(*hosts, "127.0.0.1")  # which loopback connections come from
    key.write_bytes(issued.private_key_pem.bytes())
    cert.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
    return x509.load_pem_x509_certificate(issued.cert_chain_pems[0].bytes()).serial_number


def shown_serial(address: str, context: ssl.SSLContext) -> int:
    """The serial number of the certificate that a server shows."""
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), 10) as plain,
        context.wrap_socket(plain, server_hostname=host) as tls,
    ):
        shown = tls.getpeercert()
    assert shown is not None
    return int(str(shown["serialNumber"]), 16)


async def test_members_with_certificates(pods: EtcdPods, tmp_path: Path) -> None:
    authority, files = speak_tls(pods, tmp_path)

    async def started() -> set[int]:
        return {member.id for member in await pods.named() if member.name}

    async def all_started() -> bool:
        # The cluster names the members of a new cluster before they have started.
        return all(pods.has_log(n) for n in ALL) and len(await started()) == 3

    pods.start(*ALL)
    await pods.until(all_started, "started")
    before = await started()
    await pods.kill(1)
    pods.wipe(1)
    pods.start(1)

    async def replaced() -> bool:
        return len(await started() - before) == 1

    await pods.until(replaced, "replaced")
    assert len(await started()) == 3

    # A new certificate in the place of the old one: whoever connects from now on is shown it, and nothing restarts.
    assert files.certificate_file is not None
    assert files.key_file is not None
    serial = write_certificate(authority, pods, files.certificate_file, files.key_file)
    context = ssl.create_default_context(cafile=files.ca_file)
    context.load_cert_chain(files.certificate_file, files.key_file)
    for address in [*(urlsplit(pods.peer_url(n)).netloc for n in ALL), *(pods.address(n) for n in ALL)]:
        assert await asyncio.to_thread(shown_serial, address, context) == serial
    assert len(await started()) == 3


async def test_an_etcd_that_began_without_tls_is_not_rolled_to_it(cluster: EtcdPods, tmp_path: Path) -> None:
    speak_tls(cluster, tmp_path)
    await cluster.kill(2)
    status, said = await cluster.init(2)
    assert status == 1
    assert "Put etcd.tls.memberSecretName back to what it was" in said
    cluster.scheme, cluster.extra, cluster.tls = "http", [], None
    assert await entry(cluster) == b"1"
    cluster.start(2)
    await cluster.healthy(*ALL)
    assert len(await cluster.named()) == 3


@pytest.mark.timeout(600)
@pytest.mark.parametrize("volumes", [4, pytest.param(20, marks=pytest.mark.long)])
async def test_no_answered_write_is_lost_with_volumes(cluster: EtcdPods, volumes: int) -> None:
    draw = random.Random(3)
    ids = {member.id for member in await cluster.named()}
    async with cluster.store() as store, asyncio.TaskGroup() as group:
        writer = Writer(store)
        group.create_task(writer.run())
        for _ in range(volumes):
            await asyncio.sleep(draw.uniform(0, 0.3))
            victim = draw.choice(ALL)
            await cluster.kill(victim)
            cluster.wipe(victim)
            cluster.start(victim)
            await cluster.healthy(*ALL)
            ids |= {member.id for member in await cluster.named()}
        missing = await writer.missing()
    assert len(writer.answered) > 5 * volumes
    assert missing == set()
    assert len(ids) == 3 + volumes  # every one of them was new
    # Each member has them all, not only the one that was asked.
    for n in ALL:
        async with cluster.lone_store(n) as one:
            listing = await one.get_prefix("/written/", timeout_s=30)
            assert set(writer.answered) <= {found.key for found in listing.entries}

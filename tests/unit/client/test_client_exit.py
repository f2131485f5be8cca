"""The end of producers that still hold records when their process ends, in processes that end in every way."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from cluster_double import ClusterDouble, Fault

from highwater.client import Producer as AsyncProducer
from highwater.client.blocking import Consumer

SERVER = """
import asyncio, sys
sys.path.insert(0, {path!r})
from cluster_double import ClusterDouble, Fault

async def main():
    async with ClusterDouble() as cluster:
        cluster.create("t", 1)
        cluster.brokers[1].fault = lambda request: {fault}
        print(cluster.bootstrap[0], flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


@contextmanager
def serving(fault: str = "None") -> Iterator[str]:
    path = __file__.rsplit("/", 1)[0]
    with subprocess.Popen(
        [sys.executable, "-c", SERVER.format(path=path, fault=fault)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        assert server.stdin is not None
        server.stdin.close()  # it ends by itself
        assert server.wait(10) == 0


@pytest.fixture
def address() -> Iterator[str]:
    with serving() as found:
        yield found


@pytest.fixture
def silent() -> Iterator[str]:
    """A cluster that appends and never answers."""
    with serving("Fault.SILENCE") as found:
        yield found


HEAD = """
import atexit, os, signal, sys, threading, time
from highwater.client.blocking import Producer
p = Producer(sys.argv[1], linger_ms=50, **{settings})
"""


def script(body: str, address: str, **settings: object) -> subprocess.CompletedProcess[str]:
    source = HEAD.format(settings=settings) + body
    return run([sys.executable, "-c", source, address])


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


def end_offset(address: str) -> int:
    with Consumer("t", bootstrap=address) as consumer:
        return consumer.end_offsets([("t", 0)])["t", 0]  # type: ignore[index]


ENDS = {
    "the end of the script": ("p.send('t', b'x')", 0, 1),
    "many records": ("for n in range(20_000): p.send('t', b'x')", 0, 20_000),
    "a producer that was forgotten": ("Producer(sys.argv[1]).send('t', b'x')\ndel p", 0, 1),
    "two producers": ("p.send('t', b'x'); q = Producer(sys.argv[1]); q.send('t', b'x')", 0, 2),
    "sys.exit": ("p.send('t', b'x'); sys.exit(3)", 3, 1),
    "an exception": ("p.send('t', b'x'); raise RuntimeError('mine')", 1, 1),
    "a thread that outlives main": (
        "def late():\n    threading.main_thread().join(); p.send('t', b'y')\n"
        "p.send('t', b'x'); threading.Thread(target=late).start()",
        0,
        2,
    ),
    "sys.exit in a thread": (
        "def leave():\n    p.send('t', b'y'); sys.exit(4)\nt = threading.Thread(target=leave); t.start(); t.join()",
        0,
        1,
    ),
    "an interrupt": ("p.send('t', b'x'); os.kill(os.getpid(), signal.SIGINT); time.sleep(60)", -signal.SIGINT, 1),
    "a handler at exit": ("p.start(); atexit.register(lambda: p.send('t', b'x'))", 0, 1),
    "a table in a handler at exit": (
        "import pyarrow as pa\n"
        "atexit.register(lambda: p.send_table('t', pa.table({'value': ['v' * 100] * 9000}), wait=False))",
        0,
        9000,
    ),
    "a child of multiprocessing": (
        "import multiprocessing\n"
        "def child(): p.send('t', b'x')\n"
        "c = multiprocessing.get_context('fork').Process(target=child); c.start(); c.join(30); sys.exit(c.exitcode)",
        0,
        1,
    ),
    "a forked child": (
        "if not (pid := os.fork()):\n    p.send('t', b'x'); sys.exit(5)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))",
        5,
        1,
    ),
}


@pytest.mark.parametrize(("body", "status", "records"), ENDS.values(), ids=ENDS.keys())
def test_records_are_sent_when_the_process_ends(address: str, body: str, status: int, records: int) -> None:
    ended = script(body, address)
    assert ended.returncode == status, ended.stderr
    assert end_offset(address) == records, ended.stderr
    assert "not acknowledged" not in ended.stderr
    assert "Exception ignored" not in ended.stderr


def test_what_only_threads_can_encode_is_sent_at_exit(address: str) -> None:
    ended = script("for n in range(3000): p.send('t', os.urandom(100))", address, compression="zstd")
    assert ended.returncode == 0, ended.stderr
    assert end_offset(address) == 3000


def test_a_child_does_not_send_what_its_parent_has_sent(address: str) -> None:
    """Nor does it say that it is lost."""
    body = (
        "for n in range(5): p.send('t', b'x')\n"
        "if not (pid := os.fork()): sys.exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7"
    )
    ended = script(body, address)
    assert ended.returncode == 0, ended.stderr
    assert "not acknowledged" not in ended.stderr
    assert end_offset(address) == 5


def test_a_producer_that_was_stopped_is_not_flushed_again(address: str) -> None:
    ended = script("p.send('t', b'x'); p.stop()", address)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert end_offset(address) == 1


def test_what_cannot_be_sent_is_told_with_its_number_within_the_delivery_timeout(silent: str) -> None:
    began = time.monotonic()
    ended = script("for n in range(37): p.send('t', b'x')", silent, delivery_timeout_ms=4000)
    assert time.monotonic() - began < 60
    assert "37 records were not acknowledged when the interpreter exited" in ended.stderr
    assert "were not acknowledged within 4 s" in ended.stderr  # why
    assert "the interpreter waits for 37 records" in ended.stderr


def test_failures_that_nobody_was_told_of_are_told_at_exit(address: str) -> None:
    body = "p.send('t', b'x', partition=9); p.send('t', b'y'); time.sleep(1)"
    ended = script(body, address)
    assert "1 record was not acknowledged when the interpreter exited" in ended.stderr
    assert "there is no 9" in ended.stderr
    assert end_offset(address) == 1


def test_failures_that_were_told_are_not_told_again(address: str) -> None:
    body = "try:\n    p.send('t', b'x', partition=9).result(10)\nexcept Exception:\n    pass"
    assert script(body, address).stderr == ""


def test_an_interrupt_ends_the_wait_at_exit(silent: str) -> None:
    source = HEAD.format(settings={}) + "for n in range(11): p.send('t', b'x')"
    with subprocess.Popen([sys.executable, "-c", source, silent], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "the interpreter waits for 11 records" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        told = process.stderr.read()
        assert process.wait(10) == 0
    assert "11 records were not acknowledged when the interpreter exited: the wait for them was interrupted" in told


def test_what_is_sent_after_the_flush_at_exit_is_refused(address: str) -> None:
    """A handler that was registered before the SDK was imported runs after the flush."""
    source = (
        "import atexit, sys\n"
        "def late():\n    p.send('t', b'y')\n"
        "atexit.register(late)\n"
        "from highwater.client.blocking import Producer\n"
        "p = Producer(sys.argv[1])\n"
        "p.send('t', b'x')\n"
    )
    ended = run([sys.executable, "-c", source, address])
    assert "ClientClosedError: the interpreter is exiting" in ended.stderr
    assert end_offset(address) == 1


def test_what_a_daemon_sends_beside_the_exit_is_acknowledged_or_refused(address: str) -> None:
    """The handler that prints how many were taken runs last, as it was registered first."""
    source = (
        "import atexit, sys, threading, time\n"
        "taken = [0]\n"
        "atexit.register(lambda: print(taken[0], flush=True))\n"
        "from highwater.client.blocking import Producer\n"
        "p = Producer(sys.argv[1]).start()\n"
        "def feed():\n"
        "    try:\n"
        "        while True: p.send('t', b'x'); taken[0] += 1\n"
        "    except Exception as error: print(error, file=sys.stderr)\n"
        "    threading.Event().wait()\n"
        "threading.Thread(target=feed, daemon=True).start()\n"
        "while taken[0] < 1000: time.sleep(0.001)\n"
    )
    ended = run([sys.executable, "-c", source, address])
    assert end_offset(address) == int(ended.stdout), ended.stderr
    assert "the interpreter is exiting" in ended.stderr


def test_a_record_that_cannot_be_sent_does_not_stop_those_behind_it(address: str) -> None:
    """Its headers are no pairs: what it raises is not an error of the SDK."""
    body = (
        "bad = p.send('t', b'x', headers=[('a',)])\n"
        "for n in range(3): p.send('t', b'y')\n"
        "try:\n    bad.result(10)\nexcept Exception as error:\n    print(type(error).__name__, error)\n"
        "p.flush()"
    )
    ended = script(body, address)
    assert ended.stdout.startswith("InvalidRequestError"), ended.stderr
    assert end_offset(address) == 3


# The asyncio one


async def _dropped() -> None:
    async with ClusterDouble() as cluster:
        cluster.create("t", 1)
        cluster.brokers[1].fault = lambda request: Fault.SILENCE
        producer = await AsyncProducer(cluster.bootstrap).start()
        for _ in range(5):
            await producer.send("t", b"x")


def test_an_asyncio_producer_that_is_dropped_with_records_in_it_says_so(caplog: pytest.LogCaptureFixture) -> None:
    def drop() -> None:
        asyncio.run(_dropped())
        gc.collect()

    with pytest.warns(ResourceWarning, match="5 records were not acknowledged when their producer was dropped"):
        drop()
    assert "5 records were not acknowledged" in caplog.text


def test_an_asyncio_producer_that_is_there_at_exit_with_records_in_it_says_so(silent: str) -> None:
    source = (
        "import asyncio, sys\n"
        "from highwater.client import Producer\n"
        "async def main():\n"
        "    global kept\n"
        "    kept = await Producer(sys.argv[1]).start()\n"
        "    for n in range(6): await kept.send('t', b'x')\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-W", "always", "-c", source, silent]
    ended = run(command)
    assert "ResourceWarning: 6 records were not acknowledged when their producer was dropped" in ended.stderr
    assert "Exception ignored" not in ended.stderr

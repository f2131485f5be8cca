"""The end of producers in a process that goes on: no record is lost without a word, and nobody waits twice."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from cluster_double import ClusterDouble, Fault
from test_client_exit import end_offset, serving

from highwater.client import ClientClosedError, NetworkError
from highwater.client import Producer as AsyncProducer
from highwater.client.blocking import Consumer, Producer


@pytest.fixture
def address() -> Iterator[str]:
    with serving() as found:
        yield found


@pytest.fixture
def silent() -> Iterator[str]:
    with serving("Fault.SILENCE") as found:
        yield found


# An error in the block


def test_a_block_that_raises_says_what_was_not_acknowledged(silent: str, caplog: pytest.LogCaptureFixture) -> None:
    with contextlib.suppress(KeyError), Producer(silent, delivery_timeout_ms=500) as producer:
        for _ in range(7):
            producer.send("t", b"x")
        raise KeyError("mine")
    assert "7 records were not acknowledged when the `with` block of their producer ended" in caplog.text
    assert "were not acknowledged within 0.5 s" in caplog.text  # why


def test_a_block_that_raises_is_flushed(address: str, caplog: pytest.LogCaptureFixture) -> None:
    with contextlib.suppress(KeyError), Producer(address) as producer:
        for _ in range(2000):
            producer.send("t", b"x")
        raise KeyError("mine")
    assert caplog.text == ""
    assert end_offset(address) == 2000


async def test_an_asyncio_block_that_raises_says_what_was_not_acknowledged(caplog: pytest.LogCaptureFixture) -> None:
    async with ClusterDouble() as cluster:
        cluster.create("t", 1)
        cluster.brokers[1].fault = lambda request: Fault.SILENCE
        with contextlib.suppress(KeyError):
            async with AsyncProducer(cluster.bootstrap, delivery_timeout_ms=500) as producer:
                for _ in range(7):
                    await producer.send("t", b"x")
                raise KeyError("mine")
    assert "7 records were not acknowledged when the `with` block of their producer ended" in caplog.text


async def test_a_flush_that_is_cancelled_says_what_was_not_acknowledged(caplog: pytest.LogCaptureFixture) -> None:
    async with ClusterDouble() as cluster:
        cluster.create("t", 1)
        cluster.brokers[1].fault = lambda request: Fault.SILENCE
        producer = await AsyncProducer(cluster.bootstrap).start()
        for _ in range(3):
            await producer.send("t", b"x")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.stop(), 0.2)
        with pytest.raises(ClientClosedError):
            await producer.flush()
    assert "3 records were not acknowledged when stop() was interrupted" in caplog.text


def test_one_interrupt_ends_the_flush_of_a_block(silent: str) -> None:
    source = (
        "import sys\n"
        "from highwater.client.blocking import Producer\n"
        "class Told(Producer):\n"
        "    def flush(self):\n"
        "        print('flushing', flush=True); super().flush()\n"
        "with Told(sys.argv[1]) as p:\n"
        "    for n in range(9): p.send('t', b'x')\n"
    )
    command = [sys.executable, "-c", source, silent]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "flushing\n"
        process.send_signal(signal.SIGINT)
        try:
            _, told = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == -signal.SIGINT, told
    assert "9 records were not acknowledged when stop() was interrupted" in told


# After stop


def test_what_is_sent_after_stop_is_refused_at_once(address: str) -> None:
    with Producer(address) as producer:
        producer.send("t", b"x")
    with pytest.raises(ClientClosedError):
        producer.send("t", b"y")
    with pytest.raises(ClientClosedError):
        producer.start()
    producer.stop()  # again: nothing to do
    consumer = Consumer("t", bootstrap=address).start()
    consumer.stop()
    with pytest.raises(ClientClosedError):
        consumer.start()
    assert end_offset(address) == 1


def test_what_threads_send_beside_stop_is_acknowledged_or_refused(address: str) -> None:
    producer = Producer(address).start()
    sent = [0] * 4

    def send(thread: int) -> None:
        with contextlib.suppress(ClientClosedError):
            while sent[thread] < 1_000_000:
                producer.send("t", b"x")
                sent[thread] += 1

    threads = [threading.Thread(target=send, args=(thread,), daemon=True) for thread in range(len(sent))]
    for thread in threads:
        thread.start()
    while min(sent) < 100:
        time.sleep(0.001)
    producer.stop()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert end_offset(address) == sum(sent)


# Before the start


def test_threads_wait_for_one_failing_start_together() -> None:
    producer = Producer("127.0.0.1:1", max_block_ms=1000)
    waited: list[float] = []

    def send() -> None:
        began = time.monotonic()
        with pytest.raises(NetworkError):
            producer.send("t", b"x")
        waited.append(time.monotonic() - began)

    threads = [threading.Thread(target=send) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(waited) == len(threads)
    assert max(waited) < 3

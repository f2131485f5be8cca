"""The blocking twins: from a plain script, from threads, after a fork."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import multiprocessing
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import get_type_hints

import pyarrow as pa
import pytest

from highwater import client
from highwater.client import ClientClosedError, HighwaterError, InvalidRequestError, TopicPartition, UnknownTopicError
from highwater.client.blocking import Admin, Consumer, Producer, Scan
from highwater.client.blocking.event_loop_thread import event_loop_thread
from highwater.client.blocking.options import AdminOptions, ConsumerOptions, ProducerOptions, ScanOptions
from highwater.errors import ErrorCode

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


@pytest.fixture
def address() -> Iterator[str]:
    """A cluster double in a process of its own: a fork of this one must not take a gRPC server with it."""
    path = __file__.rsplit("/", 1)[0]
    with subprocess.Popen(
        [sys.executable, "-c", SERVER.format(path=path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        assert server.stdin is not None
        server.stdin.close()  # it ends by itself
        assert server.wait(10) == 0


def test_a_script_produces_consumes_and_administers(address: str) -> None:
    with Admin(address) as admin:
        assert admin.create_topic("made", 1).partitions == 1
        assert admin.list_topics() == ["made", "t"]
        assert len(admin.describe_cluster().brokers) == 1
    with Producer(address, linger_ms=1) as producer:
        pending = [producer.send("t", b"%d" % number, partition=0) for number in range(5000)]
        assert pending[-1].result(10).offset == 4999
        assert all(delivery.done() for delivery in pending)
        metadata = producer.send_table("t", pa.table({"key": ["k"] * 100, "value": ["v"] * 100}), partition=1)
        assert metadata is not None
        assert metadata.records == 100
        assert producer.send_and_wait("made", b"x").offset == 0
        with pytest.raises(InvalidRequestError, match="not str"):
            producer.send("t", "text")  # type: ignore[arg-type]
        with pytest.raises(InvalidRequestError, match="there is no 9"):
            producer.send("t", b"v", partition=9).result(10)
        producer.send("t", b"v", partition=9)
        with pytest.raises(InvalidRequestError, match="there is no 9"):
            producer.flush()
        producer.flush()
    with Consumer("t", bootstrap=address, auto_offset_reset="earliest") as consumer:
        assert consumer.assignment() == {TopicPartition("t", 0), TopicPartition("t", 1)}
        assert consumer.end_offsets([("t", 0), ("t", 1)]) == {("t", 0): 5000, ("t", 1): 100}
        consumer.assign([("t", 0)])
        offsets = []
        for _ in range(3):
            for record in consumer:
                offsets.append(record.offset)
                if len(offsets) % 700 == 0:
                    break
        assert offsets == list(range(2100))
        assert consumer.position(("t", 0)) == 2100
        consumer.seek_to_beginning()
        rows = 0
        while rows < 5000:
            rows += consumer.poll_table(max_records=5000 - rows).num_rows
        assert consumer.poll(timeout_ms=20) == []


def test_threads_share_a_producer(address: str) -> None:
    with Producer(address) as producer:

        def work(partition: int) -> None:
            for number in range(1000):
                producer.send("t", b"%d" % number, partition=partition)

        threads = [threading.Thread(target=work, args=(index,)) for index in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush()
    with Consumer("t", bootstrap=address, auto_offset_reset="earliest") as consumer:
        found = [record for _ in range(2000) for record in consumer.poll(max_records=1)]
    for partition in (0, 1):
        assert [record.value for record in found if record.partition == partition] == [b"%d" % n for n in range(1000)]


def test_one_made_before_a_fork_works_after_it(address: str) -> None:
    script = f"""
import os, sys
from highwater.client.blocking import Consumer, Producer
producer = Producer({address!r})
consumer = Consumer("t", bootstrap={address!r}, auto_offset_reset="earliest")
child = os.fork()
if not child:
    with producer:
        producer.send("t", b"from the child", partition=0)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
with producer, consumer:
    print(producer.send_and_wait("t", b"from the parent", partition=0).offset)
    values = []
    while len(values) < 2:  # it may have begun to fetch before the second one was there
        values += [record.value for record in consumer.poll(5000)]
    print(values)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == ["1", "[b'from the child', b'from the parent']"], done.stderr


def test_one_that_was_used_before_a_fork_says_so(address: str) -> None:
    producer = Producer(address).start()
    receiver, sender = multiprocessing.get_context("fork").Pipe(duplex=False)

    def child() -> None:
        try:
            producer.send("t", b"v")
        except ClientClosedError as error:
            sender.send(str(error))

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    assert receiver.poll(20)
    told = receiver.recv()
    assert f"gRPC was running in process {os.getpid()} when this one was forked from it" in told
    assert "make the first client after the fork" in told
    process.join(20)
    producer.stop()


def test_errors_are_those_of_the_async_client(address: str) -> None:
    with Producer(address) as producer, pytest.raises(UnknownTopicError, match="'nope' does not exist"):
        producer.send("nope", b"v")
    with pytest.raises(ClientClosedError, match="was stopped"):
        producer.partitions_for("t")
    with pytest.raises(HighwaterError) as caught:
        Admin("127.0.0.1:1", max_block_ms=0).start()
    assert caught.value.code is ErrorCode.NETWORK_EXCEPTION


@pytest.mark.parametrize(
    ("twin", "client", "options"),
    [
        (Producer, client.Producer, ProducerOptions),
        (Consumer, client.Consumer, ConsumerOptions),
        (Admin, client.Admin, AdminOptions),
        (Scan, client.Scan, ScanOptions),
    ],
    ids=lambda kind: kind.__name__,
)
def test_the_twins_take_the_options_of_the_async_clients(twin: type, client: type, options: type) -> None:
    asked = inspect.signature(client)
    keywords = {
        name: one for name, one in asked.parameters.items() if one.kind is one.KEYWORD_ONLY and name != "bootstrap"
    }
    resolved = get_type_hints(client.__init__)
    assert get_type_hints(options) == {name: resolved[name] for name in keywords}
    assert inspect.signature(twin) == asked
    needed = [
        name
        for name, one in asked.parameters.items()
        if one.kind is one.POSITIONAL_OR_KEYWORD and one.default is one.empty
    ]
    with pytest.raises(TypeError, match="no_such_option"):
        twin(*needed, no_such_option=1)


def test_tables_of_any_library_are_sent(address: str) -> None:
    class Frame:
        """As pandas, Polars and DuckDB do."""

        def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
            return pa.table({"key": ["a", "b"], "value": ["1", "2"]}).__arrow_c_stream__(requested_schema)

    with Producer(address) as producer:
        sent = producer.send_table("t", Frame())
        assert sent is not None
        assert sent.records == 2
        with pytest.raises(InvalidRequestError, match="takes a table of pyarrow, pandas, Polars or DuckDB .* not dict"):
            producer.send_table("t", {"key": ["a"]})  # type: ignore[arg-type]


def test_an_error_keeps_nothing_of_its_caller() -> None:
    """Not until the garbage collector comes: it may be a table of gigabytes."""

    class Large:
        pass

    async def work() -> None:
        raise KeyError("mine")

    def fails() -> weakref.ref[Large]:
        large = Large()
        with contextlib.suppress(KeyError):
            event_loop_thread().run(work(), 10)
        return weakref.ref(large)

    gc.disable()
    try:
        kept = fails()
        event_loop_thread().run(asyncio.sleep(0), 10)  # the loop's own callbacks are done
        assert kept() is None
    finally:
        gc.enable()


def test_an_error_that_came_of_another_one_is_told_as_it_is() -> None:
    async def work() -> None:
        try:
            raise KeyError("first")
        except KeyError:
            raise RuntimeError("then") from None

    with pytest.raises(RuntimeError, match="then"):
        event_loop_thread().run(work(), 10)

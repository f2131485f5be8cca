"""What the SDK costs by itself: send, send_table and consuming against a broker that only counts, in another process.

    python bench/client_double.py [--records N] [--only send] [--profile]

Prints records/s as seen by the client (wall clock; the double takes a part of the machine) and its own CPU time a
record, all its threads and gRPC's included: the share of a core that is left for brokers follows from it.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import multiprocessing
import pstats
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from multiprocessing.connection import Connection
from typing import Any

import grpc.aio
import pyarrow as pa

from highwater.client import Consumer, Producer
from highwater.records import Codec, encode_columns, iter_batches, read_header, stamp
from highwater.rpc.connections.channel import COMMON_OPTIONS
from highwater.v1 import broker_pb2, broker_pb2_grpc

TOPIC, TOPIC_ID, PARTITIONS = "bench", b"B" * 16, 6
BATCH_RECORDS = 10_000


def events(count: int) -> tuple[list[bytes], list[bytes]]:
    """Keys and 100-byte JSON values."""
    keys = [b"user-%d" % (number * 7919 % 1000) for number in range(count)]
    values = [
        (
            b'{"id":%d,"user":"%s","event":"page_view","path":"/products/%d","ms":%d' % (n, keys[n], n % 997, n % 4001)
        ).ljust(99, b" ")
        + b"}"
        for n in range(count)
    ]
    return keys, values


class Sink(broker_pb2_grpc.BrokerServicer):
    """One broker that leads every partition. It counts what it is sent, and has `per_partition` records to give."""

    def __init__(self, per_partition: int) -> None:
        self.address = ""
        self._ends = [0] * PARTITIONS
        keys, values = events(BATCH_RECORDS)
        times = pa.array(range(BATCH_RECORDS), pa.int64())
        table = pa.table({"timestamp": times, "key": keys, "value": values})
        self._batch = encode_columns(table, codec=Codec.LZ4)
        self._header = read_header(self._batch)
        self._batches = per_partition // BATCH_RECORDS

    async def Metadata(self, request: broker_pb2.MetadataRequest, context: Any) -> broker_pb2.MetadataResponse:
        response = broker_pb2.MetadataResponse(cluster_id="bench", controller_id=1, controller_address=self.address)
        response.brokers.add(broker_id=1, broker_epoch=1, address=self.address)
        topic = response.topics.add(topic=TOPIC, topic_id=TOPIC_ID)
        for partition in range(PARTITIONS):
            topic.partitions.add(partition=partition, leader=1)
        return response

    async def InitProducerId(self, request: Any, context: Any) -> broker_pb2.InitProducerIdResponse:
        return broker_pb2.InitProducerIdResponse(producer_id=1)

    async def ListOffsets(self, request: broker_pb2.ListOffsetsRequest, context: Any) -> broker_pb2.ListOffsetsResponse:
        response = broker_pb2.ListOffsetsResponse()
        for item in request.partitions:
            response.results.add(partition=item.partition, offset=0)
        return response

    async def ProduceStream(
        self, request_iterator: AsyncIterator[broker_pb2.ProduceRequest], context: Any
    ) -> AsyncIterator[broker_pb2.ProduceResponse]:
        async for request in request_iterator:
            response = broker_pb2.ProduceResponse(correlation_id=request.correlation_id)
            for item in request.partitions:
                index = item.partition.partition
                base = self._ends[index]
                for _, header in iter_batches(item.records):
                    self._ends[index] += header.record_count
                response.results.add(partition=item.partition, base_offset=base, log_append_time_ms=-1)
            yield response

    async def FetchStream(
        self, request_iterator: AsyncIterator[broker_pb2.FetchRequest], context: Any
    ) -> AsyncIterator[broker_pb2.FetchResponse]:
        async for request in request_iterator:
            response = broker_pb2.FetchResponse(correlation_id=request.correlation_id)
            for item in request.partitions:
                number = item.fetch_offset // BATCH_RECORDS
                fitting = max(1, item.max_bytes // len(self._batch))
                found: list[bytes | memoryview] = []
                for index in range(number, min(number + fitting, self._batches)):
                    found += [stamp(self._header, index * BATCH_RECORDS, 0), memoryview(self._batch)[16:]]
                response.results.add(
                    partition=item.partition,
                    records=b"".join(found),
                    high_watermark=self._batches * BATCH_RECORDS,
                )
            yield response


def serve(pipe: Connection, per_partition: int) -> None:
    async def main() -> None:
        sink = Sink(per_partition)  # type: ignore[abstract]  # gRPC answers UNIMPLEMENTED for the rest
        server = grpc.aio.server(options=COMMON_OPTIONS)
        broker_pb2_grpc.add_BrokerServicer_to_server(sink, server)
        sink.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        pipe.send(sink.address)
        await asyncio.to_thread(pipe.recv)
        await server.stop(None)

    asyncio.run(main())


async def send(address: str, count: int) -> int:
    keys, values = events(count)
    async with Producer(address) as producer:
        await producer.send(TOPIC, b"warm-up")
        await producer.flush()
        with Measured("send", count):
            for key, value in zip(keys, values, strict=True):
                await producer.send(TOPIC, value, key)
            await producer.flush()
    return count


async def send_table(address: str, count: int) -> int:
    keys, values = events(200_000)
    table = pa.table({"key": keys, "value": values})
    tables = max(1, count // 200_000)
    async with Producer(address) as producer:
        await (await producer.send_table(TOPIC, table.slice(0, 1000)))
        with Measured("send_table", tables * 200_000):
            for _ in range(tables):
                await producer.send_table(TOPIC, table)
            await producer.flush()
    return count


async def consume_arrow(address: str, count: int) -> int:
    async with Consumer(TOPIC, bootstrap=address, auto_offset_reset="earliest") as consumer:
        with Measured("consume_arrow", count):
            seen = 0
            while seen < count:
                seen += (await consumer.poll_table(5000)).num_rows
    return count


async def consume_records(address: str, count: int) -> int:
    async with Consumer(TOPIC, bootstrap=address, auto_offset_reset="earliest") as consumer:
        with Measured("consume_records", count):
            seen = 0
            while seen < count:
                seen += len(await consumer.poll(5000, max_records=10_000))
    return count


async def iterate(address: str, count: int) -> int:
    async with Consumer(TOPIC, bootstrap=address, auto_offset_reset="earliest") as consumer:
        with Measured("iterate", count):
            seen = 0
            async for _ in consumer:
                seen += 1
                if seen == count:
                    break
    return count


class Measured:
    def __init__(self, name: str, records: int) -> None:
        self._name, self._records = name, records

    def __enter__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def __exit__(self, *exception: object) -> None:
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        rate = self._records / wall
        print(
            f"{self._name:16} {rate / 1e6:7.2f} M records/s   client CPU {cpu / self._records * 1e6:6.3f} us a record"
        )


WORK: dict[str, tuple[Callable[[str, int], Awaitable[int]], int]] = {
    "send": (send, 1),
    "send_table": (send_table, 10),
    "consume_arrow": (consume_arrow, 10),
    "consume_records": (consume_records, 5),
    "iterate": (iterate, 5),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--records", type=int, default=600_000, help="of `send`; the faster ones take ten times as many"
    )
    parser.add_argument("--only", choices=list(WORK), action="append")
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    per_partition = arguments.records * 10 // PARTITIONS + BATCH_RECORDS
    server = context.Process(target=serve, args=(other, per_partition))
    server.start()
    address = pipe.recv()
    for name in arguments.only or WORK:
        work, factor = WORK[name]
        profile = cProfile.Profile()
        if arguments.profile:
            profile.enable()
        asyncio.run(work(address, arguments.records * factor // (10 * BATCH_RECORDS) * 10 * BATCH_RECORDS))  # type: ignore[arg-type]
        if arguments.profile:
            profile.disable()
            pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    pipe.send(None)
    server.join()


if __name__ == "__main__":
    main()

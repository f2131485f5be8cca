"""Clients that ask for more than they should, each in a process of its own: `python flood.py KIND BOOTSTRAP TOPIC
SECONDS COUNT`. It says `ready` when it is under way, and at the end one object of JSON, in which `processor` is how
much of one it has used meanwhile, in percent. Its calls show the token in HIGHWATER_TOKEN.

    connections   COUNT of them, which speak HTTP/2 and ask for nothing; one ends and another begins all the while
    streams       COUNT FetchStreams to the first broker, and more until one is refused, which are never written to;
                  then some calls, one by one
    requests      Metadata and Produce of a few bytes, COUNT of them open at a time
    busy          nothing but COUNT percent of one processor: what a flood takes of others' rate by being there at all
    records       COUNT records of an ordinary producer outstanding at a time: who is to go on meanwhile. Each line of
                  standard input ends an interval of what it tells, and the end of it the process
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from time import monotonic, process_time
from typing import Any

import grpc
import grpc.aio
from half_sent import call_headers, frame

from highwater.client import Admin, HighwaterError, Producer
from highwater.errors import ErrorCode
from highwater.records import Record, encode_rows
from highwater.v1 import broker_pb2, broker_pb2_grpc, common_pb2

METADATA = (("authorization", f"Bearer {os.environ['HIGHWATER_TOKEN']}"),)
PER_CONNECTION = 1_000  # the streams that a server lets one connection have
UNTIL_REFUSED_S = 60.0  # a machine that is busy takes a while to begin as many calls
ONE_BY_ONE = 50
# Calls that are begun before a pause: of more than a server has taken, gRPC refuses some for that alone.
AT_ONCE, PAUSE_S = 100, 0.04
_REFUSED = "RESOURCE_EXHAUSTED"
_HEADERS, _RST_STREAM, _SETTINGS, _PING = 1, 3, 4, 6
_ACK = _END_STREAM = 1
_END_HEADERS = 4
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Silent:
    """A connection that speaks HTTP/2, answers pings and settings, and asks for nothing; it may begin calls."""

    def __init__(self) -> None:
        self.ended = set[int]()  # calls
        self._pinged = asyncio.Event()

    async def open(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._reader, self._writer = await asyncio.open_connection(host, int(port))
        self._writer.write(_PREFACE + frame(_SETTINGS, 0, 0, b""))
        self.reading = asyncio.create_task(self._read())

    async def call(self, method: str, count: int) -> None:
        """Begins so many calls, about as fast as the server takes them."""
        headers = call_headers(method, METADATA)
        for first in range(0, count, AT_ONCE):
            for number in range(first, first + AT_ONCE):
                self._writer.write(frame(_HEADERS, _END_HEADERS, 2 * number + 1, headers))
            self._pinged.clear()
            self._writer.write(frame(_PING, 0, 0, bytes(8)))
            await asyncio.wait_for(self._pinged.wait(), 30)
            await asyncio.sleep(PAUSE_S)

    async def _read(self) -> None:
        try:
            while True:
                head = await self._reader.readexactly(9)
                kind, flags = head[3], head[4]
                payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
                if kind in (_SETTINGS, _PING) and not flags & _ACK:
                    self._writer.write(frame(kind, _ACK, 0, payload if kind == _PING else b""))
                elif kind == _PING:
                    self._pinged.set()
                elif kind == _RST_STREAM or (kind == _HEADERS and flags & _END_STREAM):
                    self.ended.add(int.from_bytes(head[5:], "big") & 0x7FFFFFFF)
        except (OSError, asyncio.IncompleteReadError):
            return

    def close(self) -> None:
        self.reading.cancel()
        self._writer.close()


def channel_of(address: str) -> grpc.aio.Channel:
    """With a connection of its own."""
    return grpc.aio.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1),))


async def connections(addresses: list[str], topic: str, seconds: float, count: int) -> dict[str, Any]:
    held = [Silent() for _ in range(count)]
    for start in range(0, count, 100):
        await asyncio.gather(
            *(one.open(addresses[number % len(addresses)]) for number, one in enumerate(held[start : start + 100]))
        )
    ready()
    end, renewed = monotonic() + seconds, 0
    while monotonic() < end:
        held.pop(0).close()
        held.append(Silent())
        await held[-1].open(addresses[renewed % len(addresses)])
        renewed += 1
        await asyncio.sleep(0.005)
    closed = sum(one.reading.done() for one in held)
    for one in held:
        one.close()
    return {"renewed": renewed, "closed": closed}


async def streams(addresses: list[str], topic: str, seconds: float, count: int) -> dict[str, Any]:
    held: list[Silent] = []
    codes: Counter[str] = Counter()
    slowest_s = 0.0
    async with channel_of(addresses[0]) as channel:
        stub: Any = broker_pb2_grpc.BrokerStub(channel)

        async def asked() -> str:
            try:
                await stub.Metadata(broker_pb2.MetadataRequest(topics=[topic]), timeout=20, metadata=METADATA)
            except grpc.aio.AioRpcError as error:
                return error.code().name
            return "OK"

        until = monotonic() + UNTIL_REFUSED_S
        while len(held) * PER_CONNECTION < count or (await asked() != _REFUSED and monotonic() < until):
            held.append(Silent())
            await held[-1].open(addresses[0])
            await held[-1].call("/highwater.v1.Broker/FetchStream", PER_CONNECTION)
        ready()
        end = monotonic() + seconds
        for _ in range(ONE_BY_ONE):
            begun = monotonic()
            codes[await asked()] += 1
            slowest_s = max(slowest_s, monotonic() - begun)
    await asyncio.sleep(max(0.0, end - monotonic()))
    for one in held:
        one.close()
    return {"codes": codes, "slowest_s": slowest_s, "ended": sum(len(one.ended) for one in held)}


async def requests(addresses: list[str], topic: str, seconds: float, count: int) -> dict[str, Any]:
    async with Admin(",".join(addresses)) as admin:
        (found,) = await admin.describe_topics([topic])
    batch = encode_rows([Record(0, 1_700_000_000_000, None, b"x", ())])
    key = common_pb2.PartitionKey(topic_id=bytes(found.topic_id), partition=0)
    produce = broker_pb2.ProduceRequest(
        acks=1, timeout_ms=5_000, partitions=[broker_pb2.ProducePartition(partition=key, records=batch)]
    )
    codes: Counter[str] = Counter()
    slowest: dict[str, float] = {"answer": 0.0, "refusal": 0.0}
    channels = [channel_of(address) for address in addresses]
    stubs = [broker_pb2_grpc.BrokerStub(channel) for channel in channels]
    end = monotonic() + seconds

    async def ask(number: int) -> None:
        stub: Any = stubs[number % len(stubs)]
        while monotonic() < end:
            begun = monotonic()
            try:
                if number % 2:
                    (result,) = (await stub.Produce(produce, timeout=20, metadata=METADATA)).results
                    code = ErrorCode(result.error.code)
                else:
                    answer = await stub.Metadata(
                        broker_pb2.MetadataRequest(topics=[topic]), timeout=20, metadata=METADATA
                    )
                    code = ErrorCode(answer.error.code)
                codes[code.name] += 1
                kind = "answer" if code is ErrorCode.NONE else "refusal"
            except grpc.aio.AioRpcError as error:
                codes[error.code().name] += 1
                kind = "refusal"
            slowest[kind] = max(slowest[kind], monotonic() - begun)

    ready()
    await asyncio.gather(*map(ask, range(count)))
    for channel in channels:
        await channel.close(None)
    return {"codes": codes, "slowest_s": slowest}


async def records(addresses: list[str], topic: str, seconds: float, count: int) -> dict[str, Any]:
    acknowledged = 0
    slowest_s = 0.0
    errors: Counter[str] = Counter()
    begun = monotonic()
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with Producer(",".join(addresses), linger_ms=5) as producer:

        async def send() -> None:
            nonlocal acknowledged, slowest_s
            while True:
                sent = monotonic()
                try:
                    await producer.send_and_wait(topic, b"x" * 100)
                    acknowledged += 1
                except HighwaterError as error:
                    errors[type(error).__name__] += 1
                slowest_s = max(slowest_s, monotonic() - max(sent, begun))

        await producer.send_and_wait(topic, b"first")
        sending = [asyncio.create_task(send()) for _ in range(count)]
        ready()
        intervals: list[dict[str, Any]] = []
        while await lines.readline():
            a_second = acknowledged / (monotonic() - begun)
            intervals.append({"a_second": round(a_second), "slowest_s": slowest_s, "errors": dict(errors)})
            acknowledged, slowest_s, begun = 0, 0.0, monotonic()
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
    return {"intervals": intervals}


async def busy(addresses: list[str], topic: str, seconds: float, count: int) -> dict[str, Any]:
    ready()
    begun, used = monotonic(), process_time()
    while (elapsed := monotonic() - begun) < seconds:
        if 100 * (process_time() - used) > count * elapsed:
            await asyncio.sleep(0.001)
    return {}


_begun: list[float] = []


def ready() -> None:
    _begun[:] = monotonic(), process_time()
    print("ready", flush=True)


async def told(kind: str, addresses: list[str], topic: str, seconds: float, count: int) -> dict[str, Any]:
    found = await KINDS[kind](addresses, topic, seconds, count)
    elapsed, used = monotonic() - _begun[0], process_time() - _begun[1]
    return {**found, "processor": round(100 * used / elapsed)}


KINDS: dict[str, Callable[[list[str], str, float, int], Coroutine[Any, Any, dict[str, Any]]]] = {
    "connections": connections,
    "streams": streams,
    "requests": requests,
    "busy": busy,
    "records": records,
}


if __name__ == "__main__":
    kind, bootstrap, topic, seconds, count = sys.argv[1:]
    print(json.dumps(asyncio.run(told(kind, bootstrap.split(","), topic, float(seconds), int(count)))))

"""The shim that services run under to be observed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from bench.scale.observed import LONGEST, LONGEST_CPU, LongestCallback, MessageCounters, name_of, time_callbacks
from bench.scale.samples import by_label, samples_of, total

METHOD = "/highwater.v1.Broker/FetchStream"


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def handle_run() -> Iterator[None]:
    before = asyncio.Handle._run
    yield
    asyncio.Handle._run = before  # type: ignore[method-assign]


def read(registry: CollectorRegistry) -> Any:
    return samples_of(generate_latest(registry).decode())


def test_a_channels_messages_are_counted_both_ways(registry: CollectorRegistry) -> None:
    class Channel:
        def stream_stream(
            self, method: str, request_serializer: Any = None, response_deserializer: Any = None, _ready: bool = False
        ) -> tuple[Any, Any, bool]:
            return request_serializer, response_deserializer, _ready

        unary_unary = unary_stream = stream_unary = stream_stream

    MessageCounters(registry).count_clients(Channel)
    serialize, deserialize, registered = Channel().stream_stream(
        METHOD, request_serializer=bytes, response_deserializer=bytes.decode, _ready=True
    )
    assert registered
    assert serialize(7) == bytes(7)
    assert serialize(3) == bytes(3)
    assert deserialize(b"four") == "four"
    found = read(registry)
    assert by_label(found, "bench_sent_messages_total", "method") == {METHOD: 2}
    assert by_label(found, "bench_sent_bytes_total", "method") == {METHOD: 10}
    assert total(found, "bench_received_messages_total") == 1
    assert total(found, "bench_received_bytes_total") == 4
    assert Channel().unary_unary(METHOD) == (None, None, False)


def test_a_servers_messages_are_counted_both_ways(registry: CollectorRegistry) -> None:
    handler = grpc.unary_unary_rpc_method_handler(
        lambda request, context: request, request_deserializer=bytes.decode, response_serializer=str.encode
    )
    counted = MessageCounters(registry).counted_handlers("highwater.v1.Broker", {"FetchStream": handler})["FetchStream"]
    assert counted.unary_unary is handler.unary_unary
    assert counted.request_deserializer(b"ab") == "ab"
    assert counted.response_serializer("abc") == b"abc"
    found = read(registry)
    assert total(found, "bench_received_bytes_total", method=METHOD) == 2
    assert total(found, "bench_sent_bytes_total", method=METHOD) == 3


def test_the_longest_callback_is_that_since_it_was_last_read(registry: CollectorRegistry, handle_run: None) -> None:
    longest = LongestCallback()
    registry.register(longest)
    time_callbacks(longest)

    async def holds_the_loop() -> None:
        time.sleep(1)  # noqa: ASYNC251  (this is what is looked for)
        await asyncio.sleep(0)

    async def computes() -> None:
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass

    async def yields() -> None:
        await asyncio.sleep(1.5)

    async def main() -> None:
        await asyncio.gather(asyncio.create_task(holds_the_loop(), name="held"), computes(), yields())

    asyncio.run(main())
    found = read(registry)
    assert "held, in" in str(list(by_label(found, LONGEST, "of")))
    assert total(found, LONGEST) >= 1
    (of,) = by_label(found, LONGEST_CPU, "of")
    assert of.endswith("computes")
    assert 0.02 <= total(found, LONGEST_CPU) < 1
    assert total(read(registry), LONGEST) == 0


def test_a_step_is_named_after_the_coroutines_that_it_came_to() -> None:
    async def inner() -> None:
        await asyncio.sleep(1)

    async def middle() -> None:
        await inner()

    async def outer() -> None:
        await middle()

    async def main() -> str:
        task = asyncio.create_task(outer(), name="ticks")
        await asyncio.sleep(0)
        step = SimpleNamespace(__self__=task)
        named = name_of(step)
        task.cancel()
        return named

    assert asyncio.run(main()).replace("test_a_step_is_named_after_the_coroutines_that_it_came_to.<locals>.", "") == (
        "ticks, in middle > inner > sleep"
    )
    assert name_of(asyncio.sleep) == "sleep"

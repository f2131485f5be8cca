"""Traces of produces and fetches below a span of OpenTelemetry that the application is in."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import pytest
from cluster_double import ClusterDouble

from highwater.client import Consumer, Producer, Tracing
from highwater.client import blocking as plain
from highwater.client.cluster import cluster as client_cluster
from highwater.telemetry.application_span import Parent, application_span, parent_of_all
from highwater.telemetry.tracing import Span, Tracer

NONE = SimpleNamespace(is_valid=False)
OUTER = ContextVar[Any]("outer")


class Kept(list[Span]):
    """An exporter that keeps what it is given."""

    def take(self, span: Span) -> None:
        self.append(span)

    def close(self) -> None: ...


@pytest.fixture
async def cluster() -> AsyncIterator[ClusterDouble]:
    async with ClusterDouble() as double:
        double.create("t", partitions=3)
        yield double


@pytest.fixture(params=[0.0, 1.0])
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kept:
    """What clients trace, by either ratio."""
    spans = Kept()
    monkeypatch.setattr(client_cluster, "open_tracer", lambda *_: Tracer(spans, request.param))
    return spans


@pytest.fixture
def opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The API, as far as it is asked anything."""
    api = SimpleNamespace(get_current_span=lambda: SimpleNamespace(get_span_context=lambda: OUTER.get(NONE)))
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", api)  # type: ignore[arg-type]


@contextmanager
def within(number: int, *, sampled: bool = True) -> Iterator[None]:
    """The application's span of this number."""
    flags = SimpleNamespace(sampled=sampled)
    token = OUTER.set(SimpleNamespace(is_valid=True, trace_id=number, span_id=number + 1, trace_flags=flags))
    try:
        yield
    finally:
        OUTER.reset(token)


def roots(kept: Kept, name: str) -> list[tuple[int, int]]:
    """The trace and the parent of the spans with this name."""
    return [
        (int.from_bytes(span.trace_id, "big"), int.from_bytes(span.parent_id, "big"))
        for span in kept
        if span.name == name
    ]


@pytest.mark.usefixtures("opentelemetry")
async def test_a_produce_goes_below_the_span_in_which_it_was_sent(cluster: ClusterDouble, kept: Kept) -> None:
    async with Producer(cluster.bootstrap, tracing=Tracing()) as producer:
        with within(7):
            await producer.send_and_wait("t", b"v", partition=0)
        assert roots(kept, "send") == [(7, 8)]
        kept.clear()
        with within(9, sampled=False):
            await producer.send_and_wait("t", b"v", partition=0)
        assert not kept, "whoever is in a span that is not sampled has decided"


@pytest.mark.usefixtures("opentelemetry")
async def test_without_a_span_the_ratio_decides(
    cluster: ClusterDouble, kept: Kept, request: pytest.FixtureRequest
) -> None:
    async with Producer(cluster.bootstrap, tracing=Tracing()) as producer:
        await producer.send_and_wait("t", b"v", partition=0)
    ratio = request.node.callspec.params["kept"]
    assert [parent for _, parent in roots(kept, "send")] == ([0] if ratio else [])


@pytest.mark.usefixtures("opentelemetry")
async def test_a_fetch_goes_below_the_span_that_waits_for_it(cluster: ClusterDouble, kept: Kept) -> None:
    async with Producer(cluster.bootstrap) as producer:
        await producer.send_and_wait("t", b"v", partition=0)
    kept.clear()
    async with Consumer(
        "t", bootstrap=cluster.bootstrap, auto_offset_reset="earliest", tracing=Tracing(), fetch_max_wait_ms=20
    ) as consumer:
        with within(5):
            assert len(await consumer.poll(timeout_ms=5_000)) == 1
            assert (5, 6) in roots(kept, "fetch")
        assert consumer._fetcher.parent is None


@pytest.mark.usefixtures("opentelemetry")
async def test_a_blocking_producer_is_in_its_threads_span(cluster: ClusterDouble, kept: Kept) -> None:
    def use() -> None:
        with plain.Producer(cluster.bootstrap, tracing=Tracing()) as producer, within(3):
            producer.send_and_wait("t", b"v", partition=0)

    await asyncio.to_thread(use)
    assert roots(kept, "send") == [(3, 4)]


def test_of_several_parents_a_sampled_one_counts() -> None:
    one, other = Parent(b"1", b"1", sampled=False), Parent(b"2", b"2", sampled=True)
    assert parent_of_all([None, None]) is None
    assert parent_of_all([None, one]) is one
    assert parent_of_all([one, None, other]) is other


def test_the_api_is_not_loaded_by_whoever_does_not_use_it() -> None:
    assert application_span() is None
    program = (
        "import sys, highwater.client, highwater.client.producer.producer, highwater.client.consumer.consumer\n"
        "print([name for name in sys.modules if name == 'opentelemetry.trace'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"

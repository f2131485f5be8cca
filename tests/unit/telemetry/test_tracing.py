"""Spans by hand, what names them in a message, and their way to a collector."""

from __future__ import annotations

import logging
import random
import sys
import threading
from collections.abc import Iterator

import pytest
from otlp_collector import CollectorDouble, otlp_collector

from highwater.extras import MissingExtraError
from highwater.telemetry.otlp import span_exporter
from highwater.telemetry.otlp.collector import Collector, Tracing, parse_headers, tracing_from_environment
from highwater.telemetry.otlp.span_exporter import MAX_QUEUED, SpanExporter
from highwater.telemetry.otlp.start import open_tracer
from highwater.telemetry.tracing import Span, Tracer, parse_traceparent

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Kept:
    """An exporter that keeps what it is given."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def take(self, span: Span) -> None:
        self.spans.append(span)

    def close(self) -> None: ...


@pytest.fixture
def collector() -> Iterator[CollectorDouble]:
    with otlp_collector() as double:
        yield double


def test_a_traceparent_names_a_trace_and_a_span() -> None:
    assert parse_traceparent(TRACEPARENT) == (
        bytes.fromhex("0af7651916cd43dd8448eb211c80319c"),
        bytes.fromhex("b7ad6b7169203331"),
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        TRACEPARENT[:-2] + "00",  # not sampled
        TRACEPARENT.upper(),
        "ff" + TRACEPARENT[2:],  # no version
        TRACEPARENT + "-more",  # version 00 has no more
        "00-" + "0" * 32 + TRACEPARENT[35:],
        TRACEPARENT[:36] + "0" * 16 + "-01",
        TRACEPARENT + "\n",
        "01" + TRACEPARENT[2:] + "-" + "x" * 1000,
    ],
)
def test_what_names_no_sampled_span_is_passed_over(text: str) -> None:
    assert parse_traceparent(text) is None
    assert Tracer(Kept()).go_on("append", text) is None


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    assert parse_traceparent("01" + TRACEPARENT[2:-2] + "03-more") == parse_traceparent(TRACEPARENT)


def test_spans_of_one_trace_are_below_one_another() -> None:
    kept = Kept()
    root = Tracer(kept).begin("send", records=3)
    child = root.child("request")
    far = Tracer(kept).go_on("produce", child.traceparent)
    assert far is not None
    for span in (far, child, root):
        span.end()
    assert {span.trace_id for span in kept.spans} == {root.trace_id}
    assert [span.parent_id for span in kept.spans] == [child.span_id, root.span_id, b""]
    assert root.attributes == {"records": 3}


def test_the_ratio_is_how_many_requests_are_traced() -> None:
    random.seed(1)
    assert not any(Tracer(Kept(), 0.0).samples() for _ in range(1000))
    assert all(Tracer(Kept(), 1.0).samples() for _ in range(1000))
    assert 60 < sum(Tracer(Kept(), 0.01).samples() for _ in range(10_000)) < 140


def test_spans_reach_the_collector(collector: CollectorDouble) -> None:
    counted = []
    exporter = SpanExporter(
        Collector(collector.endpoint, {"x-token": "secret"}),
        {"service.name": "here", "process.pid": 7},
        exported=counted.append,
        pause_s=0.01,
    )
    span = Tracer(exporter).begin("send", topic="t", bytes=5, share=0.5, last=True)
    span.end(error="STORAGE_FULL")
    exporter.close()
    (seen,) = collector.spans
    assert (seen.service, seen.name, seen.error) == ("here", "send", "STORAGE_FULL")
    assert seen.attributes == {"topic": "t", "bytes": 5, "share": 0.5, "last": True}
    assert (seen.trace, seen.span, seen.parent) == (span.trace_id.hex(), span.span_id.hex(), "")
    assert collector.headers[0]["x-token"] == "secret"
    assert counted == [1]


@pytest.mark.parametrize("refuses", [True, False])
def test_what_a_collector_does_not_take_is_counted_and_told_once(
    refuses: bool, collector: CollectorDouble, caplog: pytest.LogCaptureFixture
) -> None:
    collector.status = 503
    endpoint = collector.endpoint if refuses else "http://127.0.0.1:1"
    dropped: list[int] = []
    exporter = SpanExporter(Collector(endpoint), {}, dropped=dropped.append, pause_s=0.001)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            Tracer(exporter).begin("send").end()
        exporter.close()
    assert sum(dropped) == 3
    assert [record.message[:17] for record in caplog.records] == ["spans are dropped"]


def test_a_full_queue_drops_and_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    held, asked = threading.Event(), threading.Event()

    def post(*_: object) -> None:
        asked.set()
        assert held.wait(10)

    monkeypatch.setattr(span_exporter.Connection, "post", post)
    dropped: list[int] = []
    exporter = SpanExporter(Collector(), {}, dropped=dropped.append, pause_s=0.001)
    tracer = Tracer(exporter)
    tracer.begin("send").end()
    assert asked.wait(10)  # its thread is at the collector, and takes nothing more
    for _ in range(MAX_QUEUED + 5):
        tracer.begin("send").end()
    assert sum(dropped) == 5
    held.set()
    exporter.close()
    tracer.begin("send").end()  # after the end
    assert sum(dropped) == 6


def test_a_connection_that_the_collector_has_closed_is_opened_again(collector: CollectorDouble) -> None:
    connection = span_exporter.Connection(Collector(collector.endpoint))
    connection.post("/v1/traces", b"")
    assert connection._http is not None
    connection._http.sock.close()
    connection.post("/v1/traces", b"")
    assert len(collector.headers) == 2
    connection.close()


@pytest.mark.parametrize(
    "endpoint", ["", "127.0.0.1:4318", "grpc://127.0.0.1:4317", "http://", "http://here:0x", "http://here/?a=b"]
)
def test_an_endpoint_is_an_http_url(endpoint: str) -> None:
    with pytest.raises(ValueError, match=r"endpoint|port"):
        Collector(endpoint)


def test_headers_are_pairs_and_their_values_are_not_told() -> None:
    assert parse_headers("") == {}
    assert parse_headers("X-Token=a%20b, other=") == {"x-token": "a b", "other": ""}
    for wrong in ("token", "=secret", "a b=secret", "a=secret%0d%0ab:c"):
        with pytest.raises(ValueError, match="a header is name=value") as refused:
            parse_headers(wrong)
        assert "secret" not in str(refused.value)
    assert "secret" not in repr(Tracing(headers={"x-token": "secret"}))


def test_the_environment_turns_a_clients_tracing_on() -> None:
    assert tracing_from_environment({}) is None
    assert tracing_from_environment({"HIGHWATER_TRACING_ENABLED": "false"}) is None
    assert tracing_from_environment({"HIGHWATER_TRACING_ENABLED": "true"}) == Tracing()
    assert tracing_from_environment(
        {
            "HIGHWATER_TRACING_ENABLED": "1",
            "HIGHWATER_TRACING_SAMPLE_RATIO": "0.5",
            "HIGHWATER_OTLP_ENDPOINT": "https://there:443/otlp",
            "HIGHWATER_OTLP_HEADERS": "a=b",
        }
    ) == Tracing("https://there:443/otlp", {"a": "b"}, 0.5)
    for ratio in ("much", "2", "nan"):
        with pytest.raises(ValueError, match=r"from 0 to 1"):
            tracing_from_environment({"HIGHWATER_TRACING_ENABLED": "true", "HIGHWATER_TRACING_SAMPLE_RATIO": ratio})


def test_without_the_extra_tracing_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("opentelemetry", "highwater.telemetry.otlp."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(MissingExtraError, match=r"tracing needs opentelemetry.*highwater-log\[otel\]"):
        open_tracer(Tracing(), "here", {})
    assert open_tracer(None, "here", {}) is None  # and off it needs nothing

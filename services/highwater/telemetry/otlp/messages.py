"""Values as OTLP's messages. Importing this needs the extra `otel`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1 import trace_pb2

from highwater import __version__
from highwater.telemetry.tracing import Span, Value

SCOPE = InstrumentationScope(name="highwater", version=__version__)


def resource(attributes: Mapping[str, Value]) -> Resource:
    """The teller's message of itself."""
    return Resource(attributes=key_values(attributes))


def key_values(attributes: Mapping[str, Value]) -> list[KeyValue]:
    return [KeyValue(key=key, value=_any(value)) for key, value in attributes.items()]


def trace_request(teller: Resource, spans: Iterable[Span]) -> ExportTraceServiceRequest:
    scope_spans = trace_pb2.ScopeSpans(scope=SCOPE, spans=map(_span, spans))
    return ExportTraceServiceRequest(
        resource_spans=[trace_pb2.ResourceSpans(resource=teller, scope_spans=[scope_spans])]
    )


def _span(span: Span) -> trace_pb2.Span:
    made = trace_pb2.Span(
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_span_id=span.parent_id,
        flags=1,  # sampled
        name=span.name,
        kind=trace_pb2.Span.SpanKind.ValueType(span.kind),
        start_time_unix_nano=span.start_ns,
        end_time_unix_nano=max(span.end_ns, span.start_ns),
        attributes=key_values(span.attributes),
    )
    if span.error:
        made.status.code = trace_pb2.Status.STATUS_CODE_ERROR
        made.status.message = span.error
    return made


def _any(value: Value) -> AnyValue:
    match value:
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case _:
            return AnyValue(string_value=value)

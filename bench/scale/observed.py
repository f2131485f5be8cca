"""Runs a service so that what it sends and receives, and how long its event loop is held, can be read from outside:
`python -m bench.scale.observed HOST:PORT highwater.fetcher --set=...`.

At HOST:PORT stand, for Prometheus, counters of messages and their bytes by gRPC method, on both sides of a call, and
the longest callback of an event loop since it was last read, by wall clock, which other work on the machine makes
longer, and by CPU time. Nothing of the service is changed but the functions between messages and bytes, and the one
that runs a callback.
"""

from __future__ import annotations

import asyncio
import runpy
import sys
from collections.abc import Callable, Iterator
from time import perf_counter, thread_time
from typing import Any

import grpc
from grpc.aio._channel import Channel
from prometheus_client import CollectorRegistry, Counter, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

SENT, RECEIVED = "bench_sent", "bench_received"
LONGEST = "bench_longest_callback_seconds"
LONGEST_CPU = "bench_longest_callback_cpu_seconds"
_INNERMOST = 3
_ARITIES = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


class MessageCounters:
    """Messages and bytes by method; an empty serializer is left as it is."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counters = {
            (name, what): Counter(f"{name}_{what}", f"{what} by method", ("method",), registry=registry)
            for name in (SENT, RECEIVED)
            for what in ("messages", "bytes")
        }

    def serializer(self, method: str, serialize: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
        messages, sizes = self._of(SENT, method)

        def counted(message: Any) -> bytes:
            data = serialize(message)
            messages.inc()
            sizes.inc(len(data))
            return data

        return counted

    def deserializer(self, method: str, deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
        messages, sizes = self._of(RECEIVED, method)

        def counted(data: bytes) -> Any:
            messages.inc()
            sizes.inc(len(data))
            return deserialize(data)

        return counted

    def _of(self, name: str, method: str) -> tuple[Counter, Counter]:
        return self._counters[name, "messages"].labels(method), self._counters[name, "bytes"].labels(method)

    def count_clients(self, channel: type[Any]) -> None:
        """Of every call that a channel of this class makes from now on."""
        for arity in _ARITIES:
            setattr(channel, arity, self._counted_arity(getattr(channel, arity)))

    def _counted_arity(self, make: Callable[..., Any]) -> Callable[..., Any]:
        def counted(
            channel: Any, method: str, request_serializer: Any = None, response_deserializer: Any = None, *rest: Any,
            **named: Any
        ) -> Any:  # fmt: skip
            sends = request_serializer and self.serializer(method, request_serializer)
            takes = response_deserializer and self.deserializer(method, response_deserializer)
            return make(channel, method, sends, takes, *rest, **named)

        return counted

    def counted_handlers(self, service: str, handlers: dict[str, Any]) -> dict[str, Any]:
        """The handlers of a service's methods, each counting."""
        return {
            name: handler._replace(
                request_deserializer=self.deserializer(f"/{service}/{name}", handler.request_deserializer),
                response_serializer=self.serializer(f"/{service}/{name}", handler.response_serializer),
            )
            for name, handler in handlers.items()
        }


class LongestCallback(Collector):
    """The longest since it was last collected, and of what: by wall clock, and by its own CPU time."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._longest = dict.fromkeys((LONGEST, LONGEST_CPU), (0.0, ""))

    def ran(self, callback: Any, took_s: float, took_cpu_s: float) -> None:
        if took_s > self._longest[LONGEST][0]:
            self._longest[LONGEST] = took_s, name_of(callback)
        if took_cpu_s > self._longest[LONGEST_CPU][0]:
            self._longest[LONGEST_CPU] = took_cpu_s, name_of(callback)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        longest = self._longest
        self._begin()
        for name, (seconds, of) in longest.items():
            family = GaugeMetricFamily(name, "since last read", labels=["of"])
            family.add_metric([of], seconds)
            yield family


def name_of(callback: Any) -> str:
    """A name for people: of a task's step its name, and the innermost of the coroutines that it has come to."""
    task = getattr(callback, "__self__", None)
    if not isinstance(task, asyncio.Task):
        return str(getattr(callback, "__qualname__", callback))
    path = []
    coroutine: Any = task.get_coro()
    while hasattr(coroutine, "cr_await"):  # gRPC's are compiled: for `inspect` they are no coroutines
        path.append(coroutine.__qualname__ or type(coroutine).__name__)  # some of gRPC's have no name
        coroutine = coroutine.cr_await
    return f"{task.get_name()}, in {' > '.join(path[-_INNERMOST:])}"


def time_callbacks(longest: LongestCallback) -> None:
    """Of every event loop of this process from now on."""
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        callback = handle._callback  # type: ignore[attr-defined]  # gone when it is cancelled
        began, began_cpu = perf_counter(), thread_time()
        run(handle)
        longest.ran(callback, perf_counter() - began, thread_time() - began_cpu)

    asyncio.Handle._run = timed  # type: ignore[assignment,method-assign]


def main() -> None:
    listen, module = sys.argv[1:3]
    registry = CollectorRegistry()
    counters, longest = MessageCounters(registry), LongestCallback()
    registry.register(longest)
    counters.count_clients(Channel)
    generic_handler = grpc.method_handlers_generic_handler

    def counting_handler(service: str, method_handlers: dict[str, Any]) -> Any:
        return generic_handler(service, counters.counted_handlers(service, method_handlers))

    grpc.method_handlers_generic_handler = counting_handler
    time_callbacks(longest)
    host, _, port = listen.rpartition(":")
    start_http_server(int(port), addr=host, registry=registry)
    sys.argv[:] = [module, *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

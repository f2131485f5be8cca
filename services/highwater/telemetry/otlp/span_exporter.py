"""The export of spans: a bounded queue, and a thread that sends what is in it. The event loop has no part in it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from highwater.telemetry.log import get_logger, pairs
from highwater.telemetry.otlp.collector import TRACES, Collector, Connection, NotTakenError
from highwater.telemetry.otlp.messages import resource, trace_request
from highwater.telemetry.tracing import Span, Value

MAX_QUEUED = 4096
MAX_SENT = 512  # in one message
PAUSE_S = 1.0  # spans that end within it share a message
STOP_S = 2.0  # for what is left when it is closed
TELL_AGAIN_S = 60.0

_log = get_logger("telemetry.tracing")


class SpanExporter:
    """Sends ended spans to a collector, those of a second together. What it has no room for is dropped, and so is what
    the collector does not take: a trace is not worth a retry. `exported` and `dropped` are called with how many, from
    the exporter's thread or from the caller's.

    The thread begins with the first span, and ends with `close`."""

    def __init__(
        self,
        collector: Collector,
        attributes: Mapping[str, Value],
        *,
        exported: Callable[[int], object] = lambda count: None,
        dropped: Callable[[int], object] = lambda count: None,
        pause_s: float = PAUSE_S,
    ) -> None:
        self._collector = collector
        self._resource = resource(attributes)
        self._exported = exported
        self._dropped = dropped
        self._pause_s = pause_s
        self._queue: deque[Span] = deque()
        self._closing = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._told_s = -TELL_AGAIN_S
        self._untold = 0

    def take(self, span: Span) -> None:
        if len(self._queue) >= MAX_QUEUED or self._closing.is_set():
            self._dropped(1)
            return
        self._queue.append(span)
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="span-exporter", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Sends what is left, within `STOP_S`; what is not sent by then is lost. Blocks."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(STOP_S)

    def _run(self) -> None:
        connection = Connection(self._collector)
        closing = False
        while not closing:
            closing = self._closing.wait(self._pause_s)
            self._send_all(connection)
        connection.close()

    def _send_all(self, connection: Connection) -> None:
        while self._queue:
            spans = [self._queue.popleft() for _ in range(min(len(self._queue), MAX_SENT))]
            try:
                connection.post(TRACES, trace_request(self._resource, spans).SerializeToString())
            except NotTakenError as error:
                self._lost(len(spans), str(error))
            except Exception as error:  # a mistake of ours: what is traced goes on all the same
                _log.exception("spans could not be exported")
                self._lost(len(spans), repr(error))
            else:
                self._exported(len(spans))

    def _lost(self, count: int, reason: str) -> None:
        self._dropped(count)
        self._untold += count
        now_s = time.monotonic()
        if now_s - self._told_s >= TELL_AGAIN_S:
            _log.warning(
                "spans are dropped %s",
                pairs(count=self._untold, endpoint=self._collector.endpoint, reason=repr(reason)),
            )
            self._told_s, self._untold = now_s, 0

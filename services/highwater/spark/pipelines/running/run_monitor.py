"""The monitor of a pipeline while it runs: metrics for Prometheus, and health for Kubernetes.

GET /metrics    as docs/metrics.md lists them
GET /healthz    200, or 503 where Spark has not said for a long time how far the query is
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from threading import Thread
from time import monotonic
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import make_wsgi_app

from highwater.errors import UserError
from highwater.telemetry.metrics import Metrics


class RunMonitor:
    """The monitor of one run of one pipeline. `stalled_after_s`: a query that says nothing for so long is not healthy.
    (Spark says something after each micro-batch, and every 10 s while nothing comes.)"""

    def __init__(self, pipeline: str, stalled_after_s: float, clock_s: Callable[[], float] = monotonic) -> None:
        self._stalled_after_s = stalled_after_s
        self._clock_s = clock_s
        self._said_s = self._batch_s = clock_s()
        metrics = Metrics("spark")
        of_pipeline, of_topic = ("pipeline",), ("pipeline", "topic")
        self._records = metrics.counter("pipeline_records_total", "Records read", of_pipeline).labels(pipeline)
        self._batches = metrics.counter("pipeline_batches_total", "Micro-batches committed", of_pipeline).labels(
            pipeline
        )
        self._seconds = metrics.gauge(
            "pipeline_last_batch_seconds", "How long the last micro-batch took", of_pipeline
        ).labels(pipeline)
        age = metrics.gauge(
            "pipeline_last_batch_age_seconds",
            "Time since the last micro-batch was committed, or the start",
            of_pipeline,
        )
        age.labels(pipeline).set_function(lambda: clock_s() - self._batch_s)
        self._behind = metrics.gauge("pipeline_lag_offsets", "Offsets that are still to be read", of_topic)
        self._pipeline = pipeline
        self._metrics = make_wsgi_app(metrics.registry)

    @property
    def healthy(self) -> bool:
        return self._clock_s() - self._said_s < self._stalled_after_s

    def said(self, behind: Mapping[str, int]) -> None:
        """Records that the query has reported, and how far it is behind: offsets by topic."""
        self._said_s = self._clock_s()
        for topic, offsets in behind.items():
            self._behind.labels(self._pipeline, topic).set(offsets)

    def committed(self, records: int, seconds: float) -> None:
        """Records a micro-batch that was committed."""
        self._batch_s = self._clock_s()
        self._records.inc(records)
        self._batches.inc()
        self._seconds.set(seconds)

    @contextmanager
    def serving(self, address: tuple[str, int]) -> Iterator[int]:
        """Serves both meanwhile; gives the port. Raises `UserError`."""
        host, port = address
        try:
            server = make_server(host, port, self._answer, _Server, _Quiet)
        except OSError as error:
            raise UserError(f"--metrics-listen {host}:{port}: {error.strerror or error}") from None
        thread = Thread(target=server.serve_forever, name="pipeline metrics", daemon=True)
        thread.start()
        try:
            yield int(server.server_port)
        finally:
            server.shutdown()
            thread.join()
            server.server_close()

    def _answer(self, environ: dict[str, Any], respond: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/metrics":
            told: Iterable[bytes] = self._metrics(environ, respond)
            return told
        if environ["PATH_INFO"] != "/healthz":
            respond("404 Not Found", [("Content-Type", "text/plain")])
            return [b"/metrics, /healthz\n"]
        respond("200 OK" if self.healthy else "503 Service Unavailable", [("Content-Type", "text/plain")])
        return [b"ok\n" if self.healthy else b"Spark says nothing of the query: a micro-batch hangs, or takes long\n"]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    timeout = 10.0  # of a client that says nothing

    def log_message(self, *_: Any) -> None:
        """Nothing for each request."""

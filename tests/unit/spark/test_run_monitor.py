"""What a pipeline tells Prometheus and Kubernetes, over HTTP."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest

from highwater.errors import UserError
from highwater.spark.pipelines.command.pipeline_options import listen_address
from highwater.spark.pipelines.running.run_monitor import RunMonitor


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_metrics_and_health() -> None:
    clock = Clock()
    monitor = RunMonitor("archive", 600.0, clock)
    with monitor.serving(("127.0.0.1", 0)) as port:
        assert get(port, "/healthz") == (200, "ok\n")
        monitor.said({"flights": 700, "alarms": 0})
        monitor.committed(1200, 2.5)
        monitor.committed(300, 0.5)
        clock.now_s += 599
        monitor.said({"flights": 20})
        status, said = get(port, "/metrics")
        assert status == 200
        for line in (
            'highwater_spark_pipeline_records_total{pipeline="archive"} 1500.0',
            'highwater_spark_pipeline_batches_total{pipeline="archive"} 2.0',
            'highwater_spark_pipeline_last_batch_seconds{pipeline="archive"} 0.5',
            'highwater_spark_pipeline_last_batch_age_seconds{pipeline="archive"} 599.0',
            'highwater_spark_pipeline_lag_offsets{pipeline="archive",topic="flights"} 20.0',
            'highwater_spark_pipeline_lag_offsets{pipeline="archive",topic="alarms"} 0.0',
        ):
            assert line in said.splitlines()
        clock.now_s += 599
        assert get(port, "/healthz")[0] == 200
        clock.now_s += 1
        assert get(port, "/healthz")[0] == 503
        assert get(port, "/") == (404, "/metrics, /healthz\n")
        with (
            pytest.raises(UserError, match=rf"--metrics-listen 127.0.0.1:{port}: Address already in use"),
            RunMonitor("archive", 600.0).serving(("127.0.0.1", port)),
        ):
            pass


def test_where_it_listens() -> None:
    assert listen_address("--metrics-listen", "") is None
    assert listen_address("--metrics-listen", "0.0.0.0:9400") == ("0.0.0.0", 9400)
    assert listen_address("--metrics-listen", ":9400") == ("127.0.0.1", 9400)
    assert listen_address("--metrics-listen", "::1:9400") == ("::1", 9400)
    for wrong in ("9400", "host", "host:", "host:http", "host:65536"):
        with pytest.raises(UserError, match=r"--metrics-listen is .*: write HOST:PORT, such as 0\.0\.0\.0:9400"):
            listen_address("--metrics-listen", wrong)

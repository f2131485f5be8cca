"""On executors that are processes of their own, as on a cluster: reads, writes, streams, and the bar's reports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from conftest import kill_group

from highwater.cli.local_cluster import LocalCluster
from highwater.client.blocking import Admin, Producer

RECORDS = 200_000
JOB = Path(__file__).with_name("cluster_job.py")


@pytest.mark.timeout(600)
def test_a_job_on_two_executors(cluster: LocalCluster, admin: Admin, topic: str, tmp_path: Path) -> None:
    for name in (topic, f"{topic}-copy"):
        admin.create_topic(name, 2, 1)
    with Producer(cluster.bootstrap) as producer:
        values = pa.array([b"%0200d" % number for number in range(RECORDS)], pa.binary())
        producer.send_table(topic, pa.table({"value": values}))
    log = tmp_path / "job.log"
    with log.open("wb") as errors:
        job = subprocess.Popen(
            [sys.executable, str(JOB), cluster.bootstrap, topic, str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        try:
            said, _ = job.communicate(timeout=540)
        finally:
            kill_group(job)
    assert job.returncode == 0, log.read_text()[-4000:]
    found = json.loads(said.splitlines()[-1])
    done, total = found["middle"]
    assert 0 < done < total == RECORDS
    assert found["end"] == [RECORDS, RECORDS]
    assert (found["executors"], found["copied"], found["archived"]) == (2, RECORDS, RECORDS)

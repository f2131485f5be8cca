"""k8s/archive.yaml: a topic into a table by Spark on the cluster; docker/spark makes `HIGHWATER_SPARK_IMAGE`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_cluster import Release, until

SPARK_IMAGE = os.environ.get("HIGHWATER_SPARK_IMAGE", "")
MANIFEST = Path(__file__).resolve().parents[2] / "k8s" / "archive.yaml"
RECORDS = 3000
PRODUCE = f"""
from highwater.client.blocking import Admin, Producer
bootstrap = "127.0.0.1:9092"
with Admin(bootstrap) as admin:
    admin.create_topic("events", 3, 3)
with Producer(bootstrap) as producer:
    for number in range({RECORDS}):
        producer.send("events", b"value %d" % number, b"key %d" % number)
    producer.flush()
"""


@pytest.mark.skipif(not SPARK_IMAGE, reason="set HIGHWATER_SPARK_IMAGE to name:tag of the image of docker/spark")
def test_the_job_archives_a_topic(release: Release, values: dict[str, Any]) -> None:
    release.install(values)
    release.execute(release.pod("broker", 0), "python", "-c", PRODUCE)
    text = small(MANIFEST.read_text().replace("highwater-spark:0.1.0", SPARK_IMAGE))
    release.kubectl("apply", "-f", "-", stdin=text)
    done(release, "archive")
    said = release.kubectl("logs", "job/archive")
    assert f"archive: {RECORDS:,} records" in said, said[-3000:]

    # The same pod compares the table with the topic.
    job = next(one for one in yaml.safe_load_all(text) if one["kind"] == "Job")
    job["metadata"]["name"] = "verify"
    (driver,) = job["spec"]["template"]["spec"]["containers"]
    bootstrap = f"{release.name}.{release.namespace}.svc.cluster.local:9092"
    driver["command"] = [
        "highwater",
        "pipeline",
        "verify",
        "/data/archive",
        f"--bootstrap={bootstrap}",
        "--topic=events",
    ]
    release.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(job))
    done(release, "verify")
    print(release.kubectl("logs", "job/verify")[-2000:])
    assert not release.get("pods", "-l", "spark-role=executor")["items"]


def small(manifest: str) -> str:
    """The executor takes as little as the rest does, of a node of two cores that other releases may be on, too."""
    cores = "- --conf=spark.executor.cores=1\n"
    line = next(one for one in manifest.splitlines(keepends=True) if one.lstrip() == cores)
    return manifest.replace(line, line + line.replace(cores, "- --conf=spark.kubernetes.executor.request.cores=100m\n"))


def done(release: Release, job: str) -> None:
    def ended() -> bool:
        return bool(release.get("job", job)["status"].get("conditions"))

    until(ended, f"the job {job} ends", 600)
    status = release.get("job", job)["status"]
    assert status.get("succeeded"), release.kubectl("logs", f"job/{job}", "--tail=60")

"""An etcd whose volumes are all lost: `highwater kube rebuild` makes the metadata again from those of the brokers."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

from kubernetes_cluster import Release, highwater, until

RECORDS = 20_000
_PRODUCE = f"""
from highwater.client.blocking import Admin, Producer
with Admin("127.0.0.1:9092") as admin:
    admin.create_topic("t", 3, 3)
with Producer("127.0.0.1:9092") as producer:
    sent = [producer.send("t", b"%d" % number, partition=number % 3) for number in range({RECORDS})]
    assert [each.result(60).offset for each in sent] == [number // 3 for number in range({RECORDS})]
"""
_READ = f"""
from highwater.client.blocking import Consumer
found = set()
with Consumer("t", bootstrap="127.0.0.1:9092", auto_offset_reset="earliest") as consumer:
    while records := consumer.poll(5000):
        found |= {{(each.partition, each.offset, each.value) for each in records}}
assert found == {{(number % 3, number // 3, b"%d" % number) for number in range({RECORDS})}}, len(found)
print("all are there")
"""


def test_what_was_acknowledged_outlives_etcd(release: Release, values: dict[str, Any]) -> None:
    release.install(values)
    release.execute(release.pod("broker", 0), "python", "-c", _PRODUCE)
    members = [release.pod("etcd", ordinal) for ordinal in range(3)]
    before = {member: pod.uid for member in members if (pod := release.installed.pod(member)) is not None}
    release.kubectl("delete", "pvc", "--wait=false", *(f"data-{member}" for member in members))
    release.kubectl("delete", "pod", "--force", "--grace-period=0", *members)

    def is_new(member: str) -> bool:
        pod = release.installed.pod(member)
        return pod is not None and pod.uid != before[member] and release.installed.is_ready(member)

    for member in members:
        until(lambda member=member: is_new(member), f"{member} is ready on an empty volume", 120)
    began = time.monotonic()
    command = [sys.executable, "-m", "highwater.cli.main", "kube", "rebuild", "--yes", "--no-backup"]
    done = subprocess.run(
        [*command, f"--namespace={release.namespace}"], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    print(f"{done.stdout}made again in {time.monotonic() - began:.1f} s")
    release.kubectl("rollout", "status", f"statefulset/{release.name}-broker", "--timeout=120s", timeout_s=130)
    assert "all are there" in release.execute(release.pod("broker", 0), "python", "-c", _READ)
    said = highwater(release, "kube", "status")
    assert "nothing is wrong" in said, said

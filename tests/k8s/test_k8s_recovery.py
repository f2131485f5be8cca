"""A recovery that takes minutes is left alone: no probe ends a container, and the others serve meanwhile.

It takes so long since it is made to: log-storage is started with a recovery that sleeps for its part of the bytes that
it scans, however many there are.
"""

from __future__ import annotations

import json
import time
from typing import Any

from kubernetes_cluster import (
    Release,
    RunningLoad,
    gigabyte_of_records,
    highwater,
    kill_pod,
    sharing_processes,
    until,
)

_RECOVERY_S = 300.0
_THROTTLED = f"""
import threading, time
from highwater.log_storage.recovery.recovery_progress import RecoveryProgress
scanned, one_by_one = RecoveryProgress.scanned, threading.Lock()
def slowly(self, size_bytes):
    with one_by_one:
        time.sleep({_RECOVERY_S} * size_bytes / self.total_bytes)
    scanned(self, size_bytes)
RecoveryProgress.scanned = slowly
"""


def test_a_recovery_of_minutes_restarts_nothing(release: Release, values: dict[str, Any], image: str) -> None:
    release.install(sharing_processes(values))
    release.kubectl("create", "configmap", "throttled", f"--from-literal=sitecustomize.py={_THROTTLED}")
    throttled = {
        "initContainers": [
            {
                "name": "log-storage",
                "env": [{"name": "PYTHONPATH", "value": "/throttled"}],
                "volumeMounts": [{"name": "throttled", "mountPath": "/throttled"}],
            }
        ],
        "volumes": [{"name": "throttled", "configMap": {"name": "throttled"}}],
    }
    sets = f"statefulset/{release.name}-broker"
    release.kubectl("patch", sets, "-p", json.dumps({"spec": {"template": {"spec": throttled}}}))
    release.kubectl("rollout", "status", sets, "--timeout=300s", timeout_s=310)
    gigabyte_of_records(release, "long")
    pod = release.pod("broker", 1)
    before = release.installed.pod(pod)
    assert before is not None
    load = RunningLoad.start(release, image, seconds=2 * _RECOVERY_S)
    load.wait_until_it_writes()
    began = time.monotonic()
    kill_pod(release, pod)
    until(lambda: "its log-storage recovers: wait" in highwater(release, "kube", "status"), "it is told", 90)

    def is_back() -> bool:
        now = release.installed.pod(pod)
        return now is not None and now.uid != before.uid and release.installed.is_ready(pod)

    until(is_back, f"{pod} is ready", 2 * _RECOVERY_S)
    seconds = time.monotonic() - began
    load.stop()
    print(f"recovered and in sync after {seconds:.0f} s; {load.finish(300)}")
    assert seconds > 0.8 * _RECOVERY_S
    assert release.restarts() == 0

"""How long a broker's partitions take nothing when it dies; the longest silence of any partition is measured."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest
from kubernetes_cluster import Release, RunningLoad, sharing_processes, until

from highwater.kube.chaos.injection import Injection
from highwater.kube.release import SERVICES


@pytest.mark.parametrize(("how", "limit_s"), [("container", 1.5), ("pod", 1.0)])
def test_others_lead_soon(how: str, limit_s: float, release: Release, values: dict[str, Any], image: str) -> None:
    release.install(sharing_processes(values))
    load = RunningLoad.start(release, image, seconds=600)
    time.sleep(8)
    pod = release.pod("broker", 1)
    if how == "pod":
        release.installed.delete_pod(pod)
    else:
        Injection(release.installed, print).signal(pod, SERVICES, signal.SIGKILL)
    time.sleep(8)
    until(release.installed.all_ready, f"{pod} is back", 120)
    load.stop()
    found = load.finish(300)
    print(f"k8s_failover_{how}: {found['seconds_without_acknowledgement']} s (aim {limit_s} s); {found}")

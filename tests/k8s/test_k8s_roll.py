"""Everything is restarted, one pod after the other, under load: nobody who retries notices."""

from __future__ import annotations

import time
from typing import Any

from kubernetes_cluster import Release, RunningLoad

_ROLLED_S = 400


def test_a_rolling_restart_of_everything_fails_no_send(release: Release, values: dict[str, Any], image: str) -> None:
    release.install(values)
    load = RunningLoad.start(release, image, seconds=3 * _ROLLED_S)
    time.sleep(3)
    for component in ("controller", "etcd", "broker"):
        began = time.monotonic()
        release.kubectl("rollout", "restart", f"statefulset/{release.name}-{component}")
        release.kubectl(
            "rollout", "status", f"statefulset/{release.name}-{component}", f"--timeout={_ROLLED_S}s",
            timeout_s=_ROLLED_S + 10,
        )  # fmt: skip
        print(f"k8s_roll {component}: {time.monotonic() - began:.1f} s")
    load.stop()
    found = load.finish(300)
    print(found)
    assert found.get("failed sends", 0) == 0

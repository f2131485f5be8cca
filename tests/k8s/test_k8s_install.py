"""Both layouts from nothing: installed, tested by `helm test`, scaled, upgraded, taken away."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kubernetes_cluster import CommandError, Release, RunningLoad, record, until

# Of the files of the root file system, and of those in /opt/highwater.
_SIZES = """
import json, os
mounted = {line.split()[4] for line in open("/proc/self/mountinfo")} - {"/"}
def size(root):
    total = 0
    for directory, names, files in os.walk(root):
        names[:] = [name for name in names if os.path.join(directory, name) not in mounted]
        for name in files:
            path = os.path.join(directory, name)
            total += os.lstat(path).st_size if path not in mounted else 0
    return total
print(json.dumps([size("/"), size("/opt/highwater")]))
"""


@pytest.mark.short
def test_a_release_passes_its_own_test(running: Release) -> None:
    print(running.helm("test", running.name))
    record(**image_sizes(running))


def image_sizes(release: Release) -> dict[str, float]:
    """Megabytes of files, of all and of what is not Highwater's and its dependencies'."""
    every, own = json.loads(release.execute(release.pod("broker", 0), "python", "-c", _SIZES, timeout_s=120))
    return {"k8s_image": every / 1e6, "k8s_image_base": (every - own) / 1e6}


@pytest.mark.parametrize("layout", ["colocated", "separate"])
def test_an_install_works_and_is_gone_after_it(
    layout: str, release: Release, values: dict[str, Any], image: str
) -> None:
    declared = {"name": "declared", "partitions": 4, "config": {"retention.ms": 3600000}}
    seconds = release.install({**values, "layout": layout, "topics": [declared]})
    print(f"ready, {layout}: {seconds:.1f} s")
    print(release.helm("test", release.name))
    pod = release.pod("broker" if layout == "colocated" else "replica-manager", 0)
    assert "declared" in release.execute(
        pod, "highwater", "topics", "list", "--json", f"--bootstrap={release.bootstrap}"
    )
    RunningLoad.start(release, image, seconds=5).finish(120)

    # A topic has replicas on every broker: none of them may be taken away.
    fewer = {**values, "layout": layout, "broker": {**values["broker"], "replicas": 2}}
    fewer["settings"] = {"default.replication.factor": 2, "min.insync.replicas": 1}
    with pytest.raises(CommandError, match="pre-upgrade hooks failed"):
        release.install(fewer, verb="upgrade")
    release.helm("uninstall", release.name, "--wait")

    def is_gone() -> bool:
        pods = release.get("pods", "-l", f"app.kubernetes.io/instance={release.name}")["items"]
        return all(pod["status"]["phase"] in {"Succeeded", "Failed"} for pod in pods)  # those of hooks stay, to be read

    # The brokers wait for etcd, which is gone, to be let go: at most for their grace.
    until(is_gone, "the pods are gone", values["broker"]["terminationGracePeriodSeconds"] + 60)
    assert release.get("persistentvolumeclaims")["items"], "volumes go by hand only"

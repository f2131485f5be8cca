"""Both layouts from nothing: installed, tested by `helm test`, scaled, upgraded, taken away."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes_cluster import CommandError, Release, RunningLoad, until


@pytest.mark.parametrize("layout", ["colocated", "separate"])
def test_an_install_works_and_is_gone_after_it(
    layout: str, release: Release, values: dict[str, Any], image: str
) -> None:
    declared = {"name": "declared", "partitions": 4, "config": {"retention.ms": 3600000}}
    seconds = release.install({**values, "layout": layout, "topics": [declared]})
    print(f"k8s_ready {layout}: {seconds:.1f} s")
    print(release.helm("test", release.name))
    pod = release.pod("broker" if layout == "colocated" else "replica-manager", 0)
    bootstrap = f"{release.name}.{release.namespace}.svc.cluster.local:9092"
    assert "declared" in release.execute(pod, "highwater", "topics", "list", "--json", f"--bootstrap={bootstrap}")
    RunningLoad.start(release, image, seconds=5).finish(120)

    # A topic has replicas on every broker: none of them may be taken away.
    fewer = {**values, "layout": layout, "broker": {**values["broker"], "replicas": 2}}
    fewer["settings"] = {"default.replication.factor": 2, "min.insync.replicas": 1}
    with pytest.raises(CommandError, match="pre-upgrade hooks failed"):
        release.install(fewer, verb="upgrade")
    release.helm("uninstall", release.name, "--wait")

    def is_gone() -> bool:
        return not release.get("pods", "-l", f"app.kubernetes.io/instance={release.name}")["items"]

    # The brokers wait for etcd, which is gone, to be let go: at most for their grace.
    until(is_gone, "the pods are gone", values["broker"]["terminationGracePeriodSeconds"] + 60)
    assert release.get("persistentvolumeclaims")["items"], "volumes go by hand only"

"""Everything is restarted, one pod after the other, under load: nobody who retries notices, and no partition has fewer
in sync than `min.insync.replicas` at any revision of etcd."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kubernetes_cluster import Release, RunningLoad, record, until

from highwater.kube.chaos.injection import Injection

_ROLLED_S = 400.0
_WITHOUT_CONTROLLER_S = 20.0
_LAGGING_S = 20.0
PREVIOUS_IMAGE = os.environ.get("HIGHWATER_PREVIOUS_IMAGE", "")


def restart(release: Release, component: str) -> None:
    release.kubectl("rollout", "restart", f"statefulset/{release.name}-{component}")


def finish(release: Release, component: str) -> None:
    release.kubectl(
        "rollout", "status", f"statefulset/{release.name}-{component}", f"--timeout={_ROLLED_S:g}s",
        timeout_s=_ROLLED_S + 10,
    )  # fmt: skip


@contextmanager
def nothing_is_refused(release: Release, image: str, since: int | None = None) -> Iterator[None]:
    """While its block runs, and until all is in sync again. ISRs are looked at from etcd's revision `since` on, by
    default the present one."""
    since = release.isr_revision() if since is None else since
    load = RunningLoad.start(release, image, seconds=3 * _ROLLED_S)
    load.wait_until_it_writes()
    yield
    load.stop()
    found = load.finish(300)
    print(found)
    assert found.get("failed sends", 0) == 0
    release.fewest_in_sync(since, minimum=2)


@pytest.mark.short
def test_a_rolling_restart_of_everything_fails_no_send(running: Release, image: str) -> None:
    seconds = {}
    with nothing_is_refused(running, image):
        for component in ("controller", "etcd", "broker"):
            began = time.monotonic()
            restart(running, component)
            finish(running, component)
            seconds[component] = time.monotonic() - began
    print(", ".join(f"{component} {taken:.1f} s" for component, taken in seconds.items()))
    record(k8s_roll=sum(seconds.values()))


def test_brokers_are_rolled_while_no_controller_acts(running: Release, image: str) -> None:
    controllers = running.get("statefulset", f"{running.name}-controller")["spec"]["replicas"]
    with nothing_is_refused(running, image):
        restart(running, "broker")
        scale_controllers(running, 0)
        until(lambda: not controllers_there(running), "no controller is there", 60)
        time.sleep(_WITHOUT_CONTROLLER_S)
        assert not controllers_there(running)
        scale_controllers(running, controllers)
        finish(running, "broker")
        finish(running, "controller")


def scale_controllers(release: Release, count: int) -> None:
    release.kubectl("scale", f"statefulset/{release.name}-controller", f"--replicas={count}")


def controllers_there(release: Release) -> list[Any]:
    selector = f"app.kubernetes.io/instance={release.name},app.kubernetes.io/component=controller"
    return list(release.get("pods", "-l", selector)["items"])


def test_brokers_are_rolled_while_one_is_out_of_its_isrs(running: Release, image: str) -> None:
    lagging = running.pod("broker", 0)  # the last that is replaced
    with nothing_is_refused(running, image):
        injection = Injection(running.installed, print)
        injection.signal(lagging, ["fetcher"], signal.SIGSTOP)
        until(lambda: not running.installed.is_ready(lagging), f"{lagging} is out of ISRs, so not ready", 60)
        restart(running, "broker")
        time.sleep(_LAGGING_S)
        injection.signal(lagging, ["fetcher"], signal.SIGCONT)
        finish(running, "broker")


@pytest.mark.skipif(not PREVIOUS_IMAGE, reason="HIGHWATER_PREVIOUS_IMAGE names none (make test-k8s PREVIOUS=COMMIT)")
def test_an_upgrade_of_the_image_fails_no_send(release: Release, values: dict[str, Any], image: str) -> None:
    repository, _, tag = PREVIOUS_IMAGE.rpartition(":")
    release.install({**values, "image": {"repository": repository, "tag": tag}})
    # The old image may have nothing that tells the revision; the first is still there.
    with nothing_is_refused(release, image, since=1):
        print(f"upgraded from {PREVIOUS_IMAGE} to {image} in {release.install(values, verb='upgrade'):.1f} s")
        for component in ("controller", "broker"):
            finish(release, component)

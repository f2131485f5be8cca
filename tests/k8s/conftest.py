"""`KUBECONFIG` names the cluster, `HIGHWATER_IMAGE` and `HIGHWATER_ETCD_IMAGE` images that it has or can pull."""

from __future__ import annotations

import os
import uuid
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from kubernetes_cluster import Release, command, record, sharing_processes

IMAGE = os.environ.get("HIGHWATER_IMAGE", "")
ETCD_IMAGE = os.environ.get("HIGHWATER_ETCD_IMAGE", "gcr.io/etcd-development/etcd:v3.6.16")


def image_values(image: str) -> dict[str, str]:
    repository, _, tag = image.rpartition(":")
    return {"repository": repository, "tag": tag}


@pytest.fixture(scope="session")
def image() -> str:
    assert os.environ.get("KUBECONFIG"), "set KUBECONFIG to a cluster that may be broken"
    assert IMAGE, "set HIGHWATER_IMAGE to name:tag of the image to test, which the cluster has or can pull"
    command("kubectl", "version")
    return IMAGE


@pytest.fixture(scope="session")
def values(image: str) -> dict[str, Any]:
    """Small: everything runs on one node of two cores."""
    little = {"requests": {"cpu": "10m", "memory": "64Mi"}}
    return {
        "image": image_values(image),
        "broker": {
            "storage": {"size": "2Gi"},
            "terminationGracePeriodSeconds": 90,
            "resources": dict.fromkeys(("replicaManager", "logStorage", "fetcher"), little),
        },
        "controller": {"resources": little},
        "etcd": {"image": image_values(ETCD_IMAGE), "resources": little, "storage": {"size": "1Gi"}},
    }


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report


def new_release() -> Release:
    return Release(f"hw-{uuid.uuid4().hex[:8]}")


@pytest.fixture
def release(image: str, request: pytest.FixtureRequest) -> Iterator[Release]:
    made = new_release()
    yield made
    if FAILED in request.node.stash:
        print(made.state())
    made.remove()


class Kept:
    """A release that tests use one after the other, each leaving it whole."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values
        self._release: Release | None = None

    def take(self) -> Release:
        if self._release is None:
            self._release = new_release()
            record(k8s_ready=self._release.install(self._values))
        return self._release

    def drop(self) -> None:
        if self._release is not None:
            self._release.remove()
            self._release = None


@pytest.fixture(scope="session")
def kept(values: dict[str, Any]) -> Iterator[Kept]:
    made = Kept(sharing_processes(values))
    yield made
    made.drop()


@pytest.fixture
def running(kept: Kept, request: pytest.FixtureRequest) -> Iterator[Release]:
    """One that is installed already, whose containers share their processes. All is ready and in sync after a test."""
    try:
        taken = kept.take()
    except BaseException:
        kept.drop()
        raise
    yield taken
    if FAILED in request.node.stash:
        print(taken.state())
        kept.drop()

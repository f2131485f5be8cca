"""`KUBECONFIG` names the cluster, `HIGHWATER_IMAGE` and `HIGHWATER_ETCD_IMAGE` images that it has or can pull."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes_cluster import Release, command

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


@pytest.fixture
def release(image: str) -> Iterator[Release]:
    made = Release(f"hw-{uuid.uuid4().hex[:8]}")
    yield made
    made.remove()

"""Drains a node as `kubectl drain` does, of this release's pods, and lets it take pods again."""

from __future__ import annotations

import time
from collections.abc import Callable

from highwater.kube.kubernetes_api import KubernetesError
from highwater.kube.release import Release

EVICTED_S = 180.0
"""For each pod: so long a PodDisruptionBudget may refuse."""
_POLL_S = 1.0


def drain(release: Release, place: float, say: Callable[[str], None]) -> None:
    """Evicts the pods of one of the nodes that host any, one by one. The node takes no pods meanwhile, unless it is the
    only one. Raises `KubernetesError`.

    Args:
        place: of the node among them, from 0 to below 1.
    """
    pods = release.pods()
    nodes = sorted({pod.node for pod in pods if pod.node})
    if not nodes:
        raise KubernetesError("no pod of the release is on a node")
    node = nodes[int(place * len(nodes))]
    cordoned = _others(release, node) and _cordon(release, node, True, say)
    say(f"{node} drained{'' if cordoned else ', while it takes pods on: there is no other, or that is forbidden'}")
    try:
        for pod in pods:
            if pod.node == node and not _evict(release, pod.name, pod.uid):
                say(f"{pod.name} could not be evicted within {EVICTED_S:g} s: the rest of {node} is left alone")
                break
    finally:
        if cordoned:
            _cordon(release, node, False, say)


def _evict(release: Release, name: str, uid: str) -> bool:
    """Whether it has gone within the time."""
    deadline = time.monotonic() + EVICTED_S
    refused = True
    while time.monotonic() < deadline:
        try:
            now = release.pod(name)
            if now is None or now.uid != uid:
                return True
            if refused:
                refused = not release.evict(name)
        except KubernetesError as error:
            if error.status in {401, 403}:
                raise
        time.sleep(_POLL_S)
    return False


def _others(release: Release, node: str) -> bool:
    """Whether another node takes pods."""
    try:
        found = release.api.call(release.api.core.list_node)["items"]
    except KubernetesError:
        return False
    return any(one["metadata"]["name"] != node and not one["spec"].get("unschedulable") for one in found)


def _cordon(release: Release, node: str, cordoned: bool, say: Callable[[str], None]) -> bool:
    """Whether it was done."""
    try:
        release.api.call(release.api.core.patch_node, node, {"spec": {"unschedulable": cordoned}})
    except KubernetesError as error:
        if not cordoned:
            say(f"{node} takes no pods: `kubectl uncordon {node}` is left to you, because {error}")
        return False
    return True

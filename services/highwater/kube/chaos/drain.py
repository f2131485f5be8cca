"""Drains a node as `kubectl drain` does, of this release's pods, and lets it take pods again."""

from __future__ import annotations

import time
from collections.abc import Callable

from highwater.errors import UserError
from highwater.kube.kubernetes_api import KubernetesError
from highwater.kube.release import Release

EVICTED_S = 180.0
"""For each pod: so long a PodDisruptionBudget may refuse."""
OPENED_S = 60.0
"""For Kubernetes to take that the node takes pods again."""
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
    closed, others = _nodes(release, node)
    cordoned = others and not closed
    try:
        cordoned = cordoned and _cordon(release, node)
        open_still = "" if cordoned or closed else ", while it takes pods on: there is no other, or that is forbidden"
        say(f"{node} drained{open_still}")
        for pod in pods:
            if pod.node == node and not _evict(release, pod.name, pod.uid):
                say(f"{pod.name} could not be evicted within {EVICTED_S:g} s: the rest of {node} is left alone")
                break
    finally:
        if cordoned:
            _uncordon(release, node, say)


def _evict(release: Release, name: str, uid: str) -> bool:
    """Tells whether it has gone within the time."""
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


def _nodes(release: Release, node: str) -> tuple[bool, bool]:
    """Tells whether it takes no pods already, as somebody wants it, and whether another one takes any."""
    try:
        found = release.api.call(release.api.core.list_node)["items"]
    except KubernetesError:
        return False, False
    closed = {one["metadata"]["name"]: bool(one["spec"].get("unschedulable")) for one in found}
    return closed.pop(node, False), not all(closed.values())


def _cordon(release: Release, node: str) -> bool:
    """Tells whether it may have been done: where no answer came, it may."""
    try:
        release.api.call(release.api.core.patch_node, node, {"spec": {"unschedulable": True}})
    except KubernetesError as error:
        return not error.status
    return True


def _uncordon(release: Release, node: str, say: Callable[[str], None]) -> None:
    def done() -> bool:
        release.api.call(release.api.core.patch_node, node, {"spec": {"unschedulable": False}})
        return True

    try:
        release.wait_until(done, f"{node} takes pods", OPENED_S)
    except UserError as error:
        say(f"{node} takes no pods: `kubectl uncordon {node}` is left to you, because {error}")

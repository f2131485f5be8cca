"""Runs a script in a pod beside its containers: with a capability that they lack, or among the processes of one of
them, though its image has no shell.

An ephemeral container stays in the pod's description until the pod is deleted.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from highwater.kube.kubernetes_api import KubernetesError
from highwater.kube.release import CONTROLLER, NotInTimeError, Release

_STARTED_S = 60.0
_POLL_S = 0.3


class ImpossibleError(KubernetesError):
    """This Kubernetes does not let such a thing be done."""


def run(
    release: Release,
    pod: str,
    command: Sequence[str],
    *,
    capability: str,
    target: str | None,
    timeout_s: float,
    begun: Callable[[], None],
) -> str:
    """Runs a command as root with one capability, and waits for its end; what it said. `begun` is called when it runs.
    Raises `ImpossibleError`, `KubernetesError` and `NotInTimeError`.

    Args:
        target: the container whose processes it sees; None: its own.
    """
    name = f"chaos-{uuid.uuid4().hex[:8]}"
    container: dict[str, Any] = {
        "name": name,
        "image": _image(release),
        "imagePullPolicy": "IfNotPresent",
        "command": list(command),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "env": [{"name": "PYTHONDONTWRITEBYTECODE", "value": "1"}],
        "securityContext": {
            "runAsUser": 0,
            "runAsGroup": 0,
            "runAsNonRoot": False,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"], "add": [capability]},
        },
    }
    if target is not None:
        container["targetContainerName"] = target
    body = {"spec": {"ephemeralContainers": [container]}}
    try:
        release.api.call(release.api.core.patch_namespaced_pod_ephemeralcontainers, pod, release.namespace, body)
    except KubernetesError as error:
        if error.status in {403, 404, 422} and "not found" not in str(error):
            raise ImpossibleError(
                f"no container with the capability {capability} may be put into {pod}: {error}. It takes the verb "
                "patch for pods/ephemeralcontainers, and a namespace that does not enforce Pod Security",
                error.status,
            ) from None
        raise
    uid = _uid(release, pod)
    running = ended = failed = False
    deadline = time.monotonic() + _STARTED_S
    while not ended:
        found = release.api.call(release.api.core.read_namespaced_pod, pod, release.namespace)
        if found["metadata"]["uid"] != uid:
            raise KubernetesError(f"{pod} was replaced while {name} ran in it")
        state = _state(found, name)
        waiting = state.get("waiting", {}).get("reason", "")
        if waiting.startswith("Err") or waiting.endswith(("Error", "BackOff")):
            raise ImpossibleError(f"{name} does not start in {pod}: {state['waiting'].get('message') or waiting}")
        ended = "terminated" in state
        failed = ended and state["terminated"].get("exitCode") != 0
        if not running and not failed and (ended or "running" in state):
            running, deadline = True, time.monotonic() + timeout_s
            begun()
        if not ended and time.monotonic() > deadline:
            raise NotInTimeError(f"{name} in {pod} {'did not end' if running else 'was not started'} in time")
        if not ended:
            time.sleep(_POLL_S)
    if failed:
        outcome = state["terminated"]
        raise ImpossibleError(f"{name} in {pod}: {(outcome.get('message') or outcome.get('reason') or '').strip()}")
    return release.logs(pod, name).decode(errors="replace").strip()


def _image(release: Release) -> str:
    """Highwater's own, as the release has it."""
    for pod in release.pods(CONTROLLER):
        for one in pod.containers:
            return one.image
    raise KubernetesError("there is no controller's pod, to take Highwater's image from")


def _uid(release: Release, pod: str) -> str:
    found = release.pod(pod)
    if found is None:
        raise KubernetesError(f"{pod} has just gone")
    return found.uid


def _state(pod: Any, name: str) -> dict[str, Any]:
    for one in pod["status"].get("ephemeralContainerStatuses") or ():
        if one["name"] == name:
            state: dict[str, Any] = one.get("state") or {}
            return state
    return {}

"""Asks Kubernetes and the services of a release.

One command is run in each pod of brokers and controllers, one for the cluster and one for etcd: nothing is asked for
each partition, and no port is forwarded. What does not answer has its error in its place.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from highwater.kube.in_pod import etcd_report, pod_report, python
from highwater.kube.kubernetes_api import KubernetesError
from highwater.kube.pod import COMPONENT, Pod
from highwater.kube.release import BROKER, CONTROLLER, ETCD, LOG_STORAGE, REMEMBERED, REPLICA_MANAGER, SERVICES, Release
from highwater.kube.status.values import Observed, metrics_urls

REPORT_TIMEOUT_S = 25.0
_AT_ONCE = 8
_ASKED = 2  # pods that are asked for what any of them knows
_QUOTA = "quota-backend-bytes="
_CLUSTER = ["highwater", "cluster", "--json", "--bootstrap=127.0.0.1:9092"]
_ETCD = python(etcd_report)


def observe(release: Release) -> Observed:
    """Raises `KubernetesError` where not even the pods are told."""
    sets = release.objects("statefulsets")
    unread: list[str] = []
    seen = Observed(
        release=release.name,
        namespace=release.namespace,
        fullname=release.fullname,
        wanted=release.replicas(sets),
        pods=release.pods(),
        warnings=_or(unread, dict, release.warnings),
        claims=_or(unread, list, lambda: release.objects("claims")),
        quota_bytes=_quota(sets),
        backup=_backup(release, unread),
        stopped=_stopped(sets),
        unread=unread,
    )
    asked = [pod for pod in seen.pods if pod.component != ETCD]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        cluster = pool.submit(_first, release, _serving(seen.pods, BROKER, REPLICA_MANAGER), _CLUSTER)
        etcd = pool.submit(_first, release, _serving(seen.pods, CONTROLLER, BROKER, REPLICA_MANAGER), _ETCD)
        reports = pool.map(lambda pod: _report(release, pod), asked)
        seen.reports = {pod.name: report for pod, report in zip(asked, reports, strict=True)}
        seen.cluster, seen.etcd = cluster.result(), etcd.result()
    return seen


def cluster(release: Release) -> Mapping[str, Any]:
    """Asks what `highwater cluster --json` says in one of the brokers; `error` where none could say. Raises
    `KubernetesError`."""
    return _first(release, _serving(release.pods(), BROKER, REPLICA_MANAGER), _CLUSTER)


def container_to_ask(pod: Pod) -> str | None:
    """One with Highwater's image that runs; None: there is none."""
    names = SERVICES if pod.component == BROKER else (pod.component,)
    return next((name for name in names if name in pod.running), None)


def _report(release: Release, pod: Pod) -> Mapping[str, Any]:
    container = container_to_ask(pod)
    if container is None:
        return {"error": "none of its containers runs"}
    arguments = metrics_urls(pod)
    if pod.component in {BROKER, LOG_STORAGE}:
        arguments.append("log-storage")
    return _asked(release, pod, container, python(pod_report, *arguments))


def _serving(pods: Iterable[Pod], *components: str) -> list[tuple[Pod, str]]:
    """The first few that are worth asking, with the container: by component, those that are ready first."""
    found = [
        (components.index(pod.component), not pod.ready, pod.ordinal, pod, container)
        for pod in pods
        if pod.component in components and (container := container_to_ask(pod)) is not None
    ]
    found.sort(key=lambda one: (one[1], one[0], one[2]))
    return [(pod, container) for *_, pod, container in found[:_ASKED]]


def _first(release: Release, candidates: Sequence[tuple[Pod, str]], command: Sequence[str]) -> Mapping[str, Any]:
    said: Mapping[str, Any] = {"error": "no pod that could tell is running"}
    for pod, container in candidates:
        said = _asked(release, pod, container, command)
        if "error" not in said:
            break
    return said


def _asked(release: Release, pod: Pod, container: str, command: Sequence[str]) -> Mapping[str, Any]:
    try:
        done = release.execute(pod.name, command, container=container, timeout_s=REPORT_TIMEOUT_S, check=False)
        if done.status != 0:
            return {"error": done.complaint}
        found: dict[str, Any] = json.loads(done.stdout)
    except KubernetesError as error:
        return {"error": str(error)}
    except ValueError:
        return {"error": f"it said what is no JSON: {done.text[:200]}"}
    return found


def _or(unread: list[str], default: Any, ask: Any) -> Any:
    try:
        return ask()
    except KubernetesError as error:
        unread.append(str(error))
        return default()


def _backup(release: Release, unread: list[str]) -> Mapping[str, Any] | None:
    try:
        return release.backup_job()
    except KubernetesError as error:
        if error.status != 403:  # a Role of before need not have it
            unread.append(str(error))
        return None


def _stopped(sets: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    remembered = {
        one["metadata"]["labels"][COMPONENT]: int((one["metadata"].get("annotations") or {}).get(REMEMBERED, 0))
        for one in sets
        if not one["spec"]["replicas"]
    }
    return {component: count for component, count in remembered.items() if count}


def _quota(sets: Iterable[Mapping[str, Any]]) -> int:
    """Of etcd's database, in bytes; 0: not known."""
    for one in sets:
        for container in one["spec"].get("template", {}).get("spec", {}).get("initContainers") or ():
            for argument in container.get("args") or ():
                if _QUOTA in argument:
                    return int(float(argument.partition(_QUOTA)[2]))
    return 0

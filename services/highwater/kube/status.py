"""The state of a release: what Kubernetes says of its pods beside what its services say, and what is wrong with it.

One command is run in each pod of brokers and controllers, one for the cluster and one for etcd: nothing is asked for
each partition, and no port is forwarded. What does not answer is said; the rest is shown all the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from highwater.kube.in_pod import etcd_report, pod_report, python
from highwater.kube.kubernetes_api import KubernetesError
from highwater.kube.pod import Pod
from highwater.kube.release import BROKER, CONTROLLER, ETCD, FETCHER, LOG_STORAGE, REPLICA_MANAGER, SERVICES, Release

METRICS_PORTS = {REPLICA_MANAGER: 9404, FETCHER: 9405, LOG_STORAGE: 9406, CONTROLLER: 9404}
REPORT_TIMEOUT_S = 25.0
FULL_SHARE = 0.85
"""Of a volume, or of etcd's quota, that is worth a word."""
_AT_ONCE = 8
_ASKED = 2  # pods that are asked for what any of them knows
_QUOTA = "quota-backend-bytes="


@dataclass(frozen=True, slots=True)
class PodRow:
    name: str
    component: str
    node: str
    ready: bool
    restarts: int
    age_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class BrokerRow:
    """None: it is not known."""

    broker_id: int
    registered: bool | None
    broker_epoch: int | None
    leads: int | None
    replicas: int | None
    out_of_isr: int | None
    lag_records: int | None
    """The largest of its followers', behind the leader's high watermark."""
    state: str
    said: str
    """Why it does not answer; empty where it does."""


@dataclass(frozen=True, slots=True)
class LogDirRow:
    broker_id: int
    path: str
    total_bytes: int
    used_bytes: int
    full: bool
    error: str
    logs: int
    recovering: bool
    opened_logs: int
    total_logs: int
    scanned_bytes: int
    to_scan_bytes: int


@dataclass(frozen=True, slots=True)
class EtcdRow:
    endpoint: str
    leader: bool
    version: str
    db_size_bytes: int
    alarms: tuple[str, ...]
    error: str


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong, and what to do."""

    wrong: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Status:
    release: str
    namespace: str
    layout: str
    pods: tuple[PodRow, ...]
    brokers: tuple[BrokerRow, ...]
    log_dirs: tuple[LogDirRow, ...]
    etcd: tuple[EtcdRow, ...]
    cluster: Mapping[str, Any]
    """As `highwater cluster --json` has it, without the brokers; `error` where nobody could say."""
    acting: str
    """The controller's pod; empty: none is known to act."""
    findings: tuple[Finding, ...]


@dataclass(slots=True)
class Observed:
    """What was asked and answered; pure values, as tests make them."""

    release: str
    namespace: str
    fullname: str
    wanted: Mapping[str, int]
    pods: Sequence[Pod]
    warnings: Mapping[str, str]
    claims: Sequence[Mapping[str, Any]]
    quota_bytes: int
    reports: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """By pod: `pod_report`'s; {"error": …} where it could not be run."""
    cluster: Mapping[str, Any] = field(default_factory=dict)
    etcd: Mapping[str, Any] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    """What the Kubernetes API did not tell."""


# Asking


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
    """What `highwater cluster --json` says in one of the brokers; `error` where none could say. Raises
    `KubernetesError`."""
    return _first(release, _serving(release.pods(), BROKER, REPLICA_MANAGER), _CLUSTER)


_CLUSTER = ["highwater", "cluster", "--json", "--bootstrap=127.0.0.1:9092"]
_ETCD = python(etcd_report)


def metrics_urls(pod: Pod) -> list[str]:
    """Of the services in a pod that is not etcd's."""
    names = SERVICES if pod.component == BROKER else (pod.component,)
    return [f"http://127.0.0.1:{METRICS_PORTS[name]}/metrics" for name in names]


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


def _quota(sets: Iterable[Mapping[str, Any]]) -> int:
    """Of etcd's database, in bytes; 0: not known."""
    for one in sets:
        for container in one["spec"].get("template", {}).get("spec", {}).get("initContainers") or ():
            for argument in container.get("args") or ():
                if _QUOTA in argument:
                    return int(float(argument.partition(_QUOTA)[2]))
    return 0


# Putting together: pure


def assemble(seen: Observed, now: datetime) -> Status:
    by_name = {pod.name: pod for pod in seen.pods}
    colocated = BROKER in seen.wanted
    brokers = seen.wanted.get(BROKER if colocated else REPLICA_MANAGER, 0)
    log_dirs = tuple(_log_dirs(seen))
    rows = tuple(_broker(seen, by_name, number, colocated, log_dirs) for number in range(brokers))
    etcd = tuple(_etcd(seen))
    acting = _acting(seen)
    pods = tuple(
        PodRow(
            one.name, one.component, one.node, one.ready, one.restarts, _age_s(one.created, now),
            one.reason(seen.warnings),
        )
        for one in seen.pods
    )  # fmt: skip
    return Status(
        release=seen.release,
        namespace=seen.namespace,
        layout="colocated" if colocated else "separate",
        pods=pods,
        brokers=rows,
        log_dirs=log_dirs,
        etcd=etcd,
        cluster={key: value for key, value in seen.cluster.items() if key != "brokers"},
        acting=acting,
        findings=tuple(_findings(seen, rows, log_dirs, etcd, acting)),
    )


def metric(text: str, name: str) -> float | None:
    """The value of a metric that has no labels; None: it is not among them."""
    for line in text.splitlines():
        key, _, value = line.rpartition(" ")
        if key == name:
            return float(value)
    return None


def _metrics(seen: Observed, pod: str, service: str) -> str:
    found: Mapping[str, str] = seen.reports.get(pod, {}).get("metrics", {})
    return found.get(f"http://127.0.0.1:{METRICS_PORTS[service]}/metrics", "")


def _count(text: str, name: str) -> int | None:
    value = metric(text, name)
    return None if value is None else int(value)


def _broker(
    seen: Observed, by_name: Mapping[str, Pod], number: int, colocated: bool, log_dirs: Iterable[LogDirRow]
) -> BrokerRow:
    manager_pod = f"{seen.fullname}-{BROKER if colocated else REPLICA_MANAGER}-{number}"
    fetcher_pod = manager_pod if colocated else f"{seen.fullname}-{FETCHER}-{number}"
    manager = _metrics(seen, manager_pod, REPLICA_MANAGER)
    fetcher = _metrics(seen, fetcher_pod, FETCHER)
    report = seen.reports.get(manager_pod, {"error": "there is no such pod"})
    told = None if "error" in seen.cluster else {one["broker_id"]: one for one in seen.cluster.get("brokers", ())}
    registration = (told or {}).get(number)
    registered = None if told is None else registration is not None
    errors = report.get("errors", {})
    said = report.get("error", "") or errors.get(f"http://127.0.0.1:{METRICS_PORTS[REPLICA_MANAGER]}/metrics", "")
    if registration is not None:
        state = (
            "shutting down"
            if registration["shutting_down"]
            else "tail lost"
            if registration["tail_lost"]
            else "live"
        )  # fmt: skip
    elif any(one.recovering for one in log_dirs if one.broker_id == number):
        state = "recovering"
    elif manager_pod not in by_name:
        state = "no pod"
    else:
        state = "not registered" if registered is False else "unknown"
    leads = _count(manager, "highwater_replica_manager_leader_partitions")
    replicas = _count(manager, "highwater_replica_manager_partitions")
    return BrokerRow(
        broker_id=number,
        registered=registered,
        broker_epoch=registration["broker_epoch"] if registration else None,
        leads=registration["leaders"] if registration else leads,
        replicas=registration["replicas"] if registration else replicas,
        out_of_isr=_count(manager, "highwater_replica_manager_out_of_sync_partitions"),
        lag_records=_count(fetcher, "highwater_fetcher_max_lag_records"),
        state=state,
        said=said,
    )


def _log_dirs(seen: Observed) -> Iterator[LogDirRow]:
    for pod in seen.pods:
        report = seen.reports.get(pod.name, {})
        for one in report.get("log_dirs", ()):
            recovery = one.get("recovery") or {}
            total, usable = int(one["total_bytes"]), int(one["usable_bytes"])
            yield LogDirRow(
                broker_id=pod.ordinal,
                path=one["path"],
                total_bytes=total,
                used_bytes=total - usable,
                full=one["full"],
                error=(one.get("error") or {}).get("message", ""),
                logs=int(one["logs"]),
                recovering=bool(report.get("opening")),
                opened_logs=int(recovery.get("opened_logs", 0)),
                total_logs=int(recovery.get("total_logs", 0)),
                scanned_bytes=int(recovery.get("scanned_bytes", 0)),
                to_scan_bytes=int(recovery.get("total_bytes", 0)),
            )


def _etcd(seen: Observed) -> Iterator[EtcdRow]:
    for one in seen.etcd.get("members", ()):
        yield EtcdRow(
            endpoint=one["endpoint"],
            leader=bool(one.get("leader")) and one.get("leader") == one.get("id"),
            version=one.get("version", ""),
            db_size_bytes=int(one.get("db_size_bytes", 0)),
            alarms=tuple(one.get("alarms", ())),
            error=one.get("error", ""),
        )


def _acting(seen: Observed) -> str:
    controllers = [pod.name for pod in seen.pods if pod.component == CONTROLLER]
    for name in controllers:
        if metric(_metrics(seen, name, CONTROLLER), "highwater_controller_active") == 1:
            return name
    named = seen.cluster.get("controller_id")
    name = f"{seen.fullname}-{CONTROLLER}-{named}"
    return name if named is not None and name in controllers else ""


def _age_s(created: str, now: datetime) -> float:
    if not created:
        return 0.0
    return round((now - datetime.fromisoformat(created)).total_seconds(), 1)


# What is wrong


def _findings(
    seen: Observed,
    brokers: Sequence[BrokerRow],
    log_dirs: Sequence[LogDirRow],
    etcd: Sequence[EtcdRow],
    acting: str,
) -> Iterator[Finding]:
    yield from _of_pods(seen)
    yield from _of_etcd(seen, etcd)
    yield from _of_cluster(seen, acting)
    yield from _of_brokers(seen, brokers)
    yield from _of_log_dirs(log_dirs)
    for one in seen.unread:
        yield Finding(one, "without it the reasons of pods that wait are not all known")


def _of_pods(seen: Observed) -> Iterator[Finding]:
    there = {pod.name for pod in seen.pods}
    for component, count in seen.wanted.items():
        for name in (f"{seen.fullname}-{component}-{number}" for number in range(count)):
            if name not in there:
                yield Finding(
                    f"{name} is missing",
                    f"kubectl -n {seen.namespace} describe statefulset {seen.fullname}-{component} says why it is "
                    "not made: a quota, an admission webhook",
                )
    for pod in seen.pods:
        reason = pod.reason(seen.warnings)
        if reason:
            yield Finding(f"{pod.name}: {reason}", _remedy(seen, pod, reason))
        for one in pod.containers:
            if "OOMKilled" in one.last_end:
                yield Finding(
                    f"{one.name} of {pod.name} took more memory than its limit, {one.restarts} restarts",
                    "raise its limit (resources in the chart's values)",
                )
    for claim in seen.claims:
        phase = claim.get("status", {}).get("phase")
        if phase != "Bound":
            name = claim["metadata"]["name"]
            yield Finding(
                f"the claim {name} is {str(phase).lower()}",
                f"kubectl -n {seen.namespace} describe pvc {name}: no storage class gives it a volume, or its volume "
                "is gone (docs/kubernetes.md, a broker's volume)",
            )


def _remedy(seen: Observed, pod: Pod, reason: str) -> str:
    describe = f"kubectl -n {seen.namespace} describe pod {pod.name}"
    kind = reason.partition(" ")[0]
    if kind == "unschedulable:":
        return f"no node takes it: add one or lower its requests, or bring back the node of its volume; {describe}"
    if kind == "image":
        return "the image cannot be had: look at image.repository, image.tag and imagePullSecrets of the values"
    if "crashes again" in reason:
        return f"highwater kube logs -n {seen.namespace} --component {pod.component} --previous says why"
    if kind == "volume:":
        return f"its volume is not attached: {describe}; a node that is gone may still hold it"
    if pod.terminating:
        return "wait for its grace period; where its node is gone, taint the node (docs/kubernetes.md, a node)"
    if reason.startswith("init container member"):
        return f"kubectl -n {seen.namespace} logs {pod.name} -c member says what this member waits for"
    return f"highwater kube logs -n {seen.namespace} --component {pod.component}; {describe}"


def _of_etcd(seen: Observed, etcd: Sequence[EtcdRow]) -> Iterator[Finding]:
    if "error" in seen.etcd:
        yield Finding(f"etcd could not be asked: {seen.etcd['error']}", "its pods are in the table, as far as they go")
    for one in etcd:
        if one.error:
            yield Finding(
                f"etcd's member {one.endpoint}: {one.error}",
                f"highwater kube logs -n {seen.namespace} --component etcd; docs/kubernetes.md, a volume of etcd",
            )
        for alarm in one.alarms:
            yield Finding(
                f"etcd's member {one.endpoint} has an alarm: {alarm}",
                "with NOSPACE nothing is written any more: compact, defragment, raise etcd.quotaBackendBytes, then "
                "`etcdctl alarm disarm`; with CORRUPT delete that member's claim and pod",
            )
        if seen.quota_bytes and one.db_size_bytes >= FULL_SHARE * seen.quota_bytes:
            yield Finding(
                f"the database of etcd's member {one.endpoint} has {one.db_size_bytes} bytes of {seen.quota_bytes}",
                "raise etcd.quotaBackendBytes before it is full, and defragment",
            )


def _of_cluster(seen: Observed, acting: str) -> Iterator[Finding]:
    if not acting:
        yield Finding(
            "no controller is known to act: no leader is elected, no topic is made",
            f"highwater kube logs -n {seen.namespace} --component controller; without etcd's quorum none can act",
        )
    if "error" in seen.cluster:
        yield Finding(
            f"no broker tells of the cluster: {seen.cluster['error']}",
            "the brokers' own words are below, see them first",
        )
        return
    if offline := seen.cluster.get("offline_partitions", 0):
        yield Finding(
            f"{offline} partitions have no leader",
            "bring back the brokers that host them; docs/operations.md says what to do where those are lost",
        )
    if under := seen.cluster.get("under_replicated_partitions", 0):
        yield Finding(f"{under} partitions are under-replicated", "wait for brokers that catch up; see the lag")


def _of_brokers(seen: Observed, brokers: Sequence[BrokerRow]) -> Iterator[Finding]:
    for one in brokers:
        if one.registered is False and one.state != "no pod":
            yield _not_registered(seen, one)
        elif one.said and one.state != "no pod":
            yield Finding(f"broker {one.broker_id} does not tell of itself: {one.said}", "see its pod and its logs")
        if one.state == "tail lost":
            yield Finding(
                f"broker {one.broker_id} has lost the ends of its logs",
                "it leads nothing until it has caught up (docs/replication.md, 7.2): wait",
            )
    for pod in seen.pods:
        damaged = metric(_metrics(seen, pod.name, LOG_STORAGE), "highwater_log_storage_damaged_logs") if (
            pod.component in {BROKER, LOG_STORAGE}
        ) else None  # fmt: skip
        if damaged:
            yield Finding(
                f"{int(damaged)} logs of broker {pod.ordinal} are damaged",
                "`highwater replicas verify` says which records; docs/operations.md, scrubbing",
            )


def _not_registered(seen: Observed, one: BrokerRow) -> Finding:
    wrong = f"broker {one.broker_id} is not registered ({one.state})"
    if one.state == "recovering":
        return Finding(wrong, "its log-storage recovers: wait, do not restart it")
    name = f"{seen.fullname}-{BROKER if BROKER in seen.wanted else REPLICA_MANAGER}-{one.broker_id}"
    if metric(_metrics(seen, name, REPLICA_MANAGER), "highwater_replica_manager_ready") == 1:
        return Finding(
            f"{wrong}, and takes itself for ready",
            f"look again in a minute; if it stays so, kubectl -n {seen.namespace} delete pod {name}: it registers when "
            "it starts",
        )
    return Finding(wrong, f"highwater kube logs -n {seen.namespace} --component replica-manager says what it waits for")


def _of_log_dirs(log_dirs: Sequence[LogDirRow]) -> Iterator[Finding]:
    for one in log_dirs:
        where = f"{one.path} of broker {one.broker_id}"
        if one.error:
            yield Finding(f"{where} is offline: {one.error}", "docs/operations.md, log directories: a volume failed")
        elif one.full:
            yield Finding(
                f"{where} is full: its logs take nothing", "expand its claim, or make space (log directories)"
            )
        elif one.total_bytes and one.used_bytes >= FULL_SHARE * one.total_bytes:
            share = 100 * one.used_bytes // one.total_bytes
            yield Finding(f"{where} is {share} % full", "expand its claim, or let retention delete more")

"""The observations of a release, and what is made of it. Frozen where it is a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from highwater.kube.pod import Pod
from highwater.kube.release import BROKER, CONTROLLER, FETCHER, LOG_STORAGE, REPLICA_MANAGER, SERVICES

METRICS_PORTS = {REPLICA_MANAGER: 9404, FETCHER: 9405, LOG_STORAGE: 9406, CONTROLLER: 9404}


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
    """Everything that was asked and answered; pure values, as tests make them."""

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
    backup: Mapping[str, Any] | None = None
    """The CronJob of backups; None: there is none, or it may not be read."""
    stopped: Mapping[str, int] = field(default_factory=dict)
    """By component that a rebuild has stopped: how many pods it had."""
    unread: list[str] = field(default_factory=list)
    """What the Kubernetes API did not tell."""


def metrics_urls(pod: Pod) -> list[str]:
    """Of the services in a pod that is not etcd's."""
    names = SERVICES if pod.component == BROKER else (pod.component,)
    return [f"http://127.0.0.1:{METRICS_PORTS[name]}/metrics" for name in names]


def metric(text: str, name: str) -> float | None:
    """The value of a metric that has no labels; None: it is not among them."""
    for line in text.splitlines():
        key, _, value = line.rpartition(" ")
        if key == name:
            return float(value)
    return None


def metrics_of(seen: Observed, pod: str, service: str) -> str:
    """The metrics that a service of a pod told; empty where it told nothing."""
    found: Mapping[str, str] = seen.reports.get(pod, {}).get("metrics", {})
    return found.get(f"http://127.0.0.1:{METRICS_PORTS[service]}/metrics", "")

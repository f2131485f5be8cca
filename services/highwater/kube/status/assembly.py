"""Makes the rows of a status of what was observed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from highwater.kube.pod import Pod
from highwater.kube.release import BROKER, CONTROLLER, FETCHER, REPLICA_MANAGER
from highwater.kube.status.findings import findings
from highwater.kube.status.values import (
    METRICS_PORTS,
    BrokerRow,
    EtcdRow,
    LogDirRow,
    Observed,
    PodRow,
    Status,
    metric,
    metrics_of,
)


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
        findings=tuple(findings(seen, rows, log_dirs, etcd, acting)),
    )


def _count(text: str, name: str) -> int | None:
    value = metric(text, name)
    return None if value is None else int(value)


def _broker(
    seen: Observed, by_name: Mapping[str, Pod], number: int, colocated: bool, log_dirs: Iterable[LogDirRow]
) -> BrokerRow:
    manager_pod = f"{seen.fullname}-{BROKER if colocated else REPLICA_MANAGER}-{number}"
    fetcher_pod = manager_pod if colocated else f"{seen.fullname}-{FETCHER}-{number}"
    manager = metrics_of(seen, manager_pod, REPLICA_MANAGER)
    fetcher = metrics_of(seen, fetcher_pod, FETCHER)
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
        if metric(metrics_of(seen, name, CONTROLLER), "highwater_controller_active") == 1:
            return name
    named = seen.cluster.get("controller_id")
    name = f"{seen.fullname}-{CONTROLLER}-{named}"
    return name if named is not None and name in controllers else ""


def _age_s(created: str, now: datetime) -> float:
    if not created:
        return 0.0
    return round((now - datetime.fromisoformat(created)).total_seconds(), 1)

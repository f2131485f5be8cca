"""Says what is wrong with a release, and what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from highwater.kube.pod import COMPONENT, Pod
from highwater.kube.release import BROKER, LOG_STORAGE, REPLICA_MANAGER
from highwater.kube.status.values import BrokerRow, EtcdRow, Finding, LogDirRow, Observed, metric, metrics_of

FULL_SHARE = 0.85
"""Of a volume, or of etcd's quota, that is worth a word."""


def findings(
    seen: Observed,
    brokers: Sequence[BrokerRow],
    log_dirs: Sequence[LogDirRow],
    etcd: Sequence[EtcdRow],
    acting: str,
) -> Iterator[Finding]:
    """The nearest to Kubernetes first."""
    yield from _of_a_rebuild(seen)
    yield from _of_pods(seen)
    yield from _of_etcd(seen, etcd)
    yield from _of_cluster(seen, acting)
    yield from _of_brokers(seen, brokers)
    yield from _of_log_dirs(log_dirs)
    yield from _of_backups(seen)
    for one in seen.unread:
        yield Finding(one, "without it the reasons of pods that wait are not all known")


def _of_a_rebuild(seen: Observed) -> Iterator[Finding]:
    if seen.stopped:
        told = ", ".join(f"{component} ({count} pods)" for component, count in seen.stopped.items())
        yield Finding(
            f"highwater kube rebuild or restore has stopped {told}",
            "wait if it still runs; if it was killed, run it again: whatever comes of it, it starts what was stopped",
        )


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
        # That of backups is bound when the first of them is taken.
        if phase != "Bound" and not (
            phase == "Pending" and claim["metadata"].get("labels", {}).get(COMPONENT) == "backup"
        ):
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
            f"partitions without a leader: {offline}",
            "bring back the brokers that host them; docs/operations.md says what to do where those are lost",
        )
    if under := seen.cluster.get("under_replicated_partitions", 0):
        yield Finding(f"under-replicated partitions: {under}", "wait for brokers that catch up; see the lag")


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
        damaged = metric(metrics_of(seen, pod.name, LOG_STORAGE), "highwater_log_storage_damaged_logs") if (
            pod.component in {BROKER, LOG_STORAGE}
        ) else None  # fmt: skip
        if damaged:
            yield Finding(
                f"{int(damaged)} logs of broker {pod.ordinal} are damaged",
                "`highwater replicas verify` says which records; docs/operations.md, scrubbing",
            )


def _of_backups(seen: Observed) -> Iterator[Finding]:
    if seen.backup is None:
        return
    name, told = seen.backup["metadata"]["name"], seen.backup.get("status") or {}
    due, taken = told.get("lastScheduleTime") or "", told.get("lastSuccessfulTime") or ""
    if seen.backup["spec"].get("suspend"):
        yield Finding(
            f"no backups are taken: {name} is suspended",
            f'kubectl -n {seen.namespace} patch cronjob {name} -p \'{{"spec": {{"suspend": false}}}}\'',
        )
    elif due > taken and not told.get("active"):  # RFC 3339, of one zone
        yield Finding(
            f"the backup of {due} was not taken, the last one is {f'of {taken}' if taken else 'none'}",
            f"kubectl -n {seen.namespace} describe jobs -l {COMPONENT}=backup, and the logs of their pods, say why; "
            "highwater kube backup takes one onto this machine",
        )


def _not_registered(seen: Observed, one: BrokerRow) -> Finding:
    wrong = f"broker {one.broker_id} is not registered ({one.state})"
    if one.state == "recovering":
        return Finding(wrong, "its log-storage recovers: wait, do not restart it")
    name = f"{seen.fullname}-{BROKER if BROKER in seen.wanted else REPLICA_MANAGER}-{one.broker_id}"
    if metric(metrics_of(seen, name, REPLICA_MANAGER), "highwater_replica_manager_ready") == 1:
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

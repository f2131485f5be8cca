"""`highwater kube status`: pods beside what runs in them, and what is wrong."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any

from highwater.cli.kube.options import Context, Namespace, ReleaseName, release_of
from highwater.console.counted import counted
from highwater.console.output import AsJson, json_line, screen, table


def status(
    namespace: Namespace = None, release: ReleaseName = None, context: Context = None, json: AsJson = False
) -> int:
    """Show the pods of a release, its brokers, volumes and members of etcd, and what is wrong with what to do. Exit
    status 1 where something is."""
    found = release_of(namespace, release, context)
    from highwater.kube.status.assembly import assemble
    from highwater.kube.status.observation import observe

    told = assemble(observe(found), datetime.now(UTC))
    if json:
        json_line(dataclasses.asdict(told))
        return 1 if told.findings else 0
    cluster = told.cluster
    table(
        f"{told.release} in {told.namespace}, {told.layout}",
        ["pod", "node", "ready", "restarts", "age", "why"],
        [[one.name, one.node, _yes(one.ready), one.restarts, _age(one.age_s), one.reason] for one in told.pods],
    )
    table(
        "brokers",
        ["broker", "state", "broker epoch", "leads", "replicas", "out of ISR", "lag", "says"],
        [
            [
                one.broker_id,
                one.state,
                _or_unknown(one.broker_epoch),
                _or_unknown(one.leads),
                _or_unknown(one.replicas),
                _or_unknown(one.out_of_isr),
                _or_unknown(one.lag_records),
                one.said,
            ]
            for one in told.brokers
        ],
    )
    if told.log_dirs:
        table(
            "log directories",
            ["broker", "directory", "state", "logs", "GiB used", "GiB", "%"],
            [
                [
                    one.broker_id,
                    one.path,
                    _state(one),
                    one.logs,
                    round(one.used_bytes / 2**30, 1),
                    round(one.total_bytes / 2**30, 1),
                    100 * one.used_bytes // one.total_bytes if one.total_bytes else 0,
                ]
                for one in told.log_dirs
            ],
        )
    if told.etcd:
        table(
            "etcd",
            ["member", "leads", "version", "MiB", "alarms", "error"],
            [
                [
                    one.endpoint,
                    _yes(one.leader),
                    one.version,
                    round(one.db_size_bytes / 2**20, 1),
                    one.alarms,
                    one.error,
                ]
                for one in told.etcd
            ],
        )
    _say(f"active controller: {told.acting or 'none is known'}")
    if "error" not in cluster:
        _say(
            f"{counted(cluster.get('topics', 0), 'topic')}, {counted(cluster.get('partitions', 0), 'partition')}: "
            f"{cluster.get('offline_partitions')} without a leader, "
            f"{cluster.get('under_replicated_partitions')} under-replicated"
        )
    for finding in told.findings:
        _say(f"WRONG: {finding.wrong}")
        _say(f"   DO: {finding.remedy}")
    if not told.findings:
        _say("nothing is wrong")
    return 1 if told.findings else 0


def _say(line: str) -> None:
    screen.print(line, soft_wrap=True)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _or_unknown(value: int | None) -> Any:
    return "?" if value is None else value


def _age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds)}s"


def _state(one: Any) -> str:
    if one.error:
        return "offline"
    if one.recovering:
        scanned = f", {100 * one.scanned_bytes // one.to_scan_bytes} % scanned" if one.to_scan_bytes else ""
        return f"recovering {one.opened_logs}/{one.total_logs}{scanned}"
    return "full" if one.full else "online"

"""What of the chart is made from other files: `python helm/generate.py`, which a test compares with what is there.

- `files/settings.json`: which setting belongs to which service, from the services' own models;
- `files/dashboard.json`: the panels of the Grafana dashboard;
- `values.schema.json`: what values may be;
- `README.md`: every value, from the comments of `values.yaml`;
- with Helm on the PATH, `../k8s/*.yaml`: the chart rendered for three sizes.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from highwater.controller.settings import ControllerSettings
from highwater.fetcher.settings import FetcherSettings
from highwater.log_storage.settings import LogStorageSettings
from highwater.replica_manager.settings import ReplicaManagerSettings
from highwater.rpc.settings import ServiceSettings

HERE = Path(__file__).resolve().parent
CHART = HERE / "highwater"
MANIFESTS = HERE.parent / "k8s"
SERVICES: dict[str, type[ServiceSettings]] = {
    "log-storage": LogStorageSettings,
    "fetcher": FetcherSettings,
    "replica-manager": ReplicaManagerSettings,
    "controller": ControllerSettings,
}
OF_THE_CHART = frozenset(
    {
        "advertised.listener",
        "advertised.listeners",
        "broker.id",
        "cluster",
        "controller.id",
        "etcd",
        "health.listen",
        "host.address",
        "inter.broker.listener.name",
        "listener.security.protocol.map",
        "listen",
        "listeners",
        "log.dirs",
        "log.storage",
        "metrics.listen",
        "rack",
        "replica.manager",
        "ssl.ca.file",
        "ssl.certificate.file",
        "ssl.client.auth",
        "ssl.key.file",
    }
)
"""Settings that differ from pod to pod: the templates give them."""
KUBERNETES = "1.33"
SIZES = ("dev", "small", "production")
PANELS = (
    ("Partitions without a leader", "max(highwater_controller_offline_partitions)", "none"),
    ("Partitions below min.insync.replicas", "sum(highwater_replica_manager_under_min_isr_partitions)", "none"),
    ("Under-replicated partitions", "sum by (pod) (highwater_replica_manager_under_replicated_partitions)", "none"),
    ("Live brokers", "max(highwater_controller_live_brokers)", "none"),
    ("Acting controllers", "sum(highwater_controller_active)", "none"),
    ("Ready", "highwater_replica_manager_ready", "none"),
    ("Produced", "sum by (pod) (rate(highwater_replica_manager_produced_bytes_total[1m]))", "Bps"),
    ("Fetched", "sum by (role) (rate(highwater_replica_manager_fetched_bytes_total[1m]))", "Bps"),
    (
        "Produce requests, 99th percentile",
        "histogram_quantile(0.99, sum by (le) (rate(highwater_replica_manager_produce_seconds_bucket[1m])))",
        "s",
    ),
    (
        "Hottest topics, in from producers",
        "topk(10, sum by (topic) (rate(highwater_replica_manager_topic_bytes_in_total[1m])))",
        "Bps",
    ),
    (
        "Hottest topics, out to consumers",
        "topk(10, sum by (topic) (rate(highwater_replica_manager_topic_bytes_out_total[1m])))",
        "Bps",
    ),
    ("Idle share of replica-managers", "highwater_replica_manager_loop_idle_ratio", "percentunit"),
    ("Idle share of log-storages", "highwater_log_storage_loop_idle_ratio", "percentunit"),
    ("Refused produces", "sum by (error) (rate(highwater_replica_manager_refused_produces_total[1m]))", "none"),
    ("Lag of followers, records", "highwater_fetcher_max_lag_records", "none"),
    ("ISR shrinks", "sum by (pod) (rate(highwater_replica_manager_isr_shrinks_total[1m]))", "none"),
    ("ISR expands", "sum by (pod) (rate(highwater_replica_manager_isr_expands_total[1m]))", "none"),
    ("Partitions at min.insync.replicas", "sum(highwater_replica_manager_at_min_isr_partitions)", "none"),
    ("Elections in 5 minutes", "sum by (kind) (increase(highwater_controller_elections_total[5m]))", "none"),
    ("ISR changes", "sum by (outcome) (rate(highwater_replica_manager_isr_changes_total[1m]))", "none"),
    ("Leaders", "highwater_replica_manager_leader_partitions", "none"),
    (
        "fsync, 99th percentile",
        "histogram_quantile(0.99, sum by (le, pod) (rate(highwater_log_storage_fsync_seconds_bucket[1m])))",
        "s",
    ),
    ("Offline and damaged logs", "highwater_log_storage_offline_logs + highwater_log_storage_damaged_logs", "none"),
    ("Full log directories", "highwater_log_storage_full_log_dirs", "none"),
)
"""Of the dashboard: title, query, unit."""


def settings() -> dict[str, list[str]]:
    """The settings of each service that values may give, under Kafka's names."""
    return {
        service: sorted({name.replace("_", ".") for name in model.model_fields} - OF_THE_CHART)
        for service, model in SERVICES.items()
    }


def schema() -> dict[str, Any]:
    text: dict[str, Any] = {"type": "string"}
    flag: dict[str, Any] = {"type": "boolean"}
    port: dict[str, Any] = {"type": "integer", "minimum": 1, "maximum": 65535}
    free: dict[str, Any] = {"type": "object"}
    size: dict[str, Any] = {"type": "string", "pattern": "^[0-9.]+(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$"}
    host = {"type": "string", "pattern": "^[^:/ ]+(:[0-9]+)?$"}
    member = {"type": "string", "pattern": "^(https?://)?[^:/ ]+:[0-9]+$"}
    known = settings()

    def one_of(*values: Any) -> dict[str, Any]:
        return {"enum": list(values)}

    def count(minimum: int, maximum: int | None = None) -> dict[str, Any]:
        return {"type": "integer", "minimum": minimum, **({} if maximum is None else {"maximum": maximum})}

    def closed(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": False, "properties": properties, **more}

    def each(items: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"type": "array", "items": items, **more}

    def settings_of(*services: str) -> dict[str, Any]:
        names = sorted({name for service in services for name in known[service]})
        return {
            "type": "object",
            "propertyNames": {"enum": names},
            "additionalProperties": {"type": ["string", "number", "boolean"]},
        }

    placement = {
        "nodeSelector": free,
        "tolerations": each(free),
        "affinity": free,
    }
    about_pods = {**placement, "priorityClassName": text, "podAnnotations": free, "podLabels": free}
    image = {
        "repository": {**text, "minLength": 1},
        "tag": text,
        "pullPolicy": one_of("Always", "IfNotPresent", "Never"),
    }
    name = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?$"}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **closed(
            {
                "global": free,
                "clusterName": {"type": "string", "pattern": "^[A-Za-z0-9._-]+$"},
                "clusterDomain": {**text, "minLength": 1},
                "fullnameOverride": {"anyOf": [name, one_of("")]},
                "image": closed({**image, "digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"}}),
                "imagePullSecrets": each(text),
                "layout": one_of("colocated", "separate"),
                "tls": closed({"secretName": text, "clientAuth": one_of("none", "required")}),
                "settings": settings_of(*SERVICES),
                "broker": closed(
                    {
                        "replicas": count(1, 100),
                        "settings": settings_of("replica-manager", "fetcher", "log-storage"),
                        "terminationGracePeriodSeconds": count(60),
                        "storage": closed(
                            {
                                "logDirs": count(1, 32),
                                "size": size,
                                "storageClass": text,
                                "accessModes": each(one_of("ReadWriteOnce", "ReadWriteOncePod")),
                            }
                        ),
                        "resources": closed({"replicaManager": free, "logStorage": free, "fetcher": free}),
                        "rackFromZone": flag,
                        "podDisruptionBudget": closed({"enabled": flag, "maxUnavailable": count(1)}),
                        "shareProcessNamespace": flag,
                        "topologySpreadConstraints": each(free),
                        **about_pods,
                    }
                ),
                "controller": closed(
                    {
                        "replicas": count(1, 9),
                        "settings": settings_of("controller"),
                        "resources": free,
                        **about_pods,
                    }
                ),
                "etcd": closed(
                    {
                        "enabled": flag,
                        "endpoints": each(member),
                        "tls": closed({"secretName": text, "clientCertificate": flag, "memberSecretName": text}),
                        "image": closed(image),
                        "replicas": one_of(1, 3, 5),
                        "storage": closed({"size": size, "storageClass": text}),
                        "quotaBackendBytes": count(256 << 20, 8 << 30),
                        "autoCompactionRetention": {"type": "string", "pattern": "^[0-9]+(m|h)$"},
                        "resources": free,
                        "priorityClassName": text,
                        **placement,
                    }
                ),
                "backup": closed(
                    {
                        "enabled": flag,
                        "schedule": {**text, "minLength": 1},
                        "keep": count(1, 10_000),
                        "storage": closed({"size": size, "storageClass": text, "claim": text}),
                        "resources": free,
                        "nodeSelector": free,
                        "tolerations": each(free),
                        "priorityClassName": text,
                    }
                ),
                "externalAccess": closed(
                    {
                        "enabled": flag,
                        "type": one_of("NodePort", "LoadBalancer"),
                        "port": port,
                        "advertised": each(host),
                        "nodePorts": each({"type": "integer", "minimum": 1024, "maximum": 65535}, uniqueItems=True),
                        "annotations": free,
                    }
                ),
                "topics": each(
                    closed(
                        {
                            "name": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,249}$"},
                            "partitions": count(1),
                            "replicationFactor": count(1),
                            "config": {
                                "type": "object",
                                "additionalProperties": {"type": ["string", "number", "boolean"]},
                            },
                        },
                        required=["name"],
                    )
                ),
                "networkPolicy": closed({"enabled": flag, "clients": each(free)}),
                "metrics": closed(
                    {
                        "podMonitor": closed(
                            {
                                "enabled": flag,
                                "interval": {"type": "string", "pattern": "^[0-9]+(s|m)$"},
                                "labels": free,
                            }
                        ),
                        "prometheusRule": closed(
                            {"enabled": flag, "labels": free, "backupMaxAgeSeconds": count(60)},
                        ),
                        "dashboard": closed({"enabled": flag, "labels": free}),
                    }
                ),
            }
        ),
    }


def dashboard() -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${source}"}
    return {
        "title": "Highwater",
        "uid": "highwater",
        "schemaVersion": 39,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [{"name": "source", "type": "datasource", "query": "prometheus"}]},
        "panels": [
            {
                "id": number,
                "type": "timeseries",
                "title": title,
                "datasource": source,
                "gridPos": {"x": 8 * (number % 3), "y": 7 * (number // 3), "w": 8, "h": 7},
                "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
                "targets": [{"refId": "A", "expr": query, "datasource": source}],
            }
            for number, (title, query, unit) in enumerate(PANELS)
        ],
    }


def readme() -> str:
    """A table of all values: a value's comment is the lines above it."""
    rows: list[str] = []
    path: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in (CHART / "values.yaml").read_text().splitlines():
        if not line.strip():
            comment = []
        elif line.lstrip().startswith("#"):
            comment.append(line.lstrip("# "))
        elif (found := re.match(r"( *)([A-Za-z][\w.]*): *(.*)$", line)) is not None:
            indent, name, value = len(found[1]), found[2], found[3]
            path = [*((depth, one) for depth, one in path if depth < indent), (indent, name)]
            dotted = ".".join(one.replace(".", "\\.") for _, one in path)
            if value or comment:
                rows.append(f"| `{dotted}` | {f'`{value}`' if value else ''} | {' '.join(comment)} |")
            comment = []
    return "\n".join(
        [
            "# The chart of Highwater",
            "",
            "A replicated commit log for Python and Spark: brokers, controllers, etcd. How to install and run it is in",
            "[docs/kubernetes.md](../../docs/kubernetes.md). `helm/generate.py` makes this page from `values.yaml`.",
            "",
            "| value | default | |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def manifest(size: str) -> str:
    """The chart rendered with `ci/<size>.yaml`. Raises `subprocess.CalledProcessError`."""
    command = ["helm", "template", "highwater", str(CHART), "--namespace", "highwater", "--kube-version", KUBERNETES]
    values = ["--values", str(CHART / "ci" / f"{size}.yaml"), "--no-hooks"]
    rendered = subprocess.run([*command, *values], check=True, capture_output=True, text=True).stdout
    heading = f"# Made from helm/highwater and its ci/{size}.yaml by helm/generate.py."
    apply = f"# kubectl create namespace highwater; kubectl -n highwater apply -f {size}.yaml"
    return f"{heading}\n{made_from(size)}\n{apply}\n{rendered}"


def made_from(size: str) -> str:
    """The line of a manifest by which it can be told without Helm whether the chart has changed since."""
    sources = {CHART / "Chart.yaml", CHART / "values.yaml", CHART / "ci" / f"{size}.yaml"}
    sources |= {path for folder in ("templates", "files") for path in (CHART / folder).rglob("*") if path.is_file()}
    digest = hashlib.sha256()
    for path in sorted(sources):
        digest.update(f"{path.relative_to(CHART)}\n{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return f"# sources: sha256:{digest.hexdigest()}"


def of_the_chart() -> dict[Path, str]:
    """The chart's own files by their paths, as they are to be."""
    return {
        CHART / "files" / "settings.json": json.dumps(settings(), indent=1) + "\n",
        CHART / "files" / "dashboard.json": json.dumps(dashboard(), indent=1) + "\n",
        CHART / "values.schema.json": json.dumps(schema(), indent=1) + "\n",
        CHART / "README.md": readme(),
    }


def manifests() -> dict[Path, str]:
    """What the chart renders; nothing without Helm."""
    if shutil.which("helm") is None:
        return {}
    return {MANIFESTS / f"{size}.yaml": manifest(size) for size in SIZES}


def main() -> int:
    for made in (of_the_chart, manifests):
        for path, text in made().items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(path.relative_to(HERE.parent))
    return 0


if __name__ == "__main__":
    sys.exit(main())

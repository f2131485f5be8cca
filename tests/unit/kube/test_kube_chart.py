"""The Helm chart: what is made from other files is as they say; with Helm on the PATH, also what it renders."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import promql_parser
import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[3]
CHART = REPOSITORY / "helm" / "highwater"
HELM = shutil.which("helm")

with_helm = pytest.mark.skipif(HELM is None, reason="needs Helm on the PATH")


def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", REPOSITORY / "helm" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def render(values: Mapping[str, Any], tmp_path: Path) -> subprocess.CompletedProcess[str]:
    assert HELM is not None
    given = tmp_path / "values.json"
    given.write_text(json.dumps(values))
    return subprocess.run(
        [
            HELM,
            "template",
            "release",
            str(CHART),
            "--namespace",
            "here",
            "--kube-version",
            "1.33",
            "--values",
            str(given),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_generated_files_are_as_their_sources_say() -> None:
    made = generate()
    for path, text in (made.of_the_chart() | made.manifests()).items():
        assert path.read_text() == text, f"{path.relative_to(REPOSITORY)} is old: run python helm/generate.py"


def test_manifests_are_of_the_chart_as_it_is() -> None:
    """Without Helm, too."""
    made = generate()
    for size in made.SIZES:
        path = made.MANIFESTS / f"{size}.yaml"
        assert made.made_from(size) in path.read_text().splitlines(), (
            f"{path.relative_to(REPOSITORY)} is old: run python helm/generate.py with Helm on the PATH"
        )


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    known = set(re.findall(r"`(highwater_\w+)`", (REPOSITORY / "docs" / "metrics.md").read_text()))
    for _, query, _ in generate().PANELS:
        for name in re.findall(r"highwater_\w+", query):
            assert name.removesuffix("_bucket") in known


def test_alerts_ask_for_metrics_that_there_are_and_are_explained() -> None:
    known = set(re.findall(r"`(highwater_\w+)`", (REPOSITORY / "docs" / "metrics.md").read_text()))
    page = (REPOSITORY / "docs" / "kubernetes.md").read_text()
    explained = re.findall(r"^\| `(Highwater\w+)` \((\w+)\) \|", page, re.MULTILINE)
    alerts = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    assert explained == [(alert["alert"], alert["severity"]) for alert in alerts]
    for alert in alerts:
        assert set(re.findall(r"highwater_\w+", alert["expr"])) <= known, alert["alert"]


def assert_has_its_row(alert: dict[str, Any]) -> None:
    """The annotation `runbook` names a page and a heading of it, below which the alert's row stands."""
    name, _, anchor = alert["annotations"]["runbook"].partition("#")
    _, *parts = re.split(r"^#+ (.+)$", (REPOSITORY / name).read_text(), flags=re.MULTILINE)
    below = {title.lower().replace(" ", "-"): text for title, text in zip(parts[::2], parts[1::2], strict=True)}
    assert f"\n| `{alert['alert']}` (" in below[anchor], alert["alert"]


def test_alerts_of_the_manifests_point_to_their_rows() -> None:
    manifest = yaml.safe_load_all((generate().MANIFESTS / "production.yaml").read_text())
    (rule,) = (found for found in manifest if found and found["kind"] == "PrometheusRule")
    for alert in rule["spec"]["groups"][0]["rules"]:
        assert_has_its_row(alert)


@with_helm
@pytest.mark.parametrize(
    ("values", "left_out"),
    [
        ({"backup": {"enabled": True}}, set()),
        ({"layout": "separate"}, {"HighwaterBackupOld"}),
        (
            {"etcd": {"enabled": False, "endpoints": ["a:2379"]}, "backup": {"enabled": True}},
            {
                "HighwaterEtcdWithoutMajority",
                "HighwaterEtcdMemberMissing",
                "HighwaterEtcdFillsUp",
                "HighwaterEtcdSlowDisk",
            },
        ),
    ],
)
def test_alerts_are_promql_about_this_release(values: dict[str, Any], left_out: set[str], tmp_path: Path) -> None:
    rendered = render({**values, "metrics": {"prometheusRule": {"enabled": True}}}, tmp_path)
    assert rendered.returncode == 0, rendered.stderr
    (rule,) = (found for found in yaml.safe_load_all(rendered.stdout) if found and found["kind"] == "PrometheusRule")
    alerts = {alert["alert"]: alert for alert in rule["spec"]["groups"][0]["rules"]}
    every = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    assert set(alerts) == {alert["alert"] for alert in every} - left_out
    for alert in alerts.values():
        assert_has_its_row(alert)
        promql_parser.parse(alert["expr"])
        for selected in re.findall(r"\w+(?=\{)", alert["expr"]):
            assert f'{selected}{{namespace="here"' in alert["expr"], alert["alert"]
        assert "‹" not in json.dumps(alert, ensure_ascii=False)


@with_helm
def test_the_chart_is_well_formed() -> None:
    assert HELM is not None
    linted = subprocess.run(
        [HELM, "lint", "--strict", str(CHART)], capture_output=True, text=True, check=False, timeout=60
    )
    assert linted.returncode == 0, linted.stdout + linted.stderr


@with_helm
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"etcd": {"replicas": 2}}, "etcd.replicas|/etcd/replicas"),
        ({"broker": {"replicas": 2}}, "default.replication.factor is 3, and there are 2 brokers"),
        ({"settings": {"min.insync.replicas": 3}}, "no broker could ever be restarted"),
        ({"settings": {"min.insync.replica": 1}}, "min.insync.replica"),
        ({"settings": {"broker.id": 7}}, "broker.id"),
        ({"controller": {"settings": {"log.retention.hours": 1}}}, "log.retention.hours"),
        ({"brokers": {}}, "brokers"),
        ({"layout": "together"}, "layout"),
        ({"etcd": {"enabled": False}}, "etcd.endpoints is empty"),
        ({"etcd": {"endpoints": ["a:2379"]}}, "set etcd.enabled to false"),
        ({"etcd": {"tls": {"secretName": "s"}}}, "name its secret in etcd.tls.memberSecretName"),
        ({"etcd": {"tls": {"memberSecretName": "s"}}}, "name the secret that has it in etcd.tls.secretName"),
        (
            {
                "etcd": {
                    "enabled": False,
                    "endpoints": ["a:2379"],
                    "tls": {"secretName": "s", "memberSecretName": "m"},
                }
            },
            "is for the chart's own etcd",
        ),
        ({"etcd": {"tls": {"secret": "s"}}}, "secret"),
        ({"etcd": {"image": {"tag": "v3.5.5"}}}, "take 3.5.6 or newer"),
        ({"etcd": {"image": {"tag": "latest"}}}, "name a version"),
        ({"externalAccess": {"enabled": True, "advertised": ["a"]}}, "1 addresses for 3 brokers"),
        ({"externalAccess": {"enabled": True, "advertised": ["a", "a", "b"]}}, "an address twice"),
        ({"topics": [{"name": "t", "replicationFactor": 4}]}, "topic t: replicationFactor is 4"),
        ({"topics": [{"name": "t", "config": {"min.insync.replicas": 3}}]}, "topic t: min.insync.replicas is 3"),
        ({"topics": [{"partitions": 4}]}, "name"),
        ({"broker": {"terminationGracePeriodSeconds": 30}}, "terminationGracePeriodSeconds"),
        ({"broker": {"settings": {"controlled.shutdown.max.wait.ms": 200000}}}, "it has to be longer"),
        ({"broker": {"storage": {"logDirs": 0}}}, "logDirs"),
        ({"broker": {"storage": {"size": "much"}}}, "size"),
    ],
)
def test_nonsense_is_refused(values: Mapping[str, Any], said: str, tmp_path: Path) -> None:
    rendered = render(values, tmp_path)
    assert rendered.returncode != 0
    assert re.search(said, rendered.stderr), rendered.stderr


@with_helm
def test_tls_to_the_own_etcd(tmp_path: Path) -> None:
    rendered = render({"etcd": {"tls": {"secretName": "client", "memberSecretName": "members"}}}, tmp_path)
    assert rendered.returncode == 0, rendered.stderr
    found = [one for one in yaml.safe_load_all(rendered.stdout) if one and one["kind"] == "StatefulSet"]
    (etcd,) = (one["spec"]["template"]["spec"] for one in found if one["metadata"]["name"].endswith("-etcd"))
    arguments = etcd["initContainers"][1]["args"]
    assert "--peer-url=https://{name}.release-highwater-etcd.here.svc.cluster.local:2380" in arguments
    assert "--set=client-transport-security.client-cert-auth=true" in arguments
    for container in (etcd["initContainers"][1], etcd["containers"][0]):
        assert {"name": "tls", "mountPath": "/etc/etcd-tls", "readOnly": True} in container["volumeMounts"]
    assert {"name": "tls", "secret": {"secretName": "members", "defaultMode": 0o440}} in etcd["volumes"]


@with_helm
@pytest.mark.parametrize("layout", ["colocated", "separate"])
@pytest.mark.parametrize("secret", ["", "certificates"])
def test_tls_of_listeners_leaves_probes_without_it(layout: str, secret: str, tmp_path: Path) -> None:
    values = {"layout": layout, "tls": {"secretName": secret, "clientAuth": "none"}, "topics": [{"name": "events"}]}
    rendered = render(values, tmp_path)
    assert rendered.returncode == 0, rendered.stderr
    documents = [one for one in yaml.safe_load_all(rendered.stdout) if one]
    services = 0
    for one in documents:
        if one["kind"] == "ConfigMap":
            for name, text in one["data"].items():
                if name.endswith(".properties"):
                    assert ("ssl.key.file=/etc/highwater-tls/tls.key" in text) == bool(secret), name
        if one["kind"] not in ("StatefulSet", "Job", "Pod") or one["metadata"]["name"].endswith("-etcd"):
            continue
        pod = one["spec"] if one["kind"] == "Pod" else one["spec"]["template"]["spec"]
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            said = " ".join(container.get("args", []))
            assert ("/etc/highwater-tls" in str(container["volumeMounts"])) == bool(secret)
            assert ("{'name': 'tls', " in str(pod["volumes"])) == bool(secret)
            if "livenessProbe" not in container:
                assert ("HIGHWATER_SECURITY_PROTOCOL" in str(container["env"] if secret else "")) == bool(secret)
                continue
            services += 1
            if container["name"] == "replica-manager":
                assert ("listener.security.protocol.map=CLIENT:SSL,INTERNAL:SSL" in said) == bool(secret)
                assert ("ssl.client.auth=CLIENT:none,INTERNAL:required" in said) == bool(secret)
            else:
                assert ("ssl.client.auth=required" in said) == bool(secret)
            probed = {probe["grpc"]["port"] for key, probe in container.items() if key.endswith("Probe")}
            (health,) = re.findall(r"health.listen=0.0.0.0:(\d+)", said) or [""]
            assert not secret or probed == {int(health)}
            for addresses in re.findall(r"--set=(?:listen|advertised.listener|\w+.manager|log.storage)=(\S+)", said):
                for each in addresses.split(","):
                    assert each.startswith("unix:") or each.startswith("ssl:") == bool(secret), said
    assert services == 4


@with_helm
@pytest.mark.parametrize("layout", ["colocated", "separate"])
def test_each_service_gets_the_settings_that_it_has(layout: str, tmp_path: Path) -> None:
    values = {
        "layout": layout,
        "settings": {"log.retention.bytes": 10**15, "log.cleaner.enable": False, "num.partitions": 6},
        "broker": {"settings": {"min.insync.replicas": 1}},
    }
    rendered = render(values, tmp_path)
    assert rendered.returncode == 0, rendered.stderr
    files = dict(re.findall(r"^  ([\w-]+)\.properties: \|\n((?:    .*\n|\n)*)", rendered.stdout, re.MULTILINE))
    assert "log.retention.bytes=1000000000000000\n" in files["log-storage"]
    assert "log.cleaner.enable=false\n" in files["log-storage"]
    assert "min.insync.replicas=1\n" in files["replica-manager"]
    assert "min.insync.replicas=2\n" in files["controller"]
    assert "num.partitions=6\n" in files["controller"]
    assert "retention" not in files["controller"] + files["replica-manager"] + files["fetcher"]
    for kind in ("log-storage", "replica-manager", "fetcher"):
        assert f"command: [python, -m, highwater.{kind.replace('-', '_')}]" in rendered.stdout


@with_helm
@pytest.mark.parametrize("claim", ["", "mine"])
def test_backups_are_taken_by_a_pod_that_may_reach_etcd(claim: str, tmp_path: Path) -> None:
    rendered = render({"backup": {"enabled": True, "keep": 7, "storage": {"claim": claim}}}, tmp_path)
    assert rendered.returncode == 0, rendered.stderr
    documents = rendered.stdout.split("\n---\n")
    [job] = [each for each in documents if "kind: CronJob" in each]
    etcd = "release-highwater-etcd-0.release-highwater-etcd.here.svc.cluster.local:2379,"
    for line in (
        f"- --etcd={etcd}",
        "- --cluster=highwater\n",
        "- --keep=7\n",
        "automountServiceAccountToken: false\n",
        "runAsNonRoot: true\n",
        "capabilities: {drop: [ALL]}\n",
        "            app.kubernetes.io/instance: release\n",  # which etcd's NetworkPolicy lets in
        f"claimName: {claim or 'release-highwater-backup'}}}",
    ):
        assert line in job
    claims = [each for each in documents if "kind: PersistentVolumeClaim" in each]
    assert len(claims) == (not claim)
    assert all("helm.sh/hook: pre-install,pre-upgrade\n" in each for each in claims)
    assert "CronJob" not in render({}, tmp_path).stdout


@with_helm
def test_backups_are_taken_where_all_nodes_are_tainted(tmp_path: Path) -> None:
    place = {"tolerations": [{"key": "of", "operator": "Exists"}], "nodeSelector": {"pool": "logs"}}
    rendered = render({"backup": {"enabled": True, "priorityClassName": "high", **place}}, tmp_path)
    assert rendered.returncode == 0, rendered.stderr
    [job] = [each for each in yaml.safe_load_all(rendered.stdout) if each and each["kind"] == "CronJob"]
    spec = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert {key: spec[key] for key in (*place, "priorityClassName")} == {**place, "priorityClassName": "high"}


@with_helm
def test_backups_of_an_etcd_with_tls(tmp_path: Path) -> None:
    etcd = {"enabled": False, "endpoints": ["etcd.example:2379"], "tls": {"secretName": "etcd-client"}}
    rendered = render({"backup": {"enabled": True}, "etcd": etcd}, tmp_path)
    assert rendered.returncode == 0, rendered.stderr
    [job] = [each for each in rendered.stdout.split("\n---\n") if "kind: CronJob" in each]
    assert "- --etcd-key-file=/etc/highwater-etcd/tls.key\n" in job
    assert "- {name: etcd-tls, mountPath: /etc/highwater-etcd, readOnly: true}\n" in job
    assert "secretName: etcd-client" in job


@with_helm
def test_a_broker_tells_clients_outside_its_own_address(tmp_path: Path) -> None:
    values = {"externalAccess": {"enabled": True, "advertised": ["a.example", "b.example:31000", "c.example"]}}
    rendered = render(values, tmp_path)
    assert rendered.returncode == 0, rendered.stderr
    for number, address in enumerate(["a.example:9094", "b.example:31000", "c.example:9094"]):
        pod = f"release-highwater-broker-{number}.release-highwater-broker.here.svc.cluster.local"
        line = f"advertised.listeners=CLIENT://{pod}:9092,INTERNAL://{pod}:9090,EXTERNAL://{address}\n"
        assert line in rendered.stdout


@with_helm
@pytest.mark.parametrize("layout", ["colocated", "separate"])
@pytest.mark.parametrize("certificate", [True, False])
def test_tls_to_an_external_etcd(layout: str, certificate: bool, tmp_path: Path) -> None:
    tls = {"secretName": "to-etcd", "clientCertificate": certificate}
    etcd = {"enabled": False, "endpoints": ["a:2379"], "tls": tls}
    rendered = render({"layout": layout, "etcd": etcd}, tmp_path)
    assert rendered.returncode == 0, rendered.stderr
    files = dict(re.findall(r"^  ([\w-]+)\.properties: \|\n((?:    .*\n|\n)*)", rendered.stdout, re.MULTILINE))
    for service in ("controller", "replica-manager"):
        assert "etcd.ca.file=/etc/highwater-etcd/ca.crt\n" in files[service]
        assert ("etcd.key.file=/etc/highwater-etcd/tls.key\n" in files[service]) == certificate
    assert "etcd" not in files["log-storage"] + files["fetcher"]
    pods = [one for one in rendered.stdout.split("\n---\n") if "kind: StatefulSet" in one]
    with_secret = {
        name
        for one in pods
        if "secretName: to-etcd" in one
        for name in re.findall(r"^  name: release-highwater-(.+)$", one, re.MULTILINE)
    }
    broker = {"broker"} if layout == "colocated" else {"replica-manager", "fetcher", "log-storage"}
    assert with_secret == {"controller", *broker}
    assert rendered.stdout.count("mountPath: /etc/highwater-etcd") == 2  # of the two that speak with it

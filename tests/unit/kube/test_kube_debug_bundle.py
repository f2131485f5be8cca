"""The bundle has what helps and no secrets; a part that fails leaves its error and the rest."""

from __future__ import annotations

import json
import stat
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest
from fake_kubernetes import FakeKubernetes

from highwater.cli.app import app
from highwater.console.exit_status import exit_status
from highwater.kube import debug_bundle
from highwater.kube.redaction import REDACTED, redact, redact_text
from highwater.kube.release import Release

PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEabc\ndef\n-----END RSA PRIVATE KEY-----"
JWT = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrOHMifQ.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("etcd.password=hunter2 next=1", f"etcd.password={REDACTED} next=1"),
        ('{"apiKey": "hunter2", "n": 1}', f'{{"apiKey": {REDACTED}, "n": 1}}'),
        ("store_secret: hunter2", f"store_secret: {REDACTED}"),
        ("CREDENTIALS='hunter2 x'", f"CREDENTIALS={REDACTED}"),
        (f"tls.key={PEM}\nbroker.id=1", f"tls.key={REDACTED}\nbroker.id=1"),
        ("http://me:hunter2@host:2379/x", f"http://{REDACTED}@host:2379/x"),
        ("redis://:hunter2@host:6379", f"redis://{REDACTED}@host:6379"),
        ("https://hunter2@host/x http://me:hu@nter2@host", f"https://{REDACTED}@host/x http://{REDACTED}@host"),
        ("DB_PASS=hunter2 MYSQL_PWD=hunter2 PWD=/x", f"DB_PASS={REDACTED} MYSQL_PWD={REDACTED} PWD=/x"),
        ("run --db-password hunter2 --token --next 1", f"run --db-password {REDACTED} --token --next 1"),
        ("http://host:9404/metrics broker 1@rack", "http://host:9404/metrics broker 1@rack"),
        ("header Bearer hunter2hunter2", f"header Bearer {REDACTED}"),
        (f"said {JWT}.", f"said {REDACTED}."),
        ("log.retention.hours=72 leader=1 offset: 5", "log.retention.hours=72 leader=1 offset: 5"),
        ("-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----",) * 2,
    ],
)
def test_text_loses_its_secrets_and_nothing_else(text: str, left: str) -> None:
    assert redact_text(text) == left


@pytest.mark.parametrize("text", ["a" * 10**6, "a-" * 500_000, "token" * 50_000, "://" * 300_000, "--a" * 300_000])
def test_a_line_without_end_takes_no_longer_than_others(text: str) -> None:
    began = time.process_time()
    assert redact_text(text) == text
    assert time.process_time() - began < 10  # a square of it would be hours


def test_objects_lose_what_is_named_as_secrets_are() -> None:
    env = [
        {"name": "DB_PASSWORD", "value": "hunter2"},
        {"name": "URL", "value": "s3://k:hunter2@b"},
        {"name": "N", "value": "1"},
    ]
    found: dict[str, Any] = {
        "metadata": {"name": "p", "managedFields": [{"f": 1}], "annotations": {"my/token": "hunter2"}},
        "spec": {
            "env": env, "imagePullSecrets": [{"name": "regcred"}], "automountServiceAccountToken": False,
            "volumes": [{"secret": {"secretName": "tls"}}],
            "args": ["--etcd.password=hunter2", "--broker.id=1", "--token", "hunter2"],
        },
        "data": {"password": ["hunter2"], "secret": "hunter2", "pin_token": 1234, "a.properties": f"x=1\nkey={PEM}\n"},
    }  # fmt: skip
    left = redact(found)
    said = json.dumps(left)
    assert "hunter2" not in said
    assert "MIIE" not in said
    assert "1234" not in said
    assert left["metadata"] == {"name": "p", "annotations": {"my/token": REDACTED}}
    assert left["spec"]["env"][2] == {"name": "N", "value": "1"}
    assert left["spec"]["imagePullSecrets"] == [{"name": "regcred"}]
    assert left["spec"]["volumes"] == [{"secret": {"secretName": "tls"}}]
    assert left["spec"]["args"][1] == "--broker.id=1"
    assert left["data"]["a.properties"].startswith("x=1\n")


def answers(pod: str, container: str, command: list[str]) -> tuple[int, str, str]:
    if command[0] == "highwater":
        return 1, "", "no cluster\n"
    if "MaintenanceStub" in command[2] and "keys" in command:
        return (
            0,
            "".join(json.dumps({"key": f"/highwater/{n}", "value": {"password": "hunter2"}}) + "\n" for n in (1, 2)),
            "",
        )
    if "MaintenanceStub" in command[2]:
        return 0, json.dumps({"members": []}), ""
    metrics = {url: f"metric_of {pod}\n" for url in command[3:] if url != "log-storage"}
    return 0, json.dumps({"metrics": metrics, "errors": {}}), ""


@pytest.fixture
def full(kubernetes: FakeKubernetes, monkeypatch: pytest.MonkeyPatch) -> FakeKubernetes:
    kubernetes.release(brokers=1)
    kubernetes.command = answers
    kubernetes.logs = {
        ("highwater-broker-0", name, False): f"2026 {name} secret=hunter2\n".encode()
        for name in ("replica-manager", "fetcher")
    }
    labels = kubernetes.objects["pods"]["highwater-broker-0"]["metadata"]["labels"]
    settings = {"metadata": {"name": "settings", "labels": labels}, "data": {"x.properties": "a.password=hunter2\n"}}
    kubernetes.add("configmaps", settings)
    kubernetes.add("secrets", {"metadata": {"name": "s", "labels": labels}, "data": {"a": "aHVudGVyMg=="}})
    status = kubernetes.objects["pods"]["highwater-broker-0"]["status"]
    status["containerStatuses"][0]["restartCount"] = 1
    kubernetes.logs["highwater-broker-0", "replica-manager", True] = b"2026 it crashed\n"
    for number in range(3):
        kubernetes.objects["pods"][f"highwater-etcd-{number}"]["status"]["podIP"] = f"10.0.0.{number}"
    monkeypatch.setattr(debug_bundle.shutil, "which", lambda _: None)
    return kubernetes


def unpacked(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        return {
            name.partition("/")[2]: archive.extractfile(name).read().decode()  # type: ignore[union-attr]
            for name in archive.getnames()
        }


def test_the_bundle_has_every_part_or_its_error_and_no_secret(
    full: FakeKubernetes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full.forbidden = {("list", "nodes")}
    out = tmp_path / "b.tar.gz"
    assert exit_status(app, ["kube", "debug-bundle", "--out", str(out)]) == 0
    found = unpacked(out)
    assert not [name for name, text in found.items() if "hunter2" in text]
    assert not [path for _, path, _ in full.requests if "/secrets" in path]
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert found["logs/highwater-broker-0/replica-manager.log"] == f"2026 replica-manager secret={REDACTED}\n"
    assert found["logs/highwater-broker-0/replica-manager.previous.log"] == "2026 it crashed\n"
    assert "metric_of highwater-broker-0" in found["metrics/highwater-broker-0.txt"]
    assert "http://10.0.0.2:2381/metrics" in found["metrics/highwater-etcd-2.txt"]
    assert len(found["etcd/keys.jsonl"].splitlines()) == 2
    assert f"a.password={REDACTED}" in found["kubernetes/configmaps.json"]
    assert json.loads(found["status.json"])["release"] == "highwater"
    assert 'cannot list resource "nodes"' in found["kubernetes/nodes.json.error.txt"]
    assert "helm is not on the PATH" in found["helm/values.json.error.txt"]
    assert "not found" in found["logs/highwater-broker-0/log-storage.log.error.txt"]
    manifest = json.loads(found["manifest.json"])
    failed = {one["name"] for one in manifest["parts"] if one["error"]}
    assert {"kubernetes/nodes.json", "helm/values.json", "logs/highwater-broker-0/log-storage.log"} <= failed
    assert len(manifest["parts"]) == len(found) - 1
    assert manifest["limits"]["log_bytes"] == debug_bundle.LOG_BYTES
    assert "nodes.json: the Kubernetes API forbids it" in capsys.readouterr().err


def test_logs_are_cut_to_their_end(full: FakeKubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debug_bundle, "LOG_BYTES", 100)
    full.logs["highwater-broker-0", "fetcher", False] = b"x" * 200_000 + b"the end\n"
    out = tmp_path / "b.tar.gz"
    assert exit_status(app, ["kube", "debug-bundle", "--out", str(out)]) == 0
    log = unpacked(out)["logs/highwater-broker-0/fetcher.log"]
    assert (len(log), log[-8:]) == (100, "the end\n")


@pytest.mark.usefixtures("full")
def test_what_is_not_read_in_time_is_left_out_and_a_bad_place_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "none" / "b.tar.gz"
    assert exit_status(app, ["kube", "debug-bundle", "--out", str(out)]) == 1
    assert "cannot be written: No such file or directory; name another file with --out" in capsys.readouterr().err
    monkeypatch.setattr(debug_bundle, "_AT_ONCE", 1)
    monkeypatch.setattr(debug_bundle.time, "monotonic", iter(range(0, 10**6, 5)).__next__)
    read = [entry.error for _, _, entry in debug_bundle._read([debug_bundle.Part("a", lambda: b"x")] * 4, 12)]
    assert read[0] == ""
    assert read[-1].startswith("left out: the time was up")
    assert list(tmp_path.iterdir()) == [tmp_path / "kubeconfig"]


def test_helm_is_asked_about_the_same_cluster(
    full: FakeKubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever HELM_KUBECONTEXT says, and though the current context is changed meanwhile."""
    helm = tmp_path / "helm"
    helm.write_text('#!/bin/sh\necho "{\\"asked\\": \\"$*\\"}"\n')
    helm.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda _: str(helm))
    for context, named in ((None, "default"), ("other", "other")):
        release = Release.open(namespace="logs", context=context)
        asked = json.loads(debug_bundle._values(release))["asked"]
        assert asked.endswith(f"--namespace logs --output json --kube-context={named}")


def test_the_headers_of_a_collector_are_secrets_all_of_them() -> None:
    assert redact_text("python --set=otlp.headers=x-key=abc,y=def --next") == (
        "python --set=otlp.headers=[redacted] --next"
    )
    assert redact({"otlp.headers": "a=b", "env": [{"name": "HIGHWATER_OTLP_HEADERS", "value": "a=b,c=d"}]}) == {
        "otlp.headers": "[redacted]",
        "env": [{"name": "HIGHWATER_OTLP_HEADERS", "value": "[redacted]"}],
    }

"""`highwater kube backup`, `rebuild` and `restore` on what the chart renders: who is stopped, what runs where, and that
all is started again."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_kubernetes import FakeKubernetes, pod
from test_lost_etcd_plan import backup, inventory, log
from typer.testing import CliRunner

from highwater.cli.kube.app import app
from highwater.errors import UserError
from highwater.kube import inventory as inventory_command
from highwater.kube import rebuild as rebuild_command
from highwater.kube.kubernetes_api import KubernetesError
from highwater.kube.lost_etcd import backup_file, on_release
from highwater.kube.lost_etcd.inventory import from_lines
from highwater.kube.lost_etcd.on_release import ReleaseMetadata, default_claim
from highwater.kube.release import REMEMBERED, Release

CHART = Path(__file__).resolve().parents[3] / "helm" / "highwater"
HELM = shutil.which("helm")
KINDS = {
    "StatefulSet": "statefulsets",
    "ConfigMap": "configmaps",
    "CronJob": "cronjobs",
    "PersistentVolumeClaim": "persistentvolumeclaims",
}

pytestmark = pytest.mark.skipif(HELM is None, reason="needs Helm on the PATH")


class Cluster:
    """The chart as it is rendered, and what its pods would do: `volumes` are the inventories of the brokers."""

    def __init__(self, kubernetes: FakeKubernetes, tmp_path: Path, layout: str, *more: str) -> None:
        assert HELM is not None
        self.kubernetes, self.tmp_path = kubernetes, tmp_path
        command = [HELM, "template", "highwater", str(CHART), "--namespace=logs", "--kube-version=1.33"]
        values = [f"--set=layout={layout}", "--set=backup.enabled=true", "--set=broker.storage.logDirs=2"]
        rendered = subprocess.run([*command, *values, *more], check=True, capture_output=True, text=True).stdout
        for found in yaml.safe_load_all(rendered):
            if found and found["kind"] in KINDS:
                kubernetes.add(KINDS[found["kind"]], found)
        self.holder = "broker" if layout == "colocated" else "log-storage"
        for number in range(2):
            for broker in range(3):
                claim = f"data-{number}-highwater-{self.holder}-{broker}"
                labels = kubernetes.objects["statefulsets"]["highwater-controller"]["metadata"]["labels"]
                kubernetes.add("persistentvolumeclaims", {"metadata": {"name": claim, "labels": labels}})
        self.volumes = {broker: inventory(broker, log(end=10 - broker)) for broker in range(3)}
        self.status = 0
        self.pods: dict[str, Any] = {}
        """What was made, by name."""
        kubernetes.created, kubernetes.patched = self._created, self._patched
        for name in list(kubernetes.objects["statefulsets"]):
            self._patched("statefulsets", name)

    def _patched(self, kind: str, name: str) -> None:
        """As the controller of StatefulSets does."""
        found = self.kubernetes.objects[kind][name]
        there = self.kubernetes.objects.setdefault("pods", {})
        for number in range(9):
            there.pop(f"{name}-{number}", None)
        for number in range(found["spec"]["replicas"]):
            self.kubernetes.add("pods", pod(f"{name}-{number}", found["metadata"]["labels"]))

    def _created(self, kind: str, found: Any) -> None:
        if kind != "pods":
            return
        name, [container] = found["metadata"]["name"], found["spec"]["containers"]
        self.pods[name] = found
        running = [each for each in self.kubernetes.objects["pods"] if "etcd" not in each and each not in self.pods]
        assert not running, "brokers and controllers have stopped"
        status, said = 0, ""
        if container["name"] == "inventory":
            said = f"INFO recovery\n{self.volumes[int(name.rpartition('-')[2])].to_compressed()}\n"
        else:
            status, said = self._rebuild(found, container["command"][3:])
        self.kubernetes.logs[name, container["name"], False] = said.encode()
        ended = {"name": container["name"], "state": {"terminated": {"exitCode": status}}}
        found["status"] = {"phase": "Failed" if status else "Succeeded", "containerStatuses": [ended]}

    def _rebuild(self, found: Any, arguments: list[str]) -> tuple[int, str]:
        """The command itself, with what is mounted for it; it writes nothing."""
        files = {}
        for volume in found["spec"]["volumes"]:
            for source in volume.get("projected", {}).get("sources", ()):
                [item] = source["configMap"]["items"]
                data = self.kubernetes.objects["configmaps"][source["configMap"]["name"]]["data"]
                files[f"/inventories/{item['path']}"] = data[item["key"]].encode()
            if volume["name"] == "backups" and "configMap" in volume:
                for key, value in self.kubernetes.objects["configmaps"][volume["configMap"]["name"]][
                    "binaryData"
                ].items():
                    files[f"/backups/{key}"] = base64.b64decode(value)
        for path, content in files.items():
            self.tmp_path.joinpath(path[1:]).parent.mkdir(parents=True, exist_ok=True)
            self.tmp_path.joinpath(path[1:]).write_bytes(content)
        given = [each.replace("/inventories", f"{self.tmp_path}/inventories") for each in arguments]
        given = [each.replace("=/backups", f"={self.tmp_path}/backups") for each in given]
        if "--dry-run" not in given:
            given.insert(0, "--dry-run")
        return rebuild_command.main(given), " ".join(arguments)

    def replicas(self) -> dict[str, int]:
        found = self.kubernetes.objects["statefulsets"]
        return {name.removeprefix("highwater-"): one["spec"]["replicas"] for name, one in found.items()}


Make = Callable[..., Cluster]


@pytest.fixture
def make(kubernetes: FakeKubernetes, tmp_path: Path) -> Make:
    return lambda layout, *more: Cluster(kubernetes, tmp_path, layout, *more)


def metadata(**more: Any) -> ReleaseMetadata:
    return ReleaseMetadata(Release.open(), say=lambda _: None, timeout_s=10, **more)


@pytest.mark.parametrize("layout", ["colocated", "separate"])
def test_all_is_stopped_looked_at_written_and_started(make: Make, layout: str) -> None:
    cluster, shown = make(layout), list[str]()
    before = cluster.replicas()
    assert metadata(show=shown.append).rebuild() == 0
    assert cluster.replicas() == before
    assert not any(
        one["metadata"].get("annotations", {}).get(REMEMBERED)
        for one in cluster.kubernetes.objects["statefulsets"].values()
    )
    names = [f"highwater-inventory-{broker}" for broker in range(3)]
    assert list(cluster.pods) == [*names, "highwater-rebuild"]
    assert not set(cluster.kubernetes.objects["pods"]) & set(cluster.pods)  # nothing of it is left
    assert not [name for name in cluster.kubernetes.objects["configmaps"] if "rebuild" in name]
    [arguments] = shown
    assert "--brokers=0,1,2 --min-insync-replicas=2 " in arguments
    assert "--cluster=highwater" in arguments
    assert "--etcd=highwater-etcd-0.highwater-etcd.logs.svc.cluster.local:2379,highwater-etcd-1" in arguments
    for name, made in cluster.pods.items():
        spec, [container] = made["spec"], made["spec"]["containers"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["automountServiceAccountToken"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["image"] == "highwater:0.1.0"
        # The NetworkPolicies let in who has these.
        assert made["metadata"]["labels"]["app.kubernetes.io/instance"] == "highwater"
        assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in spec["volumes"]}
        if "inventory" in name:
            broker = name.rpartition("-")[2]
            claims = [each["persistentVolumeClaim"]["claimName"] for each in spec["volumes"][:2]]
            assert claims == [f"data-{number}-highwater-{cluster.holder}-{broker}" for number in range(2)]
            assert container["volumeMounts"][0] == {"name": "data-0", "mountPath": "/data/0"}
            assert container["command"][-2:] == ["/data/0/log", "/data/1/log"]
            assert container["command"][2] == inventory_command.__name__


def test_etcds_certificates_go_along(make: Make) -> None:
    external = ("--set=etcd.enabled=false", "--set=etcd.endpoints={a.example:2379}", "--set=etcd.tls.secretName=client")
    cluster = make("colocated", *external)
    assert metadata().rebuild() == 0
    spec = cluster.pods["highwater-rebuild"]["spec"]
    assert "--etcd-key-file=/etc/highwater-etcd/tls.key" in spec["containers"][0]["command"]
    assert {"name": "etcd-tls", "mountPath": "/etc/highwater-etcd"} in spec["containers"][0]["volumeMounts"]
    assert [each["secret"]["secretName"] for each in spec["volumes"] if "secret" in each] == ["client"]


def test_a_refusal_starts_everything_as_it_was(make: Make) -> None:
    cluster = make("colocated")
    before = cluster.replicas()
    del cluster.kubernetes.objects["persistentvolumeclaims"]["data-1-highwater-broker-2"]
    assert metadata().rebuild() == rebuild_command.REFUSED
    assert cluster.replicas() == before
    assert "highwater-inventory-2" not in cluster.pods
    assert metadata().rebuild(options=["--accept-loss"]) == 0


def test_a_backup_of_this_machine_goes_along(make: Make, tmp_path: Path) -> None:
    cluster, shown = make("colocated"), list[str]()
    path = backup_file.write(backup({"orders": (b"o" * 16, [[0, 1, 2]])}), tmp_path)
    del cluster.kubernetes.objects["persistentvolumeclaims"]["data-0-highwater-broker-2"]
    assert metadata().rebuild(backup=path) == rebuild_command.REFUSED
    # Two of three suffice, if the third has nothing that nobody knows of.
    assert metadata(show=shown.append).rebuild(backup=path, options=["--replace", "--without-broker=2"]) == 0
    assert "--replace --without-broker=2 --backup=/backups/given.backup.gz" in shown[0]


def test_a_backup_that_is_no_use_stops_nothing(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = make("colocated")
    path = backup_file.write(backup({"orders": (b"o" * 16, [[0, 1, 2]])}), tmp_path)
    monkeypatch.setattr(on_release, "CONFIGMAP_BYTES", 100)
    with pytest.raises(UserError, match="a ConfigMap holds 100: copy it .* --backup-claim"):
        metadata().rebuild(backup=path)
    path.write_bytes(b"PK")
    with pytest.raises(UserError, match="is damaged, or is no backup"):
        metadata().rebuild(backup=path)
    assert not [each for each in cluster.kubernetes.requests if each[0] == "PATCH"]


def test_the_claim_of_backups_is_mounted(make: Make) -> None:
    cluster = make("colocated")
    assert default_claim(Release.open()) == "highwater-backup"
    assert metadata().rebuild(claim="highwater-backup") == 1  # there is none in it
    source = next(each for each in cluster.pods["highwater-rebuild"]["spec"]["volumes"] if each["name"] == "backups")
    assert source["persistentVolumeClaim"] == {"claimName": "highwater-backup", "readOnly": True}


def test_the_claim_is_that_of_the_cronjob_or_what_it_left(make: Make) -> None:
    cluster = make("colocated", "--set=backup.storage.claim=ours")
    with pytest.raises(UserError, match="the claim of the backups, ours, is not there: name a claim"):
        default_claim(Release.open())
    cluster.kubernetes.add("persistentvolumeclaims", {"metadata": {"name": "ours"}})
    assert default_claim(Release.open()) == "ours"
    cluster.kubernetes.forbidden = {("get", "cronjobs")}
    with pytest.raises(UserError, match="whether there are backups is not known: .* --no-backup"):
        default_claim(Release.open())
    cluster.kubernetes.forbidden.clear()
    del cluster.kubernetes.objects["cronjobs"]["highwater-backup"]
    assert default_claim(Release.open()) is None
    cluster.kubernetes.add("persistentvolumeclaims", {"metadata": {"name": "highwater-backup"}})
    assert default_claim(Release.open()) == "highwater-backup"


def test_a_volume_that_is_said_to_be_gone_is_not_waited_for(make: Make, tmp_path: Path) -> None:
    cluster = make("colocated")
    path = backup_file.write(backup({"orders": (b"o" * 16, [[0, 1, 2]])}), tmp_path)
    assert metadata().rebuild(backup=path, without=[2]) == 0
    assert "highwater-inventory-2" not in cluster.pods
    assert "--without-broker=2" in cluster.pods["highwater-rebuild"]["spec"]["containers"][0]["command"]


def test_what_acknowledges_is_what_the_brokers_are_set_to(make: Make) -> None:
    cluster = make("colocated", "--set=broker.settings.min\\.insync\\.replicas=1")
    assert metadata().rebuild() == 0
    assert "--min-insync-replicas=1" in cluster.pods["highwater-rebuild"]["spec"]["containers"][0]["command"]


def test_an_api_that_is_away_at_the_end_is_asked_again(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, scale, calls = make("colocated"), ReleaseMetadata._scale, list[str]()
    before = cluster.replicas()

    def away(self: ReleaseMetadata, component: str, count: int) -> None:
        calls.append(component)
        if count and len(calls) < 5:
            raise KubernetesError("reset by peer")
        scale(self, component, count)

    monkeypatch.setattr(ReleaseMetadata, "_scale", away)
    assert metadata().rebuild() == 0
    assert len(calls) > 5
    assert cluster.replicas() == before


def test_what_could_not_be_started_is_told_and_the_rest_runs(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, scale = make("colocated"), ReleaseMetadata._scale

    def away(self: ReleaseMetadata, component: str, count: int) -> None:
        if count and component == "controller":
            raise KubernetesError("reset by peer")
        scale(self, component, count)

    monkeypatch.setattr(ReleaseMetadata, "_scale", away)
    monkeypatch.setattr(on_release, "STARTED_AGAIN_S", 0.1)
    with pytest.raises(UserError, match=r"RUNS AGAIN: .*reset.*-n logs scale statefulset highwater-controller --rep"):
        metadata().rebuild()
    assert (cluster.replicas()["broker"], cluster.replicas()["controller"]) == (3, 0)
    assert cluster.kubernetes.objects["statefulsets"]["highwater-controller"]["metadata"]["annotations"][REMEMBERED]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_ended_starts_what_it_stopped(make: Make, number: signal.Signals) -> None:
    cluster, created = make("colocated"), list[str]()
    before = cluster.replicas()

    def end(kind: str, found: Any) -> None:
        created.append(kind)
        found["status"] = {"phase": "Pending"}
        os.kill(os.getpid(), number)

    cluster.kubernetes.created = end
    handler = signal.signal(number, lambda *_: pytest.fail("the command does not see to it"))
    try:
        done = CliRunner().invoke(app, ["rebuild", "--yes", "--timeout", "5"])
        assert signal.getsignal(number) not in {signal.SIG_DFL, signal.SIG_IGN}
    finally:
        signal.signal(number, handler)
    assert created
    assert done.exit_code != 0
    assert "release highwater in namespace logs at http://127.0.0.1:" in done.output
    assert cluster.replicas() == before
    # One that was left would keep its broker from its volume.
    assert not set(cluster.kubernetes.objects["pods"]) & {f"highwater-inventory-{broker}" for broker in range(3)}


def test_a_release_that_was_scaled_to_nothing_by_hand_is_not_taken_for_an_empty_one(make: Make) -> None:
    cluster = make("colocated")
    brokers = cluster.kubernetes.objects["statefulsets"]["highwater-broker"]
    brokers["spec"]["replicas"] = 0
    cluster._patched("statefulsets", "highwater-broker")
    with pytest.raises(UserError, match=f"of highwater-broker there is to be no pod.*NAME {REMEMBERED}=NUMBER"):
        metadata().rebuild()
    assert cluster.replicas()["controller"] > 0
    brokers["metadata"].setdefault("annotations", {})[REMEMBERED] = "3"
    assert metadata().rebuild() == 0
    assert brokers["spec"]["replicas"] == 3


def test_an_inventory_that_no_configmap_holds_goes_in_pieces(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, shown = make("colocated"), list[str]()
    monkeypatch.setattr(on_release, "CONFIGMAP_BYTES", 30)
    assert metadata(show=shown.append).rebuild() == 0
    pieces = cluster.volumes[1].to_compressed()
    assert len(pieces) > 300  # more than ten: they are in the order of their numbers
    assert "--inventories /inventories/broker-0 /inventories/broker-1 /inventories/broker-2" in shown[0]
    assert not [name for name in cluster.kubernetes.objects["configmaps"] if "rebuild" in name]


def test_the_commands(make: Make, tmp_path: Path) -> None:
    cluster, run = make("colocated"), CliRunner()
    taken = backup({"orders": (b"o" * 16, [[0, 1, 2]])})
    refused = run.invoke(app, ["rebuild"], input="n\n")
    assert refused.exit_code == 1
    assert "are stopped meanwhile. Go on?" in refused.output
    assert not cluster.pods
    path = backup_file.write(taken, tmp_path)
    arguments = ["restore", str(path), "--yes", "--accept-loss", "--topic", f"orders={'6f' * 16}"]
    done = run.invoke(app, arguments)
    assert (done.exit_code, cluster.pods["highwater-rebuild"]["spec"]["containers"][0]["command"][7:10]) == (
        0,
        ["--replace", "--accept-loss", f"--topic=orders={'6f' * 16}"],
    )
    cluster.kubernetes.objects["cronjobs"].clear()
    del cluster.kubernetes.objects["persistentvolumeclaims"]["highwater-backup"]
    assert isinstance(run.invoke(app, ["restore", "--yes"]).exception, UserError)
    assert isinstance(run.invoke(app, ["rebuild", "--no-backup", "--backup", str(path)]).exception, UserError)


def test_a_run_that_was_killed_is_gone_on_with(make: Make) -> None:
    cluster = make("separate")
    before = cluster.replicas()
    for name, found in cluster.kubernetes.objects["statefulsets"].items():
        if "etcd" not in name:
            found["metadata"].setdefault("annotations", {})[REMEMBERED] = str(found["spec"]["replicas"])
            found["spec"]["replicas"] = 0
            cluster._patched("statefulsets", name)
    assert metadata().rebuild(write=False) == 0
    assert cluster.replicas() == before


def test_an_inventory_that_fails_is_told(make: Make) -> None:
    cluster = make("colocated")
    before = cluster.replicas()

    def fail(kind: str, found: Any) -> None:
        if kind == "pods":
            name = found["metadata"]["name"]
            ended = {"name": "inventory", "state": {"terminated": {"exitCode": 1}}}
            cluster.kubernetes.logs[name, "inventory", False] = b"INFO begun\n/data/0/log is in use\n"
            found["status"] = {"phase": "Failed", "containerStatuses": [ended]}

    cluster.kubernetes.created = fail
    with pytest.raises(UserError, match="inventory of broker 0 failed: /data/0/log is in use"):
        metadata().rebuild()
    assert cluster.replicas() == before


def test_a_pod_that_does_not_run_is_told_while_it_is_waited_for(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, told = make("colocated"), list[str]()
    monkeypatch.setattr(on_release, "PENDING_S", 0.0)
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "node is gone"}

    def created(kind: str, found: Any) -> None:
        found["status"] = {"phase": "Pending", "conditions": [unscheduled]}

    cluster.kubernetes.created = created
    with pytest.raises(UserError, match="node is gone"):
        ReleaseMetadata(Release.open(), say=told.append, timeout_s=1.2).rebuild()
    assert len([each for each in told if "inventory-0 does not run: unschedulable: node is gone. Ctrl-C" in each]) == 1


def test_a_backup_is_taken_by_a_controller(make: Make) -> None:
    cluster, commands = make("colocated"), list[list[str]]()

    def command(pod: str, container: str, given: list[str]) -> tuple[int, str, str]:
        commands.append(given)
        return 0, "a backup", ""

    cluster.kubernetes.command = command
    assert metadata().backup() == b"a backup"
    assert commands[0][:3] == ["python", "-m", "highwater.kube.backup"]
    assert commands[0][-2:] == ["--cluster=highwater", "--print"]


def test_lines_of_pods_are_inventories() -> None:
    assert from_lines([inventory(1).to_compressed()]) == [inventory(1)]

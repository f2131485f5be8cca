"""Status puts Kubernetes' and the services' words together, says what is wrong, and survives what does not answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fake_kubernetes import FakeKubernetes, pod

from highwater.cli.app import app
from highwater.console.exit_status import exit_status
from highwater.kube.in_pod import etcd_report, pod_report
from highwater.kube.pod import COMPONENT, Pod
from highwater.kube.release import REMEMBERED, Release
from highwater.kube.status.assembly import assemble
from highwater.kube.status.observation import observe
from highwater.kube.status.values import Observed, Status, metric
from highwater.metadata.local import LocalEtcd

NOW = datetime(2026, 1, 1, 0, 10, tzinfo=UTC)
RM, FETCHER, LS = (f"http://127.0.0.1:{port}/metrics" for port in (9404, 9405, 9406))
MANAGER = """# HELP highwater_replica_manager_partitions replicas hosted here
highwater_replica_manager_leader_partitions 2.0
highwater_replica_manager_partitions 6.0
highwater_replica_manager_out_of_sync_partitions 1.0
"""
LOG_DIR: dict[str, Any] = {
    "path": "/data/0/log", "total_bytes": "1000", "usable_bytes": "400", "full": False, "logs": 6,
}  # fmt: skip


def report(**more: Any) -> dict[str, Any]:
    metrics = {RM: MANAGER, FETCHER: "highwater_fetcher_max_lag_records 7.0\n", LS: ""}
    return {"metrics": metrics, "errors": {}, "log_dirs": [LOG_DIR], "opening": False, **more}


def registered(number: int, **more: Any) -> dict[str, Any]:
    one = {"broker_id": number, "broker_epoch": 9, "leaders": 2, "replicas": 6}
    return {**one, "shutting_down": False, "tail_lost": False, **more}


def acting(is_acting: float) -> dict[str, Any]:
    return {"metrics": {RM: f"highwater_controller_active {is_acting}\n"}, "errors": {}}


def member(number: int, **more: Any) -> dict[str, Any]:
    one = {"endpoint": f"etcd-{number}:2379", "id": number + 1, "leader": 2, "version": "3.6.1", "db_size_bytes": 100}
    return {**one, "alarms": [], "error": "", **more}


def observed(layout: str = "colocated", **more: Any) -> Observed:
    fake = FakeKubernetes()
    fake.release(layout=layout, brokers=2)
    pods = [Pod.of(one) for one in fake.objects["pods"].values()]
    wanted = {
        one["metadata"]["labels"]["app.kubernetes.io/component"]: one["spec"]["replicas"]
        for one in fake.objects["statefulsets"].values()
    }
    reports = {one.name: report() for one in pods if one.component not in {"controller", "etcd"}}
    reports |= {"highwater-controller-0": acting(0), "highwater-controller-1": acting(1)}
    cluster = {
        "controller_id": 1, "topics": 1, "partitions": 6, "offline_partitions": 0, "under_replicated_partitions": 0,
        "brokers": [registered(0), registered(1)],
    }  # fmt: skip
    etcd = {"members": [member(number) for number in range(3)]}
    return Observed(
        **{
            "release": "highwater", "namespace": "logs", "fullname": "highwater", "wanted": wanted, "pods": pods,
            "warnings": {}, "claims": [], "quota_bytes": 0, "reports": reports, "cluster": cluster, "etcd": etcd,
            **more,
        }
    )  # fmt: skip


def wrong(status: Status) -> str:
    return "\n".join(f"{one.wrong} -> {one.remedy}" for one in status.findings)


@pytest.mark.parametrize("layout", ["colocated", "separate"])
def test_a_release_that_is_well_has_no_finding(layout: str) -> None:
    status = assemble(observed(layout), NOW)
    assert status.findings == ()
    assert status.layout == layout
    assert status.acting == "highwater-controller-1"
    assert [one.age_s for one in status.pods][:1] == [600.0]
    for number, broker in enumerate(status.brokers):
        assert (broker.broker_id, broker.state, broker.broker_epoch, broker.leads) == (number, "live", 9, 2)
        assert (broker.replicas, broker.out_of_isr, broker.lag_records, broker.said) == (6, 1, 7, "")
    assert [one.leader for one in status.etcd] == [False, True, False]
    assert {(one.broker_id, one.used_bytes) for one in status.log_dirs} == {(0, 600), (1, 600)}


def test_what_a_killed_rebuild_has_stopped_is_said(kubernetes: FakeKubernetes) -> None:
    kubernetes.release(brokers=2)
    for name in ("highwater-broker", "highwater-controller"):
        one = kubernetes.objects["statefulsets"][name]
        one["metadata"]["annotations"] = {REMEMBERED: "2"}
        one["spec"]["replicas"] = 0
    kubernetes.objects["statefulsets"]["highwater-etcd"]["metadata"]["annotations"] = {REMEMBERED: "3"}  # it runs
    said = wrong(assemble(observe(Release.open()), NOW))
    assert "rebuild or restore has stopped broker (2 pods), controller (2 pods) -> wait if it still runs; if" in said


def test_backups_that_are_not_taken_are_said() -> None:
    def said(suspend: bool = False, **status: Any) -> str:
        job = {"metadata": {"name": "highwater-backup"}, "spec": {"suspend": suspend}, "status": status}
        return wrong(assemble(observed(backup=job), NOW))

    due, before = "2026-01-01T00:17:00Z", "2025-12-31T23:17:09Z"
    assert said() == said(lastScheduleTime=due, lastSuccessfulTime="2026-01-01T00:17:09Z") == ""
    assert said(lastScheduleTime=due, lastSuccessfulTime=before, active=[{"name": "highwater-backup-1"}]) == ""
    assert f"the backup of {due} was not taken, the last one is of {before}" in said(
        lastScheduleTime=due, lastSuccessfulTime=before
    )
    assert "the last one is none -> kubectl -n logs describe jobs" in said(lastScheduleTime=due)
    assert "highwater-backup is suspended" in said(suspend=True)
    claim = {"metadata": {"name": "highwater-backup", "labels": {COMPONENT: "backup"}}, "status": {"phase": "Pending"}}
    assert wrong(assemble(observed(claims=[claim]), NOW)) == ""


def test_the_cronjob_of_backups_is_read_where_that_is_allowed(kubernetes: FakeKubernetes) -> None:
    kubernetes.release(brokers=1)
    assert observe(Release.open()).backup is None
    kubernetes.add("cronjobs", {"metadata": {"name": "highwater-backup"}, "spec": {}})
    assert observe(Release.open()).backup is not None
    kubernetes.forbidden = {("get", "cronjobs")}
    seen = observe(Release.open())
    assert (seen.backup, seen.unread) == (None, [])


def test_a_broker_that_recovers_is_to_be_waited_for() -> None:
    seen = observed()
    seen.cluster = {**seen.cluster, "brokers": [registered(0)]}
    recovery = {"total_logs": 40, "opened_logs": 3, "total_bytes": "900", "scanned_bytes": "90"}
    seen.reports["highwater-broker-1"] = report(log_dirs=[LOG_DIR | {"recovery": recovery}], opening=True)
    status = assemble(seen, NOW)
    assert status.brokers[1].state == "recovering"
    [log_dir] = [one for one in status.log_dirs if one.recovering]
    assert (log_dir.opened_logs, log_dir.total_logs, log_dir.scanned_bytes, log_dir.to_scan_bytes) == (3, 40, 90, 900)
    assert wrong(status) == (
        "broker 1 is not registered (recovering) -> its log-storage recovers: wait, do not restart it"
    )


def test_a_broker_that_lost_its_registration_and_does_not_know_is_said() -> None:
    seen = observed()
    seen.cluster = {**seen.cluster, "brokers": [registered(0)]}
    assert wrong(assemble(seen, NOW)).startswith("broker 1 is not registered (not registered) -> highwater kube logs")
    ready = report()
    ready["metrics"][RM] = MANAGER + "highwater_replica_manager_ready 1.0\n"
    seen.reports["highwater-broker-1"] = ready
    told = wrong(assemble(seen, NOW))
    assert told.startswith("broker 1 is not registered (not registered), and takes itself for ready -> look again")
    assert "delete pod highwater-broker-1" in told


def test_what_is_known_is_said_while_nothing_answers() -> None:
    seen = observed(cluster={"error": "no broker"}, etcd={"error": "no pod"})
    seen.reports = {name: {"error": "exec failed"} for name in seen.reports}
    status = assemble(seen, NOW)
    assert [(one.registered, one.state, one.leads, one.said) for one in status.brokers] == [
        (None, "unknown", None, "exec failed")
    ] * 2
    told = wrong(status)
    for part in (
        "no controller is known to act",
        "no broker tells of the cluster: no broker",
        "etcd could not be asked",
    ):
        assert part in told
    assert len(status.pods) == 7


def test_the_volumes_the_quorum_and_the_alarms_are_looked_at() -> None:
    seen = observed(quota_bytes=1000)
    seen.etcd = {
        "members": [
            member(0, error="UNAVAILABLE: timeout"), member(1, alarms=["alarm:NOSPACE"]), member(2, db_size_bytes=900)
        ]
    }  # fmt: skip
    offline = LOG_DIR | {"error": {"message": "[Errno 5] Input/output error"}}
    nearly = LOG_DIR | {"path": "/data/1/log", "usable_bytes": "100"}
    full = LOG_DIR | {"path": "/data/2/log", "full": True}
    seen.reports["highwater-broker-0"] = report(log_dirs=[offline, nearly, full])
    told = wrong(assemble(seen, NOW))
    for part in (
        "member etcd-0:2379: UNAVAILABLE: timeout",
        "member etcd-1:2379 has an alarm: alarm:NOSPACE -> with NOSPACE nothing is written",
        "member etcd-2:2379 has 900 bytes of 1000",
        "/data/0/log of broker 0 is offline: [Errno 5]",
        "/data/1/log of broker 0 is 90 % full",
        "/data/2/log of broker 0 is full",
    ):
        assert part in told
    assert len(told.splitlines()) == 6


def test_pods_that_wait_are_missing_or_ran_out_of_memory_are_findings() -> None:
    seen = observed()
    labels = {"app.kubernetes.io/component": "broker"}
    waiting = pod("highwater-broker-0", labels, ready=False)
    waiting["status"] = {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "message": "no node"}],
    }  # fmt: skip
    killed = pod("highwater-broker-1", labels)
    killed["status"]["containerStatuses"][0] |= {
        "restartCount": 2, "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    }  # fmt: skip
    others = [one for one in seen.pods if one.component != "broker" and one.name != "highwater-etcd-2"]
    claim: Mapping[str, Any] = {"metadata": {"name": "data-0"}, "status": {"phase": "Pending"}}
    seen.pods, seen.claims = [Pod.of(waiting), Pod.of(killed), *others], [claim]
    told = wrong(assemble(seen, NOW))
    assert "highwater-etcd-2 is missing -> kubectl -n logs describe statefulset highwater-etcd" in told
    assert "highwater-broker-0: unschedulable: no node -> no node takes it" in told
    assert "replica-manager of highwater-broker-1 took more memory than its limit, 2 restarts" in told
    assert "the claim data-0 is pending" in told


def test_a_broker_that_lost_its_tail_or_a_leader_is_said() -> None:
    seen = observed()
    seen.cluster = {
        **seen.cluster, "brokers": [registered(0, tail_lost=True), registered(1)], "offline_partitions": 2,
        "under_replicated_partitions": 4,
    }  # fmt: skip
    told = wrong(assemble(seen, NOW))
    assert "broker 0 has lost the ends of its logs" in told
    assert "partitions without a leader: 2" in told
    assert "under-replicated partitions: 4" in told


def test_a_metric_is_the_one_of_that_name() -> None:
    text = '# TYPE a gauge\na_b 3.0\na{x="y"} 2.0\na 1.5\n'
    assert (metric(text, "a"), metric(text, "a_b"), metric(text, "c")) == (1.5, 3.0, None)


def answers(pod: str, container: str, command: list[str]) -> tuple[int, str, str]:
    if command[0] == "highwater":
        return 0, json.dumps(observed().cluster), ""
    if "MaintenanceStub" in command[2]:
        return 0, json.dumps({"members": [member(0), member(1)]}), ""
    if "controller" in pod:
        return 0, json.dumps(acting(1)), ""
    return 0, json.dumps(report()), ""


def test_few_commands_are_run_and_the_table_is_printed(
    kubernetes: FakeKubernetes, capsys: pytest.CaptureFixture[str]
) -> None:
    kubernetes.release(brokers=2)
    kubernetes.command = answers
    assert observe(Release.open()).reports["highwater-broker-1"]["metrics"][RM] == MANAGER
    commands = [path for _, path, _ in kubernetes.requests if "/exec" in path]
    assert len(commands) == 2 + 2 + 2  # brokers, controllers, the cluster and etcd
    assert exit_status(app, ["kube", "status"]) == 0
    shown = capsys.readouterr().out
    assert "nothing is wrong" in shown
    assert "active controller: highwater-controller-0" in shown
    assert exit_status(app, ["kube", "status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["brokers"][1]["lag_records"] == 7
    kubernetes.forbidden = {("list", "events")}
    kubernetes.command = lambda *_: (1, "", "Traceback\nno grpc\n")
    assert exit_status(app, ["kube", "status"]) == 1
    assert 'cannot list resource "events"' in capsys.readouterr().out


# What runs in the pods


def test_etcd_tells_of_its_members_and_its_keys(
    etcd: LocalEtcd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "controller.properties").write_text(f"cluster=c\netcd={etcd.address}, 127.0.0.1:9\n")
    monkeypatch.setattr(etcd_report, "SETTINGS", str(tmp_path / "*.properties"))
    monkeypatch.setattr(etcd_report, "PAGE", 2)
    etcd_report.main([])
    told = json.loads(capsys.readouterr().out)
    up, down = told["members"]
    assert (up["error"], up["leader"]) == ("", up["id"])
    assert up["db_size_bytes"] > 0
    assert down["error"].startswith("UNAVAILABLE")
    with etcd_report.channel(etcd.address, {}) as opened:
        stub = etcd_report.rpc.KVStub(opened)
        for number in range(5):
            value = b'{"n": %d}' % number if number else b"\xff\xfe"
            stub.Put(etcd_report.rpc.PutRequest(key=b"/kube-status/%d" % number, value=value))
    etcd_report.main(["keys", "/kube-status/", "1000"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["key"] for one in lines] == [f"/kube-status/{number}" for number in range(5)]
    assert [one["value"] for one in lines[:2]] == [{"base64": "//4="}, {"n": 1}]
    etcd_report.main(["keys", "/kube-status/", "40"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert "more than 40 bytes" in lines[-1]["cut"]
    assert len(lines) == 3


def test_a_pods_report_says_what_did_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    pod_report.main(["http://127.0.0.1:9/metrics"])
    told = json.loads(capsys.readouterr().out)
    assert told["metrics"] == {}
    assert "refused" in told["errors"]["http://127.0.0.1:9/metrics"]

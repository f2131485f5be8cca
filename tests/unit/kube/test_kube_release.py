"""A release is found by namespace and name; what is done goes through the API, and refusals say what to do."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from fake_kubernetes import FakeKubernetes, kubeconfig, pod

from highwater.errors import UserError
from highwater.kube import kubernetes_api
from highwater.kube.kubernetes_api import CommandTimeoutError, KubernetesApi, KubernetesError
from highwater.kube.merged_logs import MergedLogs
from highwater.kube.pod import Pod
from highwater.kube.release import BROKER, CONTROLLER, NotInTimeError, Release


@pytest.mark.parametrize(("name", "fullname"), [("highwater", "highwater"), ("prod", "prod-highwater")])
def test_the_only_release_of_the_contexts_namespace_is_meant(
    kubernetes: FakeKubernetes, name: str, fullname: str
) -> None:
    kubernetes.release(name)
    release = Release.open()
    assert (release.namespace, release.name, release.fullname) == ("logs", name, fullname)
    assert release.replicas() == {"broker": 3, "controller": 2, "etcd": 3}
    labels = kubernetes.objects["pods"][release.pod_name(BROKER, 0)]["metadata"]["labels"]
    kubernetes.add("pods", pod(f"{fullname}-topics-12345", labels))  # of a hook
    assert [one.name for one in release.pods(BROKER)] == [release.pod_name(BROKER, n) for n in range(3)]
    assert Release.open(context="other").namespace == "elsewhere"
    assert Release.open(context="other", namespace="mine").namespace == "mine"


def test_several_releases_are_listed_and_one_is_chosen_by_name(kubernetes: FakeKubernetes) -> None:
    kubernetes.release("a")
    kubernetes.release("b", brokers=1)
    with pytest.raises(UserError, match=r"several releases: choose one with --release: a, b"):
        Release.open()
    with pytest.raises(UserError, match=r"no release 'c': it has a, b"):
        Release.open(name="c")
    release = Release.open(name="b")
    assert [one.name for one in release.pods(BROKER)] == ["b-highwater-broker-0"]


@pytest.mark.usefixtures("kubernetes")
def test_no_release_and_no_such_context_say_what_to_do() -> None:
    with pytest.raises(
        UserError, match=r"no release of Highwater in namespace logs: name another one with --namespace"
    ):
        Release.open()
    with pytest.raises(UserError, match=r"no context 'nope': it has default, other"):
        Release.open(context="nope")


def test_without_a_kubeconfig_the_error_names_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setattr(kubernetes_api, "ACCOUNT", tmp_path)
    with pytest.raises(UserError, match=r"no Kubernetes configuration at .*none: set KUBECONFIG"):
        Release.open()


def test_an_api_that_is_away_is_said_within_seconds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path, taken.getsockname()[1], "logs"))
        began = time.monotonic()
        with pytest.raises(KubernetesError, match=r"at http://127.0.0.1:\d+ cannot be reached: .*refused.*KUBECONFIG"):
            Release.open()
    assert time.monotonic() - began < 5


def test_what_is_forbidden_is_named_with_its_verb(kubernetes: FakeKubernetes) -> None:
    kubernetes.release()
    release = Release.open()
    kubernetes.forbidden = {("list", "pods"), ("get", "pods/exec")}
    with pytest.raises(KubernetesError, match=r'cannot list resource "pods".*docs/kubernetes.md'):
        release.pods()
    with pytest.raises(KubernetesError, match=r'cannot get resource "pods/exec".*docs/kubernetes.md'):
        release.execute("highwater-broker-0", ["true"])


def test_a_command_gives_its_output_and_status(kubernetes: FakeKubernetes) -> None:
    kubernetes.release()
    kubernetes.command = lambda pod, container, command: (
        len(command) - 1, f"{pod} {container} {command}" + "x" * 200_000, "first\nlast\n"
    )  # fmt: skip
    release = Release.open()
    done = release.execute("highwater-broker-1", ["a b"])
    assert done.status == 0
    assert done.text.startswith("highwater-broker-1 replica-manager ['a b']xx")
    assert len(done.stdout) > 200_000
    assert release.execute("highwater-etcd-0", ["a", "b", "c"], check=False).status == 2
    with pytest.raises(KubernetesError, match=r"a b in highwater-etcd-0 failed: last"):
        release.execute("highwater-etcd-0", ["a", "b"])


def test_a_command_that_hangs_is_given_up(kubernetes: FakeKubernetes) -> None:
    kubernetes.release()
    over = threading.Event()
    kubernetes.command = lambda *_: (0, str(over.wait(20)), "")
    began = time.monotonic()
    with pytest.raises(CommandTimeoutError, match=r"sleep in highwater-broker-0 .*within 0.3 s"):
        Release.open().execute("highwater-broker-0", ["sleep"], timeout_s=0.3)
    assert time.monotonic() - began < 5
    over.set()


def test_ready_is_every_pod_that_there_is_to_be(kubernetes: FakeKubernetes) -> None:
    kubernetes.release()
    release = Release.open()
    assert release.all_ready()
    labels = kubernetes.objects["pods"]["highwater-etcd-1"]["metadata"]["labels"]
    kubernetes.add("pods", pod("highwater-etcd-1", labels, ready=False))
    kubernetes.objects["pods"]["highwater-broker-2"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    del kubernetes.objects["pods"]["highwater-controller-0"]
    assert release.not_ready() == ["highwater-broker-2", "highwater-controller-0", "highwater-etcd-1"]
    with pytest.raises(NotInTimeError, match=r"all: not within 0.1 s"):
        release.wait_until(release.all_ready, "all", 0.1)


def test_scaling_waits_until_the_pods_have_gone(kubernetes: FakeKubernetes) -> None:
    kubernetes.release()
    release = Release.open()
    later = threading.Timer(0.3, lambda: kubernetes.objects["pods"].pop("highwater-controller-1"))
    later.start()
    release.scale(CONTROLLER, 1, timeout_s=5)
    assert not later.is_alive()
    assert release.replicas()[CONTROLLER] == 1


def test_deleting_says_the_grace_and_may_come_late(kubernetes: FakeKubernetes) -> None:
    kubernetes.release()
    release = Release.open()
    release.delete_pod("highwater-broker-0", grace_s=0)
    release.delete_pod("highwater-broker-0")
    release.delete_claim("data-0-highwater-broker-0")
    assert "data-0-highwater-broker-0" not in kubernetes.objects["persistentvolumeclaims"]
    [first, second, _] = [path for method, path, _ in kubernetes.requests if method == "DELETE"]
    assert first.endswith("/pods/highwater-broker-0?gracePeriodSeconds=0")
    assert second.endswith("/pods/highwater-broker-0")
    kubernetes.refuses_evictions = 1
    assert [release.evict("highwater-broker-1") for _ in range(2)] == [False, True]


# Why a pod is not ready


def broken(**status: object) -> Pod:
    found = pod("highwater-broker-0", {"app.kubernetes.io/component": "broker"}, ready=False)
    found["status"] |= status
    return Pod.of(found)


def waiting(reason: str, **more: object) -> list[dict[str, object]]:
    return [{"name": "replica-manager", "restartCount": 3, "state": {"waiting": {"reason": reason}}, **more}]


def test_the_reason_of_a_pod_that_waits() -> None:
    unschedulable = [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes: insufficient cpu"}]
    assert broken(phase="Pending", conditions=unschedulable).reason({}) == "unschedulable: 0/1 nodes: insufficient cpu"
    assert broken(containerStatuses=waiting("ImagePullBackOff")).reason({}).startswith("image of replica-manager: ")
    ended = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    crashed = broken(containerStatuses=waiting("CrashLoopBackOff", lastState=ended))
    assert crashed.reason({}) == "replica-manager crashes again and again: OOMKilled, exit status 137"
    assert crashed.restarts == 3
    mounting = {"highwater-broker-0": "FailedMount: no such volume"}
    being_made = broken(phase="Pending", containerStatuses=waiting("ContainerCreating"))
    assert being_made.reason(mounting) == "volume: FailedMount: no such volume"
    assert broken().reason(mounting) == "not ready: log-storage, fetcher, replica-manager"


# Logs


def test_logs_are_merged_by_time_and_what_cannot_be_read_is_said(kubernetes: FakeKubernetes) -> None:
    kubernetes.release(brokers=1)
    kubernetes.logs = {
        ("highwater-broker-0", "replica-manager", False): b"2026-01-01T00:00:03Z third\n2026-01-01T00:00:04Z fourth\n",
        ("highwater-broker-0", "fetcher", False): b"2026-01-01T00:00:01Z first\n",
        ("highwater-controller-0", "controller", False): b"2026-01-01T00:00:02Z second\n",
    }
    merged = MergedLogs(Release.open(), ["broker", "controller"])
    lines = [(one.container, one.text) for one in merged.read(60, 100)]
    assert lines == [
        ("fetcher", "first"), ("controller", "second"), ("replica-manager", "third"), ("replica-manager", "fourth")
    ]  # fmt: skip
    assert [line.partition(":")[0] for line in sorted(merged.complaints)] == [
        "highwater-broker-0/log-storage", "highwater-controller-1/controller"
    ]  # fmt: skip
    with pytest.raises(UserError, match=r"nothing here is called brocker: there are broker, controller, etcd, fetcher"):
        list(MergedLogs(Release.open(), ["brocker"]).read(60, 100))


def test_followed_logs_are_those_of_new_containers_too(
    kubernetes: FakeKubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("highwater.kube.merged_logs._LOOK_S", 0.1)
    kubernetes.release(brokers=1)
    name = "highwater-broker-0"
    kubernetes.logs = {(name, "fetcher", False): b"t before\n"}
    following = MergedLogs(Release.open(), ["fetcher"]).follow(None, 10)
    assert next(following).text == "before"
    kubernetes.logs = {(name, "fetcher", False): b"t after\n"}
    kubernetes.add("pods", pod(name, kubernetes.objects["pods"][name]["metadata"]["labels"], uid="u2"))
    assert next(following).text == "after"
    following.close()


def test_followed_logs_go_on_where_the_connection_broke_off(
    kubernetes: FakeKubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("highwater.kube.merged_logs._AGAIN_S", 0.0)
    kubernetes.release(brokers=1)
    calls: list[dict[str, object]] = []

    def follow_logs(_: Release, *__: str, **bounds: object) -> Iterator[bytes]:
        calls.append(bounds)
        yield b"1 first\n2 sec"
        if len(calls) == 1:
            raise KubernetesError("reset by peer")
        yield b"ond\n"

    monkeypatch.setattr(Release, "follow_logs", follow_logs)
    following = MergedLogs(Release.open(), ["fetcher"]).follow(3600, 10)
    assert [next(following).text for _ in range(2)] == ["first", "second"]
    following.close()
    assert calls[0] == {"since_s": 3600, "tail_lines": 10}
    assert calls[1]["tail_lines"] is None


def test_followed_logs_outlast_an_api_that_is_restarted(
    kubernetes: FakeKubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("highwater.kube.merged_logs._AGAIN_S", 0.0)
    kubernetes.release(brokers=1)
    answers = [KubernetesError("refused", 0), *(KubernetesError("not now", status) for status in (500, 503, 429)), None]

    def follow_logs(*_: object, **__: object) -> Iterator[bytes]:
        if (error := answers.pop(0)) is not None:
            raise error
        yield b"1 after\n"

    monkeypatch.setattr(Release, "follow_logs", follow_logs)
    following = MergedLogs(Release.open(), ["fetcher"]).follow(3600, 10)
    assert next(following).text == "after"
    following.close()


def test_an_api_that_never_answers_a_command_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path, silent.getsockname()[1], "logs"))
        began = time.monotonic()
        with pytest.raises(CommandTimeoutError, match=r"true in p \(c\) did not end within 0.2 s"):
            KubernetesApi.connect().execute("p", "c", ["true"], 0.2)
    assert time.monotonic() - began < 5


class Page(BaseHTTPRequestHandler):
    """A page, of which more is promised than comes where the path has `broken`."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "999" if "broken" in self.path else "6")
        self.end_headers()
        self.wfile.write(b"<html>")

    def log_message(self, *_: object) -> None:
        pass


def test_what_is_no_kubernetes_api_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path, server.server_port, "logs"))
        try:
            with pytest.raises(KubernetesError, match=r"is no Kubernetes API: it sends no JSON"):
                Release.open()
            with pytest.raises(KubernetesError, match=r"cannot be reached: .*IncompleteRead"):
                Release.open(namespace="broken")
        finally:
            server.shutdown()
            thread.join()

"""Faults are drawn by a seed, each is made as it says, and chaos ends at the first thing that does not come back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from fake_kubernetes import FakeKubernetes, pod

from highwater.cli.app import app
from highwater.console.exit_status import exit_status
from highwater.errors import UserError
from highwater.kube.chaos import injection, run
from highwater.kube.chaos.deck import DEFAULT, Fault, Kind, Victim, checked, draw
from highwater.kube.chaos.ephemeral import ImpossibleError
from highwater.kube.chaos.injection import Injection, LeadsTooEarly, WrongStateError
from highwater.kube.chaos.run import Chaos, Event, NotBackError
from highwater.kube.in_pod import cut_network, hold_process, python, signal_processes
from highwater.kube.kubernetes_api import KubernetesApi, KubernetesError
from highwater.kube.release import Release

WANTED = {"broker": 3, "controller": 2, "etcd": 3}
SEPARATE = {"replica-manager": 3, "fetcher": 3, "log-storage": 3, "controller": 2, "etcd": 3}
RM = "http://127.0.0.1:9404/metrics"


# Drawing


def test_the_same_seed_draws_the_same_faults_and_another_one_others() -> None:
    def first(seed: int) -> list[Fault]:
        return list(islice(draw(seed, tuple(Kind), WANTED), 200))

    assert first(7) == first(7)
    assert first(7) != first(8)
    # A change of how faults are drawn makes seeds of earlier runs worthless: then this line changes, too.
    assert [str(one.kind) for one in islice(draw(7, tuple(Kind), WANTED), 5)] == [
        "broker+controller", "controller", "container", "network", "broker"
    ]  # fmt: skip


@pytest.mark.parametrize("wanted", [WANTED, SEPARATE], ids=["colocated", "separate"])
def test_every_kind_comes_in_every_deck_and_every_pod_in_its_turn(wanted: dict[str, int]) -> None:
    size = len(Kind) + 4
    faults = list(islice(draw(1, tuple(Kind), wanted), 60 * size))
    for start in range(0, len(faults), size):
        counts = Counter(one.kind for one in faults[start : start + size])
        assert set(counts) == set(Kind)
        assert counts[Kind.BROKER] == 2
    hit = {victim for one in faults for victim in one.victims}
    assert hit == {Victim(component, n) for component, count in wanted.items() for n in range(count)}
    assert {one.gracefully for one in faults if one.kind is Kind.ETCD} == {False, True}
    assert all((one.seconds > 0) == (one.kind in {"pause", "etcd-pause", "network"}) for one in faults)


def test_kinds_that_would_not_be_survived_are_refused() -> None:
    assert checked([], WANTED) == DEFAULT
    assert Kind.ETCD not in checked([], {"broker": 3, "controller": 2})
    with pytest.raises(UserError, match=r"'brker' is no kind of fault: there are broker, controller"):
        checked(["broker", "brker"], WANTED)
    with pytest.raises(UserError, match="no etcd of its own"):
        checked(["etcd-pause"], {"broker": 3, "controller": 2})
    with pytest.raises(UserError, match="with one broker"):
        checked(["volume"], {"broker": 1, "etcd": 3})
    with pytest.raises(UserError, match="fewer than three members"):
        checked(["etcd-volume"], {"broker": 3, "etcd": 1})


# Doing


class Reborn:
    """What is deleted comes back under its name, as another object; `gone` stays away."""

    def __init__(self, kubernetes: FakeKubernetes) -> None:
        self.kubernetes = kubernetes
        self.former = {kind: dict(objects) for kind, objects in kubernetes.objects.items()}
        self.gone: set[str] = set()
        self.deleted: list[str] = []
        kubernetes.deleted = self

    def __call__(self, kind: str, name: str) -> None:
        self.deleted.append(name)
        if name in self.gone:
            return
        one = self.former[kind][name]
        if kind == "pods":
            one = pod(name, one["metadata"]["labels"], uid=str(len(self.deleted)))
        self.kubernetes.objects[kind][name] = one


def fault(kind: Kind, *victims: tuple[str, int], **more: Any) -> Fault:
    given = {"container": "", "gracefully": False, "seconds": 0.0, "node": 0.0, "pause_s": 0.0, **more}
    return Fault(kind, tuple(Victim(*one) for one in victims), **given)


def told(*brokers: int, offline: int = 0, under: int = 0) -> dict[str, Any]:
    registered = [{"broker_id": number} for number in brokers]
    return {"brokers": registered, "offline_partitions": offline, "under_replicated_partitions": under}


def whole(*_: object) -> tuple[int, str, str]:
    return 0, json.dumps(told(0, 1, 2)), ""


@pytest.fixture
def reborn(kubernetes: FakeKubernetes) -> Reborn:
    kubernetes.release()
    kubernetes.command = whole
    return Reborn(kubernetes)


def inject(one: Fault) -> list[str]:
    said: list[str] = []
    Injection(Release.open(), said.append).inject(one)
    return said


def acting(name: str) -> Any:
    def command(pod: str, container: str, words: list[str]) -> tuple[int, str, str]:
        return 0, json.dumps({"metrics": {RM: f"highwater_controller_active {float(pod == name)}\n"}}), ""

    return command


def test_the_controller_that_acts_dies_with_a_broker(reborn: Reborn) -> None:
    reborn.kubernetes.command = acting("highwater-controller-1")
    said = inject(fault(Kind.BROKER_AND_CONTROLLER, ("broker", 2), ("controller", 0)))
    assert reborn.deleted == ["highwater-broker-2", "highwater-controller-1"]
    assert said == ["highwater-broker-2 deleted at once", "highwater-controller-1 deleted at once"]


def test_a_pod_is_deleted_at_once_or_with_its_grace(reborn: Reborn) -> None:
    inject(fault(Kind.ETCD, ("etcd", 1)))
    inject(fault(Kind.CONTROLLER, ("controller", 1), gracefully=True))
    paths = [path for method, path, _ in reborn.kubernetes.requests if method == "DELETE"]
    assert [path.rpartition("/")[2] for path in paths] == [
        "highwater-etcd-1?gracePeriodSeconds=0",
        "highwater-controller-1",
    ]


def test_a_volume_goes_with_its_pod(reborn: Reborn) -> None:
    inject(fault(Kind.VOLUME, ("broker", 1)))
    assert reborn.deleted == ["data-0-highwater-broker-1", "highwater-broker-1"]
    inject(fault(Kind.ETCD_VOLUME, ("etcd", 0)))
    assert reborn.deleted[2:] == ["data-highwater-etcd-0", "highwater-etcd-0"]
    with pytest.raises(KubernetesError, match="no volume"):
        inject(fault(Kind.VOLUME, ("controller", 0)))


def test_a_container_is_killed_from_beside_it(reborn: Reborn) -> None:
    ran: list[dict[str, Any]] = []

    def ephemeral(name: str, container: dict[str, Any]) -> tuple[int, str]:
        ran.append(container)
        reborn.kubernetes.objects["pods"][name]["status"]["initContainerStatuses"][1]["restartCount"] = 1
        return 0, "kills 1"

    reborn.kubernetes.ephemeral = ephemeral
    assert inject(fault(Kind.CONTAINER, ("broker", 1), container="fetcher")) == [
        "fetcher of highwater-broker-1 killed"
    ]  # fmt: skip
    [container] = ran
    assert container["targetContainerName"] == "fetcher"
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["SYS_PTRACE"]}
    assert container["image"] == "highwater:1"
    assert container["command"] == python(hold_process, "kill")


def test_where_processes_are_shared_a_signal_is_enough(reborn: Reborn) -> None:
    ran: list[tuple[str, str, list[str]]] = []

    def command(pod: str, container: str, words: list[str]) -> tuple[int, str, str]:
        ran.append((pod, container, words[3:]))
        return 0, "1\n", ""

    reborn.kubernetes.command = command
    reborn.kubernetes.objects["pods"]["highwater-broker-0"]["spec"]["shareProcessNamespace"] = True
    inject(fault(Kind.PAUSE, ("broker", 0), container="replica-manager", seconds=1.5))
    assert ran == [("highwater-broker-0", "log-storage", ["19", "1.5", "highwater.replica_manager"])]


def test_a_pod_is_cut_off_with_net_admin_and_what_is_forbidden_is_impossible(reborn: Reborn) -> None:
    ran: list[dict[str, Any]] = []
    reborn.kubernetes.ephemeral = lambda name, container: (ran.append(container), (0, "eth0 is back"))[1]
    assert inject(fault(Kind.NETWORK, ("etcd", 2), seconds=3.0)) == ["highwater-etcd-2 cut off the network for 3 s"]
    assert ran[0]["command"] == python(cut_network, "3")
    assert ran[0]["securityContext"]["capabilities"]["add"] == ["NET_ADMIN"]
    assert "targetContainerName" not in ran[0]
    reborn.kubernetes.ephemeral = lambda name, container: (1, "cannot be cut: Operation not permitted")
    with pytest.raises(ImpossibleError, match="Operation not permitted"):
        inject(fault(Kind.NETWORK, ("etcd", 2), seconds=3.0))
    reborn.kubernetes.forbidden = {("patch", "pods/ephemeralcontainers")}
    with pytest.raises(ImpossibleError, match="the verb patch for pods/ephemeralcontainers"):
        inject(fault(Kind.ETCD_PAUSE, ("etcd", 2), container="etcd", seconds=3.0))


def test_a_drain_asks_again_while_the_budget_refuses_and_opens_the_node_at_the_end(
    reborn: Reborn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("highwater.kube.chaos.drain._POLL_S", 0.01)
    reborn.kubernetes.add("nodes", *({"metadata": {"name": f"node-{name}"}, "spec": {}} for name in "ab"))
    reborn.kubernetes.objects["pods"]["highwater-etcd-0"]["spec"]["nodeName"] = "node-b"
    reborn.kubernetes.refuses_evictions = 2
    assert inject(fault(Kind.DRAIN, node=0.1)) == ["node-a drained"]
    assert len(reborn.deleted) == 7
    assert "highwater-etcd-0" not in reborn.deleted
    patched = [body for method, path, body in reborn.kubernetes.requests if method == "PATCH"]
    assert patched == [{"spec": {"unschedulable": True}}, {"spec": {"unschedulable": False}}]


def test_a_node_that_somebody_has_closed_stays_closed(reborn: Reborn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("highwater.kube.chaos.drain._POLL_S", 0.01)
    reborn.kubernetes.add(
        "nodes",
        {"metadata": {"name": "node-a"}, "spec": {"unschedulable": True}},
        {"metadata": {"name": "node-b"}, "spec": {}},
    )
    assert inject(fault(Kind.DRAIN, node=0.1)) == ["node-a drained"]
    assert not [path for method, path, _ in reborn.kubernetes.requests if method == "PATCH"]
    assert reborn.kubernetes.objects["nodes"]["node-a"]["spec"]["unschedulable"]


def test_a_node_is_opened_though_the_api_was_away(reborn: Reborn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("highwater.kube.chaos.drain._POLL_S", 0.01)
    reborn.kubernetes.add("nodes", *({"metadata": {"name": f"node-{name}"}, "spec": {}} for name in "ab"))
    call, lost = KubernetesApi.call, [True, False]  # whether the request came before the connection broke off

    def away(self: KubernetesApi, method: Any, *arguments: Any, **options: Any) -> Any:
        if method.__name__ == "patch_node" and lost:
            if lost.pop(0):
                call(self, method, *arguments, **options)
            raise KubernetesError("reset by peer")
        return call(self, method, *arguments, **options)

    monkeypatch.setattr(KubernetesApi, "call", away)
    assert inject(fault(Kind.DRAIN, node=0.1)) == ["node-a drained"]
    assert reborn.kubernetes.objects["nodes"]["node-a"]["spec"] == {"unschedulable": False}


def test_the_only_node_is_drained_while_it_takes_pods(reborn: Reborn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("highwater.kube.chaos.drain._POLL_S", 0.01)
    reborn.kubernetes.add("nodes", {"metadata": {"name": "node-a"}, "spec": {}})
    [said] = inject(fault(Kind.DRAIN, node=0.9))
    assert "while it takes pods on" in said
    assert len(reborn.deleted) == 8
    assert not [path for method, path, _ in reborn.kubernetes.requests if method == "PATCH"]


def test_a_broker_without_its_volume_must_not_lead(reborn: Reborn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(injection, "_LOOK_S", 0.0)
    metrics = {"leader_partitions": 3, "partitions": 6, "out_of_sync_partitions": 3}

    def command(*_: object) -> tuple[int, str, str]:
        text = "".join(f"highwater_replica_manager_{name} {value}.0\n" for name, value in metrics.items())
        return 0, json.dumps({"metrics": {RM: text}}), ""

    reborn.kubernetes.command = command
    check = LeadsTooEarly(Release.open(), Victim("broker", 1))
    for _ in range(5):
        check()
    metrics["leader_partitions"] = 4
    check()
    check()
    with pytest.raises(
        WrongStateError, match="highwater-broker-1 lost its volume and leads 4 partitions, while 3 of its 6"
    ):
        check()


# From beginning to end


def test_chaos_ends_at_the_first_that_does_not_come_back(reborn: Reborn) -> None:
    reborn.gone = {"highwater-controller-0", "highwater-controller-1"}
    events: list[Event] = []
    chaos = Chaos(Release.open(), 3, [Kind.CONTROLLER], WANTED, events.append, back_s=0.2)
    with pytest.raises(
        NotBackError, match=r"highwater-controller-\d deleted .*not ready: highwater-controller-\d\. .*seed is 3"
    ):
        chaos.run(60)
    assert len(reborn.deleted) == 1
    assert [one.kind for one in events] == ["controller"]


def test_nothing_is_broken_where_something_is_broken_already(reborn: Reborn) -> None:
    del reborn.kubernetes.objects["pods"]["highwater-etcd-1"]
    with pytest.raises(NotBackError, match="after: nothing yet: .*not ready: highwater-etcd-1"):
        Chaos(Release.open(), 3, [Kind.CONTROLLER], WANTED, lambda _: None, back_s=0.1).run(60)
    assert reborn.deleted == []


def test_a_broker_that_is_not_registered_is_not_back_though_its_pod_is_ready(reborn: Reborn) -> None:
    reborn.kubernetes.command = lambda *_: (
        0, json.dumps(told(0, 2) if reborn.deleted else told(0, 1, 2)), ""
    )  # fmt: skip
    chaos = Chaos(Release.open(), 3, [Kind.ETCD], WANTED, lambda _: None, back_s=0.5)
    with pytest.raises(
        NotBackError, match=r"after: highwater-etcd-\d deleted.*: brokers that are not registered: 1\. "
    ):
        chaos.run(60)
    assert len(reborn.deleted) == 1


@pytest.mark.parametrize(
    ("found", "lacking"),
    [
        (told(0, 1, 2), ""),
        ({"error": "refused"}, "no broker tells of the cluster: refused"),
        (told(0, 1, 2, offline=1, under=2), "partitions without a leader: 1"),
        (told(0, 1, 2, under=2), "under-replicated partitions: 2"),
    ],
)
def test_what_is_still_to_come(found: dict[str, Any], lacking: str) -> None:
    assert run.not_whole(found, 3) == lacking


class EnoughError(Exception):
    pass


def test_what_cannot_be_done_is_left_out(reborn: Reborn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run.time, "sleep", lambda _: None)
    reborn.kubernetes.ephemeral = lambda name, container: (1, "no way")
    events: list[Event] = []

    def tell(event: Event) -> None:
        events.append(event)
        if sum(one.said.startswith("all is as it was") for one in events) == 6:  # two decks
            raise EnoughError

    with pytest.raises(EnoughError):
        Chaos(Release.open(), 5, [Kind.NETWORK, Kind.ETCD], WANTED, tell).run(600)
    [left_out] = [one.said for one in events if one.kind == "network"]
    assert left_out.startswith("left out from here on: ")
    with pytest.raises(UserError, match="none of network can be done here: .*no way"):
        Chaos(Release.open(), 5, [Kind.NETWORK], WANTED, events.append).run(10)


def test_the_command_asks_first_and_says_how_to_load(
    reborn: Reborn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert exit_status(app, ["kube", "chaos", "--kill", "etcd", "--duration", "1"]) == 1
    assert "give --yes where nobody can be asked" in capsys.readouterr().err
    assert reborn.deleted == []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.prompt", lambda *_, **__: "other")
    assert exit_status(app, ["kube", "chaos", "--kill", "volume", "--duration", "1"]) == 1
    said = capsys.readouterr().err
    assert "DELETE VOLUMES" in said
    assert "nothing was broken" in said
    assert reborn.deleted == []
    assert (
        exit_status(app, ["kube", "chaos", "--kill", "etcd", "--duration", "1", "--seed", "4", "--yes", "--json"]) == 0
    )
    told = capsys.readouterr()
    assert "kubectl -n logs run load --image=highwater:1" in told.err
    assert json.loads(told.out.splitlines()[-1]) == {"faults": len(reborn.deleted), "seed": 4}


# What runs in the pods


def test_a_signal_reaches_the_processes_of_a_module(tmp_path: Path) -> None:
    (tmp_path / "some_module.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(60)\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "some_module"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "up\n"
        script = [sys.executable, *python(signal_processes)[1:]]
        done = subprocess.run(
            [*script, "9", "0", "some_module"], capture_output=True, text=True, check=True, timeout=20
        )
        assert done.stdout == "1\n"
        assert process.wait(5) == -9
        done = subprocess.run(
            [*script, "9", "0", "some_module"], capture_output=True, text=True, check=True, timeout=20
        )
        assert done.stdout == "0\n"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def beating(path: Path) -> list[float]:
    return [float(line) for line in path.read_text().split()]


def test_a_process_is_held_goes_on_and_is_killed(tmp_path: Path) -> None:
    beats = tmp_path / "beats"
    code = f"""
import threading, time
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
with open({str(beats)!r}, "w", buffering=1) as file:
    while True:
        print(time.monotonic(), file=file)
        time.sleep(0.01)
"""
    process = subprocess.Popen([sys.executable, "-c", code])

    def script(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *python(hold_process, *arguments)[1:]]
        environment = {**os.environ, "PROCESS": str(process.pid)}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=20)

    def beats_again(after: float) -> bool:
        return beating(beats)[-1:] > [after]

    try:
        await_that(beats.exists)
        await_that(lambda: beats_again(0))
        done = script("hold", "0.5")
        if "not permitted" in done.stderr:
            pytest.skip(f"no process may be traced here: {done.stderr}")
        assert done.stdout == f"held 2 threads of {process.pid}\n"
        ended = time.monotonic()
        await_that(lambda: beats_again(ended))
        times = beating(beats)
        assert max(later - earlier for earlier, later in pairwise(times)) >= 0.5
        assert script("kill").returncode == 0
        assert process.wait(5) == -9
    finally:
        process.kill()
        process.wait()


def test_all_that_is_sent_is_dropped_for_a_while(tmp_path: Path) -> None:
    """In a network namespace of its own, where the loopback is all there is."""
    code = f"""
import os, socket, sys, threading, time
sys.path.insert(0, {str(Path(cut_network.__file__).parent)!r})
import cut_network, fcntl, struct
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:  # the loopback is up: SIOCSIFFLAGS, IFF_UP
    fcntl.ioctl(control, 0x8914, struct.pack("16sh14x", b"lo", 1))
cut_network.interface = lambda: "lo"
receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
receiver.bind(("127.0.0.1", 0))
receiver.settimeout(0.2)
def arrives():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"x", receiver.getsockname())
    try:
        return receiver.recv(1) == b"x"
    except TimeoutError:
        return False
print(arrives(), flush=True)
read, write = os.pipe()
child = os.fork()
if child == 0:
    os.dup2(write, 1)
    cut_network.main(["60"])
    os._exit(0)
os.read(read, 1)
print(arrives(), flush=True)
os.kill(child, 15)
os.waitpid(child, 0)
print(arrives(), flush=True)
"""
    alone = ["unshare", "--map-root-user", "--net"]
    done = subprocess.run([*alone, sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=30)
    if "unshare" in done.stderr or "not permitted" in done.stderr:
        pytest.skip(f"no network namespace may be made here: {done.stderr}")
    assert done.stdout.split() == ["True", "False", "True"], done.stderr


def await_that(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)

"""A Kubernetes cluster, by `KUBECONFIG`, and a release of the chart in a namespace of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bench.results import publish, results
from highwater.kube.chaos.injection import Injection
from highwater.kube.load import ALL_ACKNOWLEDGED
from highwater.kube.release import LOG_STORAGE
from highwater.kube.release import Release as InstalledRelease

CHART = Path(__file__).resolve().parents[2] / "helm" / "highwater"
_POLL_S = 0.1

# 1 GB in tables of 1 MB that do not compress.
_FILL = """
import os, sys
import pyarrow as pa
from highwater.client.blocking import Admin, Producer
bootstrap, topic = sys.argv[1:]
with Admin(bootstrap) as admin:
    admin.create_topic(topic, partitions=6)
table = pa.table({"value": [os.urandom(1000) for _ in range(1000)]})
with Producer(bootstrap, acks="all") as producer:
    for number in range(1000):
        producer.send_table(topic, table, partition=number % 6)
"""


class CommandError(AssertionError):
    """A command failed; with what it said."""


def command(*arguments: str, stdin: str = "", timeout_s: float = 120) -> str:
    """Raises `CommandError`."""
    done = subprocess.run(arguments, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode != 0:
        raise CommandError(f"{' '.join(arguments)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def until(condition: Callable[[], bool], what: str, timeout_s: float) -> float:
    """The seconds that it took. Raises `AssertionError`."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < timeout_s, f"{what}: not within {timeout_s:g} s"
        time.sleep(_POLL_S)
    return time.monotonic() - began


def record(**figures: float) -> None:
    """Prints what was measured beside its aim, and puts it into build/bench.json."""
    publish(results(figures))


@dataclass(frozen=True)
class Release:
    """`helm install`ed in a namespace, which `remove` takes away with its volumes."""

    namespace: str
    name: str = "highwater"

    @property
    def bootstrap(self) -> str:
        return f"{self.name}.{self.namespace}.svc.cluster.local:9092"

    def kubectl(self, *arguments: str, stdin: str = "", timeout_s: float = 120) -> str:
        return command("kubectl", "-n", self.namespace, *arguments, stdin=stdin, timeout_s=timeout_s)

    def get(self, *arguments: str) -> Any:
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def helm(self, *arguments: str, timeout_s: float = 300) -> str:
        return command("helm", "-n", self.namespace, *arguments, timeout_s=timeout_s)

    def install(
        self, values: Mapping[str, Any], *, verb: str = "install", timeout_s: float = 420, wait: bool = True
    ) -> float:
        """The seconds until everything is ready, where that is waited for: long enough for a scheduler that looks again
        after five minutes at a pod whose claim it has found unbound."""
        began = time.monotonic()
        given = ("--create-namespace", *(["--wait"] if wait else []), f"--timeout={timeout_s:g}s", "--values=-")
        command(
            "helm", "-n", self.namespace, verb, self.name, str(CHART), *given,
            stdin=json.dumps(values), timeout_s=timeout_s + 30,
        )  # fmt: skip
        return time.monotonic() - began

    def remove(self) -> None:
        for what in (
            ["namespace", self.namespace, "--wait=false"],
            ["pods", "--all", f"--namespace={self.namespace}", "--force", "--grace-period=0"],
            ["namespace", self.namespace, "--timeout=120s"],
        ):
            subprocess.run(["kubectl", "delete", *what], capture_output=True, timeout=150, check=False)

    def pod(self, component: str, ordinal: int) -> str:
        return f"{self.name}-{component}-{ordinal}"

    @cached_property
    def installed(self) -> InstalledRelease:
        """What `highwater kube` works on, once it is installed."""
        return InstalledRelease.open(namespace=self.namespace, name=self.name)

    def execute(self, pod: str, *arguments: str, container: str = "replica-manager", timeout_s: float = 60) -> str:
        return self.kubectl("exec", pod, "-c", container, "--", *arguments, timeout_s=timeout_s)

    def isr_revision(self) -> int:
        """What `fewest_in_sync` begins behind."""
        return int(json.loads(self._isr_history())["revision"])

    def fewest_in_sync(self, since: int, minimum: int = 2) -> int:
        """Of any partition at any revision of etcd after `since`. Raises `AssertionError` where it is below."""
        found = json.loads(self._isr_history(f"--since={since}", f"--minimum={minimum}"))
        print(f"ISRs of revisions {since} to {found['until']}: {found['changes']}, the smallest of {found['smallest']}")
        assert found["changes"] > 0
        assert not found["below"], found
        return int(found["smallest"])

    def _isr_history(self, *arguments: str) -> str:
        config = "--config=/etc/highwater/replica-manager.properties"
        module = ("python", "-m", "highwater.kube.isr_history")
        return self.execute(self.pod("broker", 0), *module, config, *arguments).splitlines()[-1]

    def restarts(self) -> int:
        """Of all containers of the pods that there are."""
        return sum(
            status["restartCount"]
            for pod in self.get("pods")["items"]
            for kind in ("containerStatuses", "initContainerStatuses")
            for status in pod["status"].get(kind, ())
        )

    def state(self) -> str:
        """For who reads why a test failed."""
        said = []
        for what in (["pods", "-o", "wide"], ["pvc"], ["events", "--sort-by=.lastTimestamp"]):
            with suppress(CommandError, subprocess.TimeoutExpired):
                said += [*self.kubectl("get", *what).splitlines()[-30:], ""]
        return "\n".join(said)


def gigabyte_of_records(release: Release, topic: str) -> float:
    """The seconds until all brokers had it."""
    began = time.monotonic()
    release.execute(release.pod("broker", 0), "python", "-c", _FILL, release.bootstrap, topic, timeout_s=600)
    return time.monotonic() - began


def kill_pod(release: Release, pod: str) -> None:
    """As if its node had lost power: even without grace, kubelet gives containers two seconds to end in order."""
    Injection(release.installed, print).signal(pod, (LOG_STORAGE,), signal.SIGKILL)
    release.installed.delete_pod(pod, grace_s=0)


def highwater(release: Release, *arguments: str) -> str:
    """What the command says, whatever its status."""
    given = [sys.executable, "-m", "highwater.cli.main", *arguments, f"--namespace={release.namespace}"]
    done = subprocess.run(given, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout + done.stderr


def sharing_processes(values: Mapping[str, Any]) -> dict[str, Any]:
    return {**values, "broker": {**values["broker"], "shareProcessNamespace": True}}


@dataclass(frozen=True)
class RunningLoad:
    """The load with its history checker, as a pod beside the cluster."""

    release: Release
    pod: str

    @classmethod
    def start(cls, release: Release, image: str, *, seconds: float, arguments: Sequence[str] = ()) -> RunningLoad:
        pod = f"load-{int(time.time() * 1000)}"
        manifest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": pod},
            "spec": {
                "restartPolicy": "Never",
                "enableServiceLinks": False,
                "automountServiceAccountToken": False,
                "containers": [
                    {
                        "name": "load",
                        "image": image,
                        "imagePullPolicy": "IfNotPresent",
                        "command": [
                            "python", "-m", "highwater.kube.load",
                            f"--bootstrap={release.bootstrap}", f"--seconds={seconds:g}", *arguments,
                        ],
                    }
                ],
            },
        }  # fmt: skip
        release.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
        return cls(release, pod)

    def wait_until_it_writes(self) -> None:
        until(lambda: ALL_ACKNOWLEDGED in self.said(), f"{self.pod}: {ALL_ACKNOWLEDGED}", 60)

    def said(self) -> str:
        with suppress(CommandError):  # its container has not started
            return self.release.kubectl("logs", self.pod)
        return ""

    def begin_round(self) -> None:
        self._signal(signal.SIGUSR1)

    def stop(self) -> None:
        """Its check begins now."""
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        self.release.execute(self.pod, "python", "-c", f"import os; os.kill(1, {int(number)})", container="load")

    def finish(self, timeout_s: float) -> dict[str, Any]:
        """What it found. Raises `AssertionError` where it did not end, or found something wrong."""

        def ended() -> bool:
            return self.release.get("pod", self.pod)["status"].get("phase") in {"Succeeded", "Failed"}

        until(ended, f"the load {self.pod} ends", timeout_s)
        said = self.release.kubectl("logs", self.pod)
        try:
            found: dict[str, Any] = json.loads(said.splitlines()[-1])
        except (IndexError, ValueError):
            raise AssertionError(f"the load said: {said[-3000:]}") from None
        assert not found["problems"], found
        assert found["acknowledged"] == found["sent"] > 0, found
        return found

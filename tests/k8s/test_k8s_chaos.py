"""Pods and containers die under load; nothing that was acknowledged is lost, and all comes back without a hand."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

from kubernetes_cluster import CONTAINERS, Release, RunningLoad, sharing_processes, until

SECONDS = float(os.environ.get("SECONDS", "90"))
SEED = int(os.environ.get("SEED", str(random.randrange(10**6))))
_BACK_S = 120.0


class Chaos:
    """Draws what dies next; one thing at a time is away."""

    def __init__(self, release: Release, seed: int) -> None:
        self.release = release
        self.random = random.Random(seed)
        self.done: list[str] = []
        self._deck: list[Callable[[], None]] = []

    def step(self) -> None:
        if not self._deck:
            self._deck = [self.delete_broker, self.delete_controller, self.delete_etcd, self.kill_container] * 2
            self._deck += [self.delete_broker_and_controller, self.pause_container, self.kill_container]
            self.random.shuffle(self._deck)
        self._deck.pop()()
        until(self.release.all_ready, f"all pods are ready after: {self.done[-1]}", _BACK_S)

    def _delete(self, component: str, count: int) -> None:
        pod = self.release.pod(component, self.random.randrange(count))
        gracefully = self.random.random() < 0.5
        self.done.append(f"{pod} deleted{' gracefully' if gracefully else ''}")
        self.release.delete_pod(pod, gracefully=gracefully)

    def delete_broker(self) -> None:
        self._delete("broker", 3)

    def delete_controller(self) -> None:
        self._delete("controller", 2)

    def delete_etcd(self) -> None:
        self._delete("etcd", 3)

    def delete_broker_and_controller(self) -> None:
        self._delete("broker", 3)
        self._delete("controller", 2)

    def kill_container(self) -> None:
        self._signal(signal.SIGKILL, "killed")

    def pause_container(self) -> None:
        pod, container = self._signal(signal.SIGSTOP, "stopped")
        time.sleep(self.random.uniform(0.5, 8))
        self.release.signal(pod, [container], signal.SIGCONT)  # its probe may have ended it

    def _signal(self, number: signal.Signals, said: str) -> tuple[str, str]:
        pod, container = self.release.pod("broker", self.random.randrange(3)), self.random.choice(CONTAINERS)
        self.done.append(f"{container} of {pod} {said}")
        self.release.signal(pod, [container], number)
        return pod, container


def test_nothing_acknowledged_is_lost_while_pods_die(release: Release, values: dict[str, Any], image: str) -> None:
    release.install(sharing_processes(values))
    load = RunningLoad.start(release, image, seconds=SECONDS + 10 * _BACK_S)  # it is stopped before
    chaos = Chaos(release, SEED)
    end = time.monotonic() + SECONDS
    try:
        while time.monotonic() < end:
            time.sleep(chaos.random.uniform(0, 5))
            chaos.step()
        load.stop()
        found = load.finish(600)
    finally:
        print(f"SEED={SEED}: {len(chaos.done)} times: {'; '.join(chaos.done)}")
    print(found)

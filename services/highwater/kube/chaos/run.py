"""Faults one after the other, each when all has come back from the last; ends at the first that does not.

That all pods are ready is not enough: every broker has to be registered too, and every replica in sync.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from highwater.errors import UserError
from highwater.kube.chaos.deck import Fault, Kind, draw
from highwater.kube.chaos.ephemeral import ImpossibleError
from highwater.kube.chaos.injection import Injection, WrongStateError
from highwater.kube.kubernetes_api import KubernetesError
from highwater.kube.release import BROKER, REPLICA_MANAGER, NotInTimeError, Release
from highwater.kube.status.observation import cluster

BACK_S = 180.0
LOAD = "highwater.kube.load"
_POLL_S = 0.5


class NotBackError(UserError):
    """Something did not come back, or came back wrong."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that was done, and when."""

    time: str
    at_s: float
    """Since the beginning."""
    kind: str
    said: str


@dataclass(frozen=True)
class Chaos:
    release: Release
    seed: int
    kinds: Collection[Kind]
    wanted: Mapping[str, int]
    """How many pods each component has."""
    tell: Callable[[Event], None]
    back_s: float = BACK_S

    def run(self, duration_s: float) -> int:
        """Makes faults, and returns how many there were. Raises `NotBackError` and `UserError`."""
        began = time.monotonic()
        self._until_back("nothing yet", lambda: None)
        done = 0
        impossible: set[Kind] = set()
        for fault in draw(self.seed, self.kinds, self.wanted):
            if time.monotonic() - began >= duration_s:
                break
            if fault.kind in impossible:
                continue
            time.sleep(fault.pause_s)
            try:
                self._step(fault, began)
                done += 1
            except ImpossibleError as error:
                impossible.add(fault.kind)
                self._tell(began, fault.kind, f"left out from here on: {error}")
                if impossible >= set(self.kinds):
                    raise UserError(f"none of {', '.join(self.kinds)} can be done here: {error}") from None
        return done

    def _step(self, fault: Fault, began: float) -> None:
        said: list[str] = []

        def say(what: str) -> None:
            said.append(what)
            self._tell(began, fault.kind, what)

        try:
            check = Injection(self.release, say).inject(fault)
            took_s = self._until_back("; ".join(said), check)
        except ImpossibleError:
            raise
        except (KubernetesError, NotInTimeError) as error:
            raise self._not_back("; ".join(said) or "nothing yet", str(error)) from None
        self._tell(began, fault.kind, f"all is as it was after {took_s:.1f} s")

    def _until_back(self, what: str, check: Callable[[], None]) -> float:
        """The seconds that it took until all pods are ready, all brokers registered and all replicas in sync. Raises
        `NotBackError`."""
        brokers = self.wanted.get(BROKER) or self.wanted.get(REPLICA_MANAGER, 0)
        lacking = ""

        def back() -> bool:
            nonlocal lacking
            check()
            lacking = "pods are not ready"
            if self.release.all_ready():
                lacking = not_whole(cluster(self.release), brokers)
            return not lacking

        try:
            return self.release.wait_until(back, "all is as it was", self.back_s)
        except (WrongStateError, NotInTimeError) as error:
            raise self._not_back(what, f"{error}: {lacking}") from None

    def _not_back(self, what: str, why: str) -> NotBackError:
        try:
            missing = ", ".join(self.release.not_ready()) or "none"
        except KubernetesError as error:
            missing = f"not known ({error})"
        there = f"-n {self.release.namespace} --release {self.release.name}"
        return NotBackError(
            f"after: {what}: {why}. Pods that are not ready: {missing}. Nothing more is broken; look with "
            f"`highwater kube status {there}` and `highwater kube logs {there}`, and keep it with "
            f"`highwater kube debug-bundle {there}`. The seed is {self.seed}"
        )

    def _tell(self, began: float, kind: str, said: str) -> None:
        self.tell(Event(datetime.now(UTC).isoformat(timespec="milliseconds"), _since(began), kind, said))


def _since(began: float) -> float:
    return round(time.monotonic() - began, 1)


def not_whole(found: Mapping[str, Any], brokers: int) -> str:
    """Names what is still to come before another fault may be made; empty: nothing.

    Args:
        found: as `cluster` gives it.
    """
    if "error" in found:
        return f"no broker tells of the cluster: {found['error']}"
    registered = {one["broker_id"] for one in found["brokers"]}
    if missing := [str(number) for number in range(brokers) if number not in registered]:
        return f"brokers that are not registered: {', '.join(missing)}"
    if offline := found["offline_partitions"]:
        return f"partitions without a leader: {offline}"
    if under := found["under_replicated_partitions"]:
        return f"under-replicated partitions: {under}"
    return ""


def loads(release: Release) -> Iterator[str]:
    """Pods of the namespace that run `python -m highwater.kube.load` now. Raises `KubernetesError`."""
    found = release.api.call(release.api.core.list_namespaced_pod, release.namespace)
    for one in found["items"]:
        words = [
            word for container in one["spec"]["containers"]
            for word in (*(container.get("command") or ()), *(container.get("args") or ()))
        ]  # fmt: skip
        if LOAD in words and one.get("status", {}).get("phase") == "Running":
            yield one["metadata"]["name"]


def how_to_load(release: Release, seconds: float) -> str:
    """The command that runs a load beside the release, which checks its own history."""
    image = next((one.image for pod in release.pods("controller") for one in pod.containers), "highwater")
    return (
        f"kubectl -n {release.namespace} run load --image={image} --restart=Never --command -- "
        f"python -m {LOAD} --bootstrap={release.bootstrap} --seconds={seconds:g}"
    )

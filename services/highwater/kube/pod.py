"""A pod of a release, as the Kubernetes API describes it, and why it is not ready."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

COMPONENT = "app.kubernetes.io/component"
_GRACE_S = 30.0  # Kubernetes' own
_BEING_MADE = ("ContainerCreating", "PodInitializing")
_IMAGE = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName")


@dataclass(frozen=True, slots=True)
class Container:
    name: str
    image: str
    init: bool
    """It runs before the others, and ends; a sidecar is none."""
    ready: bool
    running: bool
    restarts: int
    started: str
    """RFC 3339; empty where it does not run."""
    waiting: str
    """Why it does not run, in Kubernetes' word; empty where it does."""
    message: str
    last_end: str
    """How it ended the last time: a reason and an exit status; empty where it never did."""


@dataclass(frozen=True, slots=True)
class Pod:
    name: str
    component: str
    ordinal: int
    node: str
    phase: str
    ready: bool
    terminating: bool
    address: str
    created: str
    uid: str
    containers: tuple[Container, ...]
    unschedulable: str
    """Why no node takes it; empty where one did."""
    ephemeral: tuple[str, ...]
    shares_processes: bool
    grace_s: float
    """From being asked to end until it is killed."""
    volumes: tuple[str, ...]
    """Names of its claims."""

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Pod:
        metadata, spec, status = found["metadata"], found.get("spec", {}), found.get("status", {})
        conditions = {one["type"]: one for one in status.get("conditions") or ()}
        scheduled = conditions.get("PodScheduled", {})
        return cls(
            name=metadata["name"],
            component=(metadata.get("labels") or {}).get(COMPONENT, ""),
            ordinal=_ordinal(metadata["name"]),
            node=spec.get("nodeName", ""),
            phase=status.get("phase", "Unknown"),
            ready=conditions.get("Ready", {}).get("status") == "True",
            terminating="deletionTimestamp" in metadata,
            address=status.get("podIP", ""),
            created=metadata.get("creationTimestamp") or "",
            uid=metadata.get("uid", ""),
            containers=tuple(_containers(spec, status)),
            unschedulable=scheduled.get("message", "") if scheduled.get("status") == "False" else "",
            ephemeral=tuple(one["name"] for one in spec.get("ephemeralContainers") or ()),
            shares_processes=bool(spec.get("shareProcessNamespace")),
            grace_s=float(spec.get("terminationGracePeriodSeconds", _GRACE_S)),
            volumes=tuple(
                one["persistentVolumeClaim"]["claimName"]
                for one in spec.get("volumes") or ()
                if "persistentVolumeClaim" in one
            ),
        )

    @property
    def restarts(self) -> int:
        return sum(one.restarts for one in self.containers)

    def container(self, name: str) -> Container | None:
        return next((one for one in self.containers if one.name == name), None)

    @property
    def running(self) -> tuple[str, ...]:
        """Containers in which a command can be run."""
        return tuple(one.name for one in self.containers if one.running)

    def reason(self, events: Mapping[str, str]) -> str:
        """The reason why it is not ready, in one line; empty where it is.

        Args:
            events: the last warning of each pod, "Reason: message".
        """
        if self.terminating:
            return "is being deleted"
        if self.unschedulable:
            return f"unschedulable: {self.unschedulable}"
        for one in self.containers:
            if one.waiting in _IMAGE:
                return f"image of {one.name}: {one.waiting} {one.message or one.image}".strip()
            if one.waiting == "CrashLoopBackOff":
                return f"{one.name} crashes again and again: {one.last_end or one.message}"
            if one.waiting and one.waiting not in _BEING_MADE:
                return f"{one.name}: {one.waiting} {one.message}".strip()
        if self.ready:
            return ""
        if self.phase == "Pending" and (warned := events.get(self.name)):
            return f"{'volume: ' if 'olume' in warned or 'Mount' in warned else ''}{warned}"
        beginning = next((one for one in self.containers if one.init and one.running), None)
        if beginning is not None:
            return f"init container {beginning.name} is at work"
        unready = [one.name for one in self.containers if not one.init and not one.ready]
        return f"not ready: {', '.join(unready)}" if unready and self.phase != "Pending" else self.phase.lower()


def _ordinal(name: str) -> int:
    last = name.rpartition("-")[2]
    return int(last) if last.isdigit() else -1


def _containers(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[Container]:
    told = {
        one["name"]: one
        for kind in ("initContainerStatuses", "containerStatuses")
        for one in status.get(kind) or ()
    }  # fmt: skip
    for kind in ("initContainers", "containers"):
        for one in spec.get(kind) or ():
            yield _container(one, told.get(one["name"], {}), kind == "initContainers")


def _container(spec: Mapping[str, Any], status: Mapping[str, Any], first: bool) -> Container:
    state = status.get("state") or {}
    waiting, running = state.get("waiting") or {}, state.get("running")
    ended = (status.get("lastState") or {}).get("terminated") or state.get("terminated") or {}
    sidecar = spec.get("restartPolicy") == "Always"
    return Container(
        name=spec["name"],
        image=spec.get("image", ""),
        init=first and not sidecar,
        ready=bool(status.get("ready")),
        running=running is not None,
        restarts=int(status.get("restartCount") or 0),
        started=(running or {}).get("startedAt") or "",
        waiting=waiting.get("reason", ""),
        message=waiting.get("message", ""),
        last_end=f"{ended.get('reason', 'ended')}, exit status {ended.get('exitCode')}" if ended else "",
    )

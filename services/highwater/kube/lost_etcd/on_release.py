"""Backs up, and rebuilds, the metadata of an installed release: stops its brokers and controllers, looks at the volumes
of the brokers from pods of their own, has a pod in the cluster write etcd, and starts everything again."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from highwater.errors import UserError
from highwater.kube.kubernetes_api import KubernetesError
from highwater.kube.lost_etcd import backup_file
from highwater.kube.lost_etcd.inventory import COMPRESSED
from highwater.kube.pod import COMPONENT
from highwater.kube.release import (
    BROKER,
    CONTROLLER,
    FETCHER,
    INSTANCE,
    LOG_STORAGE,
    NAME,
    REMEMBERED,
    REPLICA_MANAGER,
    Release,
)

STOPPED = (BROKER, REPLICA_MANAGER, FETCHER, LOG_STORAGE, CONTROLLER)
"""In this order: a broker that stops asks a controller."""
INVENTORY, REBUILD = "inventory", "rebuild"
BACKUPS, INVENTORIES = "/backups", "/inventories"
CONFIGMAP_BYTES = 1_000_000
STARTED_S = 900.0
PENDING_S = 20.0
"""After which a pod that does not run is worth a word, and worth looking at again."""
STARTED_AGAIN_S = 300.0
"""For Kubernetes to take that what was stopped is started: its API may be away just then."""


@dataclass(frozen=True)
class Ended:
    """A pod that ran to its end."""

    status: int
    log: str


class ReleaseMetadata:
    """`say` is told of each step, `show` what the plan is; `timeout_s` is for each pod: recovery reads what was not
    flushed."""

    def __init__(
        self,
        release: Release,
        *,
        say: Callable[[str], None],
        show: Callable[[str], None] = lambda _: None,
        timeout_s: float = 3600,
    ) -> None:
        self._release = release
        self._say = say
        self._show = show
        self._timeout_s = timeout_s

    def backup(self) -> bytes:
        """One that is taken now, by a controller's pod. Raises `KubernetesError`, `UserError`."""
        running = [pod.name for pod in self._release.pods(CONTROLLER) if CONTROLLER in pod.running]
        if not running:
            raise UserError("no controller runs that could take the backup: see highwater kube status")
        settings = self._properties(CONTROLLER, "controller")
        command = ["python", "-m", "highwater.kube.backup", *_etcd_options(settings), "--print"]
        return self._release.execute(running[0], command, timeout_s=120).stdout

    def rebuild(
        self,
        *,
        backup: Path | None = None,
        claim: str | None = None,
        without: Collection[int] = (),
        options: Sequence[str] = (),
        write: bool = True,
    ) -> int:
        """The exit status of `highwater.kube.rebuild`, whose further `options` may be given. `backup` is a file here,
        `claim` has backups, of which it takes the newest. Nothing is asked of the volumes of brokers in `without`.
        Raises `KubernetesError`, `UserError`. Whatever came of it, everything is started again."""
        content = None if backup is None else _read(backup)
        before = self._remember()
        done = False
        try:
            self._stop(before)
            lines = self._inventories(self._brokers(before, without))
            with_backup = [f"--backup={BACKUPS}"] if content is not None or claim is not None else []
            gone = [f"--without-broker={broker}" for broker in without]
            more = [*options, *gone, *with_backup, *([] if write else ["--dry-run"])]
            ended = self._write(lines, content, claim, more, before)
            self._show(ended.log)
            done = ended.status == 0 and write
            return ended.status
        finally:
            self._start(before, wait=done)

    # Stopping and starting

    def _remember(self) -> dict[str, int]:
        """Remembers how many pods each component has, or had before a run that was killed. Raises `UserError`."""
        before = {}
        sets = {one["metadata"]["labels"][COMPONENT]: one for one in self._release.objects("statefulsets")}
        for component in STOPPED:
            if component in sets:
                remembered = (sets[component]["metadata"].get("annotations") or {}).get(REMEMBERED)
                before[component] = sets[component]["spec"]["replicas"] or int(remembered or 0)
        if none := [sets[component]["metadata"]["name"] for component, count in before.items() if not count]:
            raise UserError(
                f"of {', '.join(none)} there is to be no pod, and it is not known how many there were: say so with "
                f"`kubectl -n {self._release.namespace} annotate --overwrite statefulset NAME {REMEMBERED}=NUMBER`, "
                "for each"
            )
        for component, count in before.items():
            self._annotate(component, str(count))
        return before

    def _stop(self, before: Mapping[str, int]) -> None:
        for component, count in before.items():
            self._say(f"stopping {component} ({count} pods)")
            self._scale(component, 0)
            self._release.wait_until(partial(self._gone, component), f"{component} has stopped", self._timeout_s)

    def _gone(self, component: str) -> bool:
        return not self._release.pods(component)

    def _start(self, before: Mapping[str, int], *, wait: bool) -> None:
        """Raises `UserError`: something is still stopped, or is not ready in time."""
        deadline = time.monotonic() + STARTED_AGAIN_S
        stopped, why = list[str](), ""
        for component, count in reversed(list(before.items())):
            started = partial(self._started, component, count)
            try:
                self._release.wait_until(started, f"{component} is started", max(deadline - time.monotonic(), 0))
            except UserError as error:
                stopped.append(
                    f"`kubectl -n {self._release.namespace} scale statefulset "
                    f"{self._release.fullname}-{component} --replicas={count}`"
                )
                why = str(error)
        if stopped:
            raise UserError(
                f"NOT EVERYTHING RUNS AGAIN: {why}. Run the same command again, which still knows how many pods there "
                f"were; or start them by hand: {', '.join(stopped)}"
            )
        if wait:
            self._say("starting; waiting until all is ready")
            self._release.wait_until(self._release.all_ready, "every pod of the release is ready", STARTED_S)

    def _started(self, component: str, count: int) -> bool:
        self._scale(component, count)
        self._annotate(component, None)
        return True

    def _scale(self, component: str, count: int) -> None:
        api = self._release.api
        name = f"{self._release.fullname}-{component}"
        patch = api.apps.patch_namespaced_stateful_set_scale
        api.call(patch, name, self._release.namespace, {"spec": {"replicas": count}})

    def _annotate(self, component: str, value: str | None) -> None:
        api = self._release.api
        name = f"{self._release.fullname}-{component}"
        body = {"metadata": {"annotations": {REMEMBERED: value}}}
        api.call(api.apps.patch_namespaced_stateful_set, name, self._release.namespace, body)

    # The volumes

    def _brokers(self, before: Mapping[str, int], without: Collection[int]) -> dict[int, list[dict[str, str]]]:
        """The claims of each broker, as volumes: of one whose claims are not all there, none. Nor of those in
        `without`: a claim outlives the node that had its volume, and a pod that mounts it would never start."""
        holder = BROKER if BROKER in before else LOG_STORAGE
        template = self._stateful_set(holder)
        volumes = [one["metadata"]["name"] for one in template["spec"]["volumeClaimTemplates"]]
        there = {one["metadata"]["name"] for one in self._release.objects("claims")}
        found: dict[int, list[dict[str, str]]] = {}
        for ordinal in range(before[holder]):
            claims = [(name, f"{name}-{self._release.pod_name(holder, ordinal)}") for name in volumes]
            missing = [claim for _, claim in claims if claim not in there]
            if ordinal in without:
                self._say(f"broker {ordinal}: its volumes are left alone, they are said to be gone for good")
            elif missing:
                self._say(f"broker {ordinal}: its volume is gone ({', '.join(missing)})")
            found[ordinal] = (
                [] if missing or ordinal in without else [{"name": name, "claim": claim} for name, claim in claims]
            )
        return found

    def _inventories(self, brokers: Mapping[int, Sequence[Mapping[str, str]]]) -> dict[int, str]:
        """The line of each broker whose volumes are there. Raises `UserError` where one cannot be taken."""
        holder = BROKER if BROKER in self._release.replicas() else LOG_STORAGE
        directories = self._properties(BROKER, LOG_STORAGE)["log.dirs"].split(",")
        pods: dict[int, dict[str, Any]] = {}
        for broker, volumes in brokers.items():
            if volumes:
                name = f"{self._release.fullname}-{INVENTORY}-{broker}"
                command = ["python", "-m", "highwater.kube.inventory", "--compressed", f"--broker-id={broker}"]
                mounts = {one["name"]: {"persistentVolumeClaim": {"claimName": one["claim"]}} for one in volumes}
                pods[broker] = self._pod(name, INVENTORY, holder, [*command, *directories], mounts)
        if not pods:
            raise UserError("no broker has a volume: there is nothing to rebuild the metadata from")
        self._say(f"taking the inventory of the volumes of brokers {', '.join(map(str, pods))}")
        names = {broker: pod["metadata"]["name"] for broker, pod in pods.items()}
        found = {}
        try:
            for pod in pods.values():
                self._create(pod)
            for broker, name in names.items():
                ended = self._await_end(name, INVENTORY)
                lines = [line for line in ended.log.splitlines() if line.startswith(COMPRESSED)]
                if ended.status != 0 or not lines:
                    raise UserError(f"the inventory of broker {broker} failed: {_last(ended.log)}")
                found[broker] = lines[-1]
        finally:  # one that was left would keep its broker from its volume
            self._delete_pods(names.values())
        return found

    # Writing

    def _write(
        self,
        inventories: Mapping[int, str],
        backup: bytes | None,
        claim: str | None,
        options: Sequence[str],
        before: Mapping[str, int],
    ) -> Ended:
        settings = self._properties(CONTROLLER, "controller")
        acknowledging = self._properties(BROKER, REPLICA_MANAGER)
        brokers = range(before.get(BROKER, before.get(LOG_STORAGE, 0)))
        name = f"{self._release.fullname}-{REBUILD}"
        maps, sources = {}, list[dict[str, Any]]()
        for broker, line in inventories.items():
            pieces = [line[at : at + CONFIGMAP_BYTES] for at in range(0, len(line), CONFIGMAP_BYTES)]
            for number, piece in enumerate(pieces):
                of, path = (f"-{number}", f"/{number}") if len(pieces) > 1 else ("", "")
                maps[f"{name}-{broker}{of}"] = {"inventory": piece}
                items = [{"key": "inventory", "path": f"broker-{broker}{path}"}]
                sources.append({"configMap": {"name": f"{name}-{broker}{of}", "items": items}})
        volumes: dict[str, dict[str, Any]] = {"inventories": {"projected": {"sources": sources}}}
        if backup is not None:
            maps[f"{name}-backup"] = {"given.backup.gz": base64.b64encode(backup).decode()}
            volumes["backups"] = {"configMap": {"name": f"{name}-backup"}}
            options = [each.replace(f"--backup={BACKUPS}", f"--backup={BACKUPS}/given.backup.gz") for each in options]
        elif claim is not None:
            volumes["backups"] = {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        command = [
            *("python", "-m", "highwater.kube.rebuild"),
            *_etcd_options(settings),
            f"--brokers={','.join(map(str, brokers))}",
            f"--min-insync-replicas={acknowledging.get('min.insync.replicas', 1)}",
            *options,
            *("--inventories", *(f"{INVENTORIES}/broker-{broker}" for broker in inventories)),
        ]
        mounts = {"inventories": INVENTORIES, "backups": BACKUPS}
        self._say("writing etcd" if "--dry-run" not in options else "making the plan")
        try:
            for map_name, data in maps.items():
                self._put_map(map_name, data, binary=map_name.endswith("-backup"))
            self._create(self._pod(name, REBUILD, CONTROLLER, command, volumes, mounts))
            return self._await_end(name, REBUILD)
        finally:
            self._delete_pods([name])
            for map_name in maps:
                self._delete_map(map_name)

    def _put_map(self, name: str, data: Mapping[str, str], *, binary: bool) -> None:
        self._delete_map(name)
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "labels": self._labels(REBUILD)},
            "binaryData" if binary else "data": data,
        }
        api = self._release.api
        api.call(api.core.create_namespaced_config_map, self._release.namespace, body)

    def _delete_map(self, name: str) -> None:
        api = self._release.api
        try:
            api.call(api.core.delete_namespaced_config_map, name, self._release.namespace)
        except KubernetesError as error:
            if error.status != 404:
                raise

    # Pods

    def _pod(
        self,
        name: str,
        component: str,
        like: str,
        command: Iterable[str],
        volumes: Mapping[str, Mapping[str, Any]],
        mounts: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """With the image, the user and the place of a StatefulSet's pods, and mounts where it has those of the same
        names, unless `mounts` says where. The labels are the release's, which the NetworkPolicies let in."""
        template = self._stateful_set(like)["spec"]["template"]["spec"]
        containers = [*template.get("initContainers", ()), *template["containers"]]
        wanted = LOG_STORAGE if like == BROKER else like
        model = next(one for one in containers if one["name"] == wanted)
        mounted = {one["name"]: one["mountPath"] for one in model["volumeMounts"]}
        secrets = {one["name"]: {"secret": one["secret"]} for one in template["volumes"] if "secret" in one}
        volumes = {**volumes, **{secret: secrets[secret] for secret in secrets if secret in mounted}}  # etcd's TLS
        places = {**mounted, **(mounts or {})}
        spec = {
            key: template[key]
            for key in ("securityContext", "imagePullSecrets", "nodeSelector", "tolerations", "affinity")
            if key in template
        }
        container = {
            "name": component,
            "command": list(command),
            "volumeMounts": [{"name": volume, "mountPath": places[volume]} for volume in volumes]
            + [{"name": "temporary", "mountPath": "/tmp"}],
            **{key: model[key] for key in ("image", "imagePullPolicy", "securityContext", "resources") if key in model},
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": self._labels(component)},
            "spec": {
                **spec,
                "restartPolicy": "Never",
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "containers": [container],
                "volumes": [{"name": volume, **source} for volume, source in volumes.items()]
                + [{"name": "temporary", "emptyDir": {}}],
            },
        }

    def _labels(self, component: str) -> dict[str, str]:
        return {NAME: "highwater", INSTANCE: self._release.name, COMPONENT: component}

    def _stateful_set(self, component: str) -> dict[str, Any]:
        """Raises `UserError`."""
        for one in self._release.objects("statefulsets"):
            if one["metadata"]["labels"][COMPONENT] == component:
                return dict(one)
        raise UserError(f"the release has no StatefulSet {self._release.fullname}-{component}: install it again first")

    def _create(self, pod: dict[str, Any]) -> None:
        """In the place of one that a run before has left."""
        release, name = self._release, pod["metadata"]["name"]
        if release.pod(name) is not None:
            release.delete_pod(name)
            release.wait_until(lambda: release.pod(name) is None, f"{name} is gone", self._timeout_s)
        release.api.call(release.api.core.create_namespaced_pod, release.namespace, pod)

    def _delete_pods(self, names: Iterable[str]) -> None:
        for name in names:
            try:
                self._release.delete_pod(name)
            except KubernetesError as error:
                self._say(f"the pod {name} is left, delete it: {error}")

    def _await_end(self, name: str, container: str) -> Ended:
        """Says why the pod does not run, as soon as that takes long: nothing serves meanwhile. Raises `UserError`, with
        the same."""
        release = self._release
        asked, said = time.monotonic(), ""

        def ended() -> bool:
            nonlocal asked, said
            pod = release.pod(name)
            if pod is None or pod.phase in {"Succeeded", "Failed"}:
                return True
            if pod.phase == "Pending" and time.monotonic() - asked >= PENDING_S:
                asked = time.monotonic()
                if (why := pod.reason(release.warnings())) != said:
                    said = why
                    self._say(f"{name} does not run: {why}. Ctrl-C gives up, and starts everything again")
            return False

        try:
            release.wait_until(ended, f"{name} has ended", self._timeout_s)
        except UserError as late:
            pod = release.pod(name)
            why = pod.reason(release.warnings()) if pod is not None else ""
            raise UserError(f"{late}{f'; {why}' if why else ''}") from late
        found = release.api.call(release.api.core.read_namespaced_pod, name, release.namespace)
        told = found["status"]
        ends = [one["state"]["terminated"] for one in told.get("containerStatuses", ()) if "terminated" in one["state"]]
        if not ends:  # it was evicted, say
            raise UserError(f"{name} did not come to its end: {told.get('message') or told.get('reason')}; try again")
        log = release.logs(name, container).decode(errors="replace")
        return Ended(int(ends[0]["exitCode"]), log)

    def _properties(self, component: str, service: str) -> dict[str, str]:
        """The settings that the chart gives a service. Raises `UserError`."""
        name = f"{self._release.fullname}-{component}"
        for one in self._release.objects("configmaps"):
            if one["metadata"]["name"] == name:
                lines = one["data"][f"{service}.properties"].splitlines()
                return {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in lines) if key}
        raise UserError(f"the release has no ConfigMap {name}: install it again first")


def default_claim(release: Release) -> str | None:
    """The claim into which the chart's CronJob puts the backups, or has put them; None: there are none. Raises
    `KubernetesError`, and `UserError` where it is not there or not to be known: no backup is left out silently."""
    api, claim = release.api, release.backup_name
    otherwise = "name a claim with --backup-claim or a file here with --backup, or give --no-backup"
    try:
        job = release.backup_job()
    except KubernetesError as error:
        if error.status != 403:
            raise
        raise UserError(f"whether there are backups is not known: {error}. Or {otherwise}") from error
    if job is not None:
        volumes = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["volumes"]
        claim = next(one["persistentVolumeClaim"]["claimName"] for one in volumes if "persistentVolumeClaim" in one)
    try:
        api.call(api.core.read_namespaced_persistent_volume_claim, claim, release.namespace)
    except KubernetesError as error:
        if error.status != 404:
            raise
        if job is not None:
            raise UserError(f"the claim of the backups, {claim}, is not there: {otherwise}") from error
        return None
    return claim


def _etcd_options(settings: Mapping[str, str]) -> list[str]:
    files = ("etcd.ca.file", "etcd.certificate.file", "etcd.key.file")
    tls = [f"--{name.replace('.', '-')}={settings[name]}" for name in files if settings.get(name)]
    return [f"--etcd={settings['etcd']}", f"--cluster={settings['cluster']}", *tls]


def _read(path: Path) -> bytes:
    """A backup that can be used, while all still runs. Raises `UserError`."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the backup {path}: {error.strerror or error}") from error
    backup_file.parse(content, f"the backup {path}")
    if len(content) > CONFIGMAP_BYTES:
        raise UserError(
            f"the backup {path} has {len(content)} bytes, and a ConfigMap holds {CONFIGMAP_BYTES}: copy it under its "
            "name into a claim of the namespace, and name that with --backup-claim"
        )
    return content


def _last(log: str) -> str:
    lines = [line for line in log.strip().splitlines() if not line.startswith(COMPRESSED)]
    return lines[-1] if lines else "it said nothing"

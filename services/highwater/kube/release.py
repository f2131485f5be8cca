"""An installed release of the chart: its pods, claims and StatefulSets, commands in its containers, and their logs.

    release = Release.open(namespace="highwater")
    print(release.execute(release.pods(BROKER)[0].name, ["highwater", "--help"]).text)

Needs the extra `kube`. Whatever the Kubernetes API refuses is a `UserError` that says what to do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import urllib3

from highwater.errors import UserError
from highwater.kube.kubernetes_api import READ_TIMEOUT_S, Completed, KubernetesApi, KubernetesError
from highwater.kube.pod import COMPONENT, Pod

BROKER, CONTROLLER, ETCD = "broker", "controller", "etcd"
REPLICA_MANAGER, FETCHER, LOG_STORAGE = "replica-manager", "fetcher", "log-storage"
SERVICES = (REPLICA_MANAGER, FETCHER, LOG_STORAGE)
"""Of a broker: containers of one pod where they are colocated, components otherwise."""
COMPONENTS = (BROKER, *SERVICES, CONTROLLER, ETCD)
CHART = "highwater"
NAME, INSTANCE = "app.kubernetes.io/name", "app.kubernetes.io/instance"
REMEMBERED = "highwater/replicas-before-rebuild"
"""An annotation of a StatefulSet that a rebuild has stopped: how many pods it is to have again."""
CLIENT_PORT = 9092
COMMAND_TIMEOUT_S = 30.0
_POLL_S = 0.5
_PIECE_BYTES = 65536


class NotInTimeError(UserError):
    """Raised where what was waited for did not come."""


@dataclass(frozen=True)
class Release:
    """The objects that `helm install NAME helm/highwater` or the manifests of k8s/ made in one namespace."""

    api: KubernetesApi
    name: str
    fullname: str
    """What the names of its objects begin with."""

    @classmethod
    def open(cls, *, namespace: str | None = None, name: str | None = None, context: str | None = None) -> Release:
        """The release of that name, by default the only one of the namespace (by default the context's). Raises
        `KubernetesError` and `UserError`."""
        return cls.find(KubernetesApi.connect(context, namespace), name)

    @classmethod
    def find(cls, api: KubernetesApi, name: str | None = None) -> Release:
        """Raises `KubernetesError` and `UserError`."""
        found = api.call(api.apps.list_namespaced_stateful_set, api.namespace, label_selector=f"{NAME}={CHART}")
        names: dict[str, str] = {}
        for one in found["items"]:
            labels = one["metadata"]["labels"]
            suffix = f"-{labels.get(COMPONENT, '')}"
            names.setdefault(labels.get(INSTANCE, ""), one["metadata"]["name"].removesuffix(suffix))
        where = f"namespace {api.namespace}"
        if not names:
            raise UserError(
                f"there is no release of Highwater in {where}: name another one with --namespace, or install one "
                f"(helm install highwater helm/highwater --namespace {api.namespace})"
            )
        if name is None:
            if len(names) > 1:
                raise UserError(f"{where} has several releases: choose one with --release: {', '.join(sorted(names))}")
            [name] = names
        if name not in names:
            raise UserError(f"{where} has no release {name!r}: it has {', '.join(sorted(names))}")
        return cls(api, name, names[name])

    @property
    def namespace(self) -> str:
        return self.api.namespace

    @property
    def selector(self) -> str:
        return f"{NAME}={CHART},{INSTANCE}={self.name}"

    def pod_name(self, component: str, ordinal: int) -> str:
        return f"{self.fullname}-{component}-{ordinal}"

    # What there is

    def pods(self, *components: str) -> list[Pod]:
        """Of the StatefulSets, by component and ordinal; of these components only, where any are given. Raises
        `KubernetesError`."""
        found = [Pod.of(one) for one in self.objects("pods")]
        wanted = components or COMPONENTS
        chosen = [
            one for one in found
            if one.component in wanted and one.name == self.pod_name(one.component, one.ordinal)  # a hook's has another
        ]  # fmt: skip
        return sorted(chosen, key=lambda one: (COMPONENTS.index(one.component), one.ordinal))

    def pod(self, name: str) -> Pod | None:
        """None: there is no such pod. Raises `KubernetesError`."""
        try:
            return Pod.of(self.api.call(self.api.core.read_namespaced_pod, name, self.namespace))
        except KubernetesError as error:
            if error.status != 404:
                raise
            return None

    def objects(self, kind: str) -> list[dict[str, Any]]:
        """The release's `pods`, `statefulsets`, `claims` or `configmaps`, as the API has them. Raises
        `KubernetesError`."""
        core, apps = self.api.core, self.api.apps
        methods: dict[str, Callable[..., Any]] = {
            "pods": core.list_namespaced_pod,
            "statefulsets": apps.list_namespaced_stateful_set,
            "claims": core.list_namespaced_persistent_volume_claim,
            "configmaps": core.list_namespaced_config_map,
        }
        items: list[dict[str, Any]] = self.api.call(methods[kind], self.namespace, label_selector=self.selector)[
            "items"
        ]
        return items

    @property
    def backup_name(self) -> str:
        """Of the CronJob that takes backups, and of the claim that the chart makes for them."""
        return f"{self.fullname}-backup"

    def backup_job(self) -> dict[str, Any] | None:
        """The CronJob that takes backups; None: there is none. Raises `KubernetesError`."""
        try:
            found: dict[str, Any] = self.api.call(
                self.api.batch.read_namespaced_cron_job, self.backup_name, self.namespace
            )
        except KubernetesError as error:
            if error.status != 404:
                raise
            return None
        return found

    def replicas(self, sets: Iterable[Mapping[str, Any]] | None = None) -> dict[str, int]:
        """Tells how many pods each component is to have, by the StatefulSets, asked for unless given. Raises
        `KubernetesError`."""
        sets = self.objects("statefulsets") if sets is None else sets
        found = {one["metadata"]["labels"][COMPONENT]: one["spec"]["replicas"] for one in sets}
        return {component: found[component] for component in COMPONENTS if component in found}

    @property
    def bootstrap(self) -> str:
        """host:port where clients in the cluster begin."""
        return f"{self.fullname}.{self.namespace}.svc:{CLIENT_PORT}"

    # Being ready

    def is_ready(self, name: str) -> bool:
        """Raises `KubernetesError`."""
        found = self.pod(name)
        return found is not None and found.ready and not found.terminating

    def not_ready(self) -> list[str]:
        """Pods that are missing, being deleted or not ready; empty: all is well. Raises `KubernetesError`."""
        there = {one.name: one for one in self.pods()}
        wanted = [self.pod_name(kind, n) for kind, count in self.replicas().items() for n in range(count)]
        surplus = [name for name in there if name not in wanted]
        fine = {name for name, one in there.items() if one.ready and not one.terminating}
        return [name for name in wanted if name not in fine] + surplus

    def all_ready(self) -> bool:
        """Raises `KubernetesError`."""
        return not self.not_ready()

    # Doing

    def execute(
        self,
        pod: str,
        command: Iterable[str],
        *,
        container: str | None = None,
        timeout_s: float = COMMAND_TIMEOUT_S,
        check: bool = True,
    ) -> Completed:
        """Runs a command in a container, by default the one that serves. Raises `KubernetesError`: it could not be run,
        took longer, or ended with another status than 0 where that is to be checked."""
        command = list(command)
        container = container or self.main_container(pod)
        done = self.api.execute(pod, container, command, timeout_s)
        if check and done.status != 0:
            raise KubernetesError(f"{' '.join(command)[:80]} in {pod} failed: {done.complaint}")
        return done

    def main_container(self, pod: str) -> str:
        component = pod.removeprefix(f"{self.fullname}-").rpartition("-")[0]
        return REPLICA_MANAGER if component == BROKER else component

    def logs(
        self,
        pod: str,
        container: str,
        *,
        previous: bool = False,
        since_s: float | None = None,
        tail_lines: int | None = None,
        last_bytes: int | None = None,
        timestamps: bool = False,
    ) -> bytes:
        """Reads what is there now; of what ran before the last restart, where `previous`. Raises `KubernetesError`,
        also where the connection breaks off.

        Args:
            last_bytes: no more than so many from the end are kept.
        """
        kept = bytearray()
        response = self._log(pod, container, previous, since_s, tail_lines, timestamps, follow=False)
        for piece in self._pieces(response, pod, container):
            kept += piece
            if last_bytes is not None and len(kept) > 2 * last_bytes:
                del kept[:-last_bytes]
        return bytes(kept if last_bytes is None else kept[-last_bytes:])

    def follow_logs(
        self,
        pod: str,
        container: str,
        *,
        since_s: float | None = None,
        tail_lines: int | None = None,
        read_timeout_s: float = 3600,
    ) -> Iterator[bytes]:
        """Pieces of it as they come, with timestamps, until the container ends. Raises `KubernetesError`, also where
        nothing comes for `read_timeout_s`."""
        response = self._log(pod, container, False, since_s, tail_lines, True, follow=True, timeout_s=read_timeout_s)
        yield from self._pieces(response, pod, container)

    def _pieces(self, response: Any, pod: str, container: str) -> Iterator[bytes]:
        try:
            with response:
                yield from response.stream(_PIECE_BYTES)
        except urllib3.exceptions.HTTPError as error:
            raise KubernetesError(f"the logs of {pod} ({container}) broke off: {error}") from None

    def _log(
        self,
        pod: str,
        container: str,
        previous: bool,
        since_s: float | None,
        tail_lines: int | None,
        timestamps: bool,
        *,
        follow: bool,
        timeout_s: float = READ_TIMEOUT_S,
    ) -> Any:
        wanted: dict[str, Any] = {"container": container, "previous": previous, "timestamps": timestamps}
        if follow:
            wanted["follow"] = True
        if since_s is not None:
            wanted["since_seconds"] = max(1, round(since_s))
        if tail_lines is not None:
            wanted["tail_lines"] = tail_lines
        return self.api.open(
            self.api.core.read_namespaced_pod_log, pod, self.namespace, read_timeout_s=timeout_s, **wanted
        )

    def delete_pod(self, name: str, *, grace_s: int | None = None) -> None:
        """Does not wait. `grace_s`: 0 takes it away at once; None leaves it its own time. One that is gone already is
        fine. Raises `KubernetesError`."""
        grace = {} if grace_s is None else {"grace_period_seconds": grace_s}
        self._unless_gone(self.api.core.delete_namespaced_pod, name, **grace)

    def delete_claim(self, name: str) -> None:
        """Does not wait: it goes when no pod uses it any more. Raises `KubernetesError`."""
        self._unless_gone(self.api.core.delete_namespaced_persistent_volume_claim, name)

    def _unless_gone(self, method: Callable[..., Any], name: str, **options: Any) -> None:
        try:
            self.api.call(method, name, self.namespace, **options)
        except KubernetesError as error:
            if error.status != 404:
                raise

    def evict(self, pod: str) -> bool:
        """Asks as a drain does. False: a PodDisruptionBudget refuses it now. Raises `KubernetesError`."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": self.namespace},
        }  # fmt: skip
        try:
            self.api.call(self.api.core.create_namespaced_pod_eviction, pod, self.namespace, body)
        except KubernetesError as error:
            if error.status != 429:
                raise
            return False
        return True

    def scale(self, component: str, replicas: int, *, timeout_s: float = 300) -> None:
        """Sets how many pods a component has, and waits until so many are ready and no more are there. Raises
        `KubernetesError` and `NotInTimeError`."""
        name = f"{self.fullname}-{component}"
        body = {"spec": {"replicas": replicas}}
        self.api.call(self.api.apps.patch_namespaced_stateful_set_scale, name, self.namespace, body)

        def scaled() -> bool:
            there = self.pods(component)
            return len(there) == replicas and all(one.ready and not one.terminating for one in there)

        self.wait_until(scaled, f"{name} has {replicas} pods that are ready", timeout_s)

    def wait_until(self, condition: Callable[[], bool], what: str, timeout_s: float) -> float:
        """The seconds that it took. An API that fails meanwhile is asked again. Raises `NotInTimeError`."""
        began = time.monotonic()
        failed = ""
        while True:
            try:
                if condition():
                    return time.monotonic() - began
                failed = ""
            except KubernetesError as error:
                if error.status in {401, 403}:
                    raise
                failed = f"; last: {error}"
            if time.monotonic() - began >= timeout_s:
                raise NotInTimeError(f"{what}: not within {timeout_s:g} s{failed}")
            time.sleep(_POLL_S)

    def warnings(self) -> Mapping[str, str]:
        """The last warning event of each pod, "Reason: message". Raises `KubernetesError`."""
        selector = "involvedObject.kind=Pod,type=Warning"
        found = self.api.call(self.api.core.list_namespaced_event, self.namespace, field_selector=selector, limit=500)
        items: Sequence[Any] = sorted(
            found["items"], key=lambda one: one.get("lastTimestamp") or one.get("eventTime") or ""
        )
        return {one["involvedObject"].get("name", ""): f"{one.get('reason')}: {one.get('message')}" for one in items}

"""Makes one fault happen, and says when it is over: what was deleted is gone, what was killed has been noticed."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from highwater.errors import UserError
from highwater.kube.chaos import ephemeral
from highwater.kube.chaos.deck import Fault, Kind, Victim
from highwater.kube.chaos.drain import drain
from highwater.kube.in_pod import cut_network, hold_process, pod_report, python, signal_processes
from highwater.kube.kubernetes_api import KubernetesError
from highwater.kube.pod import Pod
from highwater.kube.release import BROKER, CONTROLLER, SERVICES, NotInTimeError, Release
from highwater.kube.status.observation import container_to_ask
from highwater.kube.status.values import metric, metrics_urls

NOTICED_S = 90.0
_GONE_S = 90.0
_STARTING_S = 60.0
_LEADS_TOO_EARLY = 3  # times in succession: the two numbers are not of one moment
_LOOK_S = 2.0


class WrongStateError(UserError):
    """Raised where what came back is not as it has to be."""


@dataclass(frozen=True)
class Injection:
    """`say` gets a line as each thing is done."""

    release: Release
    say: Callable[[str], None]

    def inject(self, fault: Fault) -> Callable[[], None]:
        """Comes back when the fault is over, all that is to come back aside. What it returns is to be called over and
        over while that is waited for: it raises `WrongStateError` where something comes back wrong. Raises
        `ImpossibleError` where it cannot be done here, `KubernetesError` and `NotInTimeError`."""
        pods = [self.release.pod_name(one.component, one.ordinal) for one in fault.victims]
        match fault.kind:
            case Kind.BROKER_AND_CONTROLLER:
                pods[1] = self.acting_controller() or pods[1]
                self._delete(pods, fault.gracefully)
            case Kind.BROKER | Kind.CONTROLLER | Kind.ETCD:
                self._delete(pods, fault.gracefully)
            case Kind.CONTAINER:
                self._kill(pods[0], self._container(fault))
            case Kind.PAUSE | Kind.ETCD_PAUSE:
                self._pause(pods[0], self._container(fault), fault.seconds)
            case Kind.NETWORK:
                self._cut_off(pods[0], fault.seconds)
            case Kind.VOLUME | Kind.ETCD_VOLUME:
                self._lose_volumes(pods[0])
                if fault.kind is Kind.VOLUME:
                    return LeadsTooEarly(self.release, fault.victims[0])
            case Kind.DRAIN:
                drain(self.release, fault.node, self.say)
        return _nothing

    def acting_controller(self) -> str | None:
        """The pod of the controller that acts; None: none says that it does. Raises `KubernetesError`."""
        for pod in self.release.pods(CONTROLLER):
            if _metric(self.release, pod, "highwater_controller_active") == 1:
                return pod.name
        self.say("no controller says that it acts: any is taken")
        return None

    def _container(self, fault: Fault) -> str:
        component = fault.victims[0].component
        return component if component in SERVICES else fault.container

    # Deleting

    def _delete(self, pods: Sequence[str], gracefully: bool) -> None:
        before = [self._existing(pod) for pod in pods]
        for pod in pods:
            self.say(f"{pod} deleted{' gracefully' if gracefully else ' at once'}")
            self.release.delete_pod(pod, grace_s=None if gracefully else 0)
        for old in before:
            self._until_replaced(old)

    def _lose_volumes(self, pod: str) -> None:
        old = self._existing(pod)
        if not old.volumes:
            raise KubernetesError(f"{pod} has no volume of a claim")
        for claim in old.volumes:
            self.release.delete_claim(claim)
        self.release.delete_pod(pod, grace_s=0)
        self.say(f"{pod} deleted at once, with its volumes {', '.join(old.volumes)}")
        self._until_replaced(old)
        former = set(old.volumes)

        def all_anew() -> bool:
            claims = {one["metadata"]["name"]: one for one in self.release.objects("claims")}
            return all(name in claims and "deletionTimestamp" not in claims[name]["metadata"] for name in former)

        self.release.wait_until(all_anew, f"{pod} has claims again", _GONE_S)

    def _until_replaced(self, old: Pod) -> None:
        def replaced() -> bool:
            now = self.release.pod(old.name)
            return now is None or now.uid != old.uid

        self.release.wait_until(replaced, f"{old.name} is gone", _GONE_S + old.grace_s)

    def _existing(self, pod: str) -> Pod:
        found = self.release.pod(pod)
        if found is None:
            raise KubernetesError(f"{pod} is not there")
        return found

    # Killing, pausing

    def _kill(self, pod: str, container: str) -> None:
        old = self._existing(pod)
        before = old.container(container)
        if old.shares_processes:
            self.signal(pod, [container], signal.SIGKILL)
        else:
            self._trace(pod, container, ["kill"], 5, f"{container} of {pod} killed")
        restarts = before.restarts if before is not None else 0

        def noticed() -> bool:
            now = self.release.pod(pod)
            if now is None or now.uid != old.uid:
                return True
            one = now.container(container)
            return one is not None and one.restarts > restarts

        self.release.wait_until(noticed, f"{container} of {pod} was started again", NOTICED_S)

    def _pause(self, pod: str, container: str, seconds: float) -> None:
        said = f"{container} of {pod} stopped for {seconds:g} s"
        if self._existing(pod).shares_processes:
            self.signal(pod, [container], signal.SIGSTOP, seconds)
        else:
            self._trace(pod, container, ["hold", f"{seconds:g}"], seconds, said)

    def signal(self, pod: str, containers: Sequence[str], number: signal.Signals, seconds: float = 0) -> None:
        """Sends a signal to the processes of containers, and after `seconds`, if that is more than 0, SIGCONT. The
        pod's containers have to share their processes: the first process of a namespace takes none from within that
        ends or stops it. Raises `KubernetesError`."""
        running = self._existing(pod).running
        by = next((one for one in running if one in SERVICES and one not in containers), containers[-1])
        modules = [f"highwater.{one.replace('-', '_')}" for one in containers]
        command = python(signal_processes, str(int(number)), f"{seconds:g}", *modules)
        self.say(f"{', '.join(containers)} of {pod}: {number.name}" + (f" for {seconds:g} s" if seconds else ""))
        try:
            done = self.release.execute(pod, command, container=by, timeout_s=_STARTING_S + seconds, check=False)
        except KubernetesError:
            if by not in containers or number is not signal.SIGKILL:
                raise
            return  # it went with the last of them
        found = int(done.text or 0)
        if found < len(containers):
            raise KubernetesError(f"{found} of the processes of {', '.join(containers)} in {pod} were found")

    def _trace(self, pod: str, container: str, arguments: Sequence[str], seconds: float, said: str) -> None:
        ephemeral.run(
            self.release, pod, python(hold_process, *arguments), capability="SYS_PTRACE", target=container,
            timeout_s=seconds + _STARTING_S, begun=lambda: self.say(said),
        )  # fmt: skip

    def _cut_off(self, pod: str, seconds: float) -> None:
        ephemeral.run(
            self.release, pod, python(cut_network, f"{seconds:g}"), capability="NET_ADMIN", target=None,
            timeout_s=seconds + _STARTING_S,
            begun=lambda: self.say(f"{pod} cut off the network for {seconds:g} s"),
        )  # fmt: skip


class LeadsTooEarly:
    """A broker whose volume was lost must not lead more than it has in sync (RULES 7.2)."""

    def __init__(self, release: Release, victim: Victim) -> None:
        self._release = release
        component = BROKER if victim.component == BROKER else "replica-manager"
        self._name = release.pod_name(component, victim.ordinal)
        self._looked = -_LOOK_S
        self._times = 0

    def __call__(self) -> None:
        """Raises `WrongStateError`."""
        if time.monotonic() - self._looked < _LOOK_S:
            return
        self._looked = time.monotonic()
        try:
            pod = self._release.pod(self._name)
            text = _metrics(self._release, pod) if pod is not None else ""
        except (KubernetesError, NotInTimeError):
            return  # it is not up yet
        leads, hosted, out = (
            metric(text, f"highwater_replica_manager_{name}")
            for name in ("leader_partitions", "partitions", "out_of_sync_partitions")
        )
        if leads is None or hosted is None or out is None:
            return
        self._times = self._times + 1 if leads > hosted - out else 0
        if self._times >= _LEADS_TOO_EARLY:
            raise WrongStateError(
                f"{self._name} lost its volume and leads {leads:g} partitions, while {out:g} of its {hosted:g} "
                "replicas are out of their ISRs"
            )


def _nothing() -> None:
    pass


def _metric(release: Release, pod: Pod, name: str) -> float | None:
    try:
        return metric(_metrics(release, pod), name)
    except KubernetesError:
        return None  # it does not answer: it does not act


def _metrics(release: Release, pod: Pod) -> str:
    container = container_to_ask(pod)
    if container is None:
        return ""
    url = metrics_urls(pod)[0]
    done = release.execute(pod.name, python(pod_report, url), container=container, timeout_s=10, check=False)
    if done.status != 0:
        return ""
    found: dict[str, str] = json.loads(done.stdout)["metrics"]
    return found.get(url, "")

"""The kinds of fault: what each does, to which machines, and how it ends. Every fault mends what it broke."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import CalledProcessError
from time import monotonic
from typing import Any

from running_cluster import Deployment, paused

from soak.cluster import BROKERS, SoakCluster, machine_of
from soak.log_storage_launcher import CHANGES, OPENS, READS, SYNCS, WRITES
from soak.state import NUMBERED, NUMBERED_REPLICAS, SETTLE_S, Soak
from soak.world import CLIENTS

PROCESSES = ("kill", "pause", "terminate")
DISKS = ("disk", "disk-kills", "fill", "power", "power-kills")
NETWORK = ("cut", "flap", "oneway", "part")
KINDS = (*PROCESSES, *DISKS, *NETWORK)
EVERYTHING = (*WRITES, *SYNCS, *READS, *CHANGES, *OPENS)
OUTAGES_S = (0.1, 0.3, 1.0, 2.0, 5.0, 9.0, 20.0)
NETWORK_OUTAGES_S = (0.5, 2.0, 5.0, 9.0, 20.0, 30.0)
STOP_S = 30.0  # that SIGTERM may take
NOTICED_S = 6.0  # in which a failed disk or a dead broker has left the ISRs, or is not to


@dataclass(frozen=True)
class Fault:
    kind: str
    text: str
    machines: frozenset[str]  # two faults at a time never meet on one
    work: Callable[[], Coroutine[Any, Any, None]]
    loses: bool = False  # a disk or a machine with what it had not synced, by RULES 7.5
    new_brokers: tuple[int, ...] = ()  # will have registered anew

    @property
    def spares_writers(self) -> bool:
        """Whether producers may go on after an election: one broker is at fault, and not for want of room."""
        (first, *others) = self.machines
        return not others and first.startswith("broker") and self.kind != "fill"


class Faults:
    """Draws faults; a fault that is drawn does nothing before its `work` runs."""

    def __init__(self, soak: Soak, cluster: SoakCluster, deployed: Deployment) -> None:
        self._soak = soak
        self._cluster = cluster
        self._deployed = deployed
        self._random = soak.random("faults")
        processes = dict.fromkeys(PROCESSES, self._on_processes)
        network = dict.fromkeys(NETWORK, self._on_network)
        disks = {
            "disk": self._on_disk,
            "disk-kills": self._loss_and_kills,
            "fill": self._fill,
            "power": self._power,
            "power-kills": self._loss_and_kills,
        }
        self._kinds: dict[str, Callable[[str, float], Fault]] = {**processes, **network, **disks}

    def draw(self, kind: str) -> Fault:
        return self._kinds[kind](kind, self._random.choice(NETWORK_OUTAGES_S if kind in NETWORK else OUTAGES_S))

    # -- processes ----------------------------------------------------------------------------------------------------

    def _on_processes(self, kind: str, outage_s: float) -> Fault:
        outage_s = min(outage_s, 9.0)
        if self._random.random() < 0.3:
            names = self._cluster.services(self._random.randint(1, BROKERS))
        else:
            names = [self._random.choice(list(self._cluster.processes))]
        work = {"kill": self._kill_for, "pause": self._pause_for, "terminate": self._terminate_for}[kind]
        machines = frozenset(map(machine_of, names))
        return Fault(kind, f"{' '.join(names)} for {outage_s} s", machines, lambda: work(names, outage_s))

    async def _kill_for(self, names: Sequence[str], outage_s: float) -> None:
        self._kill(names)
        await asyncio.sleep(outage_s)
        self._start(names)

    async def _pause_for(self, names: Sequence[str], outage_s: float) -> None:
        with ExitStack() as stack:
            for name in names:
                stack.enter_context(paused(self._cluster.processes[name].pid))
            await asyncio.sleep(outage_s)

    async def _terminate_for(self, names: Sequence[str], outage_s: float) -> None:
        await self._terminate(names, SETTLE_S)
        await self._kill_for(names, outage_s)

    async def _terminate(self, names: Sequence[str], within_s: float) -> None:
        for name in names:
            self._cluster.processes[name].terminate()
        ends = monotonic() + within_s
        while any(self._cluster.processes[name].running for name in names):
            await asyncio.sleep(0.1)
            if monotonic() > ends:
                self._soak.problem(f"SIGTERM does not end {' '.join(names)}")
                break
        self._kill(names)

    def _kill(self, names: Iterable[str]) -> None:
        for name in names:
            self._cluster.processes[name].kill()

    def _start(self, names: Iterable[str]) -> None:
        for name in names:
            self._cluster.processes[name].start()

    # -- disks --------------------------------------------------------------------------------------------------------

    def _any_disk(self) -> tuple[int, Path]:
        broker = self._random.randint(1, BROKERS)
        return broker, self._random.choice(self._cluster.log_dirs(broker))

    def _on_disk(self, kind: str, outage_s: float) -> Fault:
        """Some operations, or all, end with EIO; the log-storage is started again when it is mended."""
        broker, directory = self._any_disk()
        operations = self._random.choice((SYNCS, SYNCS, WRITES, READS, CHANGES, EVERYTHING))
        after = self._random.choice((0, 0, 1, 5, 50))
        forget = self._random.random() < 0.5
        text = f"{'/'.join(operations)} of {_name(directory)} after {after}, for {outage_s} s"

        async def work() -> None:
            disks = self._cluster.disks[broker]
            disks.fail(directory, operations, after=after, drop=True)
            await asyncio.sleep(outage_s)
            await self._mend(broker, forget)
            self._start([f"log-storage-{broker}"])

        return Fault(kind, text, frozenset({f"broker-{broker}"}), work, loses=True, new_brokers=(broker,))

    async def _mend(self, broker: int, forget: bool) -> None:
        """Its log-storage is stopped afterwards."""
        await self._terminate([f"log-storage-{broker}"], STOP_S)
        disks = self._cluster.disks[broker]
        disks.mend()
        if forget:
            disks.forget_dropped()
        elif disks.dropped():
            self._soak.say(f"broker {broker} has lost dirty pages")

    def _loss_and_kills(self, kind: str, _: float) -> Fault:
        """A disk fails, or a machine loses its power; the others of the ISR are killed, one before and one after. Who
        has lost its tail is then the last that could lead: one disk is lost, and nothing that was acknowledged."""
        first, failing, last = self._random.sample(range(1, BROKERS + 1), BROKERS)
        directory = self._random.choice(self._cluster.log_dirs(failing))
        power = kind == "power-kills"
        loss = f"take power from broker {failing}" if power else f"fail {'/'.join(SYNCS)} of {_name(directory)}"
        text = f"kill broker {first}, {loss}, kill broker {last}"

        async def work() -> None:
            services = self._cluster.services
            self._kill(services(first))
            await self._out(first)
            if power:
                self._kill(services(failing))
                await self._out(failing)
                self._kill(services(last))
                self._cluster.disks[failing].lose_power(self._random)
                self._start(services(failing))
            else:
                self._cluster.disks[failing].fail(directory, SYNCS, drop=True)
                await self._out(failing)
                self._kill(services(last))
                await self._mend(failing, forget=True)
                self._start([f"log-storage-{failing}"])
            await asyncio.sleep(NOTICED_S)
            self._start(services(last))
            await asyncio.sleep(self._random.choice((0, 2)))
            self._start(services(first))

        machines = frozenset(f"broker-{broker}" for broker in range(1, BROKERS + 1))
        return Fault(kind, text, machines, work, loses=True, new_brokers=(failing, first, last))

    async def _out(self, broker: int) -> None:
        """Until some ISR has lost this broker, for a while at most."""
        ends = monotonic() + NOTICED_S
        while monotonic() < ends:
            states = await self._deployed.states(NUMBERED, len(NUMBERED_REPLICAS))
            if any(broker not in state.isr for state in states):
                break
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)

    def _power(self, kind: str, outage_s: float) -> Fault:
        broker = self._random.randint(1, BROKERS)
        outage_s = min(outage_s, 9.0)

        async def work() -> None:
            names = self._cluster.services(broker)
            self._kill(names)
            lost = self._cluster.disks[broker].lose_power(self._random)
            self._soak.say(f"broker {broker} has lost {lost} bytes that were not synced")
            await asyncio.sleep(outage_s)
            self._start(names)

        text = f"broker {broker} for {outage_s} s"
        return Fault(kind, text, frozenset({f"broker-{broker}"}), work, loses=True, new_brokers=(broker,))

    def _fill(self, kind: str, outage_s: float) -> Fault:
        broker, directory = self._any_disk()
        spare = self._random.choice((0, 64 << 10, 3 << 20))

        async def work() -> None:
            volumes, disks = self._cluster.volumes, self._cluster.disks[broker]
            if volumes is None:
                disks.fail(directory, WRITES, number=errno.ENOSPC, after=spare >> 10)
            else:
                try:
                    volumes.fill(directory, spare)
                except CalledProcessError:  # it grew meanwhile
                    volumes.fill(directory, spare + (4 << 20))
            try:
                await asyncio.sleep(outage_s)
            finally:
                disks.mend()
                if volumes is not None:
                    volumes.mend(directory)

        text = f"{_name(directory)}, {spare} bytes left, for {outage_s} s"
        return Fault(kind, text, frozenset({f"broker-{broker}"}), work)

    # -- the network --------------------------------------------------------------------------------------------------

    def _on_network(self, kind: str, outage_s: float) -> Fault:
        draw = {"cut": self._cut, "flap": self._flap, "oneway": self._one_way, "part": self._part}[kind]
        return draw(kind, outage_s)

    def _machine(self) -> str:
        """Brokers three times as often as any other."""
        brokers = [f"broker-{broker}" for broker in range(1, BROKERS + 1)]
        return self._random.choice([*brokers * 3, *map(machine_of, self._others())])

    def _others(self) -> list[str]:
        return [name for name in self._cluster.processes if name.startswith(("etcd", "controller"))]

    def _cut(self, kind: str, outage_s: float) -> Fault:
        machine = self._machine()

        async def work() -> None:
            await self._unplugged(machine, outage_s)

        return Fault(kind, f"{machine} for {outage_s} s", frozenset({machine}), work)

    async def _unplugged(self, machine: str, seconds: float) -> None:
        network = self._cluster.network
        assert network is not None
        network.pull(machine)
        try:
            await asyncio.sleep(seconds)
        finally:
            network.plug(machine)

    def _flap(self, kind: str, outage_s: float) -> Fault:
        """A machine's link; or what it exchanges with one other, by which it keeps its lease."""
        outage_s = max(outage_s, 5.0)
        longest_s = self._random.choice((1.0, 3.0, 8.0))  # down; connections give up at different times
        times = [(self._random.uniform(0.2, longest_s), self._random.uniform(0.1, 2)) for _ in range(100)]
        if self._random.random() < 0.5:
            machine = self._machine()
            machines, name = {machine}, machine
            down = partial(self._unplugged, machine)
        else:
            one, other = self._pair()
            machines, name = {one, other}, f"{one} and {other}"
            down = partial(self._losing, [(one, other), (other, one)])

        async def work() -> None:
            ends = monotonic() + outage_s
            for down_s, up_s in times:
                await down(down_s)
                if monotonic() > ends:
                    return
                await asyncio.sleep(up_s)

        return Fault(kind, f"{name} for {outage_s} s, down for {longest_s} s", frozenset(machines), work)

    def _pair(self) -> tuple[str, str]:
        """A broker and another machine, in either order."""
        broker = self._random.randint(1, BROKERS)
        others = [_machine_of(other) for other in range(1, BROKERS + 1) if other != broker]
        pair = [_machine_of(broker), self._random.choice([*others * 2, *self._others(), "etcd", CLIENTS])]
        self._random.shuffle(pair)
        return pair[0], pair[1]

    def _one_way(self, kind: str, outage_s: float) -> Fault:
        source, target = self._pair()
        work = partial(self._losing, [(source, target)], outage_s)
        return Fault(kind, f"{source} to {target} for {outage_s} s", frozenset({source, target}), work)

    def _part(self, kind: str, outage_s: float) -> Fault:
        """A broker from some others. Where etcd is among these the broker alone is to blame: whoever still reaches it
        must find its successor."""
        broker = self._random.randint(1, BROKERS)
        one, brokers = _machine_of(broker), [_machine_of(other) for other in range(1, BROKERS + 1) if other != broker]
        hidden = self._random.choice(
            [["etcd"], self._others(), [*self._others(), *brokers], [CLIENTS], [self._random.choice(brokers)]]
        )
        ways = [way for other in hidden for way in ((one, other), (other, one))]
        machines = {one} if "etcd" in hidden else {one, *hidden}
        text = f"{one} from {', '.join(hidden)} for {outage_s} s"
        return Fault(kind, text, frozenset(machines), partial(self._losing, ways, outage_s))

    async def _losing(self, ways: Sequence[tuple[str, str]], seconds: float) -> None:
        network = self._cluster.network
        assert network is not None
        for source, target in ways:
            network.lose(source, target)
        try:
            await asyncio.sleep(seconds)
        finally:
            for source, target in ways:
                network.pass_on(source, target)


def _machine_of(broker: int) -> str:
    return f"broker-{broker}"


def _name(directory: Path) -> str:
    return "/".join(directory.parts[-2:])

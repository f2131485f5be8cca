"""Members of a group join, leave, die and stand still, and so do brokers, while records are produced; then all is
mended, and what the members did is read. By hand, for longer than in the suite:

    python tests/integration/group_chaos.py --seed 7 --seconds 300 [--commits-first]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

from group_history import jumps, overlaps, read_history, repeated, skipped
from replica_manager_cluster import eventually
from running_cluster import HEAL_S, Deployment, deployment, running_cluster

from highwater.client import Consumer, HighwaterError, Producer, TopicPartition
from highwater.groups.group_partition import partition_for

MEMBERS = 20
PROCESSES = 5
PARTITIONS = 30
BROKERS = 3
OFFSETS_PARTITIONS = 3
SETTINGS = {
    "broker.session.timeout.ms": "3000",
    "controller.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": str(OFFSETS_PARTITIONS),
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.heartbeat.interval.ms": "1000",
}
# A broker that stands still is replaced after its session (3 s), and its successor gives each member a session timeout
# of its own. Up to the sum of both members at the old one may believe in their shares.
BROKER_STOP_S = (0.5, 7.0)
MEMBER_STOP_S = (0.5, 10.0)
_PROGRAM = Path(__file__).with_name("group_chaos_members.py")


def members_of(process: int) -> list[str]:
    return [f"member-{number}" for number in range(MEMBERS) if number % PROCESSES == process]


class MemberProcess:
    """Some of the members, and who of them is in the group."""

    def __init__(self, names: list[str], arguments: list[str], errors: Path) -> None:
        self.names = names
        self.joined: set[str] = set()
        self.busy = False  # stopped just now
        self._arguments = arguments
        self._errors = errors
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self._errors.open("ab") as errors:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, str(_PROGRAM), *self._arguments, stdin=asyncio.subprocess.PIPE, stderr=errors
            )

    def tell(self, command: str, name: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        (self.joined.add if command == "join" else self.joined.discard)(name)
        self._process.stdin.write(f"{command} {name}\n".encode())

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def kill(self) -> None:
        assert self._process is not None
        self.joined.clear()
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def finish(self) -> int:
        """All leave; the exit status."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        async with asyncio.timeout(HEAL_S):
            return await self._process.wait()


@dataclass
class Chaos:
    deployed: Deployment
    topic: str
    seed: int
    commits_first: bool
    directory: Path
    log: list[str] = field(default_factory=list)
    _broker_busy: bool = False
    _ends: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = Random(self.seed)
        self._begun = monotonic()
        self._histories = [self.directory / f"{self.topic}-{number}.history" for number in range(PROCESSES)]
        self._processes = [
            MemberProcess(
                members_of(number),
                [str(history), self.deployed.cluster.bootstrap, self.topic, self.topic, str(self.commits_first)],
                history.with_suffix(".log"),
            )
            for number, history in enumerate(self._histories)
        ]

    async def run(self, seconds: float) -> None:
        assignment = [[(first + turn) % BROKERS + 1 for turn in range(BROKERS)] for first in range(PARTITIONS)]
        await self.deployed.create_topic(self.topic, assignment)
        self._begun = monotonic()
        async with AsyncExitStack() as stack:
            await self.deployed.admin.list_group_offsets(self.topic)  # the topic of offsets is made for it
            for process in self._processes:
                await process.start()
                stack.push_async_callback(process.kill)
                for name in process.names:
                    if self._random.random() < 0.7:
                        process.tell("join", name)
            async with self._records():
                await self._break_things(seconds)
            await self._heal()
            statuses = [await process.finish() for process in self._processes]
            assert statuses == [0] * PROCESSES, [
                (history, history.with_suffix(".log").read_text()[-2000:]) for history in self._histories
            ]
        self._check()

    # What is done to it

    async def _break_things(self, seconds: float) -> None:
        random = self._random
        deadline = monotonic() + seconds
        deeds: dict[Callable[[], Awaitable[None]], int] = {
            self._join_or_leave: 10,
            self._kill_members: 2,
            self._stop_members: 2,
            self._kill_broker: 2,
            self._stop_broker: 2,
        }
        async with asyncio.TaskGroup() as group:
            while monotonic() < deadline:
                (deed,) = random.choices(list(deeds), list(deeds.values()))
                group.create_task(deed())  # type: ignore[arg-type]
                await asyncio.sleep(random.uniform(0.1, 0.8))

    def _note(self, what: str) -> None:
        self.log.append(f"{monotonic():.3f} ({monotonic() - self._begun:.2f} s) {what}")

    async def _join_or_leave(self) -> None:
        process = self._random.choice(self._processes)
        if process.busy:
            return
        name = self._random.choice(process.names)
        command = "leave" if name in process.joined else "join"
        self._note(f"{command} {name}")
        process.tell(command, name)

    async def _kill_members(self) -> None:
        process = self._random.choice(self._processes)
        if process.busy:
            return
        again = [name for name in process.names if self._random.random() < 0.7]
        self._note(f"kill {process.names}, again {again}")
        process.busy = True
        await process.kill()
        await process.start()
        for name in again:
            process.tell("join", name)
        process.busy = False

    async def _stop_members(self) -> None:
        process = self._random.choice(self._processes)
        seconds = self._random.uniform(*MEMBER_STOP_S)
        if process.busy:
            return
        self._note(f"stop {process.names} for {seconds:.2f} s")
        process.busy = True
        process.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            process.signal(signal.SIGCONT)
            process.busy = False
        self._note(f"go on {process.names}")

    async def _kill_broker(self) -> None:
        broker, seconds = await self._a_broker(), self._random.uniform(0.2, 5.0)
        if self._broker_busy:
            return
        self._broker_busy = True
        self._note(f"kill broker {broker} for {seconds:.2f} s")
        self.deployed.cluster.kill_broker(broker)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.deployed.cluster.start_broker(broker)
            self._broker_busy = False

    async def _stop_broker(self) -> None:
        broker, seconds = await self._a_broker(), self._random.uniform(*BROKER_STOP_S)
        pid = self.deployed.cluster.processes[f"replica-manager-{broker}"].pid
        if self._broker_busy or pid is None:
            return
        self._broker_busy = True
        self._note(f"stop broker {broker} for {seconds:.2f} s")
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            os.kill(pid, signal.SIGCONT)
            self._broker_busy = False
        self._note(f"go on broker {broker}")

    async def _a_broker(self) -> int:
        """The coordinator's, half of the times."""
        chosen = self._random.randint(1, BROKERS)
        if self._random.random() < 0.5 and not self._broker_busy:
            states = await self.deployed.states("__consumer_offsets", OFFSETS_PARTITIONS)
            chosen = states[partition_for(self.topic, OFFSETS_PARTITIONS)].leader
        return chosen if chosen > 0 else 1

    @asynccontextmanager
    async def _records(self) -> Any:
        """Records to every partition meanwhile, `acks=all`; raises where one is not acknowledged at last."""
        stopping = asyncio.Event()

        async def send(producer: Producer) -> None:
            deliveries = []
            while not stopping.is_set():
                for partition in range(PARTITIONS):
                    for _ in range(2):
                        deliveries.append(await producer.send(self.topic, b"record", partition=partition))
                await asyncio.sleep(0.1)
            for delivery in deliveries:
                await delivery

        async with Producer(self.deployed.cluster.bootstrap, acks="all", delivery_timeout_ms=60_000) as producer:
            sending = asyncio.create_task(send(producer))
            try:
                yield
                stopping.set()
                await sending
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)

    # What is to come of it

    async def _heal(self) -> None:
        self._note("heal")
        for process in self._processes:
            for name in set(process.names) - process.joined:
                process.tell("join", name)
        partitions = [TopicPartition(self.topic, number) for number in range(PARTITIONS)]
        async with Consumer(bootstrap=self.deployed.cluster.bootstrap) as consumer:
            ends = await consumer.end_offsets(partitions)
        self._ends = {partition.partition: end for partition, end in ends.items()}
        seen: list[object] = [None]

        async def settled() -> bool:
            try:
                (found,) = await self.deployed.admin.describe_groups([self.topic], include_offsets=True)
            except HighwaterError as error:
                seen[0] = error
                return False
            lag = {
                one.partition: (end, found.offsets[one].offset if one in found.offsets else None)
                for one, end in ends.items()
                if one not in found.offsets or found.offsets[one].offset != end
            }
            owned = sorted(one for member in found.members for one in member.assignment)
            seen[0] = (found.error, found.state, len(found.members), len(owned), lag)
            return found.state == "stable" and len(found.members) == MEMBERS and owned == partitions and not lag

        try:
            await eventually(settled, "all members share all partitions without a lag", HEAL_S)
        except BaseException:
            self._note(f"not healed: {seen[0]}")
            raise
        self._note("healed")

    def _check(self) -> None:
        handed, done = read_history(self._histories)
        assert overlaps(handed) == []
        assert jumps(handed) == []
        assert (repeated(done) if self.commits_first else skipped(done, self._ends)) == []


async def main(seed: int, seconds: float, commits_first: bool, data: Path) -> None:
    with running_cluster(data / "cluster", settings=SETTINGS) as cluster:
        async with deployment(cluster) as deployed:
            chaos = Chaos(deployed, f"chaos-{seed}", seed, commits_first, data)
            try:
                await chaos.run(seconds)
            except BaseException:
                print("\n".join(chaos.log))
                raise
            print("\n".join(chaos.log[-2:]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--commits-first", action="store_true")
    parser.add_argument("--data", type=Path, help="kept, and empty before; without it a temporary one")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(main(given.seed, given.seconds, given.commits_first, given.data or Path(temporary)))

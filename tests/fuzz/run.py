"""A run: calls are drawn and sent, what exists is kept there, and the oracle looks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from time import monotonic

from highwater.cli.local_cluster import CLUSTER
from highwater.client import Admin, Consumer, HighwaterError, NewTopic
from highwater.metadata.schema.keys import Keys
from highwater.metadata.state.brokers import read_brokers
from highwater.metadata.state.partition_states import read_states
from highwater.metadata.store.store import Store
from highwater.rpc.connections.channel import open_channel
from highwater.v1.log_storage_pb2 import DescribeLogsRequest
from highwater.v1.log_storage_pb2_grpc import LogStorageStub

from .calls import Call, Finding, draw
from .cluster import FuzzedCluster
from .live import GROUP, OFFSETS, PREY, STEADY, Live
from .oracle import Oracle
from .sender import Sender
from .steady import Steady

WORKERS = 4  # calls under way
LOOK_S = 1.0
_RECENT = 400  # calls that a finding keeps
_SUSPECT_S = 3.0  # of a finding: those of so long before it was seen
_KEYS = Keys(CLUSTER)


class Outcome:
    """What was wrong, and what the run was like."""

    def __init__(self, sender: Sender, oracle: Oracle, steady: Steady) -> None:
        self.findings: list[Finding] = []
        self.seen: Counter[str] = Counter()
        self.calls = 0
        self.statuses, self.errors = sender.statuses, sender.errors
        self.error_lines = oracle.error_lines
        self.longest_s, self.most_memory_bytes = oracle.longest_s, oracle.most_memory_bytes
        self._steady = steady

    def add(self, finding: Finding) -> None:
        """Of what is wrong again and again the first is kept."""
        self.seen[finding.signature] += 1
        if self.seen[finding.signature] == 1:
            self.findings.append(finding)

    @property
    def acked(self) -> int:
        """Records of other clients."""
        return self._steady.acked

    @property
    def longest_ack_s(self) -> float:
        return self._steady.longest_s

    @property
    def longest_acked(self) -> int:
        """The record that took so long."""
        return self._steady.longest


class _Failures(logging.Handler):
    """Errors of the clients of this very process, with their tracebacks: mistakes of the SDK."""

    def __init__(self, found: Callable[[str], None]) -> None:
        super().__init__(logging.ERROR)
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self._found(f"a client has logged a traceback:\n{logging.Formatter().format(record)}")


class Run:
    def __init__(self, cluster: FuzzedCluster, seed: int, oracle: Oracle, sender: Sender, store: Store, admin: Admin):
        self._cluster = cluster
        self._seed = seed
        self._oracle = oracle
        self._sender = sender
        self._store = store
        self._admin = admin
        self._recent: deque[tuple[float, Call]] = deque(maxlen=_RECENT)
        self._steady = Steady(cluster.bootstrap)
        self._looking = asyncio.Lock()
        self.live = Live()
        self.outcome = Outcome(sender, oracle, self._steady)

    @asynccontextmanager
    async def started(self) -> AsyncGenerator[None]:
        failures = _Failures(self.found)
        logging.getLogger("highwater").addHandler(failures)
        await self._create([STEADY, *PREY])
        steady, prey = asyncio.create_task(self._steady.run()), asyncio.create_task(self._read_prey())
        try:
            async with asyncio.timeout(30):
                await self._steady.started.wait()
            await self.refresh()
            yield
            for task in (steady, prey):
                if task.done():
                    self.found(f"a client has ended: {task.exception()!r}")
        finally:
            logging.getLogger("highwater").removeHandler(failures)
            steady.cancel()
            prey.cancel()
            await asyncio.gather(steady, prey, return_exceptions=True)

    async def _read_prey(self) -> None:
        """The member of the group that is fuzzed: what is in its topics it may say that it cannot read, or that it has
        lost its place."""
        while True:
            with suppress(HighwaterError):
                async with Consumer(
                    *PREY, bootstrap=self._cluster.bootstrap, group=GROUP, auto_offset_reset="earliest"
                ) as consumer:
                    while True:
                        await consumer.poll()
            await asyncio.sleep(LOOK_S)

    async def _create(self, topics: Iterable[str]) -> None:
        assignment = [[1, 2], [2, 1]]
        await self._admin.create_topics([NewTopic(topic, assignment=assignment) for topic in topics])

    async def refresh(self) -> None:
        """Makes again what was deleted, and learns what there is now."""
        found = await self._admin.describe_topics()
        await self._create(set(PREY) - {each.topic for each in found})
        await learn(self._cluster, self._store, self._admin, self.live)

    async def send(self, call: Call) -> None:
        payloads = await call.payloads(self.live)
        self._recent.append((monotonic(), call))
        problem = await self._sender.send(call, payloads)
        self.outcome.calls += 1
        if problem is not None:
            self.outcome.add(Finding(problem, self._seed, [call]))

    async def look(self) -> None:
        async with self._looking:  # on a machine that is busy a look may take as long as the pause between two
            for problem in [*await self._oracle.look(), *self._steady.problems()]:
                self.found(problem)

    def found(self, problem: str) -> None:
        since = monotonic() - _SUSPECT_S
        suspects = [call for at, call in self._recent if at >= since]
        self.outcome.add(Finding(problem, self._seed, suspects))

    async def settle(self) -> None:
        """Waits until what was asked last has shown what it does."""
        for _ in range(2):
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def watch(self, report: Callable[[Outcome], None]) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()
            with suppress(HighwaterError):  # what is wrong with an administration that fails is for the oracle to say
                await self.refresh()
            report(self.outcome)


async def learn(cluster: FuzzedCluster, store: Store, admin: Admin, live: Live) -> None:
    topics = {each.topic: each for each in await admin.describe_topics()}
    live.topic_ids = {name: topics[name].topic_id for name in (*PREY, STEADY, OFFSETS) if name in topics}
    brokers = await read_brokers(store, _KEYS)
    states, _ = await read_states(store, _KEYS, [(PREY[0], 0)])
    live.numbers.update({f"broker_epoch_{number}": broker.broker_epoch for number, broker in brokers.items()})
    if (epoch := await store.get(_KEYS.controller_epoch)) is not None:
        live.numbers["controller_epoch"] = int(epoch.value)
    for state in states.values():
        live.numbers["leader_epoch"] = state.state.leader_epoch
        live.numbers["state_revision"] = state.revision
    live.numbers["now_ms"] = int(time.time() * 1000)
    for described in await admin.describe_groups([GROUP]):
        for member in described.members:
            live.texts["member_id"], live.numbers["member_epoch"] = member.member_id, member.member_epoch
    live.texts["address"] = cluster.client_addresses[0]
    async with open_channel(cluster.addresses["log-storage-1"]) as channel:
        logs = await LogStorageStub(channel).DescribeLogs(DescribeLogsRequest())
    live.texts["log_storage_incarnation"] = logs.incarnation
    live.texts["log_dir"] = logs.log_dirs[0].path
    for log in logs.logs:
        if log.partition.topic_id == live.topic_ids.get(PREY[0]) and log.partition.partition == 0:
            live.numbers["log_end"] = log.log.log_end_offset
            live.numbers["high_watermark"] = log.log.high_watermark


async def fuzz(
    cluster: FuzzedCluster,
    seed: int,
    calls: Iterable[Call],
    seconds: float,
    report: Callable[[Outcome], None] = lambda _: None,
) -> Outcome:
    """Sends the calls, or those of them for which there is time. What is wrong stands in the outcome's findings."""
    remaining, end = iter(calls), monotonic() + seconds
    async with _running(cluster, seed) as run:

        async def work() -> None:
            for call in remaining:
                await run.send(call)
                if monotonic() >= end:
                    return

        watching = asyncio.create_task(run.watch(report))
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(WORKERS):
                    group.create_task(work())
            await run.settle()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        return run.outcome


async def replay(cluster: FuzzedCluster, finding: Finding) -> Outcome:
    """Sends the calls of a finding in their order, one at a time, and looks after each."""
    async with _running(cluster, finding.seed) as run:
        for call in finding.calls:
            known = len(run.outcome.findings)
            await run.send(call)
            await run.look()
            for found in run.outcome.findings[known:]:
                found.calls = [call]
            await run.refresh()
        await run.settle()
        return run.outcome


@asynccontextmanager
async def _running(cluster: FuzzedCluster, seed: int) -> AsyncGenerator[Run]:
    async with (
        Store([cluster.etcd]) as store,
        Admin(cluster.bootstrap) as admin,
        Sender(cluster) as sender,
        Oracle(cluster, store) as oracle,
    ):
        run = Run(cluster, seed, oracle, sender, store, admin)
        async with run.started():
            yield run


def drawn(seed: int, first: int = 0) -> Iterator[Call]:
    """All the calls of a seed: they do not end."""
    return (draw(seed, number) for number in count(first))

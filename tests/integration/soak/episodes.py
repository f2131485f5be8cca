"""Faults in episodes: some faults, two at once at the most, then a rest in which everything has to heal in time.

In an episode one disk or machine is lost at the most, and the next episode begins when all replicas are in sync again:
so there are never two losses at a time, which the promise (RULES 7.5) would excuse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from time import monotonic

from replica_manager_cluster import eventually
from running_cluster import KEYS, Deployment

from highwater.metadata.schema.models import NO_LEADER
from highwater.metadata.state.brokers import read_brokers
from highwater.metadata.state.partition_states import read_states
from highwater.metadata.state.topics import read_topics
from highwater.metadata.store.etcd_errors import StoreError
from soak.cluster import BROKERS
from soak.faults import Fault, Faults
from soak.state import NUMBERED_REPLICAS, SETTLE_S, Soak

AT_ONCE = 2
HEAL_S = 30.0  # from the last fault to all in sync and every partition taking records
PAUSE_S = 15.0  # without an acknowledgement, where one broker is at fault


class Episodes:
    def __init__(
        self,
        soak: Soak,
        deployed: Deployment,
        faults: Faults,
        kinds: Sequence[str],
        rests_s: Sequence[float] = (0.0, 1.0, 3.0),
        answer_s: float = 3.0,
    ) -> None:
        """`answer_s`: of etcd."""
        self._soak = soak
        self._deployed = deployed
        self._faults = faults
        self._kinds = kinds
        self._rests_s = rests_s
        self._answer_s = answer_s
        self._random = soak.random("episodes")
        self._count = 0
        self._last = ""  # what is not healed yet
        self._healed_last = ""

    async def run(self, seconds: float) -> None:
        """Everything is healed when it returns. Raises `AssertionError` where something does not heal at all."""
        ends = monotonic() + seconds
        while monotonic() < ends and not self._soak.stopped.is_set():
            await self._episode()
            await self._soak.pause(self._random.choice(self._rests_s))

    async def _episode(self) -> None:
        soak, random = self._soak, self._random
        before = {
            number: each.broker_epoch for number, each in (await read_brokers(self._deployed.store, KEYS)).items()
        }
        soak.begin_episode()
        carried_out = await self._break(random.choice((1, 1, 1, 2, 3, 4)))
        expected = {broker: before.get(broker, 0) for fault in carried_out for broker in fault.new_brokers}
        healed_s = await self._heal(expected)
        paused_s = soak.longest_pause_s()
        for kind in set(soak.episode):
            figures = soak.kinds[kind]
            figures.longest_heal_s = max(figures.longest_heal_s, healed_s)
            figures.longest_pause_s = max(figures.longest_pause_s, paused_s)
        soak.say(f"  healed after {healed_s:.1f} s ({self._healed_last}), the longest pause was {paused_s:.1f} s")
        soak.say(
            f"  {sum(soak.acked.values())} acknowledged, {sum(soak.seen.values())} seen, {soak.topics} topics, "
            f"{soak.clients.total()} clients"
        )
        if len(carried_out) == 1 and carried_out[0].spares_writers and paused_s > PAUSE_S:
            soak.problem(f"a partition took no record for {paused_s:.1f} s, more than {PAUSE_S} s")

    async def _break(self, count: int) -> list[Fault]:
        """So many faults, all of which are over when it returns."""
        carried_out: list[Fault] = []
        running: dict[asyncio.Task[None], Fault] = {}
        try:
            while len(carried_out) < count and not self._soak.stopped.is_set():
                fault = self._faults.draw(self._random.choice(self._kinds))
                if fault.loses and any(other.loses for other in carried_out):
                    count -= 1
                    continue
                while len(running) >= AT_ONCE or any(fault.machines & other.machines for other in running.values()):
                    done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        del running[task]
                        task.result()  # raises where a process could not be started
                self._begin(fault)
                carried_out.append(fault)
                running[asyncio.create_task(fault.work())] = fault
                if len(carried_out) < count:
                    await self._soak.pause(self._random.choice((0.2, 1, 3, 6)))
            await asyncio.gather(*running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        return carried_out

    def _begin(self, fault: Fault) -> None:
        self._count += 1
        self._soak.episode += (fault.kind,)
        self._soak.kinds[fault.kind].faults += 1
        self._soak.say(f"fault {self._count}: {fault.kind} {fault.text}")

    # -- healing ------------------------------------------------------------------------------------------------------

    async def _heal(self, replaced: Mapping[int, int]) -> float:
        """Seconds from now until all is well. `replaced`: brokers that are to have another broker epoch than this."""
        begun = monotonic()
        acked = dict(self._soak.acked)

        async def well() -> bool:
            try:
                async with asyncio.timeout(self._answer_s):
                    self._last = await self._not_well(replaced, acked)
            except (TimeoutError, StoreError) as error:
                self._last = f"etcd: {str(error) or 'no answer'}"
            if self._last:
                self._healed_last = self._last
                await asyncio.sleep(0.1)
            return not self._last

        try:
            await eventually(well, "", HEAL_S)
        except AssertionError:
            self._soak.problem(f"not healed after {HEAL_S} s: {self._last}")
            try:
                await eventually(well, "", SETTLE_S)
            except AssertionError:
                raise AssertionError(f"not healed after {HEAL_S + SETTLE_S} s: {self._last}") from None
        return monotonic() - begun

    async def _not_well(self, replaced: Mapping[int, int], acked: Mapping[int, int]) -> str:
        """What is not as it should be; empty where all is."""
        store = self._deployed.store
        brokers = await read_brokers(store, KEYS)
        for broker in range(1, BROKERS + 1):
            if broker not in brokers or brokers[broker].broker_epoch == replaced.get(broker):
                return f"broker {broker} has not registered"
            if brokers[broker].registration.shutting_down:
                return f"broker {broker} is shutting down"
        found = await read_topics(store, KEYS)
        replicas = {
            (topic.assignment.topic, partition): set(assigned)
            for topic_id, topic in found.topics.items()
            if topic_id not in found.marked
            for partition, assigned in enumerate(topic.assignment.replicas)
        }
        states, _ = await read_states(store, KEYS, replicas)
        for (topic, partition), versioned in states.items():
            state = versioned.state
            if state.leader == NO_LEADER or set(state.isr) != replicas[topic, partition] or state.lost:
                return f"{topic}-{partition} has leader {state.leader}, ISR {state.isr}, elr {state.elr}"
        for partition in range(len(NUMBERED_REPLICAS)):
            if self._soak.acked[partition] <= acked.get(partition, 0):
                return f"partition {partition} takes no records"
        return ""

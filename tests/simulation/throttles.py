"""Replication throttles (RULES 4.14): set, changed and taken away at random, and what must hold of them. The quotas,
the leader's sessions and the follower's throttle are production's; a rate is of batches a second, each a size of 1."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from highwater.groups.group_partition import OFFSETS_TOPIC
from highwater.model.partition import PartitionKey
from highwater.quotas.replication_quota import Rates
from highwater.quotas.token_bucket import BURST_S
from highwater.replica_manager.partition.actions import FetchSession
from highwater.replica_manager.requests.session_fetch import LONGEST_HOLD_MS, SessionFetch
from highwater.replica_manager.requests.session_roles import Note, Place, ReplicaRole
from highwater.replica_manager.responses.fetch_parts import FetchedPart

from .etcd import Put
from .groups.population import QUIET_TOPIC
from .history import InvariantError

if TYPE_CHECKING:
    from .fetcher import Fetcher
    from .replica_manager import ReplicaManagerProcess
    from .world import World

LEADER, FOLLOWER = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"
RATES = (1, 2, 5, 20)
RESTING_S = 6  # healing at a rate takes about so long
LOOK_MS = LONGEST_HOLD_MS + 2 * 2000  # and what a look may wait for log-storage


class Account:
    """What one process moved of throttled replicas: rate * time, what is saved up, and what was under way."""

    def __init__(self, name: str, under_way: int) -> None:
        self._name = name
        self._under_way = under_way
        self._rate: float | None = None
        self._left = 0.0
        self._at_ms = 0

    def set_rate(self, rate: float | None, now_ms: int) -> None:
        if rate is not None and self._rate is None:
            self._left = rate * BURST_S
        elif rate is not None:
            self._refill(now_ms)
            self._left = min(self._left, rate * BURST_S)
        self._rate, self._at_ms = rate, now_ms

    def moved(self, size: int, now_ms: int) -> None:
        if self._rate is None:
            return
        self._refill(now_ms)
        self._left -= size
        if self._left < -self._under_way:
            raise InvariantError("throttle (rate)", f"{self._name} is {-self._left} beyond {self._rate} a second")

    def _refill(self, now_ms: int) -> None:
        assert self._rate is not None
        self._left = min(self._left + (now_ms - self._at_ms) / 1000 * self._rate, self._rate * BURST_S)
        self._at_ms = now_ms


class CheckedRole(ReplicaRole):
    """Nothing is held back that commits wait for, and what is held back is looked at again."""

    def __init__(self, owner: ReplicaManagerProcess, session: FetchSession, note: Note) -> None:
        super().__init__(owner.replica_manager, session, note)
        self._owner = owner
        self._broker_id = session.broker_id
        self._held_at_ms: dict[PartitionKey, int] = {}

    def is_held_back(self, place: Place) -> bool:
        held = super().is_held_back(place)
        if held:
            key = place.part.key
            self._held_at_ms[key] = self._owner.now_ms
            self._owner.world.throttles.held += 1
            if self._is_member(key):
                raise InvariantError("throttle (in sync)", f"{self._owner.name} holds {key} of {self._broker_id} back")
        return held

    def _is_member(self, key: PartitionKey) -> bool:
        hosted = self._owner.replica_manager.hosted[key]
        return self._broker_id in hosted.partition.maximal_isr

    def told(self, place: Place, part: FetchedPart) -> None:
        if self._is_throttled(place):
            self._owner.throttled.moved(len(part.pieces), self._owner.now_ms)
        super().told(place, part)

    def check(self, session: SessionFetch) -> None:
        """After an answer, which has looked at what it had to."""
        for key in session._held:
            held_ms = self._owner.now_ms - self._held_at_ms[key]
            if held_ms > LOOK_MS:
                raise InvariantError("throttle (held)", f"{self._owner.name} has not looked at {key} for {held_ms} ms")


class Throttles:
    def __init__(self, world: World) -> None:
        self._world = world
        self.used = "throttle" in world.settings.weights
        self.held = 0  # how often something was held back, by a leader or a follower
        self._rates = {broker_id: Rates() for broker_id in range(1, world.settings.brokers + 1)}
        if self.used:
            for broker_id in self._rates:
                self._rates[broker_id] = self._some_rates()

    def begin(self, topic: str) -> dict[str, str]:
        """The configuration that a new topic has of it."""
        return self._some_replicas() if self.used and topic not in (OFFSETS_TOPIC, QUIET_TOPIC) else {}

    # What is configured

    def change(self) -> None:
        random = self._world.scheduler.random
        what = random.random()
        if what < 0.5:
            self.set(random.choice(list(self._rates)), self._some_rates() if what < 0.4 else Rates())
        elif what < 0.85:
            self._list()
        else:
            fetcher = self._world.nodes[random.choice(list(self._rates))].fetcher
            rate = random.choice((None, *RATES))
            if fetcher is not None and fetcher.alive:
                self._world.note("FAULT", "give a throttle", fetcher.place, rate)
                fetcher.after(0, self._give, fetcher, rate)

    def _some_rates(self) -> Rates:
        random = self._world.scheduler.random
        return Rates(random.choice((None, *RATES)), random.choice((None, *RATES)))

    def _some_replicas(self) -> dict[str, str]:
        """As topics list them: all, some, or none."""
        random, settings = self._world.scheduler.random, self._world.settings
        listed = {}
        for name in (LEADER, FOLLOWER):
            which = random.random()
            pairs = [f"{n}:{b}" for n in range(settings.partitions) for b in self._rates if random.random() < 0.5]
            if which < 0.9:
                listed[name] = "*" if which < 0.6 else ",".join(pairs)
        return listed

    def _list(self) -> None:
        world = self._world
        names = [name for name in world.topics if name not in (OFFSETS_TOPIC, QUIET_TOPIC)]
        entry = world.etcd.entries.get(("config", world.scheduler.random.choice(names or ["t0"])))
        if entry is not None:
            others = {name: value for name, value in entry.value.items() if name not in (LEADER, FOLLOWER)}
            changed = {**others, **self._some_replicas()}
            world.note("FAULT", "throttled replicas", entry.key[1], changed)
            world.etcd.txn(world.admin, (), (Put(entry.key, changed),))

    def set(self, broker_id: int, rates: Rates) -> None:
        self._world.note("FAULT", "throttle", broker_id, rates)
        self._rates[broker_id] = rates
        manager = self._world.nodes[broker_id].manager
        if manager is not None and manager.alive:
            self.started(manager)

    def started(self, manager: ReplicaManagerProcess) -> None:
        """A broker takes what is configured when it has heard of it."""
        if any(self._rates[manager.place]) or self.used:
            lag_ms = 1 + int(self._world.scheduler.random.random() * self._world.settings.watch_lag_ms)
            manager.after(lag_ms, self._take, manager)

    def _take(self, manager: ReplicaManagerProcess) -> None:
        rates = self._rates[manager.place]
        manager.throttled.set_rate(rates.leader, manager.now_ms)
        manager.replica_manager.replication_rates_changed(rates)
        manager.following_published()

    def _give(self, fetcher: Fetcher, rate: int | None) -> None:
        fetcher.manager.throttle.give(rate)
        fetcher.throttle_changed()

    # Healing

    def rest(self) -> int:
        """Takes every throttle away, or leaves them at a rate at which what is lacking comes in a few seconds. Returns
        for how many ms more than without them the cluster may be healing; producers stop first where that is any."""
        world = self._world
        if not self.used:
            return 0
        stays = world.scheduler.random.random() < 0.5
        lacking, everything = self._lacking()
        rate = max(1, ceil(lacking / RESTING_S))
        for broker_id, rates in self._rates.items():
            leader, follower = (rate if each is not None else None for each in rates)
            self.set(broker_id, Rates(leader, follower) if stays else Rates())
            fetcher = world.nodes[broker_id].fetcher
            if fetcher is not None and fetcher.alive:
                self._give(fetcher, None)
        return 1000 + ceil(2000 * everything / rate) if stays else 0

    def _lacking(self) -> tuple[int, int]:
        """Batches that replicas lack, at least about, and that they may have to copy at most."""
        world = self._world
        lacking = everything = 0
        for assignment in world.topics.values():
            for number, replicas in enumerate(assignment.replicas):
                key = PartitionKey(assignment.topic_id, number)
                logs = [world.nodes[broker_id].disk.logs.get(key) for broker_id in replicas]
                sizes = [0 if log is None else len(log.batches) for log in logs]
                lacking += sum(max(sizes) - size for size in sizes)
                everything += sum(max(sizes) for _ in sizes)
        unsent = sum(len(each.sent) - len(each.acknowledged) for each in world.producers)
        return lacking + unsent, everything + unsent * world.settings.brokers

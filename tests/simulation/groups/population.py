"""Groups and their members, who come, go, crash and stall; and whether all have come to rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from highwater.groups.group_partition import OFFSETS_TOPIC, partition_for
from highwater.groups.requests import GroupState
from highwater.model.partition import PartitionKey

from .administrator import Administrator
from .checks import GroupChecks
from .compaction import Compaction
from .member import CLIENT, Member
from .watcher import Watcher

if TYPE_CHECKING:
    from ..world import World

QUIET_TOPIC = "q"  # which nobody but groups is interested in


class Groups:
    def __init__(self, world: World) -> None:
        assert world.settings.groups is not None
        self.world = world
        self.checks = GroupChecks(world)
        self._settings = world.settings.groups
        self._random = world.scheduler.random
        self._names = [f"g{number}" for number in range(self._settings.groups)]
        self.vacant: set[str] = set()  # groups that nobody joins
        self.calm = False
        self.finishing = False  # members commit where they are, and no more

    def begin(self) -> None:
        for group in self._names:
            Watcher(self.world, group)
            for _ in range(self._settings.members):
                self._later(int(self._random.random() * 1000), self._join, group)
            if self._settings.deletion_gap_ms:
                Administrator(self.world, group)
        self._later(1000, self._next)
        if self._settings.compaction_gap_ms:
            self._later(1000, self._compact)

    def _later(self, delay_ms: int, run: Callable[..., Any], *args: Any) -> None:
        self.world.scheduler.after(delay_ms, self._unless_calm, run, args)

    def _unless_calm(self, run: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if not self.calm:
            run(*args)

    def _next(self) -> None:
        self._later(1 + int(self._random.expovariate(1 / self._settings.churn_gap_ms)), self._next)
        group = self._random.choice(self._names)
        members = [each for each in self.checks.members if each.group == group and not each.left]
        missing = self._settings.members - len(members)
        if self._random.random() < missing / self._settings.members or not members:
            self._join(group)
            return
        member = self._random.choice(members)
        what = self._random.choices(
            (self._leave, self._crash, self._stall, self._resubscribe, self._lose_stream, self._part),
            (1, 1, 2, 1, 2, 1),
        )[0]
        what(member)

    def _compact(self) -> None:
        self._later(1 + int(self._random.expovariate(1 / self._settings.compaction_gap_ms)), self._compact)
        node = self._random.choice(list(self.world.nodes.values()))
        if node.storage is not None and node.storage.alive and not node.storage.paused:
            Compaction(self.world, node).run()

    def _topics(self) -> frozenset[str]:
        names = [*sorted(name for name in self.world.topics if name != OFFSETS_TOPIC), QUIET_TOPIC]
        chosen = [name for name in names if self._random.random() < 0.7]
        return frozenset(chosen or names)

    def _join(self, group: str) -> None:
        there = [each for each in self.checks.members if each.group == group and not each.left]
        if len(there) > self._settings.members or group in self.vacant:
            return
        instance_id = ""
        if self._random.random() < self._settings.static:
            used = {each.instance_id for each in there}
            instance_id = next(name for name in map("i{}".format, range(100)) if name not in used)
        Member(self.world, group, f"m{self.world.count()}", self._topics(), instance_id)

    def _leave(self, member: Member) -> None:
        member.run(lambda: member.leave(static=self._random.random() < 0.5))

    def vacate(self, group: str) -> None:
        """All members go, and nobody comes until it is not `vacant` any more."""
        self.vacant.add(group)
        for member in [each for each in self.checks.members if each.group == group and not each.left]:
            member.run(member.leave)

    def come_back(self, group: str) -> None:
        self.vacant.discard(group)
        for _ in range(self._settings.members):
            self._later(int(self._random.random() * 150), self._join, group)

    def _crash(self, member: Member) -> None:
        self.world.note("FAULT", "crash", member.name)
        member.kill()

    def _stall(self, member: Member) -> None:
        if not member.paused:
            self.world.note("FAULT", "stall", member.name)
            member.pause()
            self._later(1 + int(self._random.expovariate(1 / self._settings.session_timeout_ms)), self._resume, member)

    def _resume(self, member: Member) -> None:
        if member.paused and member.alive:
            self.world.note("resumed", member.name)
            member.resume()

    def _resubscribe(self, member: Member) -> None:
        member.run(member.subscribe, self._topics())

    def _lose_stream(self, member: Member) -> None:
        member.lose_stream()

    def _part(self, member: Member) -> None:
        """All clients from the broker of this one's coordinator."""
        pair = (CLIENT, member.broker) if self._random.random() < 0.5 else (member.broker, CLIENT)
        self.world.note("FAULT", "part clients", pair)
        self.world.network.cut(*pair)
        self._later(1 + int(self._random.expovariate(1 / 1000)), self.world.network.mend, *pair)

    # Rest

    def rest(self) -> None:
        """Nobody comes and goes any more."""
        self.calm = True
        for member in list(self.checks.members):
            if member.paused:
                member.resume()

    def unrest(self) -> str:
        """What is not as it is to be once everything works; empty: nothing."""
        for group_id in self._names:
            found = self._unrest_of(group_id)
            if found:
                return found
        return ""

    def _unrest_of(self, group_id: str) -> str:
        world = self.world
        members = [each for each in self.checks.members if each.group == group_id]
        number = partition_for(group_id, self._settings.offsets_partitions)
        state = world.history.states[PartitionKey(world.topics[OFFSETS_TOPIC].topic_id, number)]
        manager = world.nodes[state.leader].server() if state.leader >= 0 else None
        shard = None if manager is None or manager.groups is None else manager.groups.shard_of(group_id)
        if shard is None:
            return f"broker {state.leader} does not coordinate {group_id}"
        group = shard.state.groups.get(group_id)
        for partition, value in sorted(group.offsets.items()) if group is not None else ():
            topic = world.topics.get(partition.topic)
            if topic is None or topic.topic_id != value.topic_id:
                return f"{group_id} has {value} of {partition}, which is gone"
        if not members:  # whatever was left of it has expired
            return "" if group is None else f"{group_id} has no members, and this is left: {vars(group)}"
        if group is None or group.state is not GroupState.STABLE:
            return f"{group_id} is not stable: {group and (group.state, group.members, group.targets, group.owners)}"
        wanted = {
            PartitionKey(world.topics[name].topic_id, each)
            for name in set().union(*(member.topics for member in members))
            for each in range(len(world.topics[name].replicas))
        }
        if set(group.members) != {member.member_id for member in members}:
            return f"{group_id} has the members {sorted(group.members)}, there are {[each.name for each in members]}"
        if set(group.owners) != wanted:
            return f"of {group_id} these are owned: {group.owners}, of {wanted}"
        for member in members:
            if not member.believes or member.owned != group.members[member.member_id].current.assigned:
                return f"{member.name} has {member.owned}, and is to have {group.members[member.member_id].current}"
            if member.owned - member.positions.keys():
                return f"{member.name} does not know where to begin: {member.owned - member.positions.keys()}"
            if self.finishing and not member.finished:
                return f"{member.name} has not committed {member.positions}"
        return ""

"""The uniform assignor: balanced, sticky, and by racks where they are known.

Topics with the same subscribers are one class, and are shared out as one; a group whose members all subscribe to the
same has one class. Three steps:

1. Everybody keeps what it had, as far as it exists and is subscribed to.
2. What nobody has goes to the member with the fewest partitions; where racks are known, first to one in the rack of a
   replica, as far as that does not take it above the class's even share.
3. While a member has two or more partitions more than another one that could take one of them, one moves. This alone
   takes partitions from who has them, so no more move than balance costs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from heapq import heapify, heappop, heapreplace

from highwater.groups.assignors.assignor import Subscriber, by_subscribers, racks_of
from highwater.groups.topics import Topic
from highwater.model.partition import PartitionKey


def assign_uniform(
    subscribers: Iterable[Subscriber], topics: Mapping[bytes, Topic]
) -> dict[str, frozenset[PartitionKey]]:
    members = {each.member_id: each for each in sorted(subscribers, key=lambda each: each.member_id)}
    classes = [_Class(ids, topic_ids, topics) for ids, topic_ids in by_subscribers(members.values()).items()]
    loads = dict.fromkeys(members, 0)
    class_of = {topic_id: each for each in classes for topic_id in each.topic_ids}
    for member_id, member in members.items():
        for key in member.target:
            found = class_of.get(key.topic_id)
            if found is not None and key.topic_id in member.topic_ids and key in found.unassigned:
                del found.unassigned[key]
                found.owned[member_id].add(key)
                loads[member_id] += 1
    racks = {member_id: member.rack for member_id, member in members.items()}
    for each in sorted(classes, key=lambda each: len(each.owned)):
        each.hand_out(loads, racks)
    _balance(classes, loads, racks)
    parts: dict[str, list[set[PartitionKey]]] = {member_id: [] for member_id in members}
    for each in classes:
        for member_id, owned in each.owned.items():
            parts[member_id].append(owned)
    return {member_id: frozenset().union(*owned) for member_id, owned in parts.items()}


def _balance(classes: list[_Class], loads: dict[str, int], racks: Mapping[str, str]) -> None:
    """Moves partitions until no move makes two loads more even: each makes them strictly so. One may allow another in
    the classes that its two members have, and in no other."""
    classes_of: dict[str, list[_Class]] = {member_id: [] for member_id in loads}
    for each in classes:
        for member_id in each.owned:
            classes_of[member_id].append(each)
    waiting, are_waiting = deque(classes), set(classes)  # the first of a dict is far to seek where many were before it
    while waiting:
        each = waiting.popleft()
        are_waiting.remove(each)
        for member_id in each.balance(loads, racks):
            for other in classes_of[member_id]:
                if other is not each and other not in are_waiting:
                    waiting.append(other)
                    are_waiting.add(other)


class _Class:
    """Topics with the same subscribers. `unassigned` and what is `owned` are together all their partitions."""

    def __init__(self, members: tuple[str, ...], topic_ids: list[bytes], topics: Mapping[bytes, Topic]) -> None:
        self.topic_ids = topic_ids
        self.topics = topics
        self.owned: dict[str, set[PartitionKey]] = {member_id: set() for member_id in members}
        # In ascending order, so that the same question has the same answer.
        self.unassigned = dict.fromkeys(key for topic_id in topic_ids for key in topics[topic_id].keys)

    def hand_out(self, loads: dict[str, int], racks: Mapping[str, str]) -> None:
        if any(racks[member_id] for member_id in self.owned) and any(
            self.topics[each].racks for each in self.topic_ids
        ):
            self._hand_out_by_rack(loads, racks)
        heap = [(loads[member_id], member_id) for member_id in self.owned]
        heapify(heap)
        for key in self.unassigned:
            load, member_id = heap[0]
            self.owned[member_id].add(key)
            loads[member_id] = load + 1
            heapreplace(heap, (load + 1, member_id))
        self.unassigned.clear()

    def _hand_out_by_rack(self, loads: dict[str, int], racks: Mapping[str, str]) -> None:
        share = (sum(loads[member_id] for member_id in self.owned) + len(self.unassigned)) // len(self.owned)
        heaps: dict[str, list[tuple[int, str]]] = {}
        for member_id in self.owned:
            if racks[member_id] and loads[member_id] < share:
                heaps.setdefault(racks[member_id], []).append((loads[member_id], member_id))
        for heap in heaps.values():
            heapify(heap)
        for key in list(self.unassigned):
            near = [heaps[rack][0] for rack in self._racks(key) if heaps.get(rack)]
            if near:
                load, member_id = min(near)
                self.owned[member_id].add(key)
                del self.unassigned[key]
                loads[member_id] = load + 1
                heap = heaps[racks[member_id]]
                if load + 1 < share:
                    heapreplace(heap, (load + 1, member_id))
                else:
                    heappop(heap)

    def _racks(self, key: PartitionKey) -> frozenset[str]:
        return racks_of(self.topics[key.topic_id], key.partition)

    def balance(self, loads: dict[str, int], racks: Mapping[str, str]) -> Collection[str]:
        """Moves partitions of the class until no move would make two loads more even. Returns whose loads are others
        now."""
        takers = [(loads[member_id], member_id) for member_id in self.owned]
        givers = [(-loads[member_id], member_id) for member_id, owned in self.owned.items() if owned]
        heapify(takers)
        heapify(givers)
        spare: dict[str, list[PartitionKey]] = {}
        moved: dict[str, None] = {}
        while givers:
            most, giver = givers[0]
            fewest, taker = takers[0]
            # Who has given or taken may stand in a heap with an old load, which is put right when it is met. That is in
            # time: the most only falls and the fewest only rises, so who has taken need not give, nor the reverse.
            if -most != loads[giver]:
                heapreplace(givers, (-loads[giver], giver))
            elif fewest != loads[taker]:
                heapreplace(takers, (loads[taker], taker))
            elif -most < fewest + 2:
                break
            elif not self.owned[giver]:
                heappop(givers)
            else:
                key = self._to_give(giver, racks[giver], racks[taker], spare)
                self.owned[giver].remove(key)
                self.owned[taker].add(key)
                loads[giver] -= 1
                loads[taker] += 1
                moved[giver] = moved[taker] = None
        return moved

    def _to_give(self, giver: str, rack: str, other: str, spare: dict[str, list[PartitionKey]]) -> PartitionKey:
        """The last partition in order; of the last few that the giver reads from another rack, one that the taker reads
        from its own."""
        if giver not in spare:
            spare[giver] = sorted(self.owned[giver])
        keys = spare[giver]
        if other and rack != other:
            for place in range(len(keys) - 1, max(len(keys) - 64, 0) - 1, -1):
                found = self._racks(keys[place])
                if other in found and rack not in found:
                    return keys.pop(place)
        return keys.pop()

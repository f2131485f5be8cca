"""The partitions that this broker should be following, and where their leaders are. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from highwater.model.partition import PartitionKey
from highwater.replica_manager.partition.actions import Follow
from highwater.replica_manager.replicas.following import Followed
from highwater.replica_manager.replicas.metadata_cache import Endpoint

_Place = tuple[str, int]  # a leader's address and broker epoch


class FollowedPartitions:
    """Costs what has changed. Invariant: every key of `_follows` is in `_by_leader`, once, under its leader."""

    def __init__(self) -> None:
        self._follows: dict[PartitionKey, tuple[str, Follow]] = {}
        self._by_leader: dict[int, dict[PartitionKey, None]] = {}
        self._places: dict[int, _Place | None] = {}  # of the leaders of `_by_leader`, as of the latest `take_changes`
        self._changed: dict[PartitionKey, None] = {}
        self._throttled: set[PartitionKey] = set()  # RULES 4.14

    def follow(self, key: PartitionKey, topic: str, follow: Follow) -> None:
        self._leave_leader(key)
        self._follows[key] = (topic, follow)
        self._by_leader.setdefault(follow.leader, {})[key] = None
        self._changed[key] = None

    def stop(self, key: PartitionKey) -> bool:
        """Returns whether it was followed."""
        if key not in self._follows:
            return False
        self._leave_leader(key)
        del self._follows[key]
        self._changed[key] = None
        return True

    def set_throttled(self, key: PartitionKey, throttled: bool) -> bool:
        """Returns whether that is news to a fetcher."""
        if (key in self._throttled) is throttled:
            return False
        (self._throttled.add if throttled else self._throttled.discard)(key)
        if key in self._follows:
            self._changed[key] = None
        return key in self._follows

    def _leave_leader(self, key: PartitionKey) -> None:
        before = self._follows.get(key)
        if before is not None:
            leader = before[1].leader
            keys = self._by_leader[leader]
            del keys[key]
            if not keys:
                del self._by_leader[leader]
                self._places.pop(leader, None)

    def take_changes(self, brokers: Mapping[int, Endpoint]) -> dict[PartitionKey, Followed | None]:
        """Returns the partitions that may have changed since the last time, by themselves or because their leader
        registered anew. None: not to be followed, or its leader is not registered."""
        for leader, keys in self._by_leader.items():
            broker = brokers.get(leader)
            place = None if broker is None else (broker.address, broker.broker_epoch)
            if self._places.get(leader) != place:
                self._changed.update(keys)
            self._places[leader] = place
        changed, self._changed = self._changed, {}
        return {key: self._followed(key) for key in changed}

    def _followed(self, key: PartitionKey) -> Followed | None:
        found = self._follows.get(key)
        if found is None:
            return None
        topic, follow = found
        place = self._places[follow.leader]
        if place is None:
            return None
        address, broker_epoch = place
        return Followed(
            topic,
            follow.leader,
            address,
            broker_epoch,
            follow.leader_epoch,
            follow.unclean_epoch,
            key in self._throttled,
        )

"""The partitions that this broker should be following, and the fetcher that each belongs to. Pure."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from highwater.fetcher.follower.actions import Followed
from highwater.model.partition import PartitionKey

_HALVES = struct.Struct(">QQ")
_INT = 1 << 32


class FetcherId(NamedTuple):
    """Names a fetcher within its broker."""

    leader: int
    fetcher_id: int


class LeaderEndpoint(NamedTuple):
    """The address of a leader's broker, as of one registration: the next may be on another host of the same name."""

    address: str
    broker_epoch: int


class Registration(NamedTuple):
    """Names a registration of this broker: sessions and offsets are of one (RULES 4.1)."""

    broker_epoch: int
    log_storage_incarnation: str


@dataclass(frozen=True, slots=True)
class FollowedPartition:
    topic: str
    leader: LeaderEndpoint
    followed: Followed
    throttled: bool = False  # RULES 4.14


@dataclass(frozen=True, slots=True)
class Following:
    """One WatchFollowing message: the whole of what to follow, or what has changed of it (RULES 4.12)."""

    broker_id: int
    registration: Registration
    partitions: Mapping[PartitionKey, FollowedPartition]
    changes: bool = False  # `partitions` are those that changed; False: they are all
    removed: tuple[PartitionKey, ...] = ()  # followed no more, before `partitions` is taken
    throttle_rate: float | None = None  # bytes a second of what is throttled; None: any number


def fetcher_id_of(key: PartitionKey, leader: int, fetchers: int) -> FetcherId:
    """Spreads a leader's partitions over `num.replica.fetchers` as Kafka does, abs(31 * hash(topic id) + partition)
    modulo their number: neighbours of one topic go to different fetchers, and a restart changes nothing."""
    value = (31 * _hash_code(key.topic_id) + key.partition) % _INT
    signed = value - _INT if value >= _INT // 2 else value
    return FetcherId(leader, abs(signed) % fetchers)


def _hash_code(topic_id: bytes) -> int:
    """Java's `UUID.hashCode`."""
    high, low = _HALVES.unpack(topic_id)
    mixed: int = high ^ low
    return (mixed >> 32) ^ (mixed & (_INT - 1))

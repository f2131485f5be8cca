"""The values in which a broker's fetcher is told what to follow: all of it, or what has changed (RULES 4.12)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from highwater.model.partition import PartitionKey


@dataclass(frozen=True, slots=True)
class Followed:
    """One partition to fetch, already fenced with role FOLLOWER (RULES 3.3)."""

    topic: str
    leader: int
    leader_address: str
    leader_broker_epoch: int  # of the registration that has this address (RULES 4.9)
    leader_epoch: int
    unclean_epoch: int  # RULES 4.4
    throttled: bool = False  # RULES 4.14


@dataclass(frozen=True, slots=True)
class Following:
    """One message. Nobody changes its partitions any more."""

    broker_epoch: int
    log_storage_incarnation: str
    partitions: Mapping[PartitionKey, Followed]
    changes: bool = False  # `partitions` are those that changed; False: they are all
    removed: tuple[PartitionKey, ...] = ()  # followed no more, before `partitions` is taken
    throttle_rate: float | None = None  # bytes a second of what is throttled; None: any number

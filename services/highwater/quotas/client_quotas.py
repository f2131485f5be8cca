"""Quotas of clients and users: the configured rates, and which of them counts for a request.

Kafka's precedence. Of a user u that calls by a client id c the first that is set counts, for each quota by itself:

    (u, c)  (u, any client)  u  (any user, c)  (any user, any client)  any user  c  any client

"Any" is the default entity: each user, or client, that it counts for has a bucket of its own. An entity that names no
client is shared by all clients of its user, and one that names no user by all users of its client id.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from highwater.quotas.buckets import MAX_BUCKETS, Buckets
from highwater.quotas.token_bucket import TokenBucket

DEFAULT = ""
"""The name of a default entity. A client that names itself nothing is one of those that it counts for."""


class Quota(StrEnum):
    """By the configuration's keys."""

    PRODUCE = "producer_byte_rate"  # bytes a second
    FETCH = "consumer_byte_rate"  # bytes a second
    REQUEST = "request_percentage"  # hundredths of the time of the event loop
    CONTROLLER_MUTATION = "controller_mutation_rate"  # partitions made or deleted, and topics altered, a second


PER_UNIT = {Quota.REQUEST: 0.01}
"""What one of the configured unit is in the one that is charged (seconds of a second, where it says percent)."""


class Entity(NamedTuple):
    """The owner of quotas. None: it names none of that kind."""

    user: str | None = None
    client: str | None = None


class Caller(NamedTuple):
    """The sender of a request."""

    user: str
    client: str


class ClientQuota:
    """One of the four quotas. `limits` are those that are set; while it is empty nobody is charged."""

    def __init__(self, per_unit: float = 1.0, most: int = MAX_BUCKETS) -> None:
        self.limits: dict[Entity, float] = {}
        self._per_unit = per_unit
        self._buckets: Buckets[Entity] = Buckets(most)

    def set_limit(self, entity: Entity, limit: float | None) -> bool:
        """None: it is not set any more. Returns whether that is a change."""
        if self.limits.get(entity) == limit:
            return False
        if limit is None:
            del self.limits[entity]
        else:
            assert limit > 0
            self.limits[entity] = limit
        if not self.limits:
            self._buckets.clear()
        return True

    def bucket(self, caller: Caller, now_s: float) -> TokenBucket | None:
        """The account of the caller, shared with those that the same entity counts for; None: it has no quota."""
        entity = self.entity_of(caller)
        if entity is None:
            return None
        user = None if entity.user is None else caller.user
        client = None if entity.client is None else caller.client
        rate = max(self.limits[entity] * self._per_unit, sys.float_info.min)  # the product may be 0
        return self._buckets.of(Entity(user, client), rate, now_s)

    def entity_of(self, caller: Caller) -> Entity | None:
        """The entity whose limit counts for the caller."""
        limits = self.limits
        return next((entity for entity in _precedence(*caller) if entity in limits), None)


def _precedence(user: str, client: str) -> Iterable[Entity]:
    return (
        Entity(user, client),
        Entity(user, DEFAULT),
        Entity(user),
        Entity(DEFAULT, client),
        Entity(DEFAULT, DEFAULT),
        Entity(DEFAULT),
        Entity(None, client),
        Entity(None, DEFAULT),
    )


class ClientQuotas:
    """The four quotas, as they are configured now."""

    def __init__(self, most: int = MAX_BUCKETS) -> None:
        self._quotas = {quota: ClientQuota(PER_UNIT.get(quota, 1.0), most) for quota in Quota}

    def __getitem__(self, quota: Quota) -> ClientQuota:
        return self._quotas[quota]

    def is_set(self, quota: Quota) -> bool:
        """Tells whether anybody has it."""
        return bool(self._quotas[quota].limits)

    def configure(self, entity: Entity, config: Mapping[str, str]) -> bool:
        """`config` is all that the entity has: a quota that is not in it is not set. A value that is no rate counts
        as not set: whoever writes it is refused, and a broker goes on with what it finds. Returns whether anything has
        changed."""
        changed = [one.set_limit(entity, _rate(config.get(quota))) for quota, one in self._quotas.items()]
        return any(changed)


def _rate(text: str | None) -> float | None:
    try:
        rate = None if text is None else float(text)
    except ValueError:
        return None
    return rate if rate is not None and 0 < rate < float("inf") else None

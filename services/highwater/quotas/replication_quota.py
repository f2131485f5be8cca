"""The rate of replication that is throttled, of one broker (RULES 4.14): what it sends as leader, or what it copies as
follower."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from highwater.quotas.token_bucket import TokenBucket


class ReplicationQuota:
    """Bytes a second; None: any number. Bytes are charged after they were moved, so the last of a second may go over,
    and the next ones wait for it."""

    def __init__(self) -> None:
        self._bucket: TokenBucket | None = None

    @property
    def rate(self) -> float | None:
        return None if self._bucket is None else self._bucket.rate

    def set_rate(self, rate: float | None, now_s: float) -> bool:
        """Returns whether that is a change."""
        if rate == self.rate:
            return False
        if rate is None:
            self._bucket = None
        elif self._bucket is None:
            self._bucket = TokenBucket(rate, now_s)
        else:
            self._bucket.change_rate(rate, now_s)
        return True

    def moved(self, size_bytes: int, now_s: float) -> None:
        """Charges what was moved of throttled replicas."""
        if self._bucket is not None:
            self._bucket.take(size_bytes, now_s)

    def wait_s(self, now_s: float) -> float:
        """The seconds until more may be moved; 0: at once."""
        return 0.0 if self._bucket is None else self._bucket.owed_s(now_s)


class Rates(NamedTuple):
    """Bytes a second of one broker; None: no bound."""

    leader: float | None = None
    follower: float | None = None


def rates_of(config: Mapping[str, str]) -> Rates:
    """By a broker's configuration. A value that is no rate counts as not set."""
    return Rates(
        _rate(config.get("leader.replication.throttled.rate")),
        _rate(config.get("follower.replication.throttled.rate")),
    )


def _rate(text: str | None) -> float | None:
    return float(text) if text is not None and text.isdecimal() and int(text) > 0 else None

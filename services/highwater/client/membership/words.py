"""Words of a member and its coordinator, and what a membership has its owner do. Values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from highwater.errors import ErrorCode

JOINING = 0
LEAVING = -1
LEAVING_STATIC = -2


class GroupPartition(NamedTuple):
    """A partition that a group hands out: of a topic's id, not of another topic that has the name later."""

    topic: str
    topic_id: bytes
    partition: int


Partitions = frozenset[GroupPartition]
NO_PARTITIONS: Partitions = frozenset()


@dataclass(frozen=True, slots=True)
class Subscription:
    """See `highwater.v1.Subscription`."""

    topics: tuple[str, ...]
    pattern: str = ""  # empty: none
    assignor: str = ""  # empty: the group's
    rebalance_timeout_ms: int = 300_000
    rack: str = ""
    client_id: str = ""


@dataclass(frozen=True, slots=True)
class Word:
    """A request of the member on its stream. The first one of a stream has the member's names as well."""

    member_epoch: int
    seen_assignment: int = 0  # 0: none on this stream
    owned: Partitions | None = None  # None: nothing is said of them
    subscription: Subscription | None = None  # None: as before

    def after(self, earlier: Word) -> Word:
        """One word that says what the two say, `earlier` first: each is the whole truth of what it speaks of."""
        return Word(
            self.member_epoch,
            self.seen_assignment,
            earlier.owned if self.owned is None else self.owned,
            earlier.subscription if self.subscription is None else self.subscription,
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """A word of the coordinator."""

    member_epoch: int
    heartbeat_interval_ms: int
    session_timeout_ms: int
    assignment: Partitions | None = None  # None: it has not changed
    assignment_number: int = 0


# What is to be done


@dataclass(frozen=True, slots=True)
class Open:
    """A stream is to be opened with this first word. What it comes to is told under its number."""

    stream: int
    word: Word
    find: bool  # the coordinator is to be looked for anew


@dataclass(frozen=True, slots=True)
class Say:
    word: Word


@dataclass(frozen=True, slots=True)
class Close:
    """The present stream is to be ended."""


@dataclass(frozen=True, slots=True)
class Drop:
    """These partitions may be others' by now: nothing of them is to be handed out any more, from this moment on."""

    partitions: Partitions


Action = Open | Say | Close | Drop


# What the application is to be told, one after the other


@dataclass(frozen=True, slots=True)
class Assign:
    """Consume these as well."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Revoke:
    """Commit these, and stop consuming them. They are the member's own until that is done."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Lost:
    """These were dropped: they may be others' already, and a commit would be refused."""

    partitions: Partitions


Step = Assign | Revoke | Lost


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a stream has ended."""

    code: ErrorCode
    message: str
    unauthenticated: bool = False  # the broker does not know the token, or the lack of one

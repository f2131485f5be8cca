"""The requests to a shard and its answers. Values alone: the server turns the stubs' messages into these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

from highwater.errors import ErrorCode
from highwater.groups.records import Record
from highwater.groups.records.values import MemberState, OffsetCommitValue
from highwater.model.partition import PartitionKey

JOINING = 0  # as a member epoch: the member joins
LEAVING = -1  # the member leaves
LEAVING_STATIC = -2  # the static member leaves and will be back
NO_MEMBER_EPOCH = -1  # of a commit or fetch that no member makes

Partitions: TypeAlias = frozenset[PartitionKey]


class GroupState(Enum):
    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class NamedPartition(NamedTuple):
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why something was not done. `message` is a sentence that names the value."""

    code: ErrorCode
    message: str


# Requests


@dataclass(frozen=True, slots=True)
class Subscription:
    topics: frozenset[str] = frozenset()
    pattern: str = ""  # "": none
    assignor: str = ""  # "": the group's
    rebalance_timeout_ms: int = 300_000
    rack: str = ""  # "": not known
    client_id: str = ""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A word of a member on its session. The server adds what only the first one of the stream said: group, member id,
    instance id and the client's host."""

    group: str
    member_id: str
    member_epoch: int  # JOINING, LEAVING, LEAVING_STATIC, or the one of the last answer
    instance_id: str = ""  # "": a dynamic member
    subscription: Subscription | None = None  # None: as before
    owned: Partitions | None = None  # None: says nothing of them
    seen_assignment: int = 0  # 0: none on this stream
    client_host: str = ""

    @property
    def is_sign_of_life(self) -> bool:
        """It says nothing but that the member is there, and has heard of an assignment."""
        return self.member_epoch > JOINING and self.subscription is None and self.owned is None


@dataclass(frozen=True, slots=True)
class OffsetToCommit:
    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    topic_id: bytes = b""


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    group: str
    member_id: str  # "": nobody's, for a group without members
    member_epoch: int
    offsets: tuple[OffsetToCommit, ...]


@dataclass(frozen=True, slots=True)
class AlterOffsets:
    """A reset: only of a group without members."""

    group: str
    offsets: tuple[OffsetToCommit, ...]


@dataclass(frozen=True, slots=True)
class FetchOffsets:
    group: str
    member_id: str = ""
    member_epoch: int = NO_MEMBER_EPOCH
    partitions: tuple[NamedPartition, ...] | None = None  # None: all that are kept
    require_stable: bool = False  # there are no open transactions yet that could hold an offset


@dataclass(frozen=True, slots=True)
class DeleteOffsets:
    group: str
    partitions: tuple[NamedPartition, ...]


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    group: str


@dataclass(frozen=True, slots=True)
class DescribeGroup:
    group: str
    include_offsets: bool = False


@dataclass(frozen=True, slots=True)
class ListGroups:
    states: frozenset[GroupState] = frozenset()  # empty: all


# Answers


@dataclass(frozen=True, slots=True)
class SessionAnswer:
    """Ends the session where it has an error, and where the member epoch is LEAVING or LEAVING_STATIC."""

    member_epoch: int = 0
    assignment: Partitions | None = None  # the whole of it; None: it has not changed
    assignment_number: int = 0  # 0 without one
    error: Refusal | None = None


@dataclass(frozen=True, slots=True)
class CommitAnswer:
    """`errors` has one for each offset of the request, in its order; empty where `error` is set."""

    error: Refusal | None = None
    errors: tuple[Refusal | None, ...] = ()


@dataclass(frozen=True, slots=True)
class FetchedOffset:
    partition: NamedPartition
    committed: OffsetCommitValue | None  # None: none was


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """`kept` where none was named: all there are, as they were then. Whether they are of the topics of now is looked at
    as each is told (`fetched_offset`)."""

    error: Refusal | None = None
    offsets: tuple[FetchedOffset, ...] = ()
    kept: Mapping[NamedPartition, OffsetCommitValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeleteAnswer:
    error: Refusal | None = None
    errors: tuple[Refusal | None, ...] = ()  # of DeleteOffsets, in the order of the request


@dataclass(frozen=True, slots=True)
class DescribedMember:
    member_id: str
    instance_id: str
    client_id: str
    client_host: str
    rack: str
    epoch: int
    state: MemberState
    topics: frozenset[str]
    pattern: str
    assigned: Partitions
    revoking: Partitions
    target: Partitions


@dataclass(frozen=True, slots=True)
class GroupDescription:
    group: str
    state: GroupState
    epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = ""
    members: tuple[DescribedMember, ...] = ()
    kept: Mapping[NamedPartition, OffsetCommitValue] = field(default_factory=dict)  # its offsets, as they were then
    error: Refusal | None = None


@dataclass(frozen=True, slots=True)
class ListedGroup:
    group: str
    state: GroupState
    members: int


@dataclass(frozen=True, slots=True)
class ListAnswer:
    groups: tuple[ListedGroup, ...]


Request: TypeAlias = (
    Heartbeat | CommitOffsets | AlterOffsets | FetchOffsets | DeleteOffsets | DeleteGroup | DescribeGroup | ListGroups
)
Answer: TypeAlias = SessionAnswer | CommitAnswer | FetchAnswer | DeleteAnswer | GroupDescription | ListAnswer


@dataclass(frozen=True, slots=True)
class Push:
    """Tells a member something on its session, if one is open: the stream that is open when the outcome is made. What
    was decided before a member came back on another stream is not told on that one (RULES 11.5)."""

    group: str
    member_id: str
    answer: SessionAnswer


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one request or event.

    `records` go to the log in this order, and behind those of every earlier outcome of the shard. Answer and pushes
    leave once the high watermark has passed the record numbered `after`: the shard's records are numbered from 1 in the
    order of its outcomes, 0 is none of them (RULES 11.2).

    `rest` has what is left to do for a request that takes several steps: other requests may be handled between two of
    them. The last one has the answer.
    """

    records: tuple[Record, ...] = ()
    answer: Answer | None = None  # None: a sign of life, or an event
    pushes: tuple[Push, ...] = ()
    after: int = 0
    rest: Iterator[Outcome] | None = None

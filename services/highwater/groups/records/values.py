"""The values of the records of `__consumer_offsets`, and their bytes behind the version.

An empty string stands for Kafka's null, where a field is nullable.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from highwater.groups.records.buffer import Reader, UnreadableRecordError, Writer
from highwater.model.partition import TOPIC_ID_BYTES, PartitionKey

_FRONT_1 = struct.Struct(">hq")  # of an offset: the version, the offset
_FRONT = struct.Struct(">hqi")  # and the leader's epoch
# The time of the commit, and the tagged fields: their number, and the tag, size and bytes of the topic's id.
_TIME_AND_TOPIC = struct.Struct(f">qBBB{TOPIC_ID_BYTES}s")
_TWO_TIMES = struct.Struct(">qq")


class MemberState(IntEnum):
    """The place of a member on its way to its target assignment (RULES 11.4). The numbers are Kafka's."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2


@dataclass(frozen=True, slots=True)
class OffsetCommitValue:
    """Written as version 4 where the topic's id is known, which is its tagged field 0, else as 3. Versions 0 to 4 are
    read:

        0: offset int64, metadata string, commit time int64        2: as 0
        1: as 0, expire time int64                                 3: offset, leader epoch int32, metadata, commit time
        4: as 3, flexible
    """

    offset: int
    leader_epoch: int  # -1: not known
    metadata: str
    commit_time_ms: int
    expire_time_ms: int = -1  # -1: by the retention of the broker; only very old clients set it
    topic_id: bytes = b""  # b"": not known

    def encode(self, out: Writer) -> None:
        if self.expire_time_ms != -1:
            out.packed(_FRONT_1, 1, self.offset)
            out.string(self.metadata)
            out.packed(_TWO_TIMES, self.commit_time_ms, self.expire_time_ms)
        elif self.topic_id:
            out.packed(_FRONT, 4, self.offset, self.leader_epoch)
            out.compact_string(self.metadata)
            out.packed(_TIME_AND_TOPIC, self.commit_time_ms, 1, 0, TOPIC_ID_BYTES, self.topic_id)
        else:
            out.packed(_FRONT, 3, self.offset, self.leader_epoch)
            out.string(self.metadata)
            out.int64(self.commit_time_ms)

    @classmethod
    def decode(cls, data: Reader, version: int) -> OffsetCommitValue:
        _check(version, 4)
        offset = data.int64()
        leader_epoch = data.int32() if version >= 3 else -1
        metadata = data.compact_string() if version == 4 else data.string()
        commit_time_ms = data.int64()
        expire_time_ms = data.int64() if version == 1 else -1
        topic_id = data.tagged_fields().get(0, b"") if version == 4 else b""
        if topic_id and len(topic_id) != TOPIC_ID_BYTES:
            raise UnreadableRecordError(f"a topic id of {len(topic_id)} bytes")
        return cls(offset, leader_epoch, metadata, commit_time_ms, expire_time_ms, topic_id)


@dataclass(frozen=True, slots=True)
class GroupEpochValue:
    epoch: int
    metadata_hash: int = 0  # of the topics subscribed to; tagged field 0, int64, left out where it is 0

    def encode(self, out: Writer) -> None:
        out.int16(0)
        out.int32(self.epoch)
        out.tagged_fields({0: self.metadata_hash.to_bytes(8, "big", signed=True)} if self.metadata_hash else {})

    @classmethod
    def decode(cls, data: Reader, version: int) -> GroupEpochValue:
        _check(version, 0)
        epoch = data.int32()
        return cls(epoch, int.from_bytes(data.tagged_fields().get(0, b""), "big", signed=True))


@dataclass(frozen=True, slots=True)
class MemberSubscriptionValue:
    """Of Kafka's tagged field 0, what a member of the classic protocol supports, nothing is kept."""

    instance_id: str
    rack: str
    client_id: str
    client_host: str
    topics: frozenset[str]
    pattern: str
    rebalance_timeout_ms: int
    assignor: str

    def encode(self, out: Writer) -> None:
        out.int16(0)
        out.compact_nullable_string(self.instance_id)
        out.compact_nullable_string(self.rack)
        out.compact_string(self.client_id)
        out.compact_string(self.client_host)
        out.compact_strings(self.topics)
        out.compact_nullable_string(self.pattern)
        out.int32(self.rebalance_timeout_ms)
        out.compact_nullable_string(self.assignor)
        out.no_tagged_fields()

    @classmethod
    def decode(cls, data: Reader, version: int) -> MemberSubscriptionValue:
        _check(version, 0)
        instance_id, rack, client_id, client_host = (data.compact_string() for _ in range(4))
        topics = frozenset(data.compact_strings())
        pattern = data.compact_string()
        rebalance_timeout_ms = data.int32()
        assignor = data.compact_string()
        data.tagged_fields()
        return cls(instance_id, rack, client_id, client_host, topics, pattern, rebalance_timeout_ms, assignor)


@dataclass(frozen=True, slots=True)
class TargetEpochValue:
    epoch: int

    def encode(self, out: Writer) -> None:
        out.int16(0)
        out.int32(self.epoch)
        out.no_tagged_fields()

    @classmethod
    def decode(cls, data: Reader, version: int) -> TargetEpochValue:
        _check(version, 0)
        epoch = data.int32()
        data.tagged_fields()
        return cls(epoch)


@dataclass(frozen=True, slots=True)
class TargetAssignmentValue:
    partitions: frozenset[PartitionKey]

    def encode(self, out: Writer) -> None:
        out.int16(0)
        out.compact_partitions(self.partitions)
        out.no_tagged_fields()

    @classmethod
    def decode(cls, data: Reader, version: int) -> TargetAssignmentValue:
        _check(version, 0)
        partitions = data.compact_partitions()
        data.tagged_fields()
        return cls(partitions)


@dataclass(frozen=True, slots=True)
class CurrentAssignmentValue:
    """A state that this version does not know reads as UNREVOKED_PARTITIONS, out of which only the member's own word
    leads."""

    epoch: int
    previous_epoch: int
    state: MemberState
    assigned: frozenset[PartitionKey]
    revoking: frozenset[PartitionKey]

    def encode(self, out: Writer) -> None:
        out.int16(0)
        out.int32(self.epoch)
        out.int32(self.previous_epoch)
        out.int8(self.state)
        out.compact_partitions(self.assigned)
        out.compact_partitions(self.revoking)
        out.no_tagged_fields()

    @classmethod
    def decode(cls, data: Reader, version: int) -> CurrentAssignmentValue:
        _check(version, 0)
        epoch, previous_epoch, number = data.int32(), data.int32(), data.int8()
        known = number in MemberState.__members__.values()
        state = MemberState(number) if known else MemberState.UNREVOKED_PARTITIONS
        assigned, revoking = data.compact_partitions(), data.compact_partitions()
        data.tagged_fields()
        return cls(epoch, previous_epoch, state, assigned, revoking)


@dataclass(frozen=True, slots=True)
class PatternValue:
    topics: frozenset[str]
    version: int  # Kafka's version of the metadata; the number of the topics' image here
    time_ms: int  # when it was resolved

    def encode(self, out: Writer) -> None:
        out.int16(0)
        out.compact_strings(self.topics)
        out.int64(self.version)
        out.int64(self.time_ms)
        out.no_tagged_fields()

    @classmethod
    def decode(cls, data: Reader, version: int) -> PatternValue:
        _check(version, 0)
        topics, image, time_ms = frozenset(data.compact_strings()), data.int64(), data.int64()
        data.tagged_fields()
        return cls(topics, image, time_ms)


Value: TypeAlias = (
    OffsetCommitValue
    | GroupEpochValue
    | MemberSubscriptionValue
    | TargetEpochValue
    | TargetAssignmentValue
    | CurrentAssignmentValue
    | PatternValue
)


def _check(version: int, highest: int) -> None:
    if not 0 <= version <= highest:
        raise UnreadableRecordError(f"version {version} of a value of which {highest} is the highest known")

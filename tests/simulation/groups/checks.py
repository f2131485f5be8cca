"""What coordinators decide and members see, held against RULES 11 and invariant 10."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from highwater.errors import ErrorCode
from highwater.groups.records import Record
from highwater.groups.records.codec import decode as decode_record
from highwater.groups.records.keys import OffsetCommitKey
from highwater.groups.records.values import OffsetCommitValue
from highwater.groups.requests import (
    AlterOffsets,
    CommitOffsets,
    DeleteAnswer,
    DeleteGroup,
    NamedPartition,
    Outcome,
    Request,
    SessionAnswer,
)
from highwater.groups.shard import GroupShard
from highwater.groups.state import ShardState
from highwater.groups.topics import TopicImage
from highwater.model.partition import PartitionKey
from highwater.replica_manager.groups.record_batches import decode as decode_batches

from ..history import InvariantError
from ..storage import Batch
from .commits import Commits

if TYPE_CHECKING:
    from ..world import World
    from .coordinator import SimulatedLog, SimulatedShard
    from .member import Member


class ShardCheck:
    """One shard from when it is loaded to when it is dropped. Its records are numbered from 1 (RULES 11.2)."""

    def __init__(self, checks: GroupChecks, hosted: SimulatedShard, shard: GroupShard, log: SimulatedLog) -> None:
        self._checks = checks
        self._hosted = hosted
        self._shard = shard
        self._start = log._end_offset  # where the shard's first record is to stand
        self._written = 0
        self._to_append: list[Record] = []
        self._appended: deque[tuple[int, Batch]] = deque()  # that nobody was told of yet
        self._appended_to = self._start
        self._last: dict[str, int] = {}  # by group: the number of its last record
        self._replayed = ShardState()
        self._being_deleted: set[str] = set()
        owner = hosted.owner
        self._key: PartitionKey = hosted._hosted.key
        for batch in owner.node.disk.logs[self._key].batches:
            if batch.base_offset < self._start:
                for _, rows in decode_batches(batch.original):  # whatever compaction has taken
                    for row in rows:
                        self._replayed.replay(row.key or b"", row.value, row.timestamp)
        if hosted._hosted.partition.high_watermark < self._start:
            raise InvariantError("11.2 (loaded)", f"{self._name} serves what it has read, up to {self._start}")
        checks.loads += 1

    @property
    def _name(self) -> str:
        return f"the shard {self._key.partition} at broker {self._hosted.owner.node.broker_id}"

    def loaded(self) -> None:
        """It serves. Whatever members were told is in it (RULES 11.2)."""
        self._compare(set(self._replayed.groups) | set(self._shard.state.groups))
        for member in self._checks.members:
            group = self._shard.state.groups.get(member.group)
            if group is None or not member.believes:
                continue
            known = group.members.get(member.member_id)
            if known is not None and 0 < known.current.epoch < member.epoch:
                raise InvariantError(
                    "11.2 (told and lost)",
                    f"{member.name} was told epoch {member.epoch}, {self._name} has {known.current}",
                )

    def decided(self, outcome: Outcome, request: Request | None) -> None:
        groups = {push.group for push in outcome.pushes}
        group = getattr(request, "group", None)
        if group is not None:
            groups.add(group)
        for number, record in enumerate(outcome.records, self._written + 1):
            found = decode_record(record.key, record.value)
            assert found is not None
            key, value = found
            groups.add(key.group)
            self._last[key.group] = number
            if isinstance(key, OffsetCommitKey) and value is None:
                self._removed(key, record.timestamp_ms, request)
            elif isinstance(key, OffsetCommitKey) and isinstance(value, OffsetCommitValue):
                self._kept(key, value, request)
            self._replayed.replay(record.key, record.value, record.timestamp_ms)
        self._compare(groups)
        self._deleted(outcome, request)
        if group in self._being_deleted:
            groups.clear()  # who is told so rests on nothing
        rests_on = max((self._last.get(each, 0) for each in groups), default=0)
        if (outcome.answer is not None or outcome.pushes) and outcome.after < rests_on:
            raise InvariantError("11.2 (rests on more)", f"{self._name} rests {outcome} on less than {rests_on}")
        for push in outcome.pushes:
            self._fenced(push.member_id, push.answer)
        if isinstance(outcome.answer, SessionAnswer):
            self._fenced(getattr(request, "member_id", ""), outcome.answer)

    def _compare(self, groups: set[str]) -> None:
        """The state is what its records say (RULES 11.1), and no partition is two members' (RULES 11.4)."""
        for group_id in sorted(groups):
            live, replayed = self._shard.state.groups.get(group_id), self._replayed.groups.get(group_id)
            if (live is None) != (replayed is None) or (live and replayed and vars(live) != vars(replayed)):
                raise InvariantError(
                    "11.1 (live is replayed)",
                    f"{self._name}: {live and vars(live)}, its records say {replayed and vars(replayed)}",
                )
            if live is None:
                continue
            held = sum(len(member.held) for member in live.members.values())
            if len(live.owners) != held:
                raise InvariantError("11.4 (held by two)", f"{self._name}, {group_id}: {live.members}")

    def _kept(self, key: OffsetCommitKey, value: OffsetCommitValue, request: Request | None) -> None:
        """RULES 11.6: of a member under its epoch, or the one before, and of no partition that another one has."""
        assert isinstance(request, CommitOffsets | AlterOffsets), request
        group = self._replayed.groups.get(key.group)
        before = None if group is None else group.offsets.get(NamedPartition(key.topic, key.partition))
        there = before is not None and PartitionKey(before.topic_id or b"", key.partition)
        if there and there.topic_id != value.topic_id and there not in self._checks.world.history.dead:
            raise InvariantError("10 (overwritten)", f"{self._name} keeps {value} in the place of {before}, {key}")
        if isinstance(request, AlterOffsets):
            if group is not None and group.members:
                raise InvariantError("11.6 (no member)", f"{self._name} keeps {request} of {group.members}")
            return
        member = None if group is None else group.members.get(request.member_id)
        if group is None or member is None:
            raise InvariantError("11.6 (no member)", f"{self._name} keeps {request}")
        epochs = (member.current.epoch, member.current.previous_epoch)
        owner = group.owners.get(PartitionKey(value.topic_id, key.partition), request.member_id)
        if request.member_epoch not in epochs or owner != request.member_id:
            raise InvariantError("11.6 (not its own)", f"{self._name} keeps {request} of {member}, {owner} has {key}")

    def _deleted(self, outcome: Outcome, request: Request | None) -> None:
        """RULES 11.11: nothing is put into a group that is being deleted, and nothing is left of one that was."""
        group_id = getattr(request, "group", "")
        if isinstance(request, DeleteGroup):
            (self._being_deleted.add if outcome.answer is None else self._being_deleted.discard)(group_id)
            deleted = isinstance(outcome.answer, DeleteAnswer) and outcome.answer.error is None
            if deleted and group_id in self._replayed.groups:
                left = vars(self._replayed.groups[group_id])
                raise InvariantError("11.11 (left)", f"{self._name} has deleted {group_id}, and has {left}")
        elif group_id in self._being_deleted and outcome.records:
            raise InvariantError("11.11 (in between)", f"{self._name} deletes {group_id}, and takes {request}")

    def all_known(self, image: TopicImage) -> None:
        """RULES 11.11: all that has changed is taken up, and every topic heard of."""
        for group in self._shard.state.groups.values():
            for partition, value in group.offsets.items():
                if not image.has(partition.topic, value.topic_id):
                    raise InvariantError(
                        "11.11 (gone)", f"{self._name}, {group.group_id}: {value} of {partition}, which is gone"
                    )

    def _removed(self, key: OffsetCommitKey, now_ms: int, request: Request | None) -> None:
        """RULES 11.9 to 11.11: the topic is gone, or nobody reads it and the retention is over, or the group is
        deleted, and has no members."""
        checks = self._checks
        group = self._replayed.groups.get(key.group)
        value = None if group is None else group.offsets.get((key.topic, key.partition))  # type: ignore[call-overload]
        if group is None or value is None:
            return
        place = PartitionKey(value.topic_id, key.partition)
        if place in checks.world.history.dead:
            return
        settings = checks.world.settings.groups
        assert settings is not None
        if isinstance(request, DeleteGroup):
            if group.members:
                raise InvariantError("11.11 (members)", f"{self._name} deletes {key.group}, of {group.members}")
            checks.commits.removed(key.group, place, checks.world.scheduler.now_ms)
            return
        slack_ms = settings.skew_ms * len(checks.world.nodes)
        since_ms = max(value.commit_time_ms, group.epoch_time_ms)
        read = bool(group.members) and group.subscribes_to(key.topic)
        if read or now_ms + slack_ms < since_ms + settings.retention_ms:
            raise InvariantError(
                "10 (removed)", f"{self._name} removes {value} of {key}: read {read}, since {since_ms}"
            )
        checks.commits.removed(key.group, place, checks.world.scheduler.now_ms)

    def _fenced(self, member_id: str, answer: SessionAnswer) -> None:
        if answer.error is None or answer.error.code is not ErrorCode.FENCED_MEMBER_EPOCH:
            return
        if "not its own" in answer.error.message:
            raise InvariantError("11.4 (its own)", f"{self._name} fences {member_id}: {answer.error.message}")
        if "rebalance timeout" in answer.error.message:
            self._checks.overstayed.add(member_id)

    # The log

    def written(self, records: Sequence[Record]) -> None:
        self._written += len(records)
        self._to_append += records

    def appending(self, records: Sequence[Record], expected: int) -> None:
        """Goes out as the next ones of those that were made, to where the next ones are to stand."""
        due, self._to_append = self._to_append[: len(records)], self._to_append[len(records) :]
        place = self._start + self._written - len(self._to_append) - len(due)
        if list(records) != due or expected != place:
            raise InvariantError(
                "11.2 (in order)", f"{self._name} appends {records} at {expected}, {due} is at {place}"
            )

    def appended(self, batch: Batch, base_offset: int) -> None:
        self._appended.append((base_offset, batch))
        self._appended_to = base_offset + batch.records

    def told(self, number: int) -> None:
        """Somebody is told what rests on that record: it is committed (invariant 1 holds for it from now on)."""
        end = self._start + number
        if self._appended_to < end:
            raise InvariantError("11.2 (told too early)", f"{self._name} tells what rests on {end}, not written yet")
        hosted = self._hosted._hosted
        if hosted.partition.high_watermark < end:
            raise InvariantError(
                "11.2 (told too early)",
                f"{self._name} tells what rests on {end}, {hosted.partition.high_watermark} is committed",
            )
        while self._appended and self._appended[0][0] < end:
            base_offset, batch = self._appended.popleft()
            self._checks.world.history.acked(
                self._key, batch, base_offset, self._hosted.owner.node.broker_id, self._hosted.pipeline.leader_epoch
            )


class GroupChecks:
    def __init__(self, world: World) -> None:
        self.world = world
        self.commits = Commits(world.history.dead)
        self.members: list[Member] = []  # that live
        self.overstayed: set[str] = set()  # member ids of those that did not do in time what they were told to
        self.loads = 0
        self.taken = 0
        self.compacted = 0  # records that compaction has dropped
        self.names: dict[bytes, str] = {}  # of every topic there ever was

    def shard(self, hosted: SimulatedShard, shard: GroupShard, log: SimulatedLog) -> ShardCheck:
        return ShardCheck(self, hosted, shard, log)

    def took(self, member: Member, keys: Sequence[PartitionKey]) -> None:
        """The member begins to read them. Nobody else does (RULES 11.4)."""
        for other in self.members if member.member_id not in self.overstayed else ():
            if other is member or other.group != member.group or other.member_id in self.overstayed:
                continue
            for key in keys:
                if other.owns(key):
                    raise InvariantError(
                        "11.4 (one owner)",
                        f"{member.name} has {key}, and so has {other.name}, {other.epoch}, until {other.until_ms}",
                    )
        self.taken += len(keys)

    def refused_its_own(self, member: Member, key: PartitionKey) -> None:
        if member.owns(key) and member.member_id not in self.overstayed:
            raise InvariantError("11.4 (one owner)", f"{member.name} has {key}: its commit is refused as another's")

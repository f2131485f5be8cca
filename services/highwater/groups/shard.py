"""The groups of one partition of `__consumer_offsets`: requests, time and topics in, records and answers out. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from highwater.errors import ErrorCode
from highwater.groups.config import GroupConfig
from highwater.groups.deadlines import Deadlines
from highwater.groups.group import Group
from highwater.groups.member import NOTHING
from highwater.groups.membership import Membership
from highwater.groups.offsets import Offsets
from highwater.groups.reconciliation import Reconciliation
from highwater.groups.records.values import MemberState
from highwater.groups.requests import (
    AlterOffsets,
    Answer,
    CommitAnswer,
    CommitOffsets,
    DeleteAnswer,
    DeleteGroup,
    DeleteOffsets,
    DescribedMember,
    DescribeGroup,
    FetchAnswer,
    FetchOffsets,
    GroupDescription,
    GroupState,
    Heartbeat,
    ListAnswer,
    ListedGroup,
    ListGroups,
    Outcome,
    Refusal,
    Request,
    SessionAnswer,
)
from highwater.groups.sessions import Sessions, Timer, TimerKey
from highwater.groups.state import ShardState
from highwater.groups.topics import TopicImage
from highwater.groups.validity import check_group_id, check_heartbeat

LISTED_AT_ONCE = 500


class GroupShard:
    """Replays first, starts then, and is asked after that. Everything that an outcome's answer says rests on records up
    to the one that it names: it is not to be told before they are committed (RULES 11.2)."""

    def __init__(self, image: TopicImage, config: GroupConfig | None = None) -> None:
        self._config = config or GroupConfig()
        self._timers: Deadlines[TimerKey] = Deadlines()
        self.state = ShardState()
        self._sessions = Sessions(self._timers, self._config.session_timeout_ms)
        self._reconciliation = Reconciliation(self.state, self._sessions, image, self._config)
        self._membership = Membership(self.state, self._sessions, self._reconciliation, image, self._config)
        self._offsets = Offsets(self.state, self._sessions, self._timers, image, self._config)
        self._image = image
        self._being_deleted: set[str] = set()

    # Loading

    def replay(self, key: bytes, value: bytes | None, timestamp_ms: int) -> None:
        """Takes a record of the log, in the log's order, up to the high watermark or beyond. Only before `start`.
        Records of transactions that were not committed are not to be given. Raises `UnreadableRecordError`."""
        self.state.replay(key, value, timestamp_ms)

    def start(self, now_ms: int) -> Iterator[None]:
        """Starts the timers, one group at each step: the caller pauses when it likes. Until the last step the shard has
        no outcomes. Sessions count from now, as members had nobody to speak to; or from when the coordinator before
        has fallen silent for sure (RULES 11.12)."""
        self._sessions.begin_numbers(now_ms)
        for group in list(self.state.groups.values()):
            if group.members:
                self._reconciliation.loaded(group.group_id)
            for member in group.members.values():
                self._sessions.open(group.group_id, member.member_id, now_ms + self._config.handover_ms)
                if member.current.state is MemberState.UNREVOKED_PARTITIONS:
                    until_ms = now_ms + max(member.subscription.rebalance_timeout_ms, 1)
                    self._sessions.await_member(group.group_id, member.member_id, until_ms)
            self._watch_offsets(group, now_ms)
            yield

    # Events

    def handle(self, request: Request, now_ms: int) -> Outcome:
        """Answers a request, or begins to (`Outcome.rest`). It never waits: what is to wait is told by the outcome's
        `after`."""
        if isinstance(request, ListGroups):
            return _first_of(self._list(request))
        refusal = check_group_id(request.group)
        if refusal is None and isinstance(request, Heartbeat):
            refusal = check_heartbeat(request)
        if refusal is None and request.group in self._being_deleted:
            refusal = Refusal(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"group {request.group!r} is being deleted: try again"
            )
        if refusal is not None:
            return Outcome(answer=_refusing(request, refusal))
        if isinstance(request, DeleteGroup):
            return _first_of(self._delete_group(request, now_ms))
        return self._outcome(request.group, self._answer(request, now_ms), now_ms, request)

    def tick(self, now_ms: int) -> Iterator[Outcome]:
        """Does what is due at the time given, one thing or a part of it at each step. Requests may be handled between
        two steps."""
        while (due := self._timers.pop_due(now_ms)) is not None:
            match due.timer:
                case Timer.SESSION:
                    self._membership.session_over(due.group, due.member_id, now_ms)
                case Timer.REBALANCE:
                    self._membership.rebalance_over(due.group, due.member_id, now_ms)
                case Timer.OFFSETS:
                    for _ in self._offsets.expire(due.group, now_ms):
                        yield self._outcome(due.group, None, now_ms)
            yield self._outcome(due.group, None, now_ms)

    def next_due_ms(self) -> int | None:
        """The time to call `tick` next; nothing is due before. None: nothing ever is, as it is now."""
        return self._timers.next_ms()

    def topics_changed(self, names: Iterable[str], now_ms: int) -> Iterator[Outcome]:
        """Takes up changes that the image has already: topics that came, grew, moved, or were deleted, whose offsets
        are removed. One group at each step, or a part of its offsets; the caller may handle requests between two steps,
        and may begin again with the same names: what is done is not done twice."""
        changed = set(names)
        affected = set(self.state.with_patterns)
        for by_topic in (self.state.subscribed, self.state.committed):
            affected.update(*(by_topic.get(name, ()) for name in changed))
        for group_id in sorted(affected):
            group = self.state.groups.get(group_id)
            if group is None:
                continue
            if not changed.isdisjoint(group.offset_topics):
                for _ in self._offsets.remove_gone(group, changed, now_ms):
                    yield self._outcome(group_id, None, now_ms)
            group = self.state.groups.get(group_id)
            if group is not None and self._reconciliation.topics_changed(group, changed, now_ms):
                self._reconciliation.reconcile_all(group, now_ms)
            yield self._outcome(group_id, None, now_ms)  # mostly of nothing: to find that out takes time, too

    def topics_known(self, now_ms: int) -> Iterator[Outcome]:
        """To be called once all topics that offsets may have been committed of are in the image: removes those of
        others, in steps as `topics_changed`."""
        for group_id in list(self.state.groups):
            group = self.state.groups.get(group_id)
            if group is None:
                continue
            for _ in self._offsets.remove_unknown(group, now_ms):
                yield self._outcome(group_id, None, now_ms)
            yield self._outcome(group_id, None, now_ms)

    # Answers

    def _answer(self, request: Request, now_ms: int) -> Answer | None:
        match request:
            case Heartbeat():
                return self._membership.heard(request, now_ms)
            case CommitOffsets():
                return self._offsets.commit(request, now_ms)
            case FetchOffsets():
                return self._offsets.fetch(request)
            case AlterOffsets():
                return self._offsets.alter(request, now_ms)
            case DeleteOffsets():
                return self._offsets.delete(request, now_ms)
            case DescribeGroup():
                return self._describe(request)
        raise AssertionError(f"{request!r} is no request")

    def _outcome(self, group_id: str, answer: Answer | None, now_ms: int, request: Request | None = None) -> Outcome:
        pushes = self._reconciliation.take_pushes()
        if isinstance(request, Heartbeat):
            own = pushes.pop(request.member_id, None)
            if own is not None and answer is None:
                answer = own.answer
        records = self.state.take_records()
        if records:
            group = self.state.groups.get(group_id)
            if group is not None and not group.members and self._timers.get(TimerKey(Timer.OFFSETS, group_id)) is None:
                self._watch_offsets(group, now_ms)
        return Outcome(records, answer, tuple(pushes.values()), self.state.last_record_of(group_id))

    def _watch_offsets(self, group: Group, now_ms: int) -> None:
        due_ms = self._offsets.first_expiry_ms(group, now_ms)
        if due_ms is not None:
            self._offsets.watch(group.group_id, max(due_ms, now_ms + self._config.retention_check_interval_ms))

    def _delete_group(self, request: DeleteGroup, now_ms: int) -> Iterator[Outcome]:
        group_id = request.group
        refusal = self._offsets.check_deletion(request)
        if refusal is None:
            self._being_deleted.add(group_id)
            for _ in self._offsets.delete_group(group_id, now_ms):
                yield self._outcome(group_id, None, now_ms)
            self._being_deleted.remove(group_id)
        yield self._outcome(group_id, DeleteAnswer(refusal), now_ms)

    def _list(self, request: ListGroups) -> Iterator[Outcome]:
        found = []
        for number, group in enumerate(list(self.state.groups.values()), 1):
            if not group.is_void:  # one that was removed between two steps is
                listed = ListedGroup(group.group_id, group.state, len(group.members))
                if not request.states or listed.state in request.states:
                    found.append(listed)
            if number % LISTED_AT_ONCE == 0:
                yield Outcome()
        yield Outcome(answer=ListAnswer(tuple(found)), after=self.state.emitted)

    def _describe(self, request: DescribeGroup) -> GroupDescription:
        group = self.state.groups.get(request.group)
        if group is None or group.is_void:
            refusal = Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {request.group!r}")
            return GroupDescription(request.group, GroupState.DEAD, error=refusal)
        members = tuple(
            DescribedMember(
                member_id,
                member.subscription.instance_id,
                member.subscription.client_id,
                member.subscription.client_host,
                member.subscription.rack,
                member.current.epoch,
                member.current.state,
                member.subscription.topics,
                member.subscription.pattern,
                member.current.assigned,
                member.current.revoking,
                group.targets.get(member_id, NOTHING),
            )
            for member_id, member in sorted(group.members.items())
        )
        return GroupDescription(
            request.group,
            group.state,
            group.epoch,
            group.target_epoch,
            group.assignor(self._config.assignor),
            members,
            dict(group.offsets) if request.include_offsets else {},
        )


def _first_of(steps: Iterator[Outcome]) -> Outcome:
    first = next(steps)
    return first if first.answer is not None else replace(first, rest=steps)


def _refusing(request: Request, refusal: Refusal) -> Answer:
    match request:
        case Heartbeat():
            return SessionAnswer(error=refusal)
        case CommitOffsets() | AlterOffsets():
            return CommitAnswer(refusal)
        case FetchOffsets():
            return FetchAnswer(refusal)
        case DescribeGroup():
            return GroupDescription(request.group, GroupState.DEAD, error=refusal)
        case _:
            return DeleteAnswer(refusal)

"""Joining, staying and leaving: what a word of a member does, and a silence (RULES 11.3 to 11.7)."""

from __future__ import annotations

from dataclasses import replace

from highwater.errors import ErrorCode
from highwater.groups.config import GroupConfig
from highwater.groups.group import Group
from highwater.groups.member import NEW, NO_SUBSCRIPTION, NOTHING, Member
from highwater.groups.reconciliation import Reconciliation
from highwater.groups.records.keys import CurrentAssignmentKey, MemberSubscriptionKey, TargetAssignmentKey
from highwater.groups.records.values import MemberState, MemberSubscriptionValue, TargetAssignmentValue
from highwater.groups.requests import (
    JOINING,
    LEAVING,
    LEAVING_STATIC,
    Heartbeat,
    Partitions,
    Push,
    Refusal,
    SessionAnswer,
    Subscription,
)
from highwater.groups.sessions import Sessions
from highwater.groups.state import ShardState
from highwater.groups.topics import TopicImage
from highwater.groups.validity import check_names_of, check_pattern_of


class Membership:
    """Decides on the words of members. An answer that is None: there is nothing to say, or `Reconciliation` has it as
    a push to the member that spoke."""

    def __init__(
        self,
        state: ShardState,
        sessions: Sessions,
        reconciliation: Reconciliation,
        image: TopicImage,
        config: GroupConfig,
    ) -> None:
        self._state = state
        self._image = image
        self._sessions = sessions
        self._reconciliation = reconciliation
        self._config = config

    def heard(self, request: Heartbeat, now_ms: int) -> SessionAnswer | None:
        if request.member_epoch == JOINING:
            return self._join(request, now_ms)
        group = self._state.groups.get(request.group)
        member = group.members.get(request.member_id) if group else None
        if group is not None and group.instances.get(request.instance_id, request.member_id) != request.member_id:
            return _refused(
                ErrorCode.FENCED_INSTANCE_ID,
                f"the instance id {request.instance_id!r} is another member's than {request.member_id!r} now",
            )
        if group is None or member is None:
            return _refused(
                ErrorCode.UNKNOWN_MEMBER_ID, f"group {request.group!r} has no member {request.member_id!r}: join again"
            )
        if request.member_epoch in (LEAVING, LEAVING_STATIC):
            return self._leave(group, member, request.member_epoch, now_ms)
        return self._stay(group, member, request, now_ms)

    # Joining

    def _join(self, request: Heartbeat, now_ms: int) -> SessionAnswer | None:
        subscription = request.subscription
        if subscription is None or not (subscription.topics or subscription.pattern):
            return _refused(ErrorCode.INVALID_REQUEST, "a member that joins subscribes to topics, or to a pattern")
        if request.owned:
            return _refused(ErrorCode.INVALID_REQUEST, "a member that joins owns no partitions: let go of them first")
        group = self._state.groups.get(request.group)
        members = group.members if group else {}
        former = None
        if group and request.instance_id:
            holder = group.instances.get(request.instance_id, request.member_id)
            if holder != request.member_id:
                former = members[holder]
                if former.current.epoch != LEAVING_STATIC:
                    return _refused(
                        ErrorCode.UNRELEASED_INSTANCE_ID,
                        f"the instance id {request.instance_id!r} is that of member {holder!r}, which has not left",
                    )
        if request.member_id not in members and former is None and len(members) >= self._config.max_size:
            return _refused(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"group {request.group!r} has {len(members)} members (group.consumer.max.size)",
            )
        known = members.get(request.member_id)
        before = known or former
        replaced = before.subscription if before else NO_SUBSCRIPTION
        refusal = check_pattern_of(group, self._image, subscription.pattern, replaced.pattern)
        refusal = refusal or check_names_of(group, subscription.topics, replaced.topics)
        if refusal is not None:
            return SessionAnswer(error=refusal)
        value = _subscription_value(subscription, request.instance_id, request.client_host)
        changed = known is None or _matters(known.subscription, value)
        if known is None and former is not None:
            assert group is not None
            self._replace(group, former, request.member_id, value, now_ms)
            changed = _matters(former.subscription, value)
        elif known is not None and former is not None:
            # The member takes over the instance id of one that is away: that one is gone for good.
            assert group is not None
            self._remove(group, former, now_ms)
            changed = True
        if known is None or known.subscription != value:
            self._state.emit(MemberSubscriptionKey(request.group, request.member_id), value, now_ms)
        group = self._state.groups[request.group]
        session = self._sessions.open(request.group, request.member_id, now_ms)
        session.acknowledged = True  # it has nothing, and so nothing to hear of first
        self._sessions.relieve(request.group, request.member_id)
        self._carry_on(group, request.member_id, NOTHING, changed, now_ms)
        if session.acknowledged:
            self._reconciliation.tell(group, request.member_id, now_ms)
        return None

    def _replace(
        self, group: Group, former: Member, member_id: str, value: MemberSubscriptionValue, now_ms: int
    ) -> None:
        """A static member is back under another member id: what it was to have, and what is kept for it, is the new
        one's (RULES 11.7)."""
        target = group.targets.get(former.member_id, NOTHING)
        current = replace(NEW, assigned=former.current.assigned)
        self._remove(group, former, now_ms)
        self._state.emit(MemberSubscriptionKey(group.group_id, member_id), value, now_ms)
        self._state.emit(TargetAssignmentKey(group.group_id, member_id), TargetAssignmentValue(target), now_ms)
        self._state.emit(CurrentAssignmentKey(group.group_id, member_id), current, now_ms)

    # Staying

    def _stay(self, group: Group, member: Member, request: Heartbeat, now_ms: int) -> SessionAnswer | None:
        session = self._sessions.get(group.group_id, member.member_id) or self._sessions.open(
            group.group_id, member.member_id, now_ms
        )
        current = member.current
        crossed = request.member_epoch == current.previous_epoch and not session.acknowledged
        if current.epoch <= 0 or (request.member_epoch != current.epoch and not crossed):
            return _refused(
                ErrorCode.FENCED_MEMBER_EPOCH,
                f"member {member.member_id!r} is at epoch {current.epoch}, not {request.member_epoch}: join again",
            )
        fresh = session.number != 0 and request.seen_assignment == session.number
        if fresh and request.owned is not None and not request.owned <= member.held:
            self._fence(group, member, "it has partitions that are not its own", now_ms)
            return None
        changed = False
        if request.subscription is not None:
            value = _subscription_value(
                request.subscription, member.subscription.instance_id, member.subscription.client_host
            )
            if not (value.topics or value.pattern):
                return _refused(ErrorCode.INVALID_REQUEST, "a member subscribes to topics, or to a pattern")
            refusal = check_pattern_of(group, self._image, value.pattern, member.subscription.pattern)
            refusal = refusal or check_names_of(group, value.topics, member.subscription.topics)
            if refusal is not None:
                return SessionAnswer(error=refusal)
            if value != member.subscription:
                self._state.emit(MemberSubscriptionKey(group.group_id, member.member_id), value, now_ms)
                changed = _matters(member.subscription, value)
        self._sessions.touch(group.group_id, member.member_id, now_ms)
        resumes = request.seen_assignment == 0  # what was sent on another stream may never have come
        heard = fresh and not session.acknowledged
        if resumes:
            session.acknowledged = False
        elif heard:
            session.acknowledged = True
            self._reconciliation.acknowledged(group, member)
        owned = request.owned if fresh else None
        self._carry_on(group, member.member_id, owned, changed, now_ms, heard or owned is not None)
        if resumes:
            self._reconciliation.tell(group, member.member_id, now_ms)
        return None

    def _carry_on(
        self, group: Group, member_id: str, owned: Partitions | None, changed: bool, now_ms: int, moves: bool = True
    ) -> None:
        """Lets the group take what was said: a plain sign of life costs nothing more than this."""
        if changed:
            self._reconciliation.raise_epoch(group, now_ms)
        retargeted = self._reconciliation.catch_up(group, now_ms) or changed
        if moves or retargeted:
            self._reconciliation.reconcile(group, member_id, owned, now_ms)
        if retargeted:
            self._reconciliation.reconcile_all(group, now_ms)

    # Leaving

    def _leave(self, group: Group, member: Member, epoch: int, now_ms: int) -> SessionAnswer:
        if epoch == LEAVING:
            self.remove(group, member, now_ms)
            return SessionAnswer(LEAVING)
        if not member.subscription.instance_id:
            return _refused(ErrorCode.INVALID_REQUEST, "a member epoch of -2 is for members with an instance id")
        current = replace(
            member.current,
            epoch=LEAVING_STATIC,
            previous_epoch=member.current.epoch,
            state=MemberState.STABLE,
            revoking=NOTHING,
        )
        if member.current.epoch != LEAVING_STATIC:
            self._state.emit(CurrentAssignmentKey(group.group_id, member.member_id), current, now_ms)
        session = self._sessions.open(group.group_id, member.member_id, now_ms)
        session.acknowledged = False
        self._sessions.relieve(group.group_id, member.member_id)
        self._reconciliation.released(group, member.current.revoking, now_ms)
        return SessionAnswer(LEAVING_STATIC)

    def session_over(self, group_id: str, member_id: str, now_ms: int) -> None:
        self._time_out(group_id, member_id, "it has given no sign of life for its session timeout", now_ms)

    def rebalance_over(self, group_id: str, member_id: str, now_ms: int) -> None:
        self._time_out(group_id, member_id, "it has not taken its assignment within its rebalance timeout", now_ms)

    def _time_out(self, group_id: str, member_id: str, why: str, now_ms: int) -> None:
        group = self._state.groups.get(group_id)
        member = group.members.get(member_id) if group else None
        if group is not None and member is not None:
            self._fence(group, member, why, now_ms)

    def _fence(self, group: Group, member: Member, why: str, now_ms: int) -> None:
        self.remove(group, member, now_ms)
        refusal = Refusal(
            ErrorCode.FENCED_MEMBER_EPOCH, f"member {member.member_id!r} was removed from its group: {why}"
        )
        self._reconciliation.push(Push(group.group_id, member.member_id, SessionAnswer(error=refusal)))

    def remove(self, group: Group, member: Member, now_ms: int) -> None:
        """The member is out, and its partitions are the others'."""
        self._remove(group, member, now_ms)
        self._reconciliation.raise_epoch(group, now_ms)
        self._reconciliation.reconcile_all(group, now_ms)

    def _remove(self, group: Group, member: Member, now_ms: int) -> None:
        self._sessions.close(group.group_id, member.member_id)
        self._state.emit(CurrentAssignmentKey(group.group_id, member.member_id), None, now_ms)
        self._state.emit(TargetAssignmentKey(group.group_id, member.member_id), None, now_ms)
        self._state.emit(MemberSubscriptionKey(group.group_id, member.member_id), None, now_ms)


def _matters(before: MemberSubscriptionValue, after: MemberSubscriptionValue) -> bool:
    """Tells whether the assignment may have to be another one."""
    return replace(before, client_id="", client_host="", rebalance_timeout_ms=0) != replace(
        after, client_id="", client_host="", rebalance_timeout_ms=0
    )


def _subscription_value(subscription: Subscription, instance_id: str, client_host: str) -> MemberSubscriptionValue:
    return MemberSubscriptionValue(
        instance_id,
        subscription.rack,
        subscription.client_id,
        client_host,
        subscription.topics,
        subscription.pattern,
        subscription.rebalance_timeout_ms,
        subscription.assignor,
    )


def _refused(code: ErrorCode, message: str) -> SessionAnswer:
    return SessionAnswer(error=Refusal(code, message))

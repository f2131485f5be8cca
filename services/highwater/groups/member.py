"""A member of a group, as its records have it, and the next step towards its target assignment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from highwater.groups.records.values import CurrentAssignmentValue, MemberState, MemberSubscriptionValue
from highwater.groups.requests import Partitions
from highwater.model.partition import PartitionKey

NOTHING: Partitions = frozenset()
NO_SUBSCRIPTION = MemberSubscriptionValue("", "", "", "", frozenset(), "", 0, "")
NEW = CurrentAssignmentValue(0, 0, MemberState.STABLE, NOTHING, NOTHING)


@dataclass(frozen=True, slots=True)
class Member:
    """Partitions that are `assigned` or `revoking` are the member's, and no other member's; the two are disjoint.
    `revoking` is empty but in UNREVOKED_PARTITIONS."""

    member_id: str
    subscription: MemberSubscriptionValue = NO_SUBSCRIPTION
    current: CurrentAssignmentValue = NEW

    @property
    def held(self) -> Partitions:
        return self.current.assigned | self.current.revoking if self.current.revoking else self.current.assigned


def next_assignment(
    member: Member,
    target: Partitions,
    target_epoch: int,
    owners: Mapping[PartitionKey, str],
    owned: Partitions | None,
) -> CurrentAssignmentValue:
    """Tells where the member goes from where it is (RULES 11.4): the same value where it cannot move.

    `owned` is what the member says that it has now; None: it says nothing, and is taken to have all that it was given.
    """
    now = member.current
    if now.state is MemberState.STABLE and now.epoch == target_epoch:
        return now
    if now.revoking and (owned is None or now.revoking & owned):
        return now  # it has not given up what it was told to
    kept = now.assigned & target
    revoke = now.assigned - kept
    if revoke and (owned is None or revoke & owned):
        # It stays in its epoch until it has given them up: whoever waits for them sees that it has them.
        return replace(
            now, previous_epoch=now.epoch, state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, revoking=revoke
        )
    wanted = target - kept
    free = frozenset(key for key in wanted if owners.get(key, member.member_id) == member.member_id)
    state = MemberState.STABLE if len(free) == len(wanted) else MemberState.UNRELEASED_PARTITIONS
    moved = CurrentAssignmentValue(target_epoch, now.epoch, state, kept | free if free else kept, NOTHING)
    return now if replace(moved, previous_epoch=now.previous_epoch) == now else moved

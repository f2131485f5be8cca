"""The fence of a log: which leader epoch, in which role, may write to it (RULES 3.1). Pure;
`files/fence_journal.py` keeps it on disk."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from highwater.errors import ErrorCode
from highwater.model.fence_role import Role
from highwater.model.leader_epochs import NO_EPOCH


class FenceVerdict(Enum):
    RAISED = "raised"  # the proposed fence takes the place of the present one, on disk before the answer
    UNCHANGED = "unchanged"  # equal and accepted: nothing to write
    REFUSED = "refused"  # STALE_FENCE


@dataclass(frozen=True, slots=True)
class Fence:
    leader_epoch: int
    role: Role
    # Random ids of the starts that set it. For FOLLOWER the first is empty.
    replica_manager_incarnation: str
    log_storage_incarnation: str
    # For FOLLOWER: the last leader epoch that this log was fenced to lead under before; NO_EPOCH: none; None: a version
    # that did not keep it wrote the fence. No part of what a fence admits or refuses.
    led_before: int | None = field(default=NO_EPOCH, compare=False)
    # Not for a fence to lead, where the log has lost something since.
    whole: bool = field(default=True, compare=False)

    @property
    def last_led_epoch(self) -> int | None:
        """The last leader epoch that this log was fenced to lead under (RULES 7.9); NO_EPOCH: none; None: not known, or
        the log has not all any more that it had then."""
        if self.role is Role.LEADER:
            return self.leader_epoch if self.whole else None
        return self.led_before

    @property
    def after_loss(self) -> Fence:
        """This fence of a log that has lost its tail, or what was damaged: having led says nothing of it any more."""
        if self.last_led_epoch in (None, NO_EPOCH):
            return self
        return replace(self, whole=False) if self.role is Role.LEADER else replace(self, led_before=None)

    def after(self, current: Fence | None) -> Fence:
        """This fence as it takes the place of `current`, of which it keeps what the log has led."""
        return self if current is None else replace(self, led_before=current.last_led_epoch)

    def admits(self, role: Role, leader_epoch: int, log_storage_incarnation: str) -> ErrorCode:
        """Tells whether a write under this role and leader epoch may go on: NONE or STALE_FENCE. A fence to lead that
        an earlier start of log-storage set admits nothing: an epoch's records have one author (RULES 3.5)."""
        if leader_epoch != self.leader_epoch or role is not self.role:
            return ErrorCode.STALE_FENCE
        if role is Role.LEADER and log_storage_incarnation != self.log_storage_incarnation:
            return ErrorCode.STALE_FENCE
        return ErrorCode.NONE


def propose(current: Fence | None, proposed: Fence) -> FenceVerdict:
    """A fence is only ever raised (RULES 3.1): a lower epoch is refused, an equal one too where the role differs, or
    where it is to lead and an incarnation differs."""
    if current is None or proposed.leader_epoch > current.leader_epoch:
        return FenceVerdict.RAISED
    if proposed.leader_epoch < current.leader_epoch or proposed.role is not current.role:
        return FenceVerdict.REFUSED
    if proposed.role is Role.LEADER and proposed != current:
        return FenceVerdict.REFUSED
    return FenceVerdict.UNCHANGED


def admission(fence: Fence | None, role: Role, leader_epoch: int, log_storage_incarnation: str) -> ErrorCode:
    """`Fence.admits`, and UNKNOWN_FENCE for a log without a fence: it takes no writes."""
    if fence is None:
        return ErrorCode.UNKNOWN_FENCE
    return fence.admits(role, leader_epoch, log_storage_incarnation)

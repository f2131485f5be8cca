"""One replica as the controller knows it: whether its broker serves the partition, and where its log ends. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from highwater.controller.state_machines.actions import InstructionAnswer
from highwater.controller.state_machines.election import LogTail
from highwater.errors import ErrorCode
from highwater.model.leader_epochs import NO_EPOCH


class ReplicaStatus(Enum):
    NEW = "new"  # has not answered an instruction yet
    ONLINE = "online"  # answered its last instruction without error
    OFFLINE = "offline"  # a storage error, or no answer for too long: not live for this partition (RULES 7.7)
    LOG_DAMAGED = "log damaged"  # the same; and part of its log is to be dropped and copied anew (RULES 7.6)
    LOG_OFFLINE = "log offline"  # the same, and it says that its log is lost to it: it copies nothing either


@dataclass(slots=True)
class ReplicaStateMachine:
    """One (partition, broker). `answered_epoch` and `tail` belong to the broker epoch; not being live outlives a
    restart, until an instruction is answered without error."""

    broker_id: int
    broker_epoch: int = 0
    status: ReplicaStatus = ReplicaStatus.NEW
    answered_epoch: int = NO_EPOCH  # leader epoch of the last instruction that it answered without error
    tail: LogTail | None = None  # as answered under `answered_epoch`
    kept_damaged: bool = False  # serves, and its log is damaged: what the ISR cannot spare is not mended (RULES 7.6)

    def answered(self, broker_epoch: int, answer: InstructionAnswer) -> bool:
        """Takes an answer to LeaderAndIsr; returns whether an election may depend on what it changed."""
        if broker_epoch != self.broker_epoch:
            self._restarted(broker_epoch)
        if answer.error is ErrorCode.LOG_STORAGE_ERROR:
            damaged = ReplicaStatus.LOG_DAMAGED if answer.log_damaged else ReplicaStatus.OFFLINE
            return self._become(ReplicaStatus.LOG_OFFLINE if answer.log_offline else damaged)
        if answer.error is not ErrorCode.NONE:
            # It knows a newer state than it was told, or is not ready: it will be told again, and if that goes on
            # for too long `unanswered` follows.
            return False
        if answer.leader_epoch < self.answered_epoch:
            return False
        news = answer.tail is not None and (answer.leader_epoch, answer.tail) != (self.answered_epoch, self.tail)
        self.answered_epoch = answer.leader_epoch
        self.tail = answer.tail
        news |= answer.log_damaged is not self.kept_damaged
        self.kept_damaged = answer.log_damaged
        return self._become(ReplicaStatus.ONLINE) or news

    def unanswered(self) -> bool:
        """No answer to LeaderAndIsr for 5 s (RULES 7.7)."""
        return self.live and self._become(ReplicaStatus.OFFLINE)

    @property
    def live(self) -> bool:
        """RULES 7.7, as far as is known."""
        return self.status not in (ReplicaStatus.OFFLINE, ReplicaStatus.LOG_OFFLINE, ReplicaStatus.LOG_DAMAGED)

    def serves(self, broker_epoch: int, leader_epoch: int) -> bool:
        """Tells whether this registration has answered for this leader epoch without error."""
        return (
            self.status is ReplicaStatus.ONLINE
            and self.broker_epoch == broker_epoch
            and self.answered_epoch == leader_epoch
        )

    def tail_at(self, broker_epoch: int | None, leader_epoch: int) -> LogTail | None:
        """The end of its log, where it was read under this registration and this leader epoch: then nothing has been
        written to it since, as a leaderless epoch has no author (RULES 7.4)."""
        return self.tail if (self.broker_epoch, self.answered_epoch) == (broker_epoch, leader_epoch) else None

    def _restarted(self, broker_epoch: int) -> None:
        self.broker_epoch = broker_epoch
        self.answered_epoch = NO_EPOCH
        self.tail = None
        if self.status is ReplicaStatus.ONLINE:
            self.status = ReplicaStatus.NEW

    def _become(self, status: ReplicaStatus) -> bool:
        """Tells whether an election may depend on the change."""
        was, was_live = self.status, self.live
        self.status = status
        return status is not was and not (was_live and self.live)

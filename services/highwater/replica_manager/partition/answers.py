"""A partition's answers to produces, consumers and lookups of offsets, as it stands: nothing is changed by asking.

Pure. The numbers in this file are RULES'.
"""

from __future__ import annotations

from highwater.errors import ErrorCode
from highwater.replica_manager.partition.actions import DivergingEpoch
from highwater.replica_manager.partition.partition import Partition, Phase

ACKS_ALL = -1
ACKS = frozenset({0, 1, ACKS_ALL})


def produce_admission(partition: Partition, acks: int) -> ErrorCode:
    """NONE where an append may be handed to log-storage now (5.3). A duplicate passes the same check (6.1)."""
    if acks not in ACKS:
        return ErrorCode.INVALID_REQUIRED_ACKS
    leadership = partition.leadership
    if leadership is None:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    if partition.phase is Phase.SETTLING:
        return ErrorCode.LOG_STORAGE_ERROR
    if acks == ACKS_ALL and not leadership.enough_certain_replicas:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return ErrorCode.NONE


def produce_outcome(partition: Partition, leader_epoch: int, required_offset: int) -> ErrorCode | None:
    """The outcome of an `acks=all` produce appended under `leader_epoch` whose last record is at `required_offset` - 1
    (a duplicate's old one, 6.1); None: wait on. Whoever waits is failed by `LeadershipInterrupted`: after an append of
    unknown outcome the same epoch may lead on (3.4), and this would not know of the interruption (5.4)."""
    leadership = partition.leadership
    if leadership is None or partition.phase is not Phase.LEADER or leader_epoch != leadership.leader_epoch:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    if leadership.high_watermark < required_offset:
        return None
    if not leadership.enough_committed_replicas:
        return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    return ErrorCode.NONE


def check_client_epoch(partition: Partition, leader_epoch: int) -> ErrorCode:
    """Checks the epoch of a consumer's Fetch or ListOffsets; -1: the client does not know it (5.7)."""
    if leader_epoch >= 0 and leader_epoch != partition.leader_epoch:
        lower = leader_epoch < partition.leader_epoch
        return ErrorCode.FENCED_LEADER_EPOCH if lower else ErrorCode.UNKNOWN_LEADER_EPOCH
    return ErrorCode.NONE if partition.leadership is not None else ErrorCode.NOT_LEADER_OR_FOLLOWER


def check_consumer_fetch(partition: Partition, leader_epoch: int, fetch_offset: int) -> ErrorCode:
    """Checks where a consumer reads. It is given what lies below the high watermark (invariant 3); between that and
    the log end there is nothing to read, and no error (5.7)."""
    error = check_client_epoch(partition, leader_epoch)
    if error is ErrorCode.NONE and not partition.log_start_offset <= fetch_offset <= partition.log_end_offset:
        return ErrorCode.OFFSET_OUT_OF_RANGE
    return error


def latest_for_consumer(partition: Partition) -> int | ErrorCode:
    """`latest`, or OFFSET_NOT_AVAILABLE: after an election the high watermark may be behind what an earlier leader had
    shown (5.7)."""
    leadership = partition.leadership
    if leadership is None:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    known = leadership.high_watermark >= leadership.epoch_start
    return leadership.high_watermark if known else ErrorCode.OFFSET_NOT_AVAILABLE


def end_offset_for_epoch(partition: Partition, leader_epoch: int) -> DivergingEpoch:
    """OffsetForLeaderEpoch: the largest epoch at or below `leader_epoch` and its end (4.3); (-1, -1): none, or this
    broker does not lead."""
    leadership = partition.leadership
    if leadership is None:
        return DivergingEpoch(-1, -1)
    end = leadership.epochs.end_offset_for(leader_epoch, leadership.log_end_offset)
    return DivergingEpoch(end.leader_epoch, end.end_offset)

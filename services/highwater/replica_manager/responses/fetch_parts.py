"""The parts of a fetch: what is asked of each partition, and the answer about it before anything is read.

Who asks says how far may be read: replicas to the log end, consumers below the high watermark, the debug role anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from highwater.errors import ErrorCode
from highwater.model.partition import PartitionKey
from highwater.replica_manager.partition.actions import DivergingEpoch, FetchVerdict
from highwater.replica_manager.partition.answers import check_consumer_fetch
from highwater.replica_manager.partition.partition import Partition
from highwater.rpc.embedding import Piece
from highwater.security.access import Access
from highwater.security.acls import Operation

NO_PIECES: tuple[Piece, ...] = ()
NOTHING = -1 << 62
UNBOUNDED = 1 << 62


class FetchRole(Enum):
    REPLICA = "replica"
    CONSUMER = "consumer"
    DEBUG = "debug"  # any replica, any offset (RULES 5.7)


class FetchPart(NamedTuple):
    key: PartitionKey
    leader_epoch: int
    fetch_offset: int
    max_bytes: int
    acked_offset: int = -1  # the last three: replicas only (RULES 4.1)
    last_epoch: int = -1
    log_start_offset: int = -1


@dataclass(slots=True)
class FetchedPart:
    """The answer about one partition. Offsets and epochs are -1 where they are not told; `leader` and `leader_epoch`
    tell where to go instead."""

    key: PartitionKey
    error: ErrorCode = ErrorCode.NONE
    message: str = ""
    high_watermark: int = -1
    log_start_offset: int = -1
    log_end_offset: int = -1
    pieces: Sequence[Piece] = NO_PIECES  # whole batches, in order
    diverging: DivergingEpoch | None = None
    leader: int = -1
    leader_epoch: int = -1
    readable_end: int = NOTHING  # whoever asks may read up to there: nothing, where that is not above the fetch offset
    awaited: bool = False  # by the high watermark, of a replica that throttles itself (RULES 4.14)


def read_refusal(key: PartitionKey, access: Access) -> FetchedPart | None:
    """The answer to a consumer that may not read the topic; None: it may."""
    error = access.topic_error(Operation.READ, key.topic_id)
    if error is ErrorCode.NONE:
        return None
    return FetchedPart(key, error, access.topic_refusal(Operation.READ, key.topic_id))


def for_replica(part: FetchPart, partition: Partition, verdict: FetchVerdict) -> FetchedPart:
    if verdict.error is not ErrorCode.NONE or verdict.diverging is not None:
        return FetchedPart(
            part.key,
            verdict.error,
            "",
            verdict.high_watermark,
            verdict.log_start_offset,
            verdict.log_end_offset,
            diverging=verdict.diverging,
        )
    if partition.leadership is None or partition.leader_epoch != part.leader_epoch:
        return FetchedPart(part.key, ErrorCode.NOT_LEADER_OR_FOLLOWER)  # leadership ended while the request waited
    # RULES 4.6: as they are now, not as they were when the request came in.
    end = partition.log_end_offset
    return FetchedPart(
        part.key,
        ErrorCode.NONE,
        "",
        partition.high_watermark,
        partition.log_start_offset,
        end,
        readable_end=end,
    )


def for_consumer(part: FetchPart, partition: Partition) -> FetchedPart:
    error = check_consumer_fetch(partition, part.leader_epoch, part.fetch_offset)
    message = ""
    if error is ErrorCode.OFFSET_OUT_OF_RANGE:
        message = (
            f"offset {part.fetch_offset} is not between the log start {partition.log_start_offset} and the "
            "log end: seek to an offset that exists"
        )
    high_watermark = partition.high_watermark
    return FetchedPart(
        part.key,
        error,
        message,
        high_watermark,
        partition.log_start_offset,
        readable_end=high_watermark if error is ErrorCode.NONE else NOTHING,  # RULES 5.7
    )


def for_debug(part: FetchPart, partition: Partition) -> FetchedPart:
    end, start = partition.log_end_offset, partition.log_start_offset
    found = FetchedPart(part.key, ErrorCode.NONE, "", partition.high_watermark, start, end)
    if partition.leadership is None:
        found.readable_end = (
            UNBOUNDED  # a follower's log is known to log-storage alone, which refuses what is not there
        )
    elif start <= part.fetch_offset <= end:
        found.readable_end = end
    else:
        found.error = ErrorCode.OFFSET_OUT_OF_RANGE
    return found

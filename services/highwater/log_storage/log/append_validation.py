"""Checks the batches that a log is given, before anything is written. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from highwater.errors import ErrorCode
from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.producers.producer_states import (
    NO_PRODUCER_ID,
    Duplicate,
    ProducerStates,
    StagedProducers,
)
from highwater.records import BatchHeader, CorruptBatchError, ReadableBuffer, iter_batches, verify
from highwater.records.limits import most_records

BATCHES_AN_APPEND = 1_000  # of a leader to a partition; each takes some ten microseconds in which nothing else runs


class GivenBatch(NamedTuple):
    position: int  # in the records given
    header: BatchHeader

    @property
    def end(self) -> int:
        return self.position + self.header.size_bytes


class NewBatch(NamedTuple):
    """A batch to be written, and the offset it gets (or has)."""

    position: int
    header: BatchHeader
    base_offset: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.header.last_offset_delta


def read_given(records: ReadableBuffer, most: int | None = None) -> list[GivenBatch]:
    """The whole batches of an append, their CRCs checked. Raises `LogError`: CORRUPT_MESSAGE; INVALID_REQUEST where
    there are more than `most`."""
    try:
        batches = [GivenBatch(position, header) for position, header in islice(iter_batches(records), most)]
        if len(batches) == most and batches[-1].end < len(records):
            raise LogError(
                ErrorCode.INVALID_REQUEST,
                f"the append to one partition has more than {most} batches: put more records into each, or send fewer "
                f"batches at once",
            )
        for position, header in batches:
            verify(records, position, header)
    except CorruptBatchError as error:
        raise LogError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
    return batches


def check_produced(header: BatchHeader, config: LogConfig) -> None:
    """Checks what a leader takes from a producer. Raises `LogError` (MESSAGE_TOO_LARGE, INVALID_RECORD,
    CORRUPT_MESSAGE)."""
    if header.size_bytes > config.message_max_bytes:
        raise LogError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {header.size_bytes} bytes, max.message.bytes is {config.message_max_bytes}: send smaller "
            f"batches or raise the limit",
        )
    if header.record_count != header.last_offset_delta + 1 or header.has_offset_deltas:
        raise LogError(
            ErrorCode.INVALID_RECORD,
            f"{header.record_count} records up to offset delta {header.last_offset_delta}: a produced batch has no gap",
        )
    if header.record_count > (most := most_records(header)):
        raise LogError(
            ErrorCode.CORRUPT_MESSAGE,
            f"a batch of {header.size_bytes} bytes claims {header.record_count} records: it can hold {most} at most",
        )
    if header.control or header.transactional:
        raise LogError(ErrorCode.INVALID_RECORD, "transactional and control batches are not supported")


class Numbered(NamedTuple):
    """A leader's append with its offsets. `duplicates` all come before `new`."""

    duplicates: list[Duplicate]
    new: list[NewBatch]
    producers: StagedProducers | None  # after the append, where `new` has several batches; else update the present ones


def number_batches(
    batches: Iterable[GivenBatch], log_end_offset: int, producers: ProducerStates, now_ms: int = 0
) -> Numbered:
    """Assigns offsets from the log end on and sorts out what the log has already (RULES 6.1).

    One append is taken or refused as a whole. Leading batches that are duplicates are skipped, as when a client sends
    an unanswered batch again together with the next; a duplicate behind a new batch is refused
    (DUPLICATE_SEQUENCE_NUMBER), since one range of offsets could not answer for both. A producer for which there is no
    room is refused (OVERLOADED, RULES 6.4). Raises `LogError`.
    """
    duplicates: list[Duplicate] = []
    new: list[NewBatch] = []
    staged: StagedProducers | None = None
    next_offset = log_end_offset
    for position, header in batches:
        if new:
            # The batches before this one count as appended: but only here, until they are.
            if staged is None:
                staged = StagedProducers(producers)
            staged.update(new[-1].header, new[-1].base_offset, now_ms)
        current: ProducerStates | StagedProducers = producers if staged is None else staged
        verdict = current.check(header)
        if isinstance(verdict, Duplicate):
            if new:
                raise LogError(
                    ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
                    f"producer {header.producer_id}: sequence {header.base_sequence} is in the log already, and comes "
                    f"behind a new batch in the same append: send it by itself",
                )
            duplicates.append(verdict)
            continue
        if verdict is not ErrorCode.NONE:
            raise LogError(verdict, _sequence_message(header, current))
        new.append(NewBatch(position, header, next_offset))
        next_offset += header.last_offset_delta + 1
    if staged is not None:
        staged.update(new[-1].header, new[-1].base_offset, now_ms)
    if new:
        met = staged.met.keys() if staged is not None else {new[0].header.producer_id} - {NO_PRODUCER_ID}
        if not producers.admits(met, now_ms):
            raise LogError(
                ErrorCode.OVERLOADED,
                f"the log knows {len(producers)} producers, and none of them that it could forget has been idle for "
                f"{producers.limits.idle_ms} ms: retry after a pause, and do not make a producer for each record",
            )
    return Numbered(duplicates, new, staged)


def _sequence_message(header: BatchHeader, producers: ProducerStates | StagedProducers) -> str:
    state = producers.get(header.producer_id)
    who = f"producer {header.producer_id} epoch {header.producer_epoch} sequence {header.base_sequence}"
    if state is None:
        return f"{who}: the log knows nothing of this producer, so only sequence 0 can begin"
    return f"{who}: the log has its epoch {state.epoch} up to sequence {state.batches[-1].last_sequence}"


def check_replicated(
    batches: Iterable[GivenBatch], log_end_offset: int, last_epoch: int, fenced_epoch: int
) -> list[NewBatch]:
    """A follower's batches continue the log, and their epochs neither decrease nor exceed the fence's. Between batches
    offsets may be missing, where the leader's log was compacted before. Raises `LogError` (OFFSET_MISMATCH,
    CORRUPT_MESSAGE)."""
    expected = log_end_offset
    taken = []
    for position, header in batches:
        if header.base_offset < expected:
            raise LogError(
                ErrorCode.OFFSET_MISMATCH,
                f"a batch begins at offset {header.base_offset}, the log goes on at {expected}",
            )
        epoch = header.partition_leader_epoch
        if not max(last_epoch, 0) <= epoch <= fenced_epoch:
            raise LogError(
                ErrorCode.CORRUPT_MESSAGE,
                f"the batch at offset {header.base_offset} has leader epoch {epoch}: the log has reached "
                f"{last_epoch}, the fence stands at {fenced_epoch}",
            )
        last_epoch = epoch
        taken.append(NewBatch(position, header, header.base_offset))
        expected = header.next_offset
    return taken

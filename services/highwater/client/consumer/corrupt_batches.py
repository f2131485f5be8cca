"""Batches that cannot be read: a reader stops at one, or passes over it where it was told to. No I/O but the log."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Literal, NamedTuple

from highwater.client.exceptions import CorruptRecordError, InvalidRequestError
from highwater.client.topic_partition import TopicPartition
from highwater.telemetry.log import get_logger

if TYPE_CHECKING:
    from highwater.records import BatchHeader

OnCorrupt = Literal["error", "skip"]

REMEDY = 'set on_corrupt to "skip"'

_log = get_logger(__name__)


class PassedOver(NamedTuple):
    """The batches that a reader has passed over, as they cannot be read, and the offsets that they hold, or held before
    compaction."""

    batches: int
    offsets: int


class CorruptBatches:
    """Those that one reader has met. Used from any thread."""

    def __init__(self, on_corrupt: OnCorrupt = "error", remedy: str = REMEDY) -> None:
        """`remedy` says how a user has them passed over. Raises `InvalidRequestError`."""
        if on_corrupt not in ("error", "skip"):
            raise InvalidRequestError(f"on_corrupt is {on_corrupt!r}; it can be error or skip")
        self._skip = on_corrupt == "skip"
        self._remedy = remedy
        self._counting = threading.Lock()
        self._batches = self._offsets = 0

    @property
    def passed_over(self) -> PassedOver:
        return PassedOver(self._batches, self._offsets)

    def met(self, partition: TopicPartition, header: BatchHeader, reason: str, *, trusted: bool) -> None:
        """Counts and tells of one that is passed over; to be called once for each. Raises `CorruptRecordError` where
        the reader is to stop there. Not `trusted`: what the header says of its offsets may be damaged, too, so that
        nobody knows where the next batch begins."""
        where, first, last = "-".join(map(str, partition)), header.base_offset, header.next_offset - 1
        if not trusted:
            raise untrusted(partition, first, reason)
        if not self._skip:
            raise CorruptRecordError(
                f"{where} at offset {first}: {reason}; to go on without offsets {first} to {last}, which are of this "
                f"batch, {self._remedy}, or seek to {last + 1}"
            )
        with self._counting:
            self._batches += 1
            self._offsets += last + 1 - first
        _log.warning("%s: offsets %d to %d cannot be read and are passed over: %s", where, first, last, reason)


def untrusted(partition: TopicPartition, offset: int, reason: str) -> CorruptRecordError:
    """The error for a batch of which nobody knows where it ends."""
    where = "-".join(map(str, partition))
    return CorruptRecordError(
        f"{where} at offset {offset}: {reason}; its header cannot be trusted, so no reader passes over it by itself: "
        "seek to the offset of the next batch, which `highwater log dump` shows of the segment, on its broker"
    )

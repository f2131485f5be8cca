"""Finds where the partitions of a group begin: at their committed offsets. `auto_offset_reset` counts only where the
coordinator says that none was committed; an error says nothing, and is tried again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from highwater.client.consumer.fetch_buffer import FetchBuffer
from highwater.client.exceptions import HighwaterError, OffsetOutOfRangeError
from highwater.client.groups.committed_offsets import CommittedOffsets
from highwater.client.groups.coordinator import BACKOFF_MAX_MS, BACKOFF_MS, jitter
from highwater.client.topic_partition import TopicPartition
from highwater.errors import ErrorCode
from highwater.telemetry.log import get_logger

_log = get_logger(__name__)


class CommittedPositions:
    """`on_found` is called when some have a position, or an error. `on_reset` is told of partitions of which none was
    committed."""

    def __init__(
        self,
        committed: CommittedOffsets,
        reset_timestamp: int | None,
        on_reset: Callable[[TopicPartition], None],
        on_found: Callable[[], None],
    ) -> None:
        self._committed = committed
        self._reset_timestamp = reset_timestamp
        self._on_reset = on_reset
        self._on_found = on_found
        self._wanted: dict[TopicPartition, tuple[FetchBuffer, int]] = {}  # with its generation: a seek ends the search
        self._wake = asyncio.Event()

    def want(self, buffer: FetchBuffer) -> None:
        self._wanted[buffer.partition] = buffer, buffer.generation
        self._wake.set()

    def drop(self, partition: TopicPartition) -> None:
        self._wanted.pop(partition, None)

    async def run(self) -> None:
        """Runs for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            failures = 0
            while self._still_wanted():
                asked = dict(self._wanted)
                try:
                    found = await self._committed.fetch(list(asked))
                except HighwaterError as error:
                    found = {}
                    _log.info("committed offsets are not known yet: %s", error)
                    if not error.retriable and not self._may_pass(error):
                        self._fail(asked, error)
                for partition, offset in found.items():
                    if self._wanted.get(partition) == asked[partition]:
                        del self._wanted[partition]
                        self._begin(*asked[partition], offset)
                self._on_found()
                if len(found) < len(asked):
                    pause_ms = min(BACKOFF_MS * 2 ** min(failures, 16), BACKOFF_MAX_MS)
                    failures += 1
                    await asyncio.sleep(pause_ms * jitter() / 1000)

    @staticmethod
    def _may_pass(error: HighwaterError) -> bool:
        """Out of the group: the session says so as well, and drops them; or it is in the group by then."""
        return error.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH)

    def _still_wanted(self) -> bool:
        over = [one for one, (buffer, generation) in self._wanted.items() if buffer.generation != generation]
        for partition in over:
            del self._wanted[partition]
        return bool(self._wanted)

    def _fail(self, asked: dict[TopicPartition, tuple[FetchBuffer, int]], error: HighwaterError) -> None:
        for partition, (buffer, generation) in asked.items():
            if self._wanted.pop(partition, None) is not None and buffer.generation == generation:
                buffer.fail(error)

    def _begin(self, buffer: FetchBuffer, generation: int, offset: int) -> None:
        if buffer.generation != generation:
            return  # the user has sent it elsewhere
        topic, partition = buffer.partition
        if offset >= 0:
            buffer.seek(offset)
        elif self._reset_timestamp is not None:
            _log.info("no offset was committed of %s-%d: auto_offset_reset decides", topic, partition)
            buffer.reset(self._reset_timestamp)
            self._on_reset(buffer.partition)
        else:
            buffer.fail(
                OffsetOutOfRangeError(
                    f"{topic}-{partition}: the group has committed no offset and auto_offset_reset is error; seek first"
                )
            )

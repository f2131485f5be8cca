"""A consumer of ranges: one topic's partitions, each from an offset to another one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Unpack

from highwater.client.cluster.metadata import TopicInfo
from highwater.client.cluster.token_options import SecurityOptions
from highwater.client.consumer.consumer import Consumer
from highwater.client.consumer.corrupt_batches import CorruptBatches, OnCorrupt
from highwater.client.consumer.fetch_buffer import FetchBuffer, FetchedBatch
from highwater.client.exceptions import (
    HighwaterError,
    LeaderNotAvailableError,
    OffsetOutOfRangeError,
    RequestTimedOutError,
    UnknownTopicError,
)
from highwater.client.scan.bounds import LogEnds, OffsetRange, lost
from highwater.client.topic_partition import TopicPartition
from highwater.telemetry.log import get_logger

_log = get_logger(__name__)

_POLL_S = 1.0
_GONE_S = 2.0  # a topic counts as gone that no broker has known for so long: one may lag
_TAKEN_BYTES = (
    8 * 1024 * 1024
)  # of batches that are taken at once; what follows stays with the fetcher, which is bounded


@dataclass(frozen=True, slots=True)
class TakenBatch:
    """A batch of the log and the offsets of it that belong to the range."""

    buffer: FetchBuffer
    fetched: FetchedBatch
    start: int
    until: int


class RangeConsumer(Consumer):
    """Hands out whole batches of ranges, each partition's in order, as they came."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        client_id: str,
        fetch_max_bytes: int,
        max_partition_fetch_bytes: int,
        check_crcs: bool,
        corrupt: CorruptBatches,
        max_block_ms: float,
        request_timeout_ms: float,
        **security: Unpack[SecurityOptions],
    ) -> None:
        self._shared_corrupt = corrupt
        super().__init__(
            bootstrap=bootstrap,
            client_id=client_id,
            auto_offset_reset="error",
            fetch_max_bytes=fetch_max_bytes,
            max_partition_fetch_bytes=max_partition_fetch_bytes,
            check_crcs=check_crcs,
            max_block_ms=max_block_ms,
            request_timeout_ms=request_timeout_ms,
            **security,
        )
        self._timeout_s = 0.0
        self._fail_on_data_loss = True
        self._topic_id = b""
        self._unread: dict[TopicPartition, FetchBuffer] = {}

    def _corrupt_batches(self, on_corrupt: OnCorrupt) -> CorruptBatches:
        return self._shared_corrupt

    async def topic(self, topic: str) -> TopicInfo:
        """Raises `UnknownTopicError`."""
        return await self._cluster.topic(topic, self._cluster.request_timeout_s)

    async def log_ends(self, partitions: Iterable[TopicPartition]) -> dict[int, LogEnds]:
        partitions = list(partitions)
        ends = await self.end_offsets(partitions)  # first: what is deleted meanwhile is not missed at the start
        starts = await self.beginning_offsets(partitions)
        return {one.partition: LogEnds(starts[one], ends[one]) for one in partitions}

    def read(
        self,
        topic: str,
        topic_id: bytes,
        ranges: Mapping[int, OffsetRange],
        *,
        timeout_s: float,
        fail_on_data_loss: bool,
    ) -> None:
        """Begins to fetch the ranges, of the topic of that id only. To be called before `start`."""
        self._timeout_s = timeout_s
        self._fail_on_data_loss = fail_on_data_loss
        self._topic_id = topic_id
        self.assign(TopicPartition(topic, partition) for partition, each in ranges.items() if len(each))
        for partition, buffer in self._fetcher.buffers.items():
            one = ranges[partition.partition]
            buffer.topic_id = topic_id
            buffer.until = one.until
            buffer.seek(one.start)
            self._unread[partition] = buffer

    def left(self) -> int:
        """Offsets that were not taken yet."""
        return sum(_until(buffer) - min(_position(buffer), _until(buffer)) for buffer in self._unread.values())

    async def take(self) -> list[TakenBatch]:
        """Batches at hand, some megabytes at most; waits for the first. Empty: all ranges were taken.

        Raises:
            OffsetOutOfRangeError: retention has deleted some of a range, and that is to fail.
            UnknownTopicError: the topic was deleted, or made anew.
            LeaderNotAvailableError, RequestTimedOutError: nothing has come for `timeout_s`.
            CorruptRecordError, NetworkError: as `Consumer.poll`.
        """
        deadline = monotonic() + self._timeout_s
        gone_since: float | None = None
        while self._unread:
            before = self.left()
            found = await self._taken()
            for partition in [one for one, buffer in self._unread.items() if _position(buffer) >= _until(buffer)]:
                del self._unread[partition]
            if found or not self._unread:
                return found
            if self.left() < before:
                deadline = monotonic() + self._timeout_s  # a transaction's marker, or what is left of compacted batches
                continue
            partition = next(iter(self._unread))
            if not await self._is_gone(partition.topic):
                gone_since = None
            elif gone_since is None:
                gone_since = monotonic()
            elif monotonic() - gone_since > _GONE_S:
                raise UnknownTopicError(
                    f"topic {partition.topic!r} was deleted, or made anew, while it was being read: {self.left()} "
                    "offsets of the scan are lost"
                )
            if monotonic() > deadline:
                raise self._nothing_came(partition, self._unread[partition])
        return []

    async def _taken(self) -> list[TakenBatch]:
        if await self._reader.next_ready(monotonic() + _POLL_S) is None:
            return []
        found: list[TakenBatch] = []
        size_bytes = 0
        for partition, buffer in list(self._unread.items()):
            while buffer.ready and size_bytes < _TAKEN_BYTES:
                try:
                    taken = buffer.take_encoded()
                except OffsetOutOfRangeError:
                    if not found:
                        await self._after_loss(partition, buffer)
                    break  # what was found first; the loss comes with the next call
                except HighwaterError:
                    if not found:
                        raise
                    break
                if taken is None:
                    break
                fetched, start = taken
                size_bytes += fetched.header.size_bytes
                found.append(TakenBatch(buffer, fetched, start, _until(buffer)))
            if partition in self._unread:  # to the end of the line, so that a full one starves no other
                self._unread[partition] = self._unread.pop(partition)
        self._fetcher.wake()
        return found

    async def _after_loss(self, partition: TopicPartition, buffer: FetchBuffer) -> None:
        """Goes on behind what is gone. Raises `OffsetOutOfRangeError` where that is to fail."""
        position, until = _position(buffer), _until(buffer)
        earliest = (await self.beginning_offsets([partition]))[partition]
        following = min(earliest, until) if earliest > position else until
        if self._fail_on_data_loss and earliest > position:
            raise OffsetOutOfRangeError(lost(*partition, position, following))
        if self._fail_on_data_loss:
            raise OffsetOutOfRangeError(
                f"{partition.topic}-{partition.partition}: offsets {position} to {until - 1} are no longer in the log: "
                "an unclean election has cut it; read what is left with fail_on_data_loss=False"
            )
        _log.warning("%s: offsets %d to %d are lost: skipped", "-".join(map(str, partition)), position, following - 1)
        buffer.seek(following)

    async def _is_gone(self, topic: str) -> bool:
        """Tells whether brokers answer and none of them knows the topic of this id."""
        info = self._cluster.metadata.topic(topic)
        if info is not None and info.topic_id == self._topic_id:
            return False
        answers = await self._cluster.confirm()
        return bool(answers) and not any(one.topic_id == self._topic_id for each in answers for one in each.topics)

    def _nothing_came(self, partition: TopicPartition, buffer: FetchBuffer) -> HighwaterError:
        where = f"{partition.topic}-{partition.partition}"
        if self._cluster.leader(*partition) is None:
            return LeaderNotAvailableError(f"{where} has had no leader for {self._timeout_s:g} s: is its broker up?")
        return RequestTimedOutError(
            f"{where}: nothing came at offset {_position(buffer)} for {self._timeout_s:g} s, though the log went to "
            f"{_until(buffer)}"
        )


def _position(buffer: FetchBuffer) -> int:
    assert buffer.position is not None  # they begin with a seek and are never reset
    return buffer.position


def _until(buffer: FetchBuffer) -> int:
    assert buffer.until is not None
    return buffer.until

"""The blocking consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Unpack

import pyarrow as pa

from highwater.client.blocking.client import BlockingClient, with_the_signature_of
from highwater.client.blocking.options import ConsumerOptions
from highwater.client.cluster.bootstrap import DEFAULT_BOOTSTRAP
from highwater.client.consumer import consumer as async_consumer
from highwater.client.consumer.arguments import Partition
from highwater.client.consumer.consumer_record import ConsumerRecord
from highwater.client.consumer.corrupt_batches import PassedOver
from highwater.client.consumer.group_assignment import RebalanceCallback
from highwater.client.consumer.seeking import Seeking
from highwater.client.topic_partition import OffsetAndTimestamp, TopicPartition

_CALLBACKS: tuple[Literal["on_assigned", "on_revoked", "on_lost"], ...] = ("on_assigned", "on_revoked", "on_lost")


@with_the_signature_of(async_consumer.Consumer)
class Consumer(BlockingClient[async_consumer.Consumer]):
    """See `highwater.client.Consumer`. Iterate it, or poll. The callbacks of a group are called on a thread of their
    own while the poll waits, so that they may use this consumer, but not poll."""

    def __init__(
        self, *topics: str, bootstrap: str | Sequence[str] = DEFAULT_BOOTSTRAP, **options: Unpack[ConsumerOptions]
    ) -> None:
        for name in _CALLBACKS:
            callback = options.get(name)
            if callback is not None:
                options[name] = _on_a_thread(callback)
        super().__init__(async_consumer.Consumer(*topics, bootstrap=bootstrap, **options))

    def __exit__(self, *exception: object) -> None:
        """After an exception nobody knows what of the last records is done: they are read again."""
        self._stop_client(lambda: self._client.__aexit__(*exception))

    @property
    def passed_over(self) -> PassedOver:
        """Batches that could not be read since the start, and their offsets: with `on_corrupt="skip"`."""
        return self._client.passed_over

    def assign(self, partitions: Iterable[Partition]) -> None:
        self._call(lambda: self._client.assign(partitions))

    def subscribe(self, topics: Iterable[str] = (), pattern: str | None = None) -> None:
        self._run(lambda: self._client.subscribe(topics, pattern))

    def assignment(self) -> frozenset[TopicPartition]:
        return self._call(self._client.assignment)

    def pause(self, *partitions: Partition) -> None:
        self._call(lambda: self._client.pause(*partitions))

    def resume(self, *partitions: Partition) -> None:
        self._call(lambda: self._client.resume(*partitions))

    def seek(self, partition: Partition, offset: int) -> None:
        self._call(lambda: self._client.seek(partition, offset))

    def seek_to_beginning(self, *partitions: Partition) -> None:
        """Returns when the positions are known."""
        self._run(lambda: self._sought(lambda: self._client.seek_to_beginning(*partitions)))

    def seek_to_end(self, *partitions: Partition) -> None:
        """Returns when the positions are known: what is sent from then on is handed out."""
        self._run(lambda: self._sought(lambda: self._client.seek_to_end(*partitions)))

    async def _sought(self, seek: Callable[[], Seeking]) -> None:
        await seek()

    def position(self, partition: Partition) -> int:
        return self._run(lambda: self._client.position(partition))

    def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        return self._run(lambda: self._client.offsets_for_times(timestamps_ms))

    def beginning_offsets(self, partitions: Iterable[Partition]) -> dict[TopicPartition, int]:
        return self._run(lambda: self._client.beginning_offsets(partitions))

    def end_offsets(self, partitions: Iterable[Partition]) -> dict[TopicPartition, int]:
        return self._run(lambda: self._client.end_offsets(partitions))

    def lag(self) -> dict[TopicPartition, int]:
        return self._run(self._client.lag)

    def commit(self, done: Mapping[Partition, int] | pa.Table | pa.RecordBatch | Any = None) -> None:
        self._run(lambda: self._client.commit(done))

    def poll(self, timeout_ms: float = 1000, max_records: int | None = None) -> list[ConsumerRecord]:
        return self._run(lambda: self._client.poll(timeout_ms, max_records))

    def poll_batches(self, timeout_ms: float = 1000, max_records: int | None = None) -> list[pa.RecordBatch]:
        return self._run(lambda: self._client.poll_batches(timeout_ms, max_records))

    def poll_table(self, timeout_ms: float = 1000, max_records: int | None = None) -> pa.Table:
        return self._run(lambda: self._client.poll_table(timeout_ms, max_records))

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Records for ever. Leaving the loop loses none: what was fetched and not given is read again."""
        while True:
            records = self.poll()
            given = 0
            try:
                for record in records:
                    given += 1
                    yield record
            finally:
                self._give_back(records[given:])

    def _give_back(self, records: Sequence[ConsumerRecord]) -> None:
        """They are read again, where they are still this consumer's."""
        first: dict[TopicPartition, int] = {}
        for record in records:
            first.setdefault(TopicPartition(record.topic, record.partition), record.offset)
        if first:
            assigned = self.assignment()
            for partition, offset in first.items():
                if partition in assigned:
                    self.seek(partition, offset)


def _on_a_thread(callback: RebalanceCallback) -> RebalanceCallback:
    async def called(partitions: Sequence[TopicPartition]) -> None:
        await asyncio.to_thread(callback, partitions)

    return called

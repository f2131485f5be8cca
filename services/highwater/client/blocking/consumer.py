"""The blocking consumer."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, Unpack

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
from highwater.client.exceptions import InvalidRequestError
from highwater.client.topic_partition import OffsetAndTimestamp, TopicPartition

_CALLBACKS: tuple[Literal["on_assigned", "on_revoked", "on_lost"], ...] = ("on_assigned", "on_revoked", "on_lost")

ResultT = TypeVar("ResultT")


@with_the_signature_of(async_consumer.Consumer)
class Consumer(BlockingClient[async_consumer.Consumer]):
    """See `highwater.client.Consumer`. Iterate it, or poll. The callbacks of a group are called on a thread of their
    own while the poll waits, so that they may use this consumer, but neither poll nor stop it. A poll that is
    interrupted takes nothing: the next one has what it had found."""

    def __init__(
        self, *topics: str, bootstrap: str | Sequence[str] = DEFAULT_BOOTSTRAP, **options: Unpack[ConsumerOptions]
    ) -> None:
        for name in _CALLBACKS:
            callback = options.get(name)
            if callback is not None:
                options[name] = _on_a_thread(name, callback)
        self._interrupted: list[list[Any]] = []  # polls; each with what it has found, if it has
        super().__init__(async_consumer.Consumer(*topics, bootstrap=bootstrap, **options))

    def __exit__(self, *exception: object) -> None:
        """After an exception nobody knows what of the last records is done: they are read again."""
        self._stop_client(lambda: self._client.__aexit__(*exception))

    @property
    def passed_over(self) -> PassedOver:
        """Batches that could not be read since the start, and their offsets: with `on_corrupt="skip"`."""
        return self._client.passed_over

    def _stop_client(self, stop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        super()._stop_client(lambda: self._after_giving_back(stop))

    def _run(self, work: Callable[[], Coroutine[Any, Any, ResultT]], timeout_s: float | None = None) -> ResultT:
        return super()._run(lambda: self._after_giving_back(work), timeout_s)

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

    @property
    def client_id(self) -> str:
        return self._client.client_id

    def metrics(self) -> dict[str, float]:
        """As the async consumer's; from any thread."""
        return self._client.metrics()

    def commit(self, done: Mapping[Partition, int] | pa.Table | pa.RecordBatch | Any = None) -> None:
        self._run(lambda: self._client.commit(done))

    def poll(self, timeout_ms: float = 1000, max_records: int | None = None) -> list[ConsumerRecord]:
        return self._polled(lambda: self._client.poll(timeout_ms, max_records))

    def poll_batches(self, timeout_ms: float = 1000, max_records: int | None = None) -> list[pa.RecordBatch]:
        return self._polled(lambda: self._client.poll_batches(timeout_ms, max_records))

    def poll_table(self, timeout_ms: float = 1000, max_records: int | None = None) -> pa.Table:
        return self._polled(lambda: self._client.poll_table(timeout_ms, max_records))

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Records for ever, until the consumer is stopped. Leaving the loop loses none: the position stands behind the
        last record that was given, and a commit keeps that one and those before it."""
        while (run := self._run(self._client.next_run)) is not None:
            yield from run
            if self._client.is_stopped:
                return

    # Interruptions

    def _polled(self, poll: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
        """An interrupt may come when the event loop's thread has found something, and this one has not got it."""
        taken: list[ResultT] = []

        async def noted() -> ResultT:
            taken.append(await poll())
            return taken[0]

        try:
            return self._run(noted)
        except BaseException:
            self._interrupted.append(taken)
            raise

    async def _after_giving_back(self, work: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
        """Seeks to what interrupted polls had found, where that is still this consumer's, and goes on from there."""
        while self._interrupted:
            for found in self._interrupted.pop():
                assigned = self._client.assignment()
                for partition, offset in _firsts(found).items():
                    if partition in assigned:
                        self._client.seek(partition, offset)
        return await work()


def _firsts(found: list[ConsumerRecord] | list[pa.RecordBatch] | pa.Table) -> dict[TopicPartition, int]:
    """By partition the first offset."""
    firsts: dict[TopicPartition, int] = {}
    for some in found.to_batches() if isinstance(found, pa.Table) else found:
        if isinstance(some, ConsumerRecord):
            topic, partition, offset = some.topic, some.partition, some.offset
        else:  # a batch is of one partition
            topic, partition, offset = (some.column(index)[0].as_py() for index in range(3))
        firsts.setdefault(TopicPartition(topic, partition), offset)
    return firsts


def _on_a_thread(name: str, callback: RebalanceCallback) -> RebalanceCallback:
    if inspect.iscoroutinefunction(callback):
        raise InvalidRequestError(f"{name} of a blocking consumer is a plain function; the async one awaits coroutines")

    async def called(partitions: Sequence[TopicPartition]) -> None:
        await asyncio.to_thread(callback, partitions)

    return called

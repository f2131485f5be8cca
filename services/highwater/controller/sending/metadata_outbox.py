"""The metadata that one registered broker has not been told yet: partitions that changed, and at the beginning all
there are, in pieces. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from highwater.controller.sending.redelivery import backoff_ms
from highwater.controller.state_machines.actions import SendMetadata
from highwater.controller.state_machines.topic_table import Topic
from highwater.model.partition import PartitionKey

MAX_PARTITIONS = 2_000  # a request: some 150 KB, a few ms of the broker's event loop


@dataclass(frozen=True, slots=True)
class TopicSlice:
    """The partitions of a topic from `begin` up to `end`, as far as there are any."""

    topic_id: bytes
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class MetadataBatch:
    """An UpdateMetadata request to send. The live brokers go with each."""

    keys: tuple[PartitionKey, ...] = ()  # that changed
    slices: tuple[TopicSlice, ...] = ()  # of all there are
    deleted: frozenset[bytes] = frozenset()  # topic ids
    full: bool = False  # with every topic there is, if only by name: the others are forgotten


class MetadataOutbox:
    """One request at a time; what changes meanwhile waits for the next. All there is goes out as slices, and the last
    of them with the names of all topics; what changes in between goes along (RULES 8.10).

    Invariant: a partition that changed, or a topic that is gone, and of which no later request was answered, is in
    here.
    """

    def __init__(self, max_partitions: int = MAX_PARTITIONS) -> None:
        """`max_partitions`: of a slice, and of those that changed, in one request."""
        self._max_partitions = max_partitions
        self._due = False
        self._whole = False  # all there is, to be cut into slices
        self._slices: deque[tuple[TopicSlice, ...]] = deque()
        self._closing = False  # the topics' names have to go out behind the slices
        self._changed: dict[PartitionKey, None] = {}  # for its order
        self._deleted: set[bytes] = set()
        self._sending = False
        self._due_ms = 0
        self._failures = 0

    def add(self, send: SendMetadata) -> None:
        self._due = True
        self._whole |= send.full
        self._changed |= dict.fromkeys(send.keys)
        self._deleted |= send.deleted_topic_ids

    @property
    def told(self) -> bool:
        """Tells whether the broker knows all metadata that there is to know."""
        return not self._due and not self._sending

    def next(self, now_ms: int, topics: Iterable[Topic]) -> MetadataBatch | None:
        """Returns what to send now; `topics` are all there are."""
        if not self._due or self._due_ms > now_ms:
            return None
        if self._whole:
            self._whole, self._closing = False, True
            self._slices = deque(_slices(topics, self._max_partitions))
            self._changed.clear()  # each is read when its slice is sent
        slices = self._slices.popleft() if self._slices else ()
        keys = tuple(islice(self._changed, self._max_partitions))
        for key in keys:
            del self._changed[key]
        # Not before a topic that has just been made is more than a name.
        full = self._closing and not (self._slices or self._changed)
        batch = MetadataBatch(keys, slices, frozenset(self._deleted), full)
        self._deleted.clear()
        self._closing &= not batch.full
        self._due = self._closing or bool(self._changed)
        self._sending = True
        return batch

    def due_ms(self) -> int | None:
        """The time at which `next` has something to say; None: not before `add`."""
        return self._due_ms if self._due else None

    def answered(self) -> None:
        self._sending = False
        self._failures = 0
        self._due_ms = 0

    def failed(self, batch: MetadataBatch, now_ms: int) -> None:
        """It is sent again, after a back-off, with what has changed since."""
        self._sending = False
        self._due = True
        if batch.slices:
            self._slices.appendleft(batch.slices)
        self._closing |= batch.full
        self._changed |= dict.fromkeys(batch.keys)
        self._deleted |= batch.deleted
        self._due_ms = now_ms + backoff_ms(self._failures)
        self._failures += 1


def _slices(topics: Iterable[Topic], most: int) -> Iterator[tuple[TopicSlice, ...]]:
    """All partitions, at most so many at a time."""
    slices: list[TopicSlice] = []
    room = most
    for topic in topics:
        for begin in range(0, len(topic.partitions), most):
            end = begin + most
            size = min(end, len(topic.partitions)) - begin
            if size > room:
                yield tuple(slices)
                slices, room = [], most
            slices.append(TopicSlice(topic.topic_id, begin, end))
            room -= size
    if slices:
        yield tuple(slices)

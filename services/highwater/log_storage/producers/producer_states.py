"""The states of a log's idempotent producers (RULES 6.1, 6.2). Pure, and a function of the batches that the log has
had: so it agrees with the log through truncation, restart and failover, and a producer outlives its records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from highwater.errors import ErrorCode

if TYPE_CHECKING:
    from highwater.records import BatchHeader

NO_PRODUCER_ID = -1
BATCHES_KEPT = 5  # as many as a producer may have in flight, so that any of them can be sent again
MAX_SEQUENCE = 2**31 - 1


class Duplicate(NamedTuple):
    """A batch that the log holds already, and where."""

    base_offset: int
    last_offset: int


class ProducerBatch(NamedTuple):
    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class ProducerState:
    """One producer. `batches` are the latest ones of its present epoch, oldest first, never empty; the last of them
    holds the last sequence."""

    epoch: int
    batches: tuple[ProducerBatch, ...]
    updated_ms: int  # when it last appended, by the clock that the log's owner passes in; for expiry

    def check(self, header: BatchHeader) -> ErrorCode | Duplicate:
        if header.producer_epoch < self.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if header.producer_epoch > self.epoch:
            return ErrorCode.NONE if header.base_sequence == 0 else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        last_sequence = header.last_sequence
        for batch in reversed(self.batches):
            if batch.first_sequence == header.base_sequence and batch.last_sequence == last_sequence:
                return Duplicate(batch.base_offset, batch.last_offset)
        if header.base_sequence == next_sequence(self.batches[-1].last_sequence):
            return ErrorCode.NONE
        return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class ProducerStates:
    """The producers of one log.

    A leader checks each batch before it writes it and updates after; a follower only updates (RULES 6.2). Batches
    without a producer id pass and leave no trace.
    """

    __slots__ = ("_states",)

    def __init__(self) -> None:
        self._states: dict[int, ProducerState] = {}

    def __len__(self) -> int:
        return len(self._states)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProducerStates) and self._states == other._states

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ProducerStates({self._states})"

    def copy(self) -> ProducerStates:
        made = ProducerStates()
        made._states = self._states.copy()  # the values are frozen
        return made

    def get(self, producer_id: int) -> ProducerState | None:
        return self._states.get(producer_id)

    def items(self) -> Iterable[tuple[int, ProducerState]]:
        """Producer ids and what is known of each."""
        return self._states.items()

    def put(self, producer_id: int, state: ProducerState) -> None:
        self._states[producer_id] = state

    def check(self, header: BatchHeader) -> ErrorCode | Duplicate:
        """Decides what a leader does with a batch (RULES 6.1): NONE to append it, `Duplicate` to answer with the old
        offsets, else INVALID_PRODUCER_EPOCH, UNKNOWN_PRODUCER_ID or OUT_OF_ORDER_SEQUENCE_NUMBER."""
        return _verdict(self._states.get(header.producer_id), header)

    def update(self, header: BatchHeader, base_offset: int, now_ms: int = 0) -> None:
        """Takes in a batch that the log now holds at `base_offset`. It does not check (RULES 6.2)."""
        producer_id = header.producer_id
        if producer_id != NO_PRODUCER_ID:
            self._states[producer_id] = _after(self._states.get(producer_id), header, base_offset, now_ms)

    def take(self, staged: StagedProducers) -> None:
        """Takes over what was staged: it has been written."""
        self._states.update(staged.met)

    def outlives(self, offset: int) -> bool:
        """Tells whether truncation of the log to `offset` leaves the states as they are. If not they must be rebuilt
        from the batches that remain: five batches do not tell what came before them."""
        return all(state.batches[-1].last_offset < offset for state in self._states.values())

    def rebuild(self, headers: Iterable[BatchHeader], now_ms: int = 0) -> None:
        """Forgets everything and takes in the batches of a log, oldest first, with their offsets assigned."""
        self._states.clear()
        for header in headers:
            self.update(header, header.base_offset, now_ms)

    def clear(self) -> None:
        self._states.clear()

    def expire(self, before_ms: int) -> int:
        """Forgets the producers that have not appended since `before_ms`; how many."""
        return self.forget(self.expired(before_ms), before_ms)

    def expired(self, before_ms: int) -> list[int]:
        """Ids of the producers that have not appended since `before_ms`."""
        return [producer_id for producer_id, state in self._states.items() if state.updated_ms < before_ms]

    def forget(self, expired: Iterable[int], before_ms: int) -> int:
        """Those of them that have still not appended since `before_ms`; how many."""
        forgotten = 0
        for producer_id in expired:
            state = self._states.get(producer_id)
            if state is not None and state.updated_ms < before_ms:
                del self._states[producer_id]
                forgotten += 1
        return forgotten


class StagedProducers:
    """The states that the batches of one append make of the producers, as long as they are not written. It holds the
    states of those alone that the append is from: there may be many others."""

    __slots__ = ("_before", "met")

    def __init__(self, before: ProducerStates) -> None:
        self._before = before
        self.met: dict[int, ProducerState] = {}

    def get(self, producer_id: int) -> ProducerState | None:
        return self.met.get(producer_id) or self._before.get(producer_id)

    def check(self, header: BatchHeader) -> ErrorCode | Duplicate:
        """See `ProducerStates.check`."""
        return _verdict(self.get(header.producer_id), header)

    def update(self, header: BatchHeader, base_offset: int, now_ms: int = 0) -> None:
        """See `ProducerStates.update`."""
        if header.producer_id != NO_PRODUCER_ID:
            self.met[header.producer_id] = _after(self.get(header.producer_id), header, base_offset, now_ms)


def _verdict(state: ProducerState | None, header: BatchHeader) -> ErrorCode | Duplicate:
    if header.producer_id == NO_PRODUCER_ID:
        return ErrorCode.NONE
    if state is not None:
        return state.check(header)
    return ErrorCode.NONE if header.base_sequence == 0 else ErrorCode.UNKNOWN_PRODUCER_ID


def _after(state: ProducerState | None, header: BatchHeader, base_offset: int, now_ms: int) -> ProducerState:
    batch = ProducerBatch(
        header.base_sequence, header.last_sequence, base_offset, base_offset + header.last_offset_delta
    )
    if state is None or state.epoch != header.producer_epoch:
        return ProducerState(header.producer_epoch, (batch,), now_ms)
    return ProducerState(header.producer_epoch, (*state.batches[1 - BATCHES_KEPT :], batch), now_ms)


def next_sequence(sequence: int) -> int:
    """Sequences wrap from 2^31-1 to 0, as Kafka's."""
    return 0 if sequence == MAX_SEQUENCE else sequence + 1

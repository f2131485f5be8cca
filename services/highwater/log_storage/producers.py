"""What a log knows of its idempotent producers (RULES 6.1, 6.2). Pure, and a function of the batches that the log
has had: so it agrees with the log through truncation, restart and failover, and a producer outlives its records."""

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
        """What a leader does with a batch (RULES 6.1): NONE to append it, `Duplicate` to answer with the old offsets,
        else INVALID_PRODUCER_EPOCH, UNKNOWN_PRODUCER_ID or OUT_OF_ORDER_SEQUENCE_NUMBER."""
        if header.producer_id == NO_PRODUCER_ID:
            return ErrorCode.NONE
        state = self._states.get(header.producer_id)
        if state is not None:
            return state.check(header)
        return ErrorCode.NONE if header.base_sequence == 0 else ErrorCode.UNKNOWN_PRODUCER_ID

    def update(self, header: BatchHeader, base_offset: int, now_ms: int = 0) -> None:
        """Takes in a batch that the log now holds at `base_offset`. It does not check (RULES 6.2)."""
        producer_id = header.producer_id
        if producer_id == NO_PRODUCER_ID:
            return
        batch = ProducerBatch(
            header.base_sequence, header.last_sequence, base_offset, base_offset + header.last_offset_delta
        )
        state = self._states.get(producer_id)
        if state is None or state.epoch != header.producer_epoch:
            batches: tuple[ProducerBatch, ...] = (batch,)
        else:
            batches = (*state.batches[1 - BATCHES_KEPT :], batch)
        self._states[producer_id] = ProducerState(header.producer_epoch, batches, now_ms)

    def outlives(self, offset: int) -> bool:
        """Whether truncation of the log to `offset` leaves the states as they are. If not they must be rebuilt from the
        batches that remain: five batches do not tell what came before them."""
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
        expired = [producer_id for producer_id, state in self._states.items() if state.updated_ms < before_ms]
        for producer_id in expired:
            del self._states[producer_id]
        return len(expired)


def next_sequence(sequence: int) -> int:
    """Sequences wrap from 2^31-1 to 0, as Kafka's."""
    return 0 if sequence == MAX_SEQUENCE else sequence + 1

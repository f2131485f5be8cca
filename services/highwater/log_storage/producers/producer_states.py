"""The states of a log's idempotent producers (RULES 6.1, 6.2). Pure, and a function of the batches that the log has
had: so it agrees with the log through truncation, restart and failover, and a producer outlives its records.

They are bounded (RULES 6.4): those that appended last stay, by the order of the log. So what a leader has dropped to
take in another producer its followers drop as well, at the same batch; only a leader refuses."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from highwater.errors import ErrorCode

if TYPE_CHECKING:
    from highwater.records import BatchHeader

NO_PRODUCER_ID = -1
BATCHES_KEPT = 5  # as many as a producer may have in flight, so that any of them can be sent again
MAX_SEQUENCE = 2**31 - 1


class ProducerLimits(NamedTuple):
    """The number of producers that a log knows of, and the time for which one must have appended nothing before a
    leader drops it for another: longer than a client sends a batch again, or that would be written twice."""

    most: int = 2**31 - 1
    idle_ms: int = 0


NO_LIMITS = ProducerLimits()


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
    """The producers of one log, at most `limits.most`, in the order of their last batches.

    A leader checks each batch before it writes it and updates after; a follower only updates (RULES 6.2). Batches
    without a producer id pass and leave no trace.
    """

    __slots__ = ("_states", "limits")

    def __init__(self, limits: ProducerLimits = NO_LIMITS) -> None:
        self.limits = limits
        self._states: OrderedDict[int, ProducerState] = OrderedDict()

    def __len__(self) -> int:
        return len(self._states)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProducerStates) and dict(self._states) == dict(other._states)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ProducerStates({dict(self._states)})"

    def copy(self) -> ProducerStates:
        made = ProducerStates(self.limits)
        made._states = self._states.copy()  # the values are frozen
        return made

    def merged(self, others: Iterable[tuple[int, ProducerState]]) -> ProducerStates:
        """These, with the others in the place of those of the same ids."""
        found = [*(dict(self._states) | dict(others)).items()]
        found.sort(key=lambda item: item[1].batches[-1].last_offset)
        made = ProducerStates(self.limits)
        for producer_id, state in found:
            made.put(producer_id, state)
        return made

    def get(self, producer_id: int) -> ProducerState | None:
        return self._states.get(producer_id)

    def items(self) -> Iterable[tuple[int, ProducerState]]:
        """Producer ids and what is known of each, the one that appended last at the end."""
        return self._states.items()

    def put(self, producer_id: int, state: ProducerState) -> None:
        """Takes in a state whose last batch is behind those of all others. Of too many the first one goes."""
        self._states[producer_id] = state
        self._states.move_to_end(producer_id)
        if len(self._states) > self.limits.most:
            self._states.popitem(last=False)

    def admits(self, producer_ids: Set[int], now_ms: int) -> bool:
        """Tells whether a leader takes in these producers (RULES 6.4): there is room for those that are new, or would
        be without others that have been idle for long enough. The cost does not grow with the number that is known."""
        new = sum(1 for producer_id in producer_ids if producer_id not in self._states)
        excess = len(self._states) + new - self.limits.most
        if not new or excess <= 0:
            return True
        idle_since_ms = now_ms - self.limits.idle_ms
        for producer_id, state in self._states.items():
            if producer_id not in producer_ids:  # those become the last ones
                if state.updated_ms > idle_since_ms:
                    return False
                excess -= 1
                if not excess:
                    return True
        return False

    def check(self, header: BatchHeader) -> ErrorCode | Duplicate:
        """Decides what a leader does with a batch (RULES 6.1): NONE to append it, `Duplicate` to answer with the old
        offsets, else INVALID_PRODUCER_EPOCH, UNKNOWN_PRODUCER_ID or OUT_OF_ORDER_SEQUENCE_NUMBER."""
        return _verdict(self._states.get(header.producer_id), header)

    def update(self, header: BatchHeader, base_offset: int, now_ms: int = 0) -> None:
        """Takes in a batch that the log now holds at `base_offset`. It does not check (RULES 6.2)."""
        producer_id = header.producer_id
        if producer_id != NO_PRODUCER_ID:
            self.put(producer_id, _after(self._states.get(producer_id), header, base_offset, now_ms))

    def take(self, staged: StagedProducers) -> None:
        """Takes over what was staged: it has been written."""
        for producer_id, state in staged.met.items():
            self.put(producer_id, state)

    def outlives(self, offset: int) -> bool:
        """Tells whether truncation of the log to `offset` leaves the states as they are. If not they must be rebuilt
        from the batches that remain: five batches do not tell what came before them, nor whom they made drop out."""
        last = next(reversed(self._states.values()), None)
        return last is None or last.batches[-1].last_offset < offset

    def rebuild(self, headers: Iterable[BatchHeader], now_ms: int = 0) -> None:
        """Forgets everything and takes in the batches of a log, oldest first, with their offsets assigned."""
        self._states.clear()
        for header in headers:
            self.update(header, header.base_offset, now_ms)

    def clear(self) -> None:
        self._states.clear()

    def expire(self, before_ms: int) -> int:
        """Forgets the producers that have not appended since `before_ms`; how many. It looks at no others: those that
        appended last stand behind them."""
        forgotten = 0
        while self._states and next(iter(self._states.values())).updated_ms < before_ms:
            self._states.popitem(last=False)
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
            state = _after(self.get(header.producer_id), header, base_offset, now_ms)
            self.met.pop(header.producer_id, None)  # in the order of the last batches
            self.met[header.producer_id] = state


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

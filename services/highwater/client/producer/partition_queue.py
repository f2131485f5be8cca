"""The batches of one partition on their way to its leader: order, sequences, retries (RULES 6.3). Pure.

A batch is *fresh* until it is first sent, then *unacknowledged* until it is answered for good. Sequences are given at
the first send, so that nothing that happens to a fresh batch leaves a hole in them. Re-sending goes in rounds: once a
batch has failed nothing more is sent until every request of this partition has been answered, then all that is
unacknowledged is sent again, in order. So a retry can neither overtake nor repeat a record: what the log already has,
log-storage knows by its sequence.

A batch that is given up after it had a sequence leaves a *gap*: perhaps it is in the log, perhaps not. What follows it
is settled under the old sequences first; once nothing is in flight the partition goes on under a raised epoch from 0,
unless the log turned out to have all of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from highwater.client.exceptions import DeliveryTimeoutError, HighwaterError, SequenceBrokenError, error_for
from highwater.client.producer.delivery import BatchDelivery
from highwater.errors import ErrorCode

MAX_PRODUCER_EPOCH = (1 << 15) - 1
_SEQUENCE_MASK = (1 << 31) - 1  # sequences wrap from 2^31 - 1 to 0
_SEQUENCE_ERRORS = (ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)


class BatchState(Enum):
    FRESH = auto()
    IN_FLIGHT = auto()  # sent, not answered
    WAITING = auto()  # answered with an error that a retry may get over
    SETTLED = auto()  # acknowledged, failed or given up


class ProducerBatch:
    """One batch. `payload` is the encoded batch without producer fields, None while it is being encoded."""

    __slots__ = (
        "attempts",
        "charged_bytes",
        "created_ms",
        "delivery",
        "first_index",
        "last_error",
        "ordinal",
        "payload",
        "records",
        "sequence",
        "state",
    )

    def __init__(
        self,
        delivery: BatchDelivery,
        records: int,
        created_ms: float,
        *,
        first_index: int = 0,
        payload: bytes | None = None,
        charged_bytes: int = 0,
    ) -> None:
        self.delivery = delivery
        self.records = records
        self.created_ms = created_ms  # of its first record: `delivery_timeout_ms` counts from here
        self.first_index = first_index  # of its first record within `delivery`
        self.payload = payload
        self.charged_bytes = charged_bytes  # what it holds of `buffer_memory`
        self.sequence = -1  # of the first record, not wrapped; -1: none yet
        self.ordinal = -1  # its place among the batches of the partition, from the first send on
        self.state = BatchState.FRESH
        self.attempts = 0
        self.last_error: HighwaterError | None = None

    @property
    def wire_sequence(self) -> int:
        return self.sequence & _SEQUENCE_MASK


@dataclass(frozen=True, slots=True)
class ProduceAnswer:
    """A broker's answer for one batch, or a broken connection's (`NETWORK_EXCEPTION`)."""

    error: ErrorCode
    message: str = ""
    base_offset: int = -1
    log_append_time_ms: int = -1


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential back-off with jitter, until a batch is `delivery_timeout_ms` old. Times in ms."""

    backoff_ms: float = 50
    backoff_max_ms: float = 1000
    delivery_timeout_ms: float = 120_000

    def delay_ms(self, failures: int, random: Callable[[], float]) -> float:
        """The pause before a retry after so many failures in a row (from 1): 0.8 to 1.2 times the doubled back-off."""
        exponent = min(failures - 1, 16)
        return float(min(self.backoff_max_ms, self.backoff_ms * 2**exponent) * (0.8 + 0.4 * random()))


class PartitionQueue:
    """See the module. `next_to_send` gives what may go now; every batch it gave is reported to `answered` once."""

    def __init__(
        self,
        topic: str,
        partition: int,
        *,
        idempotent: bool,
        max_in_flight: int,
        retry: RetryPolicy,
        random: Callable[[], float],
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.fresh: deque[ProducerBatch] = deque()
        self.unacknowledged: deque[ProducerBatch] = deque()  # in the order of their sequences
        self.in_flight = 0  # requests without an answer, those of batches given up included
        self.retry_at_ms = 0.0
        self.producer_id = -1
        self.producer_epoch = -1
        self._idempotent = idempotent
        self._max_in_flight = max_in_flight
        self._retry = retry
        self._random = random
        self._next_sequence = 0
        self._next_ordinal = 0
        self._acknowledged_to = 0  # every sequence below is in the log
        self._gap = False
        # The partition starts anew under the next epoch once nothing is in flight; at first for want of a producer id.
        self._restart_due = idempotent
        self._new_identity: tuple[int, int] | None = None
        self._round: deque[ProducerBatch] = deque()  # of the running round of re-sends: not sent yet
        self._round_failed = False
        self._failures = 0

    # What there is

    @property
    def idle(self) -> bool:
        return not (self.fresh or self.unacknowledged or self.in_flight)

    @property
    def saturated(self) -> bool:
        """True where as many requests are in flight as may be."""
        return self.in_flight >= self._max_in_flight

    @property
    def needs_producer_id(self) -> bool:
        """A batch waits for `renew`: there is no producer id yet, or its epochs are used up."""
        return (
            self._restart_due
            and self._new_identity is None
            and (self.producer_id < 0 or self.producer_epoch >= MAX_PRODUCER_EPOCH)
            and bool(self.fresh or self.unacknowledged)
        )

    @property
    def retrying(self) -> bool:
        """A batch was refused and waits for its next try."""
        return any(batch.state is BatchState.WAITING for batch in self.unacknowledged)

    # Events

    def add(self, batch: ProducerBatch) -> None:
        self.fresh.append(batch)

    def renew(self, producer_id: int, producer_epoch: int) -> None:
        """A new producer id, for a queue that needs one."""
        self._new_identity = (producer_id, producer_epoch)

    def retry_now(self) -> None:
        """The leader has changed: no reason to wait."""
        self.retry_at_ms = 0.0

    def next_to_send(self, now_ms: float) -> ProducerBatch | None:
        """The batch to send now, if any. It is then in flight, under `producer_id`, `producer_epoch` and its
        `wire_sequence`."""
        if self.saturated:
            return None
        if not self._round and self.retrying:
            if self.in_flight or now_ms < self.retry_at_ms or not self._restarted():
                return None
            self._begin_round()
        if self._round:
            if not self._within_window(self._round[0].ordinal):
                return None
            batch = self._round.popleft()
        else:
            if not self.fresh or self.fresh[0].payload is None or now_ms < self.retry_at_ms:
                return None
            if (self._gap or self._restart_due) and not self._settled():
                return None
            if not self._within_window(self._next_ordinal):
                return None
            batch = self.fresh.popleft()
            batch.sequence = self._next_sequence
            self._next_sequence += batch.records
            batch.ordinal = self._next_ordinal
            self._next_ordinal += 1
            self.unacknowledged.append(batch)
        batch.state = BatchState.IN_FLIGHT
        batch.attempts += 1
        self.in_flight += 1
        return batch

    def answered(self, batch: ProducerBatch, answer: ProduceAnswer, now_ms: float) -> bool:
        """Takes the answer to a sent batch. True: the batch is settled by it, its delivery has been told."""
        self.in_flight -= 1
        succeeded = answer.error in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
        if succeeded:
            self._acknowledged_to = max(self._acknowledged_to, batch.sequence + batch.records)
        if batch.state is BatchState.SETTLED:  # given up meanwhile
            return False
        if succeeded:
            self._failures = 0
            self._settle(batch)
            batch.delivery.succeed(batch.first_index, batch.records, answer.base_offset, answer.log_append_time_ms)
            return True
        batch.last_error = error_for(answer.error, answer.message)
        if self._may_retry(batch, answer.error):
            self._wait(batch, now_ms)
            return False
        self._settle(batch)
        self._leave_gap()
        batch.delivery.fail(self._final_error(batch, answer), batch.records)
        return True

    def split(self, batch: ProducerBatch, pieces: list[ProducerBatch]) -> None:
        """A sent batch was refused as too large: `pieces` take its place and its sequences. It was in flight."""
        assert sum(piece.records for piece in pieces) == batch.records
        self.in_flight -= 1
        self._round.clear()
        if batch.state is BatchState.SETTLED:
            return
        index = self.unacknowledged.index(batch)
        del self.unacknowledged[index]
        for later in list(self.unacknowledged)[index:]:
            later.ordinal += len(pieces) - 1
        self._next_ordinal += len(pieces) - 1
        sequence = batch.sequence
        for position, piece in enumerate(pieces):
            piece.sequence = sequence
            piece.ordinal = batch.ordinal + position
            piece.state = BatchState.WAITING
            sequence += piece.records
            self.unacknowledged.insert(index + position, piece)
        batch.state = BatchState.SETTLED
        batch.delivery.split(len(pieces))

    def replace_fresh(self, batch: ProducerBatch, pieces: list[ProducerBatch]) -> None:
        """A fresh batch turned out too large when it was encoded: `pieces` take its place."""
        index = self.fresh.index(batch)
        del self.fresh[index]
        for position, piece in enumerate(pieces, index):
            self.fresh.insert(position, piece)
        batch.state = BatchState.SETTLED
        batch.delivery.split(len(pieces))

    def fail_fresh(self, batch: ProducerBatch, error: HighwaterError) -> None:
        """A fresh batch that cannot be encoded."""
        self.fresh.remove(batch)
        batch.state = BatchState.SETTLED
        batch.delivery.fail(error, batch.records)

    def expire(self, now_ms: float) -> list[ProducerBatch]:
        """Gives up what is older than `delivery_timeout_ms`; their deliveries have been told."""
        limit = now_ms - self._retry.delivery_timeout_ms
        given_up = []
        while self.unacknowledged and self.unacknowledged[0].created_ms <= limit:
            batch = self.unacknowledged[0]
            self._settle(batch)
            self._leave_gap()
            given_up.append(batch)
        given_up += self._take_fresh(limit)
        for batch in given_up:
            batch.delivery.fail(self._timeout_error(batch), batch.records)
        return given_up

    def refuse(self, error: HighwaterError, asked_ms: float) -> list[ProducerBatch]:
        """Gives up what waits and is no younger than the question that was answered with `error`; what is in flight
        has an answer of its own. Their deliveries have been told."""
        given_up = [
            batch for batch in self.unacknowledged if batch.state is BatchState.WAITING and batch.created_ms <= asked_ms
        ]
        for batch in given_up:
            self._settle(batch)
            self._leave_gap()
        given_up += self._take_fresh(asked_ms)
        for batch in given_up:
            batch.delivery.fail(error, batch.records)
        return given_up

    def _take_fresh(self, limit_ms: float) -> list[ProducerBatch]:
        """Those that were begun by then. One that is being encoded stays, and those behind it, until its payload is
        there: the encoder holds it."""
        taken = []
        while self.fresh and self.fresh[0].created_ms <= limit_ms and self.fresh[0].payload is not None:
            batch = self.fresh.popleft()
            batch.state = BatchState.SETTLED
            taken.append(batch)
        return taken

    def give_up_all(self, error: HighwaterError) -> list[ProducerBatch]:
        """The producer closes without waiting."""
        given_up = [*self.unacknowledged, *self.fresh]
        self.unacknowledged.clear()
        self.fresh.clear()
        self._round.clear()
        for batch in given_up:
            batch.state = BatchState.SETTLED
            batch.delivery.fail(error, batch.records)
        return given_up

    # Decisions

    def _may_retry(self, batch: ProducerBatch, error: ErrorCode) -> bool:
        if not self._idempotent or error not in _SEQUENCE_ERRORS:
            return error.retriable
        if batch is not self.unacknowledged[0]:
            return True  # an earlier batch has to come first
        if error is ErrorCode.UNKNOWN_PRODUCER_ID or self._gap:
            # RULES 6.3: the log does not have this batch, so it may go again under another epoch.
            self._restart_due = True
            return True
        return False

    def _within_window(self, ordinal: int) -> bool:
        """Answers overtake one another. While the oldest batch has none, no more may follow it than log-storage
        remembers (RULES 6.1), acknowledged ones included: else its re-send would not be known as a duplicate."""
        return not self.unacknowledged or ordinal - self.unacknowledged[0].ordinal < self._max_in_flight

    def _wait(self, batch: ProducerBatch, now_ms: float) -> None:
        batch.state = BatchState.WAITING
        self._round.clear()
        if not self._round_failed:
            self._round_failed = True
            self._failures += 1
            self.retry_at_ms = now_ms + self._retry.delay_ms(self._failures, self._random)

    def _begin_round(self) -> None:
        self._round_failed = False
        if self._failures > 1:
            # Still failing: one batch finds out whether it is over, not five.
            self._round.append(self.unacknowledged[0])
        else:
            self._round.extend(self.unacknowledged)

    def _settle(self, batch: ProducerBatch) -> None:
        batch.state = BatchState.SETTLED
        self.unacknowledged.remove(batch)
        if batch in self._round:
            self._round.remove(batch)
        if not self.retrying:
            self._round_failed = False

    def _leave_gap(self) -> None:
        self._gap = self._idempotent

    def _settled(self) -> bool:
        """True where a fresh batch may follow a gap. What is unacknowledged has to be settled first."""
        if self._gap and not self.unacknowledged and self._acknowledged_to == self._next_sequence:
            self._gap = False  # the batches given up were appended after all
        elif self._gap and not self.unacknowledged and not self.in_flight:
            self._restart_due = True
        return self._restarted() if self._restart_due else not self._gap

    def _restarted(self) -> bool:
        """Starts anew at sequence 0 where that is due and possible. False: not possible yet."""
        if not self._restart_due:
            return True
        if self.in_flight:
            return False
        if self._new_identity is not None:
            self.producer_id, self.producer_epoch = self._new_identity
            self._new_identity = None
        elif self.producer_id >= 0 and self.producer_epoch < MAX_PRODUCER_EPOCH:
            self.producer_epoch += 1
        else:
            return False
        self._restart_due = False
        self._gap = False
        self._acknowledged_to = 0
        self._next_sequence = 0
        for batch in self.unacknowledged:
            batch.sequence = self._next_sequence
            self._next_sequence += batch.records
        return True

    # Messages

    def _timeout_error(self, batch: ProducerBatch) -> DeliveryTimeoutError:
        seconds = self._retry.delivery_timeout_ms / 1000
        where = f"{batch.records} records for {self.topic}-{self.partition}"
        if batch.last_error is not None:
            reason = f"the last error was {batch.last_error.code.name}: {batch.last_error}"
        elif batch.attempts:
            reason = "the broker did not answer"
        else:
            reason = "they were never sent: no leader could be reached, or the batches before them took too long"
        return DeliveryTimeoutError(f"{where} were not acknowledged within {seconds:g} s; {reason}")

    def _final_error(self, batch: ProducerBatch, answer: ProduceAnswer) -> HighwaterError:
        where = f"{self.topic}-{self.partition}"
        if answer.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self._idempotent:
            return SequenceBrokenError(
                f"{where}: the log no longer has records that were acknowledged before this batch; "
                "see whether an unclean election took place, then send it again"
            )
        if answer.error is ErrorCode.INVALID_PRODUCER_EPOCH:
            self.producer_epoch = MAX_PRODUCER_EPOCH  # somebody else uses this id: take another
        return error_for(answer.error, f"{where}: {answer.message or answer.error.name}")

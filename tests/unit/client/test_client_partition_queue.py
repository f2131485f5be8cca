"""RULES 6.3 as a property: a queue, a log that checks sequences as log-storage does, and a network between them that
loses requests, loses answers, delays requests beyond the connection that carried them, and refuses what it likes."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from highwater.client.exceptions import DeliveryTimeoutError, HighwaterError, SequenceBrokenError
from highwater.client.producer.delivery import BatchDelivery
from highwater.client.producer.partition_queue import (
    MAX_PRODUCER_EPOCH,
    PartitionQueue,
    ProduceAnswer,
    ProducerBatch,
    RetryPolicy,
)
from highwater.errors import ErrorCode
from highwater.log_storage.producers.producer_states import (
    NO_LIMITS,
    Duplicate,
    ProducerLimits,
    ProducerStates,
)
from highwater.records import BatchHeader

NEVER = 10**12


def queue_of(*, idempotent: bool = True, timeout_ms: float = NEVER) -> PartitionQueue:
    retry = RetryPolicy(backoff_ms=1, backoff_max_ms=4, delivery_timeout_ms=timeout_ms)
    return PartitionQueue("t", 0, idempotent=idempotent, max_in_flight=5, retry=retry, random=lambda: 0.5)


def batch_of(name: int, records: int = 1, created_ms: float = 0) -> ProducerBatch:
    return ProducerBatch(BatchDelivery("t", 0), records, created_ms, payload=b"%d" % name)


class Log:
    """Log-storage's treatment of a batch (RULES 6.1, 6.4), by header alone. `names` are those of our producer."""

    def __init__(self, limits: ProducerLimits = NO_LIMITS) -> None:
        self.names: list[bytes] = []
        self.producers = ProducerStates(limits)
        self.end_offset = 0
        self.now_ms = 0
        self.refused = 0

    def crowd(self, producer_id: int) -> None:
        """Another producer appends its first batch and is not seen again."""
        if self.producers.admits({producer_id}, self.now_ms):
            header = BatchHeader(0, 49, 0, 2, 0, 0, 0, 0, 0, producer_id, 0, 0, 1)
            self.producers.update(header, self.end_offset, self.now_ms)
            self.end_offset += 1

    def append(self, sent: Sent) -> ProduceAnswer:
        header = BatchHeader(
            0, 49, 0, 2, 0, 0, sent.records - 1, 0, 0, sent.producer_id, sent.epoch, sent.sequence, sent.records
        )
        checked = self.producers.check(header)
        if isinstance(checked, Duplicate):
            return ProduceAnswer(ErrorCode.NONE, base_offset=checked.base_offset)
        if checked is not ErrorCode.NONE:
            return ProduceAnswer(checked)
        if not self.producers.admits({sent.producer_id}, self.now_ms):
            self.refused += 1
            return ProduceAnswer(ErrorCode.OVERLOADED)
        base = self.end_offset
        self.producers.update(header, base, self.now_ms)
        self.names.append(sent.name)
        self.end_offset += sent.records
        return ProduceAnswer(ErrorCode.NONE, base_offset=base)


class Sent:
    """A request: the batch as it was when it was sent."""

    def __init__(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        assert batch.payload is not None
        self.batch = batch
        self.name = batch.payload
        self.records = batch.records
        self.producer_id = queue.producer_id
        self.epoch = queue.producer_epoch
        self.sequence = batch.wire_sequence


def run(
    chance: random.Random, *, batches: int, zombies: bool, timeout_ms: float, limits: ProducerLimits = NO_LIMITS
) -> tuple[Log, list[ProducerBatch]]:
    """Plays one history until every batch is settled. Faults grow rarer, so that it ends. Where there are `limits`,
    others use the log that are more than it knows of."""
    queue, log = queue_of(timeout_ms=timeout_ms), Log(limits)
    stream: deque[Sent] = deque()  # requests on the way, in order
    strays: list[Sent] = []  # of broken streams: they may still arrive
    answers: list[tuple[Sent, ProduceAnswer]] = []  # in any order
    made: list[ProducerBatch] = []
    now_ms = 0.0
    for step in range(20_000):
        now_ms += 1
        log.now_ms = step
        if limits is not NO_LIMITS and chance.random() < 0.5:
            log.crowd((1 << 50) + step)
        fault_rate = 0.5 * max(0.0, 1 - step / 2000)
        queue.expire(now_ms)
        if len(made) < batches and chance.random() < 0.5:
            made.append(batch_of(len(made), chance.randint(1, 3), now_ms))
            queue.add(made[-1])
        if queue.needs_producer_id:
            queue.renew(chance.randint(1, 1 << 40), chance.choice([0, MAX_PRODUCER_EPOCH - 1]))
        if (batch := queue.next_to_send(now_ms)) is not None:
            assert sum(1 for item in stream) + len(answers) < 5
            stream.append(Sent(queue, batch))
        if strays and chance.random() < 0.3:
            log.append(strays.pop(0))
        if stream and chance.random() < 0.6:
            sent = stream.popleft()
            if chance.random() < fault_rate:
                refusal = chance.choice([ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER])
                answers.append((sent, ProduceAnswer(refusal)))
            else:
                answer = log.append(sent)
                if chance.random() < fault_rate:
                    answer = ProduceAnswer(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
                answers.append((sent, answer))
        if answers and chance.random() < 0.6:
            sent, answer = answers.pop(chance.randrange(len(answers)))
            queue.answered(sent.batch, answer, now_ms)
        if (stream or answers) and chance.random() < 0.1 * fault_rate:
            # The connection breaks: answers are lost, requests too, or they arrive later.
            lost = [sent for sent, _ in answers]
            answers.clear()
            if zombies:
                strays += stream
            for sent in [*lost, *stream]:
                queue.answered(sent.batch, ProduceAnswer(ErrorCode.NETWORK_EXCEPTION), now_ms)
            stream.clear()
        if len(made) == batches and queue.idle:
            return log, made
    raise AssertionError("the history did not end")


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 32))
def test_every_batch_is_in_the_log_once_and_in_order(seed: int) -> None:
    log, made = run(random.Random(seed), batches=30, zombies=True, timeout_ms=NEVER)
    assert_once_and_in_order(log, made)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 32))
def test_so_it_is_where_more_producers_come_than_the_log_knows_of(seed: int) -> None:
    """Longer than the limit says nobody sends a batch again, nor does one arrive that was on the way."""
    limits = ProducerLimits(3, idle_ms=400)
    log, made = run(random.Random(seed), batches=30, zombies=True, timeout_ms=NEVER, limits=limits)
    assert log.names == [b"%d" % number for number in range(30)]
    assert all(batch.delivery.error is None for batch in made)
    assert len(log.producers) <= 3


def assert_once_and_in_order(log: Log, made: list[ProducerBatch]) -> None:
    assert log.names == [b"%d" % number for number in range(30)]
    offset = 0
    for batch in made:
        assert batch.delivery.error is None
        assert [(part[1], part[2]) for part in batch.delivery.parts] == [(batch.records, offset)]
        offset += batch.records


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 32))
def test_what_is_given_up_leaves_the_rest_in_order_and_single(seed: int) -> None:
    log, made = run(random.Random(seed), batches=30, zombies=False, timeout_ms=40)
    numbers = [int(name) for name in log.names]
    assert numbers == sorted(set(numbers))
    for number, batch in enumerate(made):
        if batch.delivery.error is None:
            assert number in numbers
        else:
            assert isinstance(batch.delivery.error, DeliveryTimeoutError)


def sent_by(queue: PartitionQueue, now_ms: float = 0) -> list[ProducerBatch]:
    found = []
    while (batch := queue.next_to_send(now_ms)) is not None:
        found.append(batch)
    return found


def ready_queue(batches: int) -> tuple[PartitionQueue, list[ProducerBatch]]:
    queue = queue_of()
    for number in range(batches):
        queue.add(batch_of(number))
    queue.renew(9, 0)
    return queue, sent_by(queue)


def test_a_retry_waits_until_everything_in_flight_was_answered_then_goes_in_order() -> None:
    queue, (first, second, third) = ready_queue(3)
    queue.answered(second, ProduceAnswer(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), 0)
    assert sent_by(queue, NEVER) == []
    queue.answered(first, ProduceAnswer(ErrorCode.NOT_LEADER_OR_FOLLOWER), 0)
    queue.answered(third, ProduceAnswer(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), 0)
    assert sent_by(queue, 0.5) == []  # the back-off
    assert sent_by(queue, 10) == [first, second, third]
    assert [batch.sequence for batch in (first, second, third)] == [0, 1, 2]


def test_a_partition_that_keeps_failing_is_probed_with_one_batch() -> None:
    queue, batches = ready_queue(3)
    for _ in range(2):
        for batch in batches:
            queue.answered(batch, ProduceAnswer(ErrorCode.NOT_ENOUGH_REPLICAS), 0)
        batches = sent_by(queue, 1000)
    assert [batch.payload for batch in batches] == [b"0"]
    queue.answered(batches[0], ProduceAnswer(ErrorCode.NONE, base_offset=0), 1000)
    assert [batch.payload for batch in sent_by(queue, 1000)] == [b"1", b"2"]


def test_an_unknown_producer_id_of_the_oldest_raises_the_epoch_and_starts_at_zero() -> None:
    queue, (first, second) = ready_queue(2)
    queue.answered(first, ProduceAnswer(ErrorCode.NONE, base_offset=0), 0)
    queue.answered(second, ProduceAnswer(ErrorCode.UNKNOWN_PRODUCER_ID), 0)
    assert sent_by(queue, 10) == [second]
    assert (queue.producer_id, queue.producer_epoch, second.wire_sequence) == (9, 1, 0)


def test_used_up_epochs_ask_for_another_producer_id() -> None:
    queue = queue_of()
    queue.add(batch_of(0))
    assert queue.needs_producer_id
    queue.renew(9, MAX_PRODUCER_EPOCH)
    (batch,) = sent_by(queue)
    queue.answered(batch, ProduceAnswer(ErrorCode.UNKNOWN_PRODUCER_ID), 0)
    assert sent_by(queue, 10) == []
    assert queue.needs_producer_id
    queue.renew(10, 0)
    assert sent_by(queue, 10) == [batch]
    assert (queue.producer_id, queue.producer_epoch) == (10, 0)


def test_sequences_wrap_as_kafkas() -> None:
    _, (batch,) = ready_queue(1)
    batch.sequence = (1 << 31) - 1
    assert batch.wire_sequence == (1 << 31) - 1
    batch.sequence += 1
    assert batch.wire_sequence == 0


def test_out_of_order_on_the_oldest_is_a_loss_and_is_told() -> None:
    queue, (first, second) = ready_queue(2)
    queue.answered(first, ProduceAnswer(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), 0)
    assert isinstance(first.delivery.error, SequenceBrokenError)
    queue.answered(second, ProduceAnswer(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), 0)
    assert sent_by(queue, 10) == [second]
    assert (queue.producer_epoch, second.sequence) == (1, 0)


def test_a_given_up_batch_that_was_appended_after_all_leaves_no_gap() -> None:
    queue, (first,) = ready_queue(1)
    queue.expire(2 * NEVER)
    assert isinstance(first.delivery.error, DeliveryTimeoutError)
    queue.add(batch_of(1, created_ms=2 * NEVER))
    assert sent_by(queue, 2 * NEVER) == []  # its request is still on the way
    queue.answered(first, ProduceAnswer(ErrorCode.NONE, base_offset=0), 2 * NEVER)
    (second,) = sent_by(queue, 2 * NEVER)
    assert (queue.producer_epoch, second.sequence) == (0, 1)


def test_pieces_of_a_split_batch_keep_its_place_and_sequences() -> None:
    queue = queue_of()
    queue.add(batch_of(0, records=10))
    queue.add(batch_of(1))
    queue.renew(9, 0)
    first, second = sent_by(queue)
    pieces = [
        ProducerBatch(first.delivery, 6, 0, payload=b"a"),
        ProducerBatch(first.delivery, 4, 0, first_index=6, payload=b"b"),
    ]
    queue.split(first, pieces)
    queue.answered(second, ProduceAnswer(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), 0)
    assert sent_by(queue, 10) == [*pieces, second]
    assert [batch.sequence for batch in (*pieces, second)] == [0, 6, 10]
    for piece, offset in zip(pieces, (100, 106), strict=True):
        queue.answered(piece, ProduceAnswer(ErrorCode.NONE, base_offset=offset), 10)
    assert first.delivery.outcome(7, 0).offset == 107


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_final_refusal_is_given_to_its_records_only(idempotent: bool) -> None:
    queue = queue_of(idempotent=idempotent)
    queue.add(batch_of(0))
    queue.add(batch_of(1))
    queue.renew(9, 0)
    first, second = sent_by(queue)
    assert queue.answered(first, ProduceAnswer(ErrorCode.INVALID_RECORD, "no key"), 0)
    with pytest.raises(HighwaterError, match="t-0: no key"):
        first.delivery.outcome(0, 0)
    assert not second.delivery.done

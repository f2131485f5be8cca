"""What a broker has not been told yet, until it answers."""

from __future__ import annotations

from highwater.controller.sending.outbox import FIRST_PARTITIONS, MAX_PARTITIONS, InstructionBatch, Outbox, StopBatch
from highwater.controller.sending.redelivery import MAX_BACKOFF_MS, Redelivery
from highwater.controller.state_machines.actions import SendLeaderAndIsr, SendStopReplica, StopPartition
from highwater.model.partition import PartitionKey

A, B, C = (PartitionKey(b"t" * 16, number) for number in range(3))


def outbox() -> Outbox:
    box = Outbox(1, 10)
    greeting = box.next_control(0)
    assert greeting == InstructionBatch({})
    box.instructed(greeting, (), 0)
    return box


def test_a_broker_is_greeted_even_where_it_hosts_nothing() -> None:
    box = outbox()
    assert box.next_control(0) is None
    assert box.control_due_ms() is None


def test_what_was_meant_for_an_earlier_registration_is_dropped() -> None:
    box = outbox()
    box.add(SendLeaderAndIsr(1, 9, (A,)), 0)
    assert box.next_control(0) is None


def test_an_instruction_is_sent_until_it_is_answered() -> None:
    box = outbox()
    box.add(SendLeaderAndIsr(1, 10, (A, B)), 0)
    batch = box.next_control(0)
    assert isinstance(batch, InstructionBatch)
    assert set(batch.keys) == {A, B}
    pause_ms = box.control_failed(batch, 0)
    assert box.next_control(0) is None
    assert box.control_due_ms() == pause_ms
    again = box.next_control(pause_ms)
    assert isinstance(again, InstructionBatch)
    box.instructed(again, {B}, pause_ms)
    box.add(SendLeaderAndIsr(1, 10, (C,)), pause_ms)
    only_the_new = box.next_control(pause_ms)
    assert isinstance(only_the_new, InstructionBatch)
    assert set(only_the_new.keys) == {C}  # B waits out its back-off


def test_a_change_while_sending_is_sent_after_it() -> None:
    box = outbox()
    box.add(SendLeaderAndIsr(1, 10, (A,)), 0)
    batch = box.next_control(0)
    assert isinstance(batch, InstructionBatch)
    box.add(SendLeaderAndIsr(1, 10, (A,)), 5)
    box.instructed(batch, (), 6)
    later = box.next_control(6)
    assert isinstance(later, InstructionBatch)
    box.instructed(later, (), 7)
    assert box.next_control(8) is None


def test_five_seconds_without_an_answer_are_reported_once() -> None:
    box = outbox()
    box.add(SendLeaderAndIsr(1, 10, (A,)), 0)
    batch = box.next_control(0)
    assert isinstance(batch, InstructionBatch)
    box.control_failed(batch, 100)
    # A newer state does not excuse the silence.
    box.add(SendLeaderAndIsr(1, 10, (A,)), 3_000)
    assert box.unanswered(4_999) == ()
    assert box.unanswered(5_000) == (A,)
    assert box.unanswered(20_000) == ()
    batch = box.next_control(20_000)
    assert isinstance(batch, InstructionBatch)
    box.instructed(batch, (), 20_000)
    box.add(SendLeaderAndIsr(1, 10, (A,)), 20_000)
    assert box.unanswered(25_000) == (A,)


def test_leaderships_come_before_followerships() -> None:
    """However many replicas a broker follows, and whichever came first: in the order of the requests."""
    box = outbox()
    keys = [PartitionKey(b"t" * 16, number) for number in range(3 * MAX_PARTITIONS)]
    leading = frozenset(keys[-700:])
    box.add(SendLeaderAndIsr(1, 10, tuple(keys), leading), 0)
    sent = []
    while (batch := box.next_control(0)) is not None:
        assert isinstance(batch, InstructionBatch)
        assert len(batch.keys) <= MAX_PARTITIONS
        sent += batch.keys
        box.instructed(batch, (), 0)
    assert set(sent[:700]) == leading
    assert len(sent) == len(set(sent)) == len(keys)


def test_a_leadership_that_is_over_is_not_urgent_any_more() -> None:
    box = outbox()
    box.add(SendLeaderAndIsr(1, 10, (A, B, C), frozenset({C})), 0)
    batch = box.next_control(0)
    assert isinstance(batch, InstructionBatch)
    assert list(batch.keys) == [C, A, B]
    box.add(SendLeaderAndIsr(1, 10, (B, C), frozenset({B})), 0)
    batch = box.next_control(0)
    assert isinstance(batch, InstructionBatch)
    assert list(batch.keys) == [B, A, C]
    box.instructed(batch, {B}, 0)
    assert box.next_control(0) is None
    batch = box.next_control(MAX_BACKOFF_MS)
    assert isinstance(batch, InstructionBatch)
    assert list(batch.keys) == [B]


def take(box: Outbox, now_ms: int) -> InstructionBatch:
    batch = box.next_control(now_ms)
    assert isinstance(batch, InstructionBatch)
    return batch


def test_what_waits_its_turn_is_not_unanswered_while_others_are_answered() -> None:
    """RULES 7.7: a broker with much to do would lose what it has not even been told."""
    box = outbox()
    keys = [PartitionKey(b"t" * 16, number) for number in range(3 * FIRST_PARTITIONS)]
    box.add(SendLeaderAndIsr(1, 10, keys), 0)
    for now_ms in (0, 4_900, 9_800):
        batch = take(box, now_ms)
        assert box.unanswered(now_ms + 4_899) == ()
        box.instructed(batch, (), now_ms + 4_899)
    # It falls silent: what was sent last counts from then on, and what waits from the last answer on.
    silent = take(box, 15_000)
    assert box.unanswered(19_698) == ()
    waiting = box.unanswered(19_699)
    assert len(waiting) == len(box.untold) - len(silent.keys)
    assert not set(waiting) & silent.keys.keys()
    assert set(box.unanswered(20_000)) == silent.keys.keys()


def test_a_state_that_changed_while_it_was_sent_is_owed_from_its_own_sending_on() -> None:
    box = outbox()
    box.add(SendLeaderAndIsr(1, 10, (A,)), 0)
    batch = take(box, 0)
    box.add(SendLeaderAndIsr(1, 10, (A,)), 100)
    box.instructed(batch, (), 4_000)
    take(box, 4_500)
    assert box.unanswered(9_499) == ()
    assert box.unanswered(9_500) == (A,)


def test_a_request_is_as_large_as_the_broker_answers_in_two_seconds() -> None:
    box = outbox()
    keys = [PartitionKey(b"t" * 16, number) for number in range(10_000)]
    box.add(SendLeaderAndIsr(1, 10, keys), 0)

    def sizes(count: int, answer_ms: int) -> list[int]:
        found = []
        for _ in range(count):
            batch = take(box, 0)
            box.instructed(batch, (), answer_ms)
            found.append(len(batch.keys))
        return found

    assert sizes(5, 900) == [100, 200, 400, 500, 500]
    assert sizes(2, 1_900) == [500, 500]
    assert sizes(5, 2_100) == [500, 250, 125, 62, 50]
    batch = take(box, 0)
    box.control_failed(batch, 10_000)
    assert len(take(box, 20_000).keys) == 50


def test_deletions_come_after_leaderships_and_end_instructions() -> None:
    box = outbox()
    stop = StopPartition(A, -1, delete_log=True)
    box.add(SendLeaderAndIsr(1, 10, (A, B)), 0)
    box.add(SendStopReplica(1, 10, (stop,)), 0)
    instructions = box.next_control(0)
    assert isinstance(instructions, InstructionBatch)
    assert set(instructions.keys) == {B}
    box.instructed(instructions, (), 0)
    stops = box.next_control(0)
    assert isinstance(stops, StopBatch)
    assert stops.partitions == (stop,)
    assert box.is_stopping(A.topic_id)
    box.stopped(stops, {A}, 0)
    assert box.is_stopping(A.topic_id)
    stops = box.next_control(MAX_BACKOFF_MS)
    assert isinstance(stops, StopBatch)
    box.stopped(stops, (), MAX_BACKOFF_MS)
    assert not box.is_stopping(A.topic_id)


def test_back_off_is_bounded_and_ends_with_a_change() -> None:
    queue: Redelivery[str] = Redelivery()
    queue.put(["a"], 0)
    now_ms = 0
    for _ in range(30):
        queue.failed(queue.take(now_ms, 10), now_ms)
        due_ms = queue.next_due_ms()
        assert due_ms is not None
        assert 0 < due_ms - now_ms <= MAX_BACKOFF_MS
        now_ms = due_ms
    queue.failed(queue.take(now_ms, 10), now_ms)
    queue.put(["a"], now_ms + 1)
    assert queue.take(now_ms + 1, 10).keys() == {"a"}

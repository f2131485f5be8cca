"""RULES 6.1 and 6.2."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_storage_batches import batch, header_of, produced

from highwater.errors import ErrorCode
from highwater.log_storage.producers.producer_states import MAX_SEQUENCE, Duplicate, ProducerStates


def states_after(*batches: bytes) -> ProducerStates:
    states, offset = ProducerStates(), 0
    for encoded in batches:
        header = header_of(encoded)
        states.update(header, offset)
        offset += header.last_offset_delta + 1
    return states


def test_without_a_producer_id_everything_passes() -> None:
    states = ProducerStates()
    header = header_of(batch(3))
    assert states.check(header) is ErrorCode.NONE
    states.update(header, 0)
    assert len(states) == 0


@pytest.mark.parametrize(
    ("epoch", "sequence", "verdict"),
    [
        (2, 8, ErrorCode.NONE),
        (2, 5, Duplicate(5, 7)),
        (2, 0, Duplicate(0, 4)),
        (2, 9, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (2, 7, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (1, 8, ErrorCode.INVALID_PRODUCER_EPOCH),
        (3, 8, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (3, 0, ErrorCode.NONE),
    ],
)
def test_the_next_sequence_or_a_duplicate(epoch: int, sequence: int, verdict: object) -> None:
    states = states_after(produced(5, sequence=0, producer_epoch=2), produced(3, sequence=5, producer_epoch=2))
    count = {0: 5, 5: 3}.get(sequence, 1) if epoch == 2 else 1
    assert states.check(header_of(produced(count, sequence=sequence, producer_epoch=epoch))) == verdict


def test_a_batch_of_another_length_is_no_duplicate() -> None:
    states = states_after(produced(5, sequence=0))
    assert states.check(header_of(produced(4, sequence=0))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_unknown_producer_begins_at_zero() -> None:
    states = ProducerStates()
    assert states.check(header_of(produced(sequence=4))) is ErrorCode.UNKNOWN_PRODUCER_ID
    assert states.check(header_of(produced(sequence=0))) is ErrorCode.NONE


def test_five_batches_are_remembered() -> None:
    states = states_after(*(produced(sequence=number) for number in range(6)))
    assert states.check(header_of(produced(sequence=1))) == Duplicate(1, 1)
    assert states.check(header_of(produced(sequence=0))) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_new_epoch_replaces_the_state() -> None:
    states = states_after(produced(2, sequence=0), produced(sequence=0, producer_epoch=1))
    assert states.check(header_of(produced(sequence=1, producer_epoch=1))) is ErrorCode.NONE
    assert states.check(header_of(produced(2, sequence=0))) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_sequences_wrap() -> None:
    states = ProducerStates()
    states.update(header_of(produced(2, sequence=MAX_SEQUENCE)), 0)
    assert states.check(header_of(produced(sequence=1))) is ErrorCode.NONE
    assert states.check(header_of(produced(2, sequence=MAX_SEQUENCE))) == Duplicate(0, 1)


def test_a_follower_does_not_check() -> None:
    states = states_after(produced(sequence=40))
    assert states.check(header_of(produced(sequence=41))) is ErrorCode.NONE


def test_expiry() -> None:
    states = ProducerStates()
    states.update(header_of(produced(sequence=0, producer_id=1)), 0, now_ms=100)
    states.update(header_of(produced(sequence=0, producer_id=2)), 1, now_ms=200)
    assert states.expire(200) == 1
    assert states.get(1) is None
    assert states.get(2) is not None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=40), st.integers(0, 60))
def test_a_rebuild_equals_what_was_never_truncated(appends: list[tuple[int, int]], cut_batch: int) -> None:
    """The states are a function of the log: those after truncation are those of the shorter log."""
    sequences: dict[int, int] = {}
    headers, offset, whole = [], 0, ProducerStates()
    for producer_id, count in appends:
        sequence = sequences.get(producer_id, 0)
        sequences[producer_id] = sequence + count
        header = header_of(produced(count, sequence=sequence, producer_id=producer_id, base_offset=offset))
        assert whole.check(header) is ErrorCode.NONE
        whole.update(header, offset)
        headers.append(header)
        offset += count
    kept = headers[:cut_batch]
    end = kept[-1].next_offset if kept else 0
    rebuilt = ProducerStates()
    rebuilt.rebuild(kept)
    if whole.outlives(end):
        assert rebuilt == whole
    copied = whole.copy()
    copied.rebuild(kept)
    assert copied == rebuilt
    for header in kept[-1:]:
        assert rebuilt.check(header) == Duplicate(header.base_offset, header.last_offset)

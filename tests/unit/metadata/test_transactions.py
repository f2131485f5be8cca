from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.metadata.store.batches import BATCH_WRITES, COMPANION_OPERATIONS, ConditionalWrite, pack
from highwater.metadata.store.transactions import (
    MAX_TXN_OPERATIONS,
    Entry,
    Put,
    absent,
    check_size,
    created_at,
    modified_at,
    value_is,
)

ENTRY = Entry("k", b"v", create_revision=5, mod_revision=8)


def test_a_compare_holds_for_what_it_names_and_nothing_else() -> None:
    assert absent("k").holds(None)
    assert not absent("k").holds(ENTRY)
    assert created_at("k", 5).holds(ENTRY)
    assert not created_at("k", 8).holds(ENTRY)
    assert modified_at("k", 8).holds(ENTRY)
    assert not modified_at("k", 5).holds(ENTRY)
    assert modified_at("k", 0).holds(None)
    assert not modified_at("k", 8).holds(None)
    assert value_is("k", b"v").holds(ENTRY)
    assert not value_is("k", b"").holds(None)


def test_a_transaction_above_the_limit_is_refused_before_it_is_sent() -> None:
    check_size([], [Put("k", b"")] * 128, [])
    with pytest.raises(ValueError, match="at most 128"):
        check_size([absent("k")] * 129, [], [])


def write(number: int, shared: int = 0) -> ConditionalWrite:
    """A write of one key that also compares `shared` keys of its own."""
    others = (created_at(f"broker-{number}-{each}", 1) for each in range(shared))
    return ConditionalWrite((modified_at(f"k{number}", 1), *others), (Put(f"k{number}", b""),))


@given(st.lists(st.integers(0, 60), max_size=300))
def test_packing_keeps_order_and_every_limit(shared: list[int]) -> None:
    writes = [write(number, each) for number, each in enumerate(shared)]
    guard = created_at("controller", 9)
    batches = pack(writes, (guard,))
    assert [index for batch in batches for index in batch] == list(range(len(writes)))
    for batch in batches:
        compares = {guard, *(compare for index in batch for compare in writes[index].compares)}
        assert 0 < len(batch) <= BATCH_WRITES
        assert len(compares) <= MAX_TXN_OPERATIONS
        assert sum(len(writes[index].operations) for index in batch) + COMPANION_OPERATIONS <= MAX_TXN_OPERATIONS


def test_compares_that_writes_share_count_once() -> None:
    joining = created_at("broker", 4)
    writes = [ConditionalWrite((modified_at(f"k{n}", 1), joining), (Put(f"k{n}", b""),)) for n in range(240)]
    assert [len(batch) for batch in pack(writes)] == [120, 120]


def test_a_write_that_fits_no_transaction_is_refused() -> None:
    with pytest.raises(ValueError, match="fits no transaction"):
        pack([write(0, shared=128)])

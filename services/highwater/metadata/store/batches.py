"""Many conditional writes in few transactions, each with an outcome of its own (RULES 2.6)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from highwater.metadata.store.etcd_errors import GuardFailed, OutcomeUnknown, Refused, Unavailable
from highwater.metadata.store.store import Store
from highwater.metadata.store.transactions import MAX_TXN_OPERATIONS, Compare, Entry, Get, Operation

BATCH_WRITES = 120
COMPANION_OPERATIONS = MAX_TXN_OPERATIONS - BATCH_WRITES
CONCURRENT_BATCHES = 4


class Outcome(Enum):
    WRITTEN = "written"
    REFUSED = "refused"
    """A compare did not hold; nothing was written."""
    UNAVAILABLE = "unavailable"
    """etcd could not be reached, or will not write now (no space left); nothing was written, and nothing is known of
    the compares."""
    UNKNOWN = "unknown"
    """It may have been written, may yet be, or never: see `OutcomeUnknown`."""


@dataclass(frozen=True, slots=True)
class ConditionalWrite:
    """The operations are done if all compares hold. No two writes of one call may put the same key."""

    compares: tuple[Compare, ...]
    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class WriteResult:
    outcome: Outcome
    revision: int = 0  # WRITTEN: mod revision of what was put
    current: tuple[
        Entry | None, ...
    ] = ()  # REFUSED: the compared keys as they stood then, in the order of the compares


Companion = Callable[[Sequence[int]], Sequence[Operation]]
"""Operations that go along with the writes of these indexes in one transaction. Asked anew for each attempt."""


def pack(writes: Sequence[ConditionalWrite], guards: Sequence[Compare] = ()) -> list[list[int]]:
    """Indexes of the writes, in order, cut into transactions that keep etcd's limit. Pure.

    Raises `ValueError` for a single write that is too large by itself.
    """
    batches: list[list[int]] = []
    compares: set[Compare] = set()
    operations = 0
    for index, write in enumerate(writes):
        grown = compares | set(write.compares)
        total = operations + len(write.operations)
        full = len(batches[-1]) >= BATCH_WRITES if batches else True
        if full or len(grown) > MAX_TXN_OPERATIONS or total > MAX_TXN_OPERATIONS - COMPANION_OPERATIONS:
            grown = set(guards) | set(write.compares)
            total = len(write.operations)
            if len(grown) > MAX_TXN_OPERATIONS or total > MAX_TXN_OPERATIONS - COMPANION_OPERATIONS:
                raise ValueError(f"one write of {len(grown)} compares and {total} operations fits no transaction")
            batches.append([])
        batches[-1].append(index)
        compares, operations = grown, total
    return batches


async def write_in_batches(
    store: Store,
    writes: Sequence[ConditionalWrite],
    *,
    guards: Sequence[Compare] = (),
    companion: Companion | None = None,
    timeout_s: float | None = None,
) -> list[WriteResult]:
    """Does each write whose compares hold, many in one transaction; one result for each, in order.

    A transaction that fails tells which compares did it: those writes are REFUSED and the others sent again without
    them. Raises `GuardFailed` where one of the `guards` (compared in every transaction) does not hold; some
    transactions may have been done before that.
    """
    results: list[WriteResult | None] = [None] * len(writes)
    slots = asyncio.Semaphore(CONCURRENT_BATCHES)

    async def write_batch(batch: list[int]) -> None:
        async with slots:
            while batch:
                batch = await _write_once(store, writes, batch, guards, companion, timeout_s, results)

    done = await asyncio.gather(*map(write_batch, pack(writes, guards)), return_exceptions=True)
    for error in done:
        if isinstance(error, BaseException):
            raise error
    assert all(result is not None for result in results)
    return [result for result in results if result is not None]


async def _write_once(
    store: Store,
    writes: Sequence[ConditionalWrite],
    batch: list[int],
    guards: Sequence[Compare],
    companion: Companion | None,
    timeout_s: float | None,
    results: list[WriteResult | None],
) -> list[int]:
    """One transaction; fills in the results that it settles and returns the indexes that are to be tried again."""
    compares = list(dict.fromkeys([*guards, *(compare for index in batch for compare in writes[index].compares)]))
    compared_keys = list(dict.fromkeys(compare.key for compare in compares))
    operations = [operation for index in batch for operation in writes[index].operations]
    operations += companion(batch) if companion is not None else ()
    try:
        # The failed branch reads what was compared in the same instant, so the culprits need no search.
        answer = await store.txn(compares, operations, [Get(key) for key in compared_keys], timeout_s=timeout_s)
    except OutcomeUnknown:
        return _settle(results, batch, WriteResult(Outcome.UNKNOWN))
    except (Unavailable, Refused):
        return _settle(results, batch, WriteResult(Outcome.UNAVAILABLE))
    if answer.succeeded:
        return _settle(results, batch, WriteResult(Outcome.WRITTEN, answer.revision))
    current = dict(zip(compared_keys, answer.entries, strict=True))
    for guard in guards:
        if not guard.holds(current[guard.key]):
            raise GuardFailed(f"{guard.key}: {guard.target.value} is no longer {guard.expected!r}")
    rest: list[int] = []
    for index in batch:
        own = writes[index].compares
        if all(compare.holds(current[compare.key]) for compare in own):
            rest.append(index)
        else:
            results[index] = WriteResult(Outcome.REFUSED, current=tuple(current[compare.key] for compare in own))
    assert len(rest) < len(batch), "etcd refused a transaction whose compares all hold"
    return rest


def _settle(results: list[WriteResult | None], batch: list[int], result: WriteResult) -> list[int]:
    for index in batch:
        results[index] = result
    return []

"""RULES 6.4: a log knows of so many producers and no more, and of the same ones on every replica."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_storage_batches import append, header_of, make_log, produced

from highwater.errors import ErrorCode
from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.log.log import Log
from highwater.log_storage.producers import producer_snapshots
from highwater.log_storage.producers.producer_states import Duplicate, ProducerLimits, ProducerStates
from highwater.log_storage.recovery.recovery import Checkpointed
from highwater.records import BatchHeader

LIMITS = ProducerLimits(3, 100)
CONFIG = LogConfig(segment_bytes=300, producer_limits=LIMITS)  # three batches a segment


def send(log: Log, *producers: tuple[int, int], now_ms: int = 0) -> None:
    """Appends a batch of each (producer id, sequence) in one request."""
    records = b"".join(produced(1, producer_id=who, sequence=sequence) for who, sequence in producers)
    log.append_as_leader(records, 1, log.log_end_offset, now_ms)


def led(directory: Path) -> Log:
    log = make_log(directory / "t-0", CONFIG)
    log.become_leader(1)
    return log


def known(log: Log) -> list[int]:
    return [producer_id for producer_id, _ in log.producers.items()]


def overloaded(error: LogError) -> bool:
    return error.code is ErrorCode.OVERLOADED


def test_a_leader_refuses_one_more_while_none_has_been_idle_for_long(tmp_path: Path) -> None:
    log = led(tmp_path)
    for who in (1, 2, 3):
        send(log, (who, 0))
    end = log.log_end_offset
    with pytest.raises(LogError, check=overloaded):
        send(log, (4, 0), now_ms=99)
    assert (log.log_end_offset, known(log)) == (end, [1, 2, 3])
    send(log, (1, 1), now_ms=99)  # those that it knows go on
    with pytest.raises(LogError, check=lambda error: error.code is ErrorCode.UNKNOWN_PRODUCER_ID):
        send(log, (4, 7), now_ms=100)
    send(log, (4, 0), now_ms=100)
    assert known(log) == [3, 1, 4]


def test_what_may_still_be_sent_again_is_found_to_be_a_duplicate(tmp_path: Path) -> None:
    log = led(tmp_path)
    send(log, (1, 0))
    for who in range(2, 50):
        with suppress(LogError):
            send(log, (who, 0), now_ms=who)
    again = log.append_as_leader(produced(1, producer_id=1, sequence=0), 1, log.log_end_offset, 99)
    assert again.duplicate


def test_batches_of_new_producers_in_one_append_count_together(tmp_path: Path) -> None:
    log = led(tmp_path)
    with pytest.raises(LogError, check=overloaded):
        send(log, (1, 0), (2, 0), (3, 0), (4, 0))
    send(log, (1, 0), (2, 0), (3, 0), (1, 1))
    assert known(log) == [2, 3, 1]
    with pytest.raises(LogError, check=overloaded):  # 2 is in the append itself, and not idle
        send(log, (4, 0), (5, 0), (2, 1), (6, 0), now_ms=500)
    send(log, (4, 0), (2, 1), now_ms=500)
    assert known(log) == [1, 4, 2]
    send(log, (7, 0), (8, 0), (9, 0), now_ms=1_000)
    assert known(log) == [7, 8, 9]


def test_batches_without_a_producer_need_no_room(tmp_path: Path) -> None:
    log = led(tmp_path)
    send(log, (1, 0), (2, 0), (3, 0))
    append(log, produced(1, producer_id=-1, producer_epoch=-1, sequence=-1))
    assert known(log) == [1, 2, 3]


def test_a_follower_takes_what_its_leader_took_and_knows_the_same_producers(tmp_path: Path) -> None:
    leader, follower = led(tmp_path / "leader"), make_log(tmp_path / "follower" / "t-0", CONFIG)
    for who in range(1, 40):
        send(leader, (who, 0), now_ms=100 * who)
    while (offset := follower.log_end_offset) < leader.log_end_offset:  # in no time at all
        follower.append_as_follower(leader.read(offset, leader.log_end_offset, 1 << 20), 1, offset, -1, -1, 0)
    assert known(follower) == known(leader) == [37, 38, 39]


def test_more_than_the_limit_are_never_kept_whatever_comes_back(tmp_path: Path) -> None:
    """A restart, a crash, a truncation, and a limit that is lower than before."""
    log = led(tmp_path)
    for who in range(1, 12):
        send(log, (who, 0), now_ms=100 * who)
        log.producer_state.write_snapshots()
    assert known(make_log(log.directory, CONFIG, Checkpointed())) == [9, 10, 11]
    log.truncation.truncate_to(log.truncation.cut_for(6, -1))
    assert known(log) == [4, 5, 6]
    log.close()
    fewer = replace(CONFIG, producer_limits=ProducerLimits(2, 100))
    assert known(make_log(log.directory, fewer)) == [5, 6]


def test_a_snapshot_brings_back_the_order_whoever_wrote_it() -> None:
    states = ProducerStates()
    for offset, who in ((9, 1), (4, 2), (7, 3)):
        states.update(header_of(produced(1, producer_id=who, sequence=0)), offset)
    content = producer_snapshots.encode(states, 0)
    assert [who for who, _ in producer_snapshots.decode(content, 0, 0).items()] == [2, 3, 1]
    assert [who for who, _ in producer_snapshots.decode(content, 0, 0, ProducerLimits(2, 0)).items()] == [3, 1]


class Counting(ProducerStates):
    """Fails where more than the states that are asked for are looked at."""

    def items(self) -> list[object]:  # type: ignore[override]
        raise AssertionError("a walk over all")

    copy = items  # type: ignore[assignment]


def test_neither_expiry_nor_admission_looks_at_all_producers() -> None:
    states = Counting(ProducerLimits(1_000, 10))
    for who in range(1_000):
        states.update(header_of(produced(1, producer_id=who, sequence=0)), who, now_ms=who)
    assert states.expire(3) == 3
    assert states.expire(3) == 0
    assert states.admits({5_000, 5_001, 5_002, 5_003}, 1_000)
    assert not states.admits({5_000, 5_001, 5_002, 5_003}, 12)


def headers(batches: Sequence[int]) -> list[BatchHeader]:
    """A batch of each of the producers, their sequences in order."""
    sequences: dict[int, int] = {}
    found = []
    for offset, who in enumerate(batches):
        sequence = sequences.get(who, 0)
        sequences[who] = sequence + 1
        found.append(header_of(produced(1, producer_id=who, sequence=sequence, base_offset=offset)))
    return found


@given(st.lists(st.integers(0, 6), max_size=40), st.integers(1, 5), st.integers(0, 40), st.integers(0, 40))
def test_the_states_stay_a_function_of_the_log(batches: list[int], most: int, taken: int, cut: int) -> None:
    """However a replica comes to its batches (from the first one, from a snapshot at any offset, back from a
    truncation) it knows the same producers, and of each the same."""
    limits, log = ProducerLimits(most, 0), headers(batches)
    whole = ProducerStates(limits)
    for header in log:
        whole.update(header, header.base_offset)
    assert [who for who, _ in whole.items()] == list(dict.fromkeys(reversed(batches)))[:most][::-1]
    below = ProducerStates(limits)
    below.rebuild(log[:taken])
    again = producer_snapshots.decode(producer_snapshots.encode(below, 0), 0, 0, limits)
    for header in log[taken:]:
        again.update(header, header.base_offset)
    assert {who: state.batches[-1] for who, state in again.items()} == {
        who: state.batches[-1] for who, state in whole.items()
    }
    shorter = ProducerStates(limits)
    shorter.rebuild(log[:cut])
    if whole.outlives(cut):
        assert shorter == whole
    for header in log[:cut][-1:]:
        assert shorter.check(header) == Duplicate(header.base_offset, header.last_offset)

from __future__ import annotations

import pytest

from highwater.kube.history import Checker, History, record_value

Log = list[tuple[int, int]]  # writer and number, by offset


def history(acknowledged: Log, *, read: Log = ()) -> History:  # type: ignore[assignment]
    """One partition's; every record of `acknowledged` was sent and acknowledged at its offset."""
    made = History(writers=2)
    for offset, (writer, number) in enumerate(acknowledged):
        while made.sent(writer) < number:
            pass
        made.acknowledged(writer, number, 0, offset)
    for offset, (writer, number) in enumerate(read):
        made.read(0, offset, b"%d" % writer, record_value(writer, number))
    return made


def found(made: History, log: Log) -> set[str]:
    checker = Checker(made)
    for offset, (writer, number) in enumerate(log):
        while made.sent(writer) < number:
            pass
        checker.record(0, offset, b"%d" % writer, record_value(writer, number))
    checker.end()
    return {problem.partition(":")[0] for problem in made.problems}


LOG = [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]


def test_a_log_that_is_as_it_was_acknowledged_has_no_problem() -> None:
    assert found(history(LOG, read=LOG[:3]), LOG) == set()


def test_what_was_not_acknowledged_may_be_there_once_and_in_order() -> None:
    made = history(LOG)
    assert found(made, [*LOG, (0, 3)]) == set()
    assert made.counts["in the log though not acknowledged"] == 1


@pytest.mark.parametrize(
    ("log", "kinds"),
    [
        (LOG[:-1], {"lost records"}),
        ([LOG[0], LOG[2], LOG[1], *LOG[3:]], {"lost records", "moved records"}),
        ([*LOG, (0, 2)], {"repeated records", "moved records"}),
        ([*LOG, (1, 3), (1, 2)], {"reordered records"}),
    ],
)
def test_what_is_lost_moved_repeated_or_reordered_is_found(log: Log, kinds: set[str]) -> None:
    assert found(history(LOG), log) == kinds


def test_a_record_that_a_reader_saw_and_that_is_another_one_later_is_found() -> None:
    made = history(LOG[:3], read=[*LOG[:3], (1, 7)])
    assert found(made, LOG) == {"changed records"}


def test_offsets_that_are_skipped_are_found() -> None:
    made = history([])
    made.read(0, 0, b"0", b"")
    made.read(0, 2, b"0", b"")
    assert [problem.partition(":")[0] for problem in made.problems] == ["skipped offsets"]


def test_a_key_in_two_partitions_is_found() -> None:
    made = History(writers=1)
    checker = Checker(made)
    for partition, number in ((0, 0), (1, 1)):
        made.sent(0)
        made.acknowledged(0, number, partition, 0)
        checker.record(partition, 0, b"0", record_value(0, number))
    checker.end()
    assert [problem.partition(":")[0] for problem in made.problems] == ["scattered keys"]


def test_only_the_first_problems_are_told_in_words() -> None:
    made = history([(0, number) for number in range(1000)])
    for number in range(500):
        made.problem("lost records", str(number))
    assert len(made.problems) == 20
    assert made.counts["lost records"] == 500

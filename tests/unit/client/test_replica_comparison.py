"""Replicas compared batch by batch: what is a difference, and what retention and compaction may do."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from highwater.client.admin.replica_comparison import MAX_PROBLEMS, Batch, BatchSource, Findings, compare


class Replica:
    """A source over a list. `later` is what a refresh finds."""

    def __init__(
        self,
        broker_id: int,
        batches: Sequence[Batch],
        *,
        start: int = 0,
        cleaned_to: int = 0,
        later: dict[str, int] | None = None,
        damaged: Sequence[int] = (),
    ) -> None:
        self.broker_id = broker_id
        self.log_start_offset = start
        self.log_end_offset = batches[-1].last_offset + 1 if batches else start
        self.cleaned_to = cleaned_to
        self._batches = list(batches)
        self._later = later or {}
        self._damaged = damaged

    async def head(self) -> Batch | None:
        return self._batches[0] if self._batches else None

    def advance(self) -> None:
        self._batches.pop(0)

    async def refresh(self) -> None:
        for name, value in self._later.items():
            setattr(self, name, value)

    def damaged(self, batch: Batch) -> bool:
        return any(batch.base_offset <= offset <= batch.last_offset for offset in self._damaged)


def log(count: int, first: int = 0, step: int = 10) -> list[Batch]:
    return [Batch(base, base + step - 1, base // 50, base * 7) for base in range(first, first + count * step, step)]


async def no_records(first: BatchSource, second: BatchSource, offset: int) -> str:
    raise AssertionError("nothing here is compacted")


async def findings(leader: Replica, follower: Replica, high_watermark: int = 100) -> Findings:
    return (await compare(leader, [follower], high_watermark, no_records))[follower.broker_id]


async def test_equal_replicas() -> None:
    offsets: list[int] = []
    found = await compare(
        Replica(1, log(12)), [Replica(2, log(12)), Replica(3, log(10))], 100, no_records, offsets.append
    )
    assert {broker: (each.compared, each.problems) for broker, each in found.items()} == {2: (10, []), 3: (10, [])}
    assert offsets == list(range(10, 101, 10))


async def test_what_is_above_the_high_watermark_may_differ() -> None:
    other = [*log(10), Batch(100, 119, 9, 9)]
    assert (await findings(Replica(1, log(12)), Replica(2, other))).problems == []


async def test_one_that_is_behind_has_less_and_nothing_else() -> None:
    found = await findings(Replica(1, log(12)), Replica(2, log(4)))
    assert (found.compared, found.problems) == (4, [])


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (Batch(30, 39, 0, 1), "CRC-32C 0x00000001 instead of 0x000000d2"),
        (Batch(30, 39, 7, 210), "leader epoch 7, should be 0"),
        (Batch(30, 35, 0, 210), "30 to 35 stands where it should be 30 to 39"),
    ],
)
async def test_a_batch_that_differs(changed: Batch, told: str) -> None:
    other = log(10)
    other[3] = changed
    found = await findings(Replica(1, log(10)), Replica(2, other))
    assert len(found.problems) == 1
    assert told in found.problems[0]


async def test_batches_that_are_missing_or_too_many() -> None:
    whole = log(10)
    lacking = whole[:3] + whole[4:]
    assert (await findings(Replica(1, whole), Replica(2, lacking))).problems == [
        "broker 2 lacks the batch of offsets 30 to 39"
    ]
    assert (await findings(Replica(1, lacking), Replica(2, whole))).problems == [
        "broker 1 lacks the batch of offsets 30 to 39"
    ]
    # At the end, below the high watermark.
    assert (await findings(Replica(1, whole[:-1]), Replica(2, whole))).problems == [
        "broker 1 lacks the batch of offsets 90 to 99"
    ]


async def test_logs_that_start_later() -> None:
    """Each replica lets go of segments by itself."""
    assert (await findings(Replica(1, log(10)), Replica(2, log(7, 30), start=30))).problems == []
    assert (await findings(Replica(1, log(7, 30), start=35), Replica(2, log(10)))).problems == []
    # The batch that holds the log start.
    assert (await findings(Replica(1, log(10)), Replica(2, log(7, 30), start=35))).problems == []


async def test_retention_while_it_is_compared() -> None:
    lacking = log(10)[3:]
    found = await findings(Replica(1, log(10)), Replica(2, lacking, later={"log_start_offset": 30}))
    assert found.problems == []
    found = await findings(Replica(1, log(10)), Replica(2, lacking, later={"log_start_offset": 20}))
    assert found.problems == ["broker 2 lacks the batch of offsets 20 to 29"]


@pytest.mark.parametrize("cleaned", [1, 2])
@pytest.mark.parametrize("meanwhile", [False, True])
async def test_below_what_compaction_passed_over_batches_may_be_gone_or_changed(cleaned: int, meanwhile: bool) -> None:
    whole = log(10)
    compacted = [whole[0], Batch(20, 29, 0, 5), *whole[4:]]  # two are gone, one has fewer records
    asked: list[int] = []

    async def records(first: BatchSource, second: BatchSource, offset: int) -> str:
        asked.append(offset)
        return ""

    late = {"later": {"cleaned_to": 50}} if meanwhile else {"cleaned_to": 50}
    replicas = {1: whole, 2: whole, cleaned: compacted}
    sources = [Replica(broker, batches, **(late if broker == cleaned else {})) for broker, batches in replicas.items()]  # type: ignore[arg-type]
    found = (await compare(sources[0], [sources[1]], 100, records))[2]
    assert found.problems == []
    assert asked == [20]


async def test_compaction_does_not_excuse_what_lies_above_it_nor_other_records() -> None:
    whole = log(10)
    lacking = whole[:6] + whole[7:]
    found = await findings(Replica(1, whole), Replica(2, lacking, cleaned_to=60))
    assert found.problems == ["broker 2 lacks the batch of offsets 60 to 69"]

    async def records(first: BatchSource, second: BatchSource, offset: int) -> str:
        return f"offset {offset} differs"

    changed = [Batch(0, 9, 0, 1), *whole[1:]]
    found = (await compare(Replica(1, whole, cleaned_to=60), [Replica(2, changed)], 100, records))[2]
    assert found.problems == ["offset 0 differs"]


async def test_damage_that_is_known_is_told_once() -> None:
    whole = log(10)
    found = await findings(Replica(1, whole), Replica(2, whole[:3] + whole[4:], damaged=[33]))
    assert found.problems == []


async def test_problems_are_counted_beyond_the_first() -> None:
    other = [batch._replace(crc=1) for batch in log(20)]
    found = await findings(Replica(1, log(20)), Replica(2, other), 200)
    assert (len(found.problems), found.more_problems) == (MAX_PROBLEMS, 20 - MAX_PROBLEMS)

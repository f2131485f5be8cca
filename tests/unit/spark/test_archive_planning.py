"""Which files of an archive are merged, what files are called, and how a replay is cut into steps."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.errors import UserError
from highwater.spark.pipelines.archives.compaction import SmallFiles, small_files
from highwater.spark.pipelines.archives.files import FileContent, check_place, highest_commit, named
from highwater.spark.pipelines.archives.value_types import value_type_of_files
from highwater.spark.pipelines.files.hadoop_files import Listing
from highwater.spark.pipelines.sending.replay_progress import next_until

DAY = "topic=t/date=2026-11-21"
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def test_small_files_of_hours_that_are_over() -> None:
    def files(hour: str, *sizes: int, **others: int) -> Listing:
        named = {f"{i}.parquet": size for i, size in enumerate(sizes)}
        return Listing(f"{DAY}/hour={hour}", {**named, **others})

    listed = [
        Listing("other", {"a.parquet": 1, "b.parquet": 1}),
        Listing(f"{DAY}/hour=08/within", {"a.parquet": 1, "b.parquet": 1}),
        files("09", 10, 20, note=1),
        files("10", 10, 60, 49),  # 60 is big enough
        files("11", 10, 60),  # one small file is as good as it gets
        files("12", 10, 10),  # not over
    ]
    assert list(small_files(listed, 100, NOON)) == [
        SmallFiles(f"{DAY}/hour=09", (f"{DAY}/hour=09/0.parquet", f"{DAY}/hour=09/1.parquet"), 30),
        SmallFiles(f"{DAY}/hour=10", (f"{DAY}/hour=10/0.parquet", f"{DAY}/hour=10/2.parquet"), 59),
    ]
    assert list(small_files(listed, 100, datetime(2026, 11, 21, 9, 59, tzinfo=UTC))) == []


def test_a_file_is_named_for_its_first_record() -> None:
    directory = "topic=t/date=2026-11-21/hour=09"

    def content(name: str, partition: int, first: int) -> FileContent:
        return FileContent(directory, name, "t", partition, first, first + 9, 10, 100)

    found = named([content("x", 4, 7), content("x", 3, 1200), content("y", 4, 100)], 8)
    assert found == {
        f"{directory}/x": f"{directory}/00003-00000000000000001200-000008.parquet",
        f"{directory}/y": f"{directory}/00004-00000000000000000100-000008.parquet",
    }
    assert highest_commit([*found.values(), "somewhere/else.parquet"]) == 8
    assert highest_commit([]) == 0


def test_a_table_without_its_log_is_no_archive_of_plain_files() -> None:
    check_place("/a", Listing("", {"note.txt": 1}))
    check_place("/a", Listing(f"{DAY}/hour=09", {"00003-1-000008.parquet": 1}))
    with pytest.raises(UserError, match=rf"^/a has {DAY}/part-0.parquet in it, .* put back _delta_log"):
        check_place("/a", Listing(DAY, {"part-0.parquet": 1}))


def test_the_type_of_values_is_looked_up_in_the_first_day() -> None:
    """An object store lists all that it is asked for at once."""
    days = [f"topic=t/date=2026-11-{day}" for day in (20, 21, 22)]
    listed: list[str] = []

    class Files:
        def names(self, directory: str) -> list[str]:
            return ["lost+found", "topic=t"] if directory == "/a" else [day.rpartition("/")[2] for day in days]

        def listings(self, _: str, below: str = "") -> Iterator[Listing]:
            listed.append(below)
            yield from [Listing(f"{below}/hour=09", {"1.parquet": 1})] if below != days[0] else []

    read: list[str] = []
    spark: Any = SimpleNamespace(
        read=SimpleNamespace(parquet=lambda path: read.append(path) or SimpleNamespace(columns=[]))
    )
    files: Any = Files()
    assert value_type_of_files(spark, files, "/a") == "binary"
    assert (listed, read) == (days[:2], [f"/a/{days[1]}/hour=09/1.parquet"])


@given(
    st.dictionaries(st.integers(0, 20), st.tuples(st.integers(0, 10**12), st.integers(1, 5000)), min_size=1),
    st.integers(1, 10_000),
)
def test_steps_cover_every_offset_once(partitions: dict[int, tuple[int, int]], step: int) -> None:
    sent = {partition: first for partition, (first, _) in partitions.items()}
    ends = {partition: first + count for partition, (first, count) in partitions.items()}
    step = max(step, len(ends))
    steps = 0
    while (until := next_until(sent, ends, step)) != sent:
        assert all(sent[partition] <= until[partition] <= ends[partition] for partition in ends)
        assert sum(until.values()) - sum(sent.values()) <= step
        sent, steps = until, steps + 1
    assert sent == ends
    assert steps <= 21 + sum(count for _, count in partitions.values()) // max(step // len(ends), 1)


def test_partitions_of_different_sizes_come_to_their_ends_together() -> None:
    assert next_until({0: 0, 1: 0, 2: 7}, {0: 9000, 1: 900, 2: 7}, 1000) == {0: 908, 1: 92, 2: 7}
    sent, ends = dict.fromkeys(range(7), 0), {number: 1429 + 10 * number for number in range(7)}
    steps = 0
    while (until := next_until(sent, ends, 1000)) != sent:
        sent, steps = until, steps + 1
    assert steps == 11  # of 10,213: no more than it takes

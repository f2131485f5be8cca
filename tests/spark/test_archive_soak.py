"""The soak of the archive finds what is wrong with a table. Without Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from archive_soak.tables import SoakTable, WrongTableError
from archive_soak.topics import SCHEMA, SoakTopic
from deltalake import DeltaTable, write_deltalake

from highwater.client import TopicPartition


class SentTopic(SoakTopic):
    """As if it had been written to."""

    def __init__(self, name: str, records: int) -> None:
        self.name, self._generation = name, 1
        self._sent = {0: [pa.Table.from_pylist([self._row(0, offset) for offset in range(records)], SCHEMA)]}


def with_one_twice(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows, rows.slice(7, 1)])


def without_one(rows: pa.Table) -> pa.Table:
    return rows.filter(pc.not_equal(rows["offset"], 7))


def without_the_first(rows: pa.Table) -> pa.Table:
    return rows.slice(1)


def without_the_last(rows: pa.Table) -> pa.Table:
    return rows.slice(0, rows.num_rows - 1)


def with_the_key_of_another(rows: pa.Table) -> pa.Table:
    place = rows.schema.get_field_index("key")
    return rows.set_column(place, "key", pc.if_else(pc.equal(rows["offset"], 7), b"other", rows["key"]))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (with_one_twice, "'offset_count': 21"),
        (without_one, "'offset_count': 19"),
        (without_the_first, "from 0 on: .*'offset_min': 1"),
        (without_the_last, r"has \(0, 19\) of .*before 20"),
        (with_the_key_of_another, "'key': b'other'"),
    ],
)
def test_a_wrong_table_is_found(tmp_path: Path, change: Callable[[pa.Table], pa.Table], found: str) -> None:
    topic = SentTopic("t", 20)
    rows, ends = topic.sent(0, 0, 20), {TopicPartition("t", 0): 20}
    right, wrong = (SoakTable(tmp_path / name, {"t": topic}, {}) for name in ("right", "wrong"))
    write_deltalake(right.path, rows)
    assert right.check(ends) == 20
    write_deltalake(wrong.path, change(rows))
    with pytest.raises(WrongTableError, match=found):
        wrong.check(ends)


def test_a_table_that_lacks_a_whole_partition_is_found(tmp_path: Path) -> None:
    table = SoakTable(tmp_path / "table", {"t": SentTopic("t", 20)}, {})
    write_deltalake(table.path, table.topics["t"].sent(0, 0, 0))
    with pytest.raises(WrongTableError, match="has None of .*before 5"):
        table.check({TopicPartition("t", 0): 5})


def test_merged_and_cleaned_it_is_the_same(tmp_path: Path) -> None:
    table = SoakTable(tmp_path / "table", {"t": SentTopic("t", 20)}, {})
    for first in (0, 10):
        write_deltalake(table.path, table.topics["t"].sent(0, first, first + 10), mode="append")
    old = DeltaTable(table.path)
    assert table.optimize()
    assert table.vacuum(full=False) == 2
    assert table.check({TopicPartition("t", 0): 20}) == 20
    with pytest.raises(OSError, match="not found|No such file"):
        table.spans(old)


def test_files_merged_twice_are_found(tmp_path: Path) -> None:
    table = SoakTable(tmp_path / "table", {"t": SentTopic("t", 20)}, {})
    for first in (0, 10):
        write_deltalake(table.path, table.topics["t"].sent(0, first, first + 10), mode="append")
    assert not table.twice(1)
    assert table.optimize_twice()
    assert not table.twice(2)
    assert table.twice(3)
    with pytest.raises(WrongTableError, match="'offset_count': 40"):
        table.check({TopicPartition("t", 0): 20})
    assert table.restore(2)
    assert not table.twice(4)
    assert table.check({TopicPartition("t", 0): 20}) == 20
    assert not table.optimize_twice()  # there is one file

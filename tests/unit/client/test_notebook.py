"""The display of values in notebooks: escaped, bounded, and a table where there are several of something."""

from __future__ import annotations

from highwater.client import ClusterDescription, PartitionDescription, TopicDescription
from highwater.client.consumer.consumer_record import ConsumerRecord
from highwater.client.notebook import MAX_ROWS, RowList


def record(offset: int, value: bytes | None) -> ConsumerRecord:
    return ConsumerRecord("t", 0, offset, 7, b"key", value, (("h", b"x"),))


def test_records_are_a_table() -> None:
    shown = RowList([record(0, b"<b>"), record(1, b"\xff\x00"), record(2, None)])._repr_html_()
    assert shown.startswith("<table><thead><tr><th>topic</th><th>partition</th><th>offset</th>")
    assert "&lt;b&gt;" in shown
    assert "<b>" not in shown
    assert "ff00" in shown
    assert shown.count("<tr>") == 4


def test_long_lists_and_cells_are_cut() -> None:
    shown = RowList(record(number, b"x" * 10_000) for number in range(MAX_ROWS + 50))._repr_html_()
    assert shown.count("<tr>") == MAX_ROWS + 1
    assert "… of 150" in shown
    assert "x" * 201 not in shown


def test_a_list_without_rows_is_itself() -> None:
    assert RowList[ConsumerRecord]()._repr_html_() == "<pre>[]</pre>"
    assert RowList([1, 2]) == [1, 2]


def test_a_topic_shows_its_partitions_below() -> None:
    partitions = tuple(PartitionDescription(number, 1, 3, (1, 2), (1,), ()) for number in range(2))
    shown = TopicDescription("t", b"\x01\xff", partitions, {"retention.ms": "5"}, False)._repr_html_()
    assert "<tr><th>config</th><td>retention.ms=5</td></tr>" in shown
    assert "<p><b>partitions</b></p><table><thead><tr><th>partition</th><th>leader</th>" in shown
    assert "<td>1, 2</td>" in shown
    empty = ClusterDescription("c", None, 1, (), 0, 0, 0, 0)._repr_html_()
    assert "<tr><th>controller_id</th><td></td></tr>" in empty

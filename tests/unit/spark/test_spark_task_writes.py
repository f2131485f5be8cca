"""What a writing task tells the driver of what it wrote."""

from __future__ import annotations

from highwater.client.producer.delivery import BatchMetadata
from highwater.client.topic_partition import TopicPartition
from highwater.spark.sink.task_writes import NO_OFFSET, RangesWritten, WrittenRange, left_behind

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_batches_are_folded_into_a_range_of_each_partition() -> None:
    written = RangesWritten()
    written.add([BatchMetadata("t", 1, 40, 10), BatchMetadata("t", 0, 5, 3)])
    written.add([BatchMetadata("t", 1, 80, 2), BatchMetadata("t", 1, 20, 1)])
    assert written.ranges() == (WrittenRange(P0, 5, 8, 3), WrittenRange(P1, 20, 82, 13))


def test_where_brokers_do_not_say_only_records_are_counted() -> None:
    written = RangesWritten()
    written.add([BatchMetadata("t", 0, -1, 3), BatchMetadata("t", 0, -1, 4)])
    assert written.ranges() == (WrittenRange(P0, NO_OFFSET, NO_OFFSET, 7),)
    assert str(written.ranges()[0]) == "t-0 where it was not said: 7 records"


def test_what_a_failed_write_leaves() -> None:
    done = (WrittenRange(P0, 5, 8, 3), WrittenRange(P1, 20, 82, 13))
    assert left_behind([None, done, ()]) == "t-0 [5, 8): 3 records; t-1 [20, 82): 13 records"
    assert left_behind([None, ()]) == ""

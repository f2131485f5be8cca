"""How far a read is, summed from what its tasks report."""

from __future__ import annotations

from dataclasses import replace

from highwater.client.topic_partition import TopicPartition
from highwater.spark.offsets.ranges import OffsetRange
from highwater.spark.progress.read_progress import (
    MAX_READS,
    MAX_REPORT_BYTES,
    RangeOfRead,
    RangeReport,
    ReadProgress,
    ReadTally,
    decode_report,
    encode_report,
    ranges_of_read,
)


def test_the_ranges_of_a_read_know_its_size() -> None:
    ranges = [OffsetRange(TopicPartition("t", 0), 5, 10), OffsetRange(TopicPartition("u", 1), 0, 100)]
    assert ranges_of_read("r", ranges) == [RangeOfRead("r", "t, u", 0, 2, 105), RangeOfRead("r", "t, u", 1, 2, 105)]
    many = [OffsetRange(TopicPartition(f"a-rather-long-name-{number}", 0), 0, 1) for number in range(9)]
    assert {one.label for one in ranges_of_read("r", many)} == {"9 topics"}


def test_a_report_survives_the_wire_and_only_its_own_token_counts() -> None:
    report = RangeReport(RangeOfRead("r" * 32, "ü" * 80, 3, 7, 2**50), 12, 2**40)
    datagram = encode_report("token", report)
    assert len(datagram) <= MAX_REPORT_BYTES
    assert decode_report("token", datagram) == report
    assert decode_report("other", datagram) is None
    for wrong in (b"", b"\xff\xfe", b"{}", b"7", b'["token"]', b'["token", "r", "t", 1, 2, 3, 4, "x"]', datagram[:-1]):
        assert decode_report("token", wrong) is None


def test_sums() -> None:
    tally = ReadTally()
    first, second = ranges_of_read(
        "r", [OffsetRange(TopicPartition("t", 0), 0, 60), OffsetRange(TopicPartition("t", 1), 0, 40)]
    )
    tally.add(RangeReport(first, 1, 0))
    assert tally.reads() == [ReadProgress("t", 0, 100)]
    tally.add(RangeReport(second, 1, 40))
    tally.add(RangeReport(first, 1, 30))
    assert tally.reads() == [ReadProgress("t", 70, 100)]
    tally.add(RangeReport(first, 1, 5))  # run again, or a datagram that came late
    assert tally.reads() == [ReadProgress("t", 70, 100)]
    tally.add(RangeReport(replace(first, index=2), 1, 7))
    tally.add(RangeReport(replace(first, index=-1), 1, 7))
    assert tally.reads() == [ReadProgress("t", 70, 100)]


def test_the_newest_read_of_a_topic_and_those_of_active_stages() -> None:
    tally = ReadTally()
    (whole,) = ranges_of_read("r", [OffsetRange(TopicPartition("t", 0), 0, 100)])
    tally.add(RangeReport(whole, 1, 100))
    tally.add(RangeReport(whole, 2, 10))  # the same plan, used again
    tally.add(RangeReport(replace(whole, read_id="s", label="u"), 2, 20))
    assert tally.reads() == [ReadProgress("t", 10, 100), ReadProgress("u", 20, 100)]
    assert tally.reads({1, 2}) == [ReadProgress("t", 110, 200), ReadProgress("u", 20, 100)]


def test_what_is_remembered_is_bounded() -> None:
    tally = ReadTally()
    for number in range(MAX_READS + 5):
        tally.add(RangeReport(RangeOfRead(str(number), f"t{number}", 0, 1, 1), 0, 1))
    assert len(tally.reads()) == MAX_READS
    assert "t0" not in {one.label for one in tally.reads()}

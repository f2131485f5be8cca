"""`startingOffsets` and its relatives, as values."""

import pytest

from highwater.client.scan.positions import EARLIEST, LATEST, Kind, Position
from highwater.client.topic_partition import TopicPartition
from highwater.spark.errors import OptionError
from highwater.spark.options.positions import Side, parse_duration_ms, parse_positions

P0, P1 = TopicPartition("events", 0), TopicPartition("events", 1)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", EARLIEST),
        ("Latest", LATEST),
        ("latest-1000", Position(Kind.LATEST, 1000)),
        (" latest - 5 ", Position(Kind.LATEST, 5)),
    ],
)
def test_named_offsets(text: str, position: Position) -> None:
    assert parse_positions({"startingoffsets": text}, Side.STARTING, LATEST).everywhere == position


def test_the_default_where_nothing_is_said() -> None:
    assert parse_positions({}, Side.STARTING, EARLIEST).of([P0, P1]) == {P0: EARLIEST, P1: EARLIEST}


def test_offsets_of_each_partition() -> None:
    positions = parse_positions({"endingoffsets": '{"events": {"0": 23, "1": -1}}'}, Side.ENDING, LATEST)
    assert positions.of([P0, P1]) == {P0: Position(Kind.OFFSET, 23), P1: LATEST}
    begin = parse_positions({"startingoffsets": '{"events": {"0": -2}}'}, Side.STARTING, LATEST)
    assert begin.of([P0]) == {P0: EARLIEST}


def test_every_partition_must_be_named_and_no_other() -> None:
    positions = parse_positions({"startingoffsets": '{"events": {"0": 23}}'}, Side.STARTING, LATEST)
    with pytest.raises(OptionError, match=r"startingOffsets must name every partition .* lacks events-1; use -2"):
        positions.of([P0, P1])
    with pytest.raises(OptionError, match="names events-0, which is not read or does not exist"):
        positions.of([])


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("1700000000000", Position(Kind.TIME, 1_700_000_000_000)),
        ("-10m", Position(Kind.AGO, 600_000)),
        ("-2h", Position(Kind.AGO, 7_200_000)),
        ("-1d", Position(Kind.AGO, 86_400_000)),
        ("-500ms", Position(Kind.AGO, 500)),
    ],
)
def test_times(text: str, position: Position) -> None:
    assert parse_positions({"startingtimestamp": text}, Side.STARTING, LATEST).everywhere == position


def test_a_timestamp_goes_before_offsets_by_timestamp_and_they_before_offsets() -> None:
    options = {"startingoffsets": "earliest", "startingoffsetsbytimestamp": '{"events": {"0": 5}}'}
    assert parse_positions(options, Side.STARTING, LATEST).of([P0]) == {P0: Position(Kind.TIME, 5)}
    options["startingtimestamp"] = "7"
    assert parse_positions(options, Side.STARTING, LATEST).everywhere == Position(Kind.TIME, 7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingoffsets": "erliest"}, "startingOffsets is 'erliest'; it can be earliest, latest, latest-N"),
        ({"startingoffsets": '{"events": {"0": '}, "startingOffsets is not of the form"),
        ({"startingoffsets": '{"events": [0]}'}, "startingOffsets is not of the form"),
        ({"startingoffsets": '{"events": {"zero": 1}}'}, "startingOffsets is not of the form"),
        ({"startingoffsets": '{"events": {"0": true}}'}, "startingOffsets is not of the form"),
        ({"startingoffsets": '{"events": {"0": -3}}'}, "gives events-0 the offset -3; it can be 0 or more"),
        ({"startingtimestamp": "yesterday"}, "startingTimestamp is 'yesterday'; it is ms since 1970"),
        ({"startingoffsetsbytimestamp": '{"events": {"0": -1}}'}, "gives events-0 the time -1"),
    ],
)
def test_errors_name_the_option_and_what_it_can_be(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_positions(options, Side.STARTING, LATEST)


def test_durations() -> None:
    texts = ("15m", "30s", "250ms", "40")
    assert [parse_duration_ms("maxTriggerDelay", text) for text in texts] == [900_000, 30_000, 250, 40]
    with pytest.raises(OptionError, match="maxTriggerDelay is 'soon'; it is a duration such as 30s"):
        parse_duration_ms("maxTriggerDelay", "soon")


def test_where_a_group_has_committed() -> None:
    begin = parse_positions({"startingoffsets": "group: Reports"}, Side.STARTING, LATEST)
    assert begin.group is not None
    assert begin.group.group == "Reports"
    assert begin.committed({P0: 7}, [P0, P1]).of([P0, P1]) == {P0: Position(Kind.OFFSET, 7), P1: EARLIEST}
    options = {"startingoffsets": "group:reports", "startingoffsetsbygroupstrategy": "Latest"}
    assert parse_positions(options, Side.STARTING, LATEST).committed({}, [P1]).of([P1]) == {P1: LATEST}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"startingoffsets": "group:"}, "names no group"),
        ({"startingoffsets": "group:g", "startingoffsetsbygroupstrategy": "guess"}, "can be earliest, latest or error"),
        ({"endingoffsets": "group:g"}, "option endingOffsets is 'group:g'"),
    ],
)
def test_what_is_no_group(options: dict[str, str], sentence: str) -> None:
    side = Side.ENDING if "endingoffsets" in options else Side.STARTING
    with pytest.raises(OptionError, match=sentence):
        parse_positions(options, side, LATEST)


def test_a_partition_of_which_a_group_has_committed_nothing() -> None:
    options = {"startingoffsets": "group:g", "startingoffsetsbygroupstrategy": "error"}
    begin = parse_positions(options, Side.STARTING, LATEST)
    assert begin.committed({P0: 7}, [P0]).of([P0]) == {P0: Position(Kind.OFFSET, 7)}
    with pytest.raises(OptionError, match="group 'g' has committed nothing of events-1; set startingOffsetsByGroup"):
        begin.committed({P0: 7}, [P0, P1])

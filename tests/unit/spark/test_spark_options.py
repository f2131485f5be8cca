"""The options of `format("highwater")`, and what is said of those that cannot be used."""

import pytest

from highwater.client.scan.positions import EARLIEST, LATEST
from highwater.client.topic_partition import TopicPartition
from highwater.spark.errors import OptionError
from highwater.spark.options.client_settings import client_settings
from highwater.spark.options.data_source_options import (
    NoMatch,
    Subscription,
    parse_columns,
    parse_read_options,
    parse_write_options,
)

BASE = {"highwater.bootstrap.servers": "a:1,b:2", "subscribe": "events"}


def test_the_least_a_read_needs() -> None:
    options = parse_read_options(BASE, streaming=False)
    assert options.bootstrap == ("a:1", "b:2")
    assert options.subscription == Subscription(topics=("events",))
    assert (options.starting.everywhere, options.ending.everywhere) == (EARLIEST, LATEST)
    assert options.fail_on_data_loss
    assert options.on_corrupt == "error"
    assert not options.push_down_filters
    assert options.no_match is NoMatch.ERROR
    assert options.max_trigger_delay_ms == 15 * 60_000
    assert options.columns == ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


def test_a_stream_starts_at_the_end_by_default() -> None:
    assert parse_read_options(BASE, streaming=True).starting.everywhere == LATEST


def test_names_are_taken_in_any_case_and_kafkas_bootstrap_list_too() -> None:
    options = parse_read_options(
        {"Kafka.Bootstrap.Servers": "k:9", "SUBSCRIBE": "a, b,a", "minpartitions": "7", "FailOnDataLoss": "False"},
        streaming=False,
    )
    assert options.bootstrap == ("k:9",)
    assert options.subscription.topics == ("a", "b")
    assert options.min_partitions == 7
    assert not options.fail_on_data_loss
    both = {**BASE, "kafka.bootstrap.servers": "k:9"}
    assert parse_read_options(both, streaming=False).bootstrap == ("a:1", "b:2")


def test_the_three_ways_to_subscribe() -> None:
    base = {"kafka.bootstrap.servers": "k:9"}
    assigned = parse_read_options({**base, "assign": '{"a": [0, 2], "b": [1]}'}, streaming=True)
    assert assigned.subscription.assigned == tuple(TopicPartition(*one) for one in (("a", 0), ("a", 2), ("b", 1)))
    assert parse_read_options({**base, "subscribePattern": "e.*"}, streaming=True).subscription.pattern == "e.*"


def test_limits_of_a_stream() -> None:
    options = parse_read_options(
        {
            **BASE,
            "maxOffsetsPerTrigger": "100",
            "minOffsetsPerTrigger": "10",
            "maxTriggerDelay": "30s",
            "maxBytesPerTrigger": "4096",
            "maxRecordsPerPartition": "50",
        },
        streaming=True,
    )
    assert (options.max_offsets_per_trigger, options.min_offsets_per_trigger) == (100, 10)
    assert (options.max_trigger_delay_ms, options.max_bytes_per_trigger) == (30_000, 4096)
    assert options.max_records_per_partition == 50


@pytest.mark.parametrize(
    ("changes", "streaming", "message"),
    [
        ({"highwater.bootstrap.servers": "nowhere"}, False, "highwater.bootstrap.servers: .* neither host:port"),
        ({"assign": '{"a": [0]}'}, False, "not subscribe and assign"),
        ({"subscribe": " , "}, False, "subscribe names no topic"),
        ({"minPartitions": "0"}, False, "minPartitions is '0'; it is a whole number of at least 1"),
        ({"onCorrupt": "ignore"}, False, "onCorrupt is 'ignore'; it can be error or skip"),
        ({"highwater.on.corrupt": "skip"}, False, "cannot be set: use onCorrupt"),
        ({"failOnDataLoss": "no"}, False, "failOnDataLoss is 'no'; it can be true or false"),
        ({"startingOffsets": "latest"}, False, "startingOffsets is latest: a batch read that begins at the end"),
        ({"startingOffsets": '{"events": {"0": -1}}'}, False, "startingOffsets is latest"),
        ({"endingOffsets": "earliest"}, False, "endingOffsets is earliest"),
        ({"endingOffsets": "latest"}, True, "endingOffsets is for batch reads only"),
        ({"pushDownFilters": "true"}, True, "pushDownFilters is for batch reads only"),
        ({"maxOffsetsPerTrigger": "5"}, False, "maxOffsetsPerTrigger is for streaming queries only"),
        ({"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"}, True, "minOffsetsPerTrigger is 6, more than"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, False, "Strategy is 'guess'; it can be error or latest"),
        (
            {"startingOffsetsByGroupStrategy": "latest"},
            True,
            "GroupStrategy is for startingOffsets of a group",
        ),
        ({"startingOffsets": "group:"}, False, "startingOffsets names no group"),
        ({"commitOffsetsToGroup": "g"}, False, "commitOffsetsToGroup is for streaming queries only"),
        ({"commitOffsetsToGroup": " "}, True, "commitOffsetsToGroup is empty"),
        ({"highwater.group": "g"}, True, "highwater.group cannot be set: use commitOffsetsToGroup, or startingOffsets"),
        ({"kafka.enable.auto.commit": "true"}, True, "kafka.enable.auto.commit has no counterpart"),
        ({"maxOffsetPerTrigger": "5"}, True, "no option maxoffsetpertrigger; did you mean maxOffsetsPerTrigger"),
        ({"columns": "value,valeu"}, False, "columns names 'valeu'; there are key, value,"),
        (
            {"kafka.security.protocol": "SASL_SSL"},
            False,
            "kafka.security.protocol is 'SASL_SSL'; it can be PLAINTEXT or",
        ),
        ({"kafka.sasl.mechanism": "PLAIN"}, False, "kafka.sasl.mechanism has no counterpart in Highwater"),
        ({"kafka.auto.offset.reset": "latest"}, False, "cannot be set: use startingOffsets"),
        ({"highwater.fetch.max.bites": "1"}, False, "highwater.fetch.max.bites has no counterpart"),
    ],
)
def test_wrong_options(changes: dict[str, str], streaming: bool, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_read_options({**BASE, **changes}, streaming=streaming)


def test_what_is_missing() -> None:
    with pytest.raises(OptionError, match=r"highwater\.bootstrap\.servers is missing: name the brokers"):
        parse_read_options({"subscribe": "events"}, streaming=False)
    with pytest.raises(OptionError, match="must say what to read, not none"):
        parse_read_options({"kafka.bootstrap.servers": "k:9"}, streaming=False)
    with pytest.raises(OptionError, match="subscribePattern is not a regular expression"):
        parse_read_options({"kafka.bootstrap.servers": "k:9", "subscribePattern": "("}, streaming=False)
    with pytest.raises(OptionError, match="assign is not of the form"):
        parse_read_options({"kafka.bootstrap.servers": "k:9", "assign": '{"a": 0}'}, streaming=False)


def test_options_of_the_job_itself_are_left_alone() -> None:
    parse_read_options({**BASE, "myJobsOwn": "x", "checkpointLocation": "/tmp/c"}, streaming=True)


def test_columns_keep_the_order_of_the_schema() -> None:
    assert parse_columns({"columns": "offset, VALUE"}) == ("value", "offset")
    assert parse_columns({"columns": "headers"}) == ("headers",)
    assert parse_columns({"includeHeaders": "true"})[-1] == "headers"


def test_client_settings_are_the_sdks_and_of_its_types() -> None:
    options = {
        "highwater.fetch.max.bytes": "1000",
        "kafka.fetch.max.bytes": "2000",
        "kafka.check.crcs": "false",
        "kafka.client.id": "42",
        "kafka.compression.type": "zstd",
        "kafka.acks": "1",
        "kafka.max.in.flight.requests.per.connection": "3",
        "kafka.enable.idempotence": "false",
        "kafka.group.id": "ignored",
        "kafka.client.rack": "ignored",
        "kafka.max.poll.interval.ms": "1",
        "highwater.bootstrap.servers": "a:1",
    }
    assert client_settings(options, "Consumer") == {"client_id": "42", "fetch_max_bytes": 1000, "check_crcs": False}
    produced = {"client_id": "42", "compression": "zstd", "acks": 1, "max_in_flight": 3, "enable_idempotence": False}
    assert client_settings(options, "Producer") == produced
    assert client_settings(options, "Admin") == {"client_id": "42"}
    with pytest.raises(OptionError, match="is 'many'; it is a whole number"):
        client_settings({"kafka.fetch.max.bytes": "many"}, "Consumer")


def test_executors_are_told_how_the_driver_speaks_tls() -> None:
    environment = {"HIGHWATER_SECURITY_PROTOCOL": "SSL", "HIGHWATER_SSL_CA_FILE": "/ca.pem"}
    told = {"security_protocol": "SSL", "ssl_ca_file": "/ca.pem"}
    for client in ("Consumer", "Producer", "Admin"):
        assert client_settings({}, client, environment) == told
        other = {"highwater.ssl.ca.file": "/b.pem"}
        assert client_settings(other, client, environment) == {**told, "ssl_ca_file": "/b.pem"}
        plain = {"kafka.security.protocol": "PLAINTEXT"}
        assert client_settings(plain, client, environment) == {"security_protocol": "PLAINTEXT"}
    assert client_settings({}, "Admin", {"HIGHWATER_SSL_CA_FILE": "/ca.pem"}) == {}


def test_options_of_a_write() -> None:
    options = parse_write_options({"kafka.bootstrap.servers": "k:9", "topic": "out", "includeTimestamp": "true"})
    assert (options.topic, options.include_timestamp) == ("out", True)
    with pytest.raises(OptionError, match="topic is empty"):
        parse_write_options({"kafka.bootstrap.servers": "k:9", "topic": " "})

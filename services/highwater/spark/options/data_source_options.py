"""The options of `format("highwater")`, parsed and checked. Pure.

Names and meaning are those of Spark's Kafka source and sink. Spark hands option names over in lower case.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from typing import cast, get_args

from highwater.client.cluster.bootstrap import bootstrap_addresses
from highwater.client.consumer.corrupt_batches import OnCorrupt
from highwater.client.exceptions import InvalidRequestError
from highwater.client.scan.positions import EARLIEST, LATEST, Kind
from highwater.client.topic_partition import TopicPartition
from highwater.spark.errors import OptionError
from highwater.spark.options.client_settings import PREFIXES, check_client_settings
from highwater.spark.options.positions import (
    GROUP_STRATEGY,
    Positions,
    Side,
    parse_duration_ms,
    parse_positions,
)
from highwater.spark.schema import READ_COLUMNS, VALUE_COLUMNS
from highwater.spark.values.value_options import (
    VALUE_OPTIONS,
    RawValues,
    ValueErrors,
    ValueOptions,
    parse_value_options,
    raw_values,
    value_errors,
)

DEFAULT_MAX_TRIGGER_DELAY_MS = 15 * 60_000
DEFAULT_POLL_TIMEOUT_MS = 120_000

READ_OPTIONS = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    GROUP_STRATEGY,
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "maxTriggerDelay",
    "commitOffsetsToGroup",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "onCorrupt",
    "includeHeaders",
    "columns",
    "pushDownFilters",
    "kafkaConsumer.pollTimeoutMs",
    *VALUE_OPTIONS,
)
WRITE_OPTIONS = ("topic", "includeHeaders", "includeTimestamp")
_STREAM_ONLY = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "maxTriggerDelay",
    "commitOffsetsToGroup",
)
_BATCH_ONLY = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "pushDownFilters")


class NoMatch(Enum):
    """`startingOffsetsByTimestampStrategy`: what a partition without a record that late does."""

    ERROR = "error"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Subscription:
    """Exactly one of the three is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadOptions:
    bootstrap: tuple[str, ...]
    subscription: Subscription
    starting: Positions
    no_match: NoMatch
    ending: Positions
    min_partitions: int | None
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    max_trigger_delay_ms: int
    commit_to_group: str | None
    fail_on_data_loss: bool
    on_corrupt: OnCorrupt
    columns: tuple[str, ...]
    push_down_filters: bool
    poll_timeout_ms: int
    values: ValueOptions | None  # None: values are bytes


@dataclass(frozen=True, slots=True)
class WriteOptions:
    bootstrap: tuple[str, ...]
    topic: str | None
    include_timestamp: bool


def parse_read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Raises `OptionError` with one sentence that says what to change."""
    options = lower_case(options)
    _check_names(options, READ_OPTIONS)
    for name in _BATCH_ONLY if streaming else _STREAM_ONLY:
        if name.lower() in options:
            raise OptionError(
                f"option {name} is for {'batch reads' if streaming else 'streaming queries'} only: remove it"
            )
    starting = parse_positions(options, Side.STARTING, LATEST if streaming else EARLIEST)
    if GROUP_STRATEGY.lower() in options and starting.group is None:
        raise OptionError(f"option {GROUP_STRATEGY} is for startingOffsets of a group, group:NAME: remove it")
    ending = parse_positions(options, Side.ENDING, LATEST)
    if not streaming:
        _check_batch_bounds(starting, ending)
    no_match = options.get("startingoffsetsbytimestampstrategy", "error").strip().lower()
    if no_match not in {strategy.value for strategy in NoMatch}:
        raise OptionError(f"option startingOffsetsByTimestampStrategy is {no_match!r}; it can be error or latest")
    max_offsets = _positive(options, "maxOffsetsPerTrigger")
    min_offsets = _positive(options, "minOffsetsPerTrigger")
    if max_offsets is not None and min_offsets is not None and min_offsets > max_offsets:
        raise OptionError(f"minOffsetsPerTrigger is {min_offsets}, more than maxOffsetsPerTrigger, {max_offsets}")
    delay = options.get("maxtriggerdelay")
    check_client_settings(options)
    return ReadOptions(
        bootstrap=_bootstrap(options),
        subscription=_subscription(options),
        starting=starting,
        no_match=NoMatch(no_match),
        ending=ending,
        min_partitions=_positive(options, "minPartitions"),
        max_records_per_partition=_positive(options, "maxRecordsPerPartition"),
        max_offsets_per_trigger=max_offsets,
        min_offsets_per_trigger=min_offsets,
        max_bytes_per_trigger=_positive(options, "maxBytesPerTrigger"),
        max_trigger_delay_ms=DEFAULT_MAX_TRIGGER_DELAY_MS
        if delay is None
        else parse_duration_ms("maxTriggerDelay", delay),
        commit_to_group=_commit_to_group(options),
        fail_on_data_loss=_flag(options, "failOnDataLoss", default=True),
        on_corrupt=_on_corrupt(options),
        columns=parse_columns(options),
        push_down_filters=_flag(options, "pushDownFilters", default=False),
        poll_timeout_ms=_positive(options, "kafkaConsumer.pollTimeoutMs") or DEFAULT_POLL_TIMEOUT_MS,
        values=parse_value_options(options),
    )


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Raises `OptionError`."""
    options = lower_case(options)
    _check_names(options, WRITE_OPTIONS)
    check_client_settings(options)
    topic = options.get("topic")
    if topic is not None and not topic.strip():
        raise OptionError("option topic is empty; name a topic, or leave it out and give rows a column topic")
    return WriteOptions(_bootstrap(options), topic, _flag(options, "includeTimestamp", default=False))


def parse_columns(options: Mapping[str, str]) -> tuple[str, ...]:
    """The columns of a read, in the order of the schema. Raises `OptionError`."""
    options = lower_case(options)
    with_headers = _flag(options, "includeHeaders", default=False)
    offered = tuple(name for name in READ_COLUMNS if name != "headers" or with_headers)
    of_values = _value_columns(options)
    text = options.get("columns")
    if text is None:
        return offered + of_values
    there = READ_COLUMNS + of_values
    by_lower_name = {name.lower(): name for name in there}
    wanted = set()
    for part in text.split(","):
        name = by_lower_name.get(part.strip().lower())
        if name is None:
            raise OptionError(f"option columns names {part.strip()!r}; there are {', '.join(there)}")
        wanted.add(name)
    return tuple(name for name in there if name in wanted)


def _value_columns(options: Mapping[str, str]) -> tuple[str, ...]:
    """The columns `valueError` and `rawValue`, as far as they are asked for."""
    asked = (value_errors(options) is ValueErrors.NULL, raw_values(options) is not RawValues.NONE)
    return tuple(name for name, there in zip(VALUE_COLUMNS, asked, strict=True) if there)


def lower_case(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}


def _check_names(options: Mapping[str, str], known: tuple[str, ...]) -> None:
    """A misspelt option would be ignored in silence. Others are Spark's, or a job's own, and are left alone."""
    by_lower_name = {name.lower(): name for name in known}
    for name in options:
        if name in by_lower_name or name.startswith(PREFIXES):
            continue
        if close := get_close_matches(name, by_lower_name, n=1, cutoff=0.85):
            raise OptionError(f"there is no option {name}; did you mean {by_lower_name[close[0]]}?")


def _check_batch_bounds(starting: Positions, ending: Positions) -> None:
    """Refuses a batch read that begins at the end, or ends at the beginning: it reads nothing."""
    at_start = [starting.everywhere] if starting.everywhere is not None else list(starting.each.values())
    if LATEST in at_start:
        raise OptionError(f"option {starting.option} is latest: a batch read that begins at the end reads nothing")
    at_end = [ending.everywhere] if ending.everywhere is not None else list(ending.each.values())
    if any(position is not None and position.kind is Kind.EARLIEST for position in at_end):
        raise OptionError(f"option {ending.option} is earliest: a batch read that ends at the beginning reads nothing")


def _on_corrupt(options: Mapping[str, str]) -> OnCorrupt:
    text = options.get("oncorrupt", "error").strip().lower()
    for known in get_args(OnCorrupt):
        if text == known:
            return cast(OnCorrupt, known)
    raise OptionError(f"option onCorrupt is {text!r}; it can be error or skip")


def _commit_to_group(options: Mapping[str, str]) -> str | None:
    group = options.get("commitoffsetstogroup")
    if group is not None and not group.strip():
        raise OptionError("option commitOffsetsToGroup is empty; name a group, or leave it out")
    return None if group is None else group.strip()


def _bootstrap(options: Mapping[str, str]) -> tuple[str, ...]:
    for name in ("highwater.bootstrap.servers", "kafka.bootstrap.servers"):
        if (text := options.get(name)) is not None:
            try:
                return tuple(bootstrap_addresses(text))
            except InvalidRequestError as error:
                raise OptionError(f"option {name}: {error}") from None
    raise OptionError("option highwater.bootstrap.servers is missing: name the brokers, as host:port,host:port")


def _subscription(options: Mapping[str, str]) -> Subscription:
    given = [name for name in ("subscribe", "subscribePattern", "assign") if name.lower() in options]
    if len(given) != 1:
        said = " and ".join(given) if given else "none"
        raise OptionError(
            f"one of the options subscribe, subscribePattern and assign must say what to read, not {said}"
        )
    text = options[given[0].lower()]
    if given[0] == "assign":
        return Subscription(assigned=_assigned(text))
    if given[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise OptionError(f"option subscribePattern is not a regular expression: {text!r} ({error})") from None
        return Subscription(pattern=text)
    topics = tuple(dict.fromkeys(topic.strip() for topic in text.split(",") if topic.strip()))
    if not topics:
        raise OptionError("option subscribe names no topic; give one, or several separated by commas")
    return Subscription(topics=topics)


def _assigned(text: str) -> tuple[TopicPartition, ...]:
    example = f'option assign is not of the form {{"topic": [0, 1]}}: {text}'
    try:
        topics = json.loads(text)
    except json.JSONDecodeError as error:
        raise OptionError(f"{example} ({error})") from None
    if not isinstance(topics, dict) or not topics:
        raise OptionError(example)
    found = []
    for topic, partitions in topics.items():
        if not isinstance(partitions, list) or not partitions:
            raise OptionError(example)
        for partition in partitions:
            if not isinstance(partition, int) or isinstance(partition, bool) or partition < 0:
                raise OptionError(example)
            found.append(TopicPartition(topic, partition))
    return tuple(dict.fromkeys(found))


def _positive(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < 1:
        raise OptionError(f"option {name} is {text!r}; it is a whole number of at least 1")
    return int(text)


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name.lower())
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise OptionError(f"option {name} is {text!r}; it can be true or false")
    return text.strip().lower() == "true"

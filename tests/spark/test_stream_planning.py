"""Where micro-batches begin and end, by what a cluster says: also a broker that lags, or has only just started."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from highwater.client import OffsetOutOfRangeError, TopicPartition
from highwater.spark.source import stream_reader
from highwater.spark.source.stream_reader import HighwaterStreamReader

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


class Seen(NamedTuple):
    """One look."""

    ends: Mapping[TopicPartition, int]
    ids: Mapping[str, str]


class Cluster:
    """In place of `TopicOffsets`. The last of what it is to say is said for ever."""

    def __init__(self, *says: Seen) -> None:
        self._says = list(says)
        self.looks = 0
        self.topic_ids: Mapping[str, str] = {}

    def partitions(self, *, missing_ok: bool) -> list[TopicPartition]:
        self.looks += 1
        self._seen = self._says.pop(0) if len(self._says) > 1 else self._says[0]
        self.topic_ids = self._seen.ids
        return list(self._seen.ends)

    def latest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {partition: self._seen.ends[partition] for partition in partitions}

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_reader, "_LOOK_AGAIN_S", 0.0)


def reader(cluster: Cluster, *, fail_on_data_loss: bool = False) -> HighwaterStreamReader:
    made = HighwaterStreamReader(
        {
            "highwater.bootstrap.servers": "127.0.0.1:1",
            "subscribePattern": ".*",
            "failOnDataLoss": str(fail_on_data_loss).lower(),
        }
    )
    made._topics = cluster  # type: ignore[assignment]
    return made


def ranges(one: HighwaterStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    return [str(partition.value) for partition in one.partitions(start, end)]


CHECKPOINT = {"a": {"0": 100}, "b": {"0": 5}, "@topics": {"a": "aa", "b": "bb"}}
BOTH = Seen({A0: 100, B0: 5}, {"a": "aa", "b": "bb"})
B_ALONE = Seen({B0: 5}, {"b": "bb"})
NOTHING = Seen({}, {})


def test_nothing_new_is_no_micro_batch() -> None:
    assert reader(Cluster(BOTH)).latestOffset(CHECKPOINT, ReadAllAvailable()) is CHECKPOINT


@pytest.mark.parametrize("less", [B_ALONE, NOTHING])
def test_one_look_does_not_say_that_a_topic_is_gone(less: Seen) -> None:
    for fail_on_data_loss in (True, False):
        one = reader(Cluster(less, less, BOTH), fail_on_data_loss=fail_on_data_loss)
        assert one.latestOffset(CHECKPOINT, ReadAllAvailable()) is CHECKPOINT
    with pytest.raises(OffsetOutOfRangeError, match="a-0 is gone"):
        reader(Cluster(less), fail_on_data_loss=True).latestOffset(CHECKPOINT, ReadAllAvailable())


@pytest.mark.parametrize("less", [B_ALONE, NOTHING])
def test_what_is_gone_keeps_its_place_and_goes_on_where_it_was(less: Seen) -> None:
    cluster = Cluster(less)
    one = reader(cluster)
    assert one.latestOffset(CHECKPOINT, ReadAllAvailable()) is CHECKPOINT
    before = cluster.looks
    assert before > 1
    assert one.latestOffset(CHECKPOINT, ReadAllAvailable()) is CHECKPOINT
    assert cluster.looks == before + 1  # it is known to be gone by now
    one._topics = Cluster(Seen({A0: 140, B0: 5}, BOTH.ids))  # type: ignore[assignment]
    end = one.latestOffset(CHECKPOINT, ReadAllAvailable())
    assert ranges(one, CHECKPOINT, end) == ["a-0 [100, 140)"]


def test_with_what_is_gone_the_others_go_on() -> None:
    one = reader(Cluster(Seen({B0: 9}, B_ALONE.ids)))
    end = one.latestOffset(CHECKPOINT, ReadAllAvailable())
    assert end == {"a": {"0": 100}, "b": {"0": 9}, "@topics": BOTH.ids}
    assert ranges(one, CHECKPOINT, end) == ["b-0 [5, 9)"]


def test_a_topic_made_anew_is_read_from_its_first_record() -> None:
    one = reader(Cluster(Seen({A0: 130, A1: 3, B0: 5}, {"a": "new", "b": "bb"})))
    end = one.latestOffset(CHECKPOINT, ReadAllAvailable())
    assert ranges(one, CHECKPOINT, end) == ["a-0 [0, 130)", "a-1 [0, 3)"]
    assert {part.value.topic_id for part in one.partitions(CHECKPOINT, end)} == {"new"}
    assert one.latestOffset(end, ReadAllAvailable()) is end


def test_made_anew_after_it_was_gone_for_a_while() -> None:
    one = reader(Cluster(B_ALONE))
    assert one.latestOffset(CHECKPOINT, ReadAllAvailable()) is CHECKPOINT
    one._topics = Cluster(Seen({A0: 30, B0: 5}, {"a": "new", "b": "bb"}))  # type: ignore[assignment]
    end = one.latestOffset(CHECKPOINT, ReadAllAvailable())
    assert ranges(one, CHECKPOINT, end) == ["a-0 [0, 30)"]


def test_an_idle_query_of_before_gets_its_ids() -> None:
    old = {name: value for name, value in CHECKPOINT.items() if name != "@topics"}
    one = reader(Cluster(BOTH), fail_on_data_loss=True)
    end = one.latestOffset(old, ReadAllAvailable())
    assert end == CHECKPOINT
    assert ranges(one, old, end) == []
    assert one.latestOffset(end, ReadAllAvailable()) is end


def test_what_is_there_now_looks_again_too() -> None:
    one = reader(Cluster(B_ALONE, Seen({A0: 120, B0: 5}, BOTH.ids)), fail_on_data_loss=True)
    one.prepareForTriggerAvailableNow()
    end = one.latestOffset(CHECKPOINT, ReadAllAvailable())
    assert ranges(one, CHECKPOINT, end) == ["a-0 [100, 120)"]
    assert one.latestOffset(end, ReadAllAvailable()) is end

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.metadata.schema import keys as names
from highwater.metadata.schema.keys import Keys
from highwater.model.topic_name import is_legal_topic_name

KEYS = Keys("test")
TOPICS = st.text("abcXYZ019._-", min_size=1, max_size=249).filter(is_legal_topic_name)
NUMBERS = st.integers(0, 1 << 40)


@given(topic=TOPICS, number=NUMBERS, epoch=NUMBERS, sequence=NUMBERS)
def test_every_key_is_parsed_to_what_it_names(topic: str, number: int, epoch: int, sequence: int) -> None:
    made = {
        KEYS.broker(number): names.BrokerIdKey(number),
        KEYS.broker_tail(number): names.BrokerTailKey(number),
        KEYS.topic(topic): names.TopicKey(topic),
        KEYS.state(topic, number): names.StateKey(topic, number),
        KEYS.topic_config(topic): names.TopicConfigKey(topic),
        KEYS.delete_topic(topic): names.DeleteTopicKey(topic),
        KEYS.isr_change(number, epoch, sequence): names.IsrChangeKey(number, epoch, sequence),
        KEYS.controller: names.ControllerKey(),
        KEYS.controller_epoch: names.ControllerEpochKey(),
    }
    assert len(made) == 9
    for key, parsed in made.items():
        assert key.startswith(KEYS.everything)
        assert KEYS.parse(key) == parsed


def test_keys_are_those_of_the_design() -> None:
    assert KEYS.state("flights", 3) == "/highwater/test/brokers/topics/flights/partitions/3/state"
    assert KEYS.isr_change(1, 42, 7) == "/highwater/test/isr_change_notification/isr_change_1_42_7"
    assert KEYS.state("flights", 3).startswith(KEYS.partitions("flights"))


@pytest.mark.parametrize("key", ["/highwater/other/controller", "/highwater/test", "/highwater/test/brokers/ids/x"])
def test_foreign_keys_name_nothing(key: str) -> None:
    assert KEYS.parse(key) is None


def test_one_clusters_keys_are_not_under_the_prefix_of_another() -> None:
    assert not Keys("test-2").everything.startswith(KEYS.everything)


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "a b", "x" * 250, "ä"])
def test_illegal_topic_names_make_no_key(topic: str) -> None:
    with pytest.raises(ValueError, match="illegal topic name"):
        KEYS.topic(topic)


@pytest.mark.parametrize("cluster", ["", "a/b", "x" * 101])
def test_illegal_cluster_names_are_refused(cluster: str) -> None:
    with pytest.raises(ValueError, match="illegal cluster name"):
        Keys(cluster)

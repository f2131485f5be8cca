from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.metadata.schema import keys as names
from highwater.metadata.schema.keys import Keys
from highwater.model.topic_name import is_legal_topic_name
from highwater.security.acls import EVERYBODY, Operation, PermissionType

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


@pytest.mark.parametrize(
    ("key", "taken_for"),
    [
        ("topic/literal/a%2Fb/User:x/rea", ["TOPIC LITERAL a/b"]),
        ("topic/prefixed/or/User/read/deny", ["TOPIC PREFIXED or"]),
        ("group/literal/g/User:x/write/deny", ["GROUP LITERAL g"]),
        ("cluster/literal/kafka-clust/User:x/alter/deny", ["CLUSTER LITERAL kafka-cluster"]),
        ("topic/literal/or", ["TOPIC LITERAL *"]),  # it may have gone on
        ("topic/literal/a/b/User:x/read/deny", ["TOPIC LITERAL *"]),
        ("topic/literal/%FF/User:x/read/deny", ["TOPIC LITERAL *"]),
        ("topic/literal/\\xff/User:x/read/deny", ["TOPIC LITERAL *"]),  # as bytes that are no text are read
        ("topic/any/orders/User:x/read/deny", ["TOPIC LITERAL *"]),
        ("topic/literal//User:x/read/deny", ["TOPIC LITERAL *"]),
        ("topic", ["TOPIC LITERAL *"]),
        *(
            (
                each,
                [f"{kind} LITERAL *" for kind in ("TOPIC", "GROUP")]
                + ["CLUSTER LITERAL kafka-cluster"]
                + ["TRANSACTIONAL_ID LITERAL *"],
            )
            for each in ("", "any/literal/orders/User:x/read/deny", "\\xfftopic/literal/a/User:x/read/deny")
        ),
    ],
)
def test_an_acl_that_cannot_be_read_denies_what_it_may_be_about(key: str, taken_for: list[str]) -> None:
    keys = Keys("test")
    with pytest.raises(ValueError, match="."):
        keys.parse_acl(keys.acls + key)
    denied = keys.unreadable_acls(keys.acls + key)
    assert [f"{acl.resource_type.name} {acl.pattern_type.name} {acl.name}" for acl in denied] == taken_for
    assert {acl[3:] for acl in denied} == {(EVERYBODY, Operation.ALL, PermissionType.DENY, keys.acls + key)}

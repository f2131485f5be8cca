from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from highwater.metadata.schema.models import (
    BrokerRegistration,
    ControllerRegistration,
    IsrNotification,
    PartitionState,
    TopicAssignment,
    config_from_json,
    config_to_json,
    notified_partitions,
)
from highwater.model.partition import PartitionKey

BROKERS = st.lists(st.integers(0, 100), max_size=5, unique=True).map(lambda ids: tuple(sorted(ids)))
STATES = st.builds(
    PartitionState,
    leader=st.integers(-1, 100),
    leader_epoch=st.integers(0, 1 << 31),
    leader_broker_epoch=st.integers(0, 1 << 62),
    isr=BROKERS,
    elr=BROKERS,
    lost=BROKERS,
    unclean_epoch=st.integers(-1, 100),
    controller_epoch=st.integers(0, 100),
)


@given(STATES)
def test_a_state_survives_its_json(state: PartitionState) -> None:
    assert PartitionState.from_json(state.to_json()) == state


@given(st.dictionaries(st.text(), st.text()))
def test_a_configuration_survives_its_json(config: dict[str, str]) -> None:
    assert config_from_json(config_to_json(config)) == config


def test_registrations_assignments_and_notifications_survive_their_json() -> None:
    broker = BrokerRegistration(
        1, "h:1", "a", "b", rack="r", tail_lost=True, extra={"k": "v"}, listeners={"INTERNAL": "h:1", "CLIENT": "h:2"}
    )
    assert BrokerRegistration.from_json(broker.to_json()) == broker
    controller = ControllerRegistration(2, "h:2", 7, "c")
    assert ControllerRegistration.from_json(controller.to_json()) == controller
    topic = TopicAssignment("t", bytes(range(16)), ((1, 2), (2, 3)))
    assert TopicAssignment.from_json(topic.to_json()) == topic
    notification = IsrNotification(1, 2, 3, (("t", 0), ("u", 1)))
    assert notified_partitions(notification.to_json()) == notification.partitions


def test_fields_of_a_newer_version_are_passed_over() -> None:
    broker = BrokerRegistration(1, "h:1", "a", "b")
    newer = json.dumps({**json.loads(broker.to_json()), "zone": "x"})
    assert BrokerRegistration.from_json(newer) == broker


def test_a_registration_from_before_there_were_listeners_has_none() -> None:
    broker = BrokerRegistration(1, "h:1", "a", "b", listeners={"CLIENT": "h:1"})
    written = json.loads(broker.to_json())
    del written["listeners"]
    older = BrokerRegistration.from_json(json.dumps(written))
    assert (older.address, older.listeners) == ("h:1", {})


def test_a_key_can_be_named_in_a_message_whatever_a_peer_made_of_it() -> None:
    assert str(PartitionKey(bytes(range(16)), 3)) == "00010203-0405-0607-0809-0a0b0c0d0e0f-3"
    assert str(PartitionKey(b"\x01\xff", -1)) == "01ff--1"
    assert str(PartitionKey(b"", 0)) == "''-0"

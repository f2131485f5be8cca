"""The brokers as every message to a broker names them."""

from __future__ import annotations

from highwater.controller.sending.wire import Endpoints
from highwater.metadata.schema.models import BrokerRegistration, LiveBroker


def live(broker_id: int, address: str, epoch: int = 1) -> LiveBroker:
    listeners = {"INTERNAL": address, "CLIENT": f"out-{address}"}
    return LiveBroker(BrokerRegistration(broker_id, address, "i", "s", listeners=listeners), epoch)


def test_each_is_named_with_all_its_listeners() -> None:
    (message,) = Endpoints().of({1: live(1, "h:1", 7)})
    assert (message.broker_id, message.broker_epoch, message.address) == (1, 7, "h:1")
    assert {each.name: each.address for each in message.listeners} == {"INTERNAL": "h:1", "CLIENT": "out-h:1"}


def test_a_message_is_made_anew_only_where_the_registration_changed() -> None:
    endpoints, first, second = Endpoints(), live(1, "h:1"), live(2, "h:2")
    one, two = endpoints.of({1: first, 2: second})
    again, changed = endpoints.of({1: first, 2: live(2, "h:9", 5)})
    assert again is one
    assert (changed.address, changed.broker_epoch, two.address) == ("h:9", 5, "h:2")
    assert [each.broker_id for each in endpoints.of({2: second})] == [2]

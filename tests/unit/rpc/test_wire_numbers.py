"""Programs of before, whose enums had other names, are understood, and understand what is sent to them."""

from __future__ import annotations

import pytest

from highwater.replica_manager.server.fetch_stream import fetch_params
from highwater.v1 import broker_pb2, controller_pb2, fetcher_pb2, log_storage_pb2

NUMBERS = [
    (log_storage_pb2.Role, {"LEADER": 1, "FOLLOWER": 2}),
    (fetcher_pb2.FollowerState, {"FETCHING": 1, "TRUNCATING": 2, "DELAYED": 3, "OFFLINE": 4}),
    (controller_pb2.ConfigResourceType, {"TOPIC": 1, "BROKER": 2, "CLIENT": 3, "USER": 4}),
    (controller_pb2.ElectionType, {"PREFERRED": 0, "UNCLEAN": 1}),
    (broker_pb2.Payload, {"COLUMNS": 1}),
]


@pytest.mark.parametrize(("enum", "before"), NUMBERS, ids=["role", "follower", "resource", "election", "payload"])
def test_a_value_has_the_number_that_it_had_under_its_shorter_name(enum: object, before: dict[str, int]) -> None:
    now = dict(enum.items())  # type: ignore[attr-defined]
    found = {short: {number for name, number in now.items() if name.endswith(f"_{short}")} for short in before}
    assert found == {short: {number} for short, number in before.items()}


def accepting(*numbers: int) -> broker_pb2.FetchRequest:
    """A consumer's request, with these bytes for `accepts`, the packed field 10."""
    consumer = broker_pb2.FetchRequest(consumer=broker_pb2.ConsumerRole()).SerializeToString()
    return broker_pb2.FetchRequest.FromString(consumer + bytes([10 << 3 | 2, len(numbers), *numbers]))


@pytest.mark.parametrize(
    ("numbers", "columns"),
    [
        pytest.param((0, 1), True, id="a client of before: ROWS = 0 and COLUMNS = 1"),
        pytest.param((0,), False, id="a client of before, of rows alone"),
        pytest.param((), False, id="one that does not say"),
        pytest.param((2, 1), True, id="a client of now"),
        pytest.param((2,), False, id="a client of now, of rows alone"),
        pytest.param((2, 1, 9), True, id="one that knows more payloads"),
    ],
)
async def test_a_reader_gets_columns_where_it_says_so_and_rows_always(numbers: tuple[int, ...], columns: bool) -> None:
    params = await fetch_params(accepting(*numbers))
    assert params is not None
    assert params.accepts_columns is columns


def test_a_broker_of_before_finds_columns_in_what_a_reader_of_now_sends() -> None:
    sent = broker_pb2.FetchRequest(accepts=[broker_pb2.PAYLOAD_ROWS, broker_pb2.PAYLOAD_COLUMNS])
    columns_before = 1
    assert columns_before in broker_pb2.FetchRequest.FromString(sent.SerializeToString()).accepts


def test_an_election_of_a_client_that_does_not_say_which_is_the_preferred_one() -> None:
    assert controller_pb2.ElectLeadersRequest().type == controller_pb2.ELECTION_TYPE_PREFERRED

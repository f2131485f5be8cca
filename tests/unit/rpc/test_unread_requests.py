"""A large request is refused over its bytes, before millions of messages are made of them; no right one is."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from highwater.rpc.requests.request_limits import LIMITS, MAX_FETCH_PARTITIONS
from highwater.rpc.requests.unread_requests import (
    MAX_BYTES,
    MAX_PRODUCE_FIELDS,
    MAX_TEXT_BYTES,
    SMALL_BYTES,
    UnreadableRequestError,
    guarded,
    refusal,
)
from highwater.v1 import broker_pb2, common_pb2, controller_pb2, group_pb2, log_storage_pb2

_EMPTY = {
    broker_pb2.ProduceRequest: b"\x2a\0",
    broker_pb2.FetchRequest: b"\x4a\0",
    broker_pb2.MetadataRequest: b"\x0a\0",
    controller_pb2.CreateTopicsRequest: b"\x0a\0",
    group_pb2.CommitOffsetsRequest: b"\x22\0",
}


def fill(message: Any, descriptor: Descriptor, count: int = 1) -> None:
    """As large as it may well be: names of 100 characters, ids of 16 bytes, numbers of ten digits."""
    for field in descriptor.fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            getattr(message, field.name).update({"retention.ms": "1" * 20, "segment.bytes": "1" * 10})
        elif field.is_repeated and field.message_type is not None:
            for _ in range(count):
                fill(getattr(message, field.name).add(), field.message_type)
        elif field.is_repeated:
            getattr(message, field.name).extend([_value(field)] * count)
        elif field.message_type is not None:
            getattr(message, field.name).SetInParent()
            fill(getattr(message, field.name), field.message_type)
        elif field.containing_oneof is None:
            setattr(message, field.name, _value(field))


def _value(field: FieldDescriptor) -> Any:
    if field.type == FieldDescriptor.TYPE_STRING:
        return "topic-" + "n" * 94
    if field.type == FieldDescriptor.TYPE_BYTES:
        return bytes(range(16))
    return 1 if field.type in (FieldDescriptor.TYPE_ENUM, FieldDescriptor.TYPE_BOOL) else (1 << 31) - 1


_OF_REQUESTS = [type_ for type_ in LIMITS if type_.DESCRIPTOR.name.endswith("Request")]


@pytest.mark.parametrize("type_", _OF_REQUESTS, ids=lambda type_: type_.DESCRIPTOR.name)
def test_the_largest_request_that_the_limits_allow_is_read(type_: type[Message]) -> None:
    request: Any = type_()
    fill(request, request.DESCRIPTOR)
    for name, most in LIMITS[type_].items():
        values = getattr(request, name)
        if not hasattr(values, "keys"):
            values.extend([values[0]] * (most - len(values)))
    raw = request.SerializeToString()
    assert refusal(type_, raw) == ""
    assert guarded(type_.FromString)(raw) == request


def test_a_fetch_is_read_whatever_the_ids_of_its_topics_are() -> None:
    request = broker_pb2.FetchRequest(incremental=True)
    for number in range(MAX_FETCH_PARTITIONS):
        partition = common_pb2.PartitionKey(topic_id=(number * 0x9E3779B97F4A7C15F39CC060 % (1 << 128)).to_bytes(16))
        request.partitions.add(
            partition=partition, leader_epoch=number % 99, fetch_offset=number * 7919, max_bytes=1 << 20, last_epoch=74
        )
    assert refusal(broker_pb2.FetchRequest, request.SerializeToString()) == ""


@pytest.mark.parametrize("type_", _EMPTY)
@pytest.mark.parametrize("size", [4 << 20, 32 << 20])
def test_many_empty_messages_are_not_read(type_: type[Message], size: int) -> None:
    with pytest.raises(UnreadableRequestError, match="send several"):
        guarded(type_.FromString)(_EMPTY[type_] * (size // 2))


def test_fields_within_fields_count() -> None:
    topic = controller_pb2.NewTopic(topic="t").SerializeToString() + b"\x2a\0" * (SMALL_BYTES // 2)
    request = b"\x0a" + _length(len(topic)) + topic
    assert refusal(controller_pb2.CreateTopicsRequest, request) == ""  # a quarter of a million: 25 ms
    assert "too many elements" in refusal(controller_pb2.CreateTopicsRequest, request * 3)
    part = broker_pb2.ProducePartition(records=bytes(100)).SerializeToString() + b"\x0a\0" * (SMALL_BYTES // 2)
    assert f"more than {MAX_PRODUCE_FIELDS} fields" in refusal(
        broker_pb2.ProduceRequest, b"\x2a" + _length(len(part)) + part
    )


def test_records_are_passed_over_however_many_bytes_they_are() -> None:
    request = broker_pb2.ProduceRequest(acks=-1, timeout_ms=1 << 30)
    for number in range(8):
        request.partitions.add(
            partition=common_pb2.PartitionKey(topic_id=bytes(16), partition=number), records=b"\x0a\0" * (4 << 20)
        )
    assert refusal(broker_pb2.ProduceRequest, request.SerializeToString()) == ""


def test_bytes_are_bounded() -> None:
    request = controller_pb2.AlterConfigsRequest(set={"a": "x" * MAX_BYTES})
    assert f"{MAX_BYTES} are the most, send several" in refusal(
        controller_pb2.AlterConfigsRequest, request.SerializeToString()
    )


def test_numbers_that_end_nowhere_are_not_followed() -> None:
    assert "is not read" in refusal(broker_pb2.ProduceRequest, b"\x08" + b"\x80" * SMALL_BYTES)
    # Beyond 64 bits: protobuf takes the lower ones, and what comes next.
    assert refusal(broker_pb2.ProduceRequest, b"\x08" + b"\xff" * 9 + b"\x7f" + b"\x2a\0" * SMALL_BYTES)


@pytest.mark.parametrize(
    "between", [b"\x0b\x0c", b"\x09" + bytes(8), b"\x0d" + bytes(4), b"\xa0\x1f\0", b"\x12\x03abc"]
)
def test_what_is_between_hides_nothing(between: bytes) -> None:
    """Groups, numbers of a fixed length, fields that nobody knows."""
    assert "send several" in refusal(broker_pb2.ProduceRequest, between + b"\x2a\0" * SMALL_BYTES)


def test_what_peers_send_is_theirs() -> None:
    read = log_storage_pb2.CreateLogsRequest.FromString
    assert guarded(read) is read
    assert guarded(bytes) is bytes


@given(st.lists(st.binary(max_size=40), max_size=30).map(b"".join))
def test_whatever_comes_is_read_or_refused(data: bytes) -> None:
    for type_ in _EMPTY:
        refusal(type_, data)


def _length(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def test_a_tag_may_be_written_in_more_bytes_than_it_needs() -> None:
    """Protobuf takes it."""
    for type_, request in ((broker_pb2.MetadataRequest, b"\x8a\0\0"), (broker_pb2.FetchRequest, b"\xca\0\0")):
        assert len(type_.FromString(request).ListFields()) == 1
        assert "too many elements" in refusal(type_, request * (2 << 20))


def test_texts_of_a_produce_are_bounded() -> None:
    for field in ("client_id", "traceparent"):
        request = broker_pb2.ProduceRequest(**{field: "\U0001f600" * (MAX_TEXT_BYTES // 4)})
        assert refusal(broker_pb2.ProduceRequest, request.SerializeToString()) == ""
        request = broker_pb2.ProduceRequest(**{field: "\U0001f600" * (MAX_TEXT_BYTES // 4 + 1)})
        assert f"{MAX_TEXT_BYTES} are the most" in refusal(broker_pb2.ProduceRequest, request.SerializeToString())


def test_what_a_member_of_many_topics_owns_is_read() -> None:
    request = group_pb2.SessionRequest(group="g")
    for number in range(50_000):
        request.owned.topics.add(
            topic_id=(number * 0x9E3779B97F4A7C15F39CC060 % (1 << 128)).to_bytes(16), partitions=[0]
        )
    assert refusal(group_pb2.SessionRequest, request.SerializeToString()) == ""


def test_topics_with_many_configurations_are_read() -> None:
    config = {f"some.configuration.number.{number}": "9223372036854775807" for number in range(27)}
    topics = (controller_pb2.NewTopic(topic=f"topic-{number}", partitions=3, config=config) for number in range(1000))
    request = controller_pb2.CreateTopicsRequest(topics=topics)
    assert refusal(controller_pb2.CreateTopicsRequest, request.SerializeToString()) == ""

"""What one request may name: every repeated field of a client's request has a limit, in its comment and before work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from highwater.rpc.requests import request_limits
from highwater.rpc.requests.request_limits import LIMITS, MAX_PARTITIONS, too_large
from highwater.v1 import broker_pb2, controller_pb2, group_pb2

PROTO = Path(__file__).parents[3] / "proto" / "highwater" / "v1"
CASES = [(kind, field, most) for kind, fields in LIMITS.items() for field, most in fields.items()]


def comment(kind: Descriptor, field: str) -> str:
    text = (PROTO / Path(kind.file.name).name).read_text()
    body = text[text.index(f"message {kind.name} {{") :]
    body = body[: body.index("\n}\n")]
    found = re.search(rf"((?:  //[^\n]*\n)+)  [^\n]* {field} = ", body)
    assert found is not None, f"{kind.name}.{field}"
    return " ".join(found[1].replace("//", " ").split())


def fill(message: Message, field: str, count: int) -> None:
    descriptor = message.DESCRIPTOR.fields_by_name[field]
    into = getattr(message, field)
    if descriptor.message_type is not None and descriptor.message_type.GetOptions().map_entry:
        into.update({f"key-{number}": "" for number in range(count)})
    elif descriptor.type == FieldDescriptor.TYPE_MESSAGE:
        into.extend([into.add()] * (count - 1))
    elif descriptor.type in (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_ENUM):
        into.extend([0] * count)
    else:
        into.extend(["" if descriptor.type == FieldDescriptor.TYPE_STRING else b""] * count)


@pytest.mark.parametrize(
    "service",
    [broker_pb2.DESCRIPTOR, controller_pb2.DESCRIPTOR, group_pb2.DESCRIPTOR],
    ids=["Broker", "Controller", "GroupCoordinator"],
)
def test_every_repeated_field_of_a_request_of_clients_has_a_limit(service: FieldDescriptor) -> None:
    (calls,) = service.services_by_name.values()
    bounded = {kind.DESCRIPTOR.full_name: fields for kind, fields in LIMITS.items()}
    for call in calls.methods:
        for field in call.input_type.fields:
            if field.is_repeated:
                assert field.name in bounded.get(call.input_type.full_name, {}), (call.name, field.name)


@pytest.mark.parametrize(("kind", "field", "most"), CASES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_the_comment_says_the_limit_and_one_more_is_refused(kind: type[Message], field: str, most: int) -> None:
    assert f"{most:,}" in comment(kind.DESCRIPTOR, field)
    message = kind()
    fill(message, field, most)
    assert request_limits._too_many(message) == ""
    fill(message, field, 1) if field not in {"config", "set"} else getattr(message, field).update(one="more")
    assert request_limits._too_many(message) == f"a request with {most + 1} {field}: {most} are the most, send several"


def test_what_is_in_a_topic_counts_too() -> None:
    request = controller_pb2.CreateTopicsRequest()
    request.topics.add(config={f"key-{number}": "" for number in range(101)})
    assert too_large(request) == "a request with 101 config: 100 are the most, send several"


def test_the_partitions_of_all_topics_together() -> None:
    halves = [controller_pb2.NewTopic(topic=name, partitions=MAX_PARTITIONS // 2) for name in "ab"]
    assert too_large(controller_pb2.CreateTopicsRequest(topics=halves)) == ""
    more = controller_pb2.CreateTopicsRequest(topics=[*halves, controller_pb2.NewTopic(topic="c", partitions=-1)])
    assert too_large(more) == "a request for 10001 partitions: 10000 are the most, send several"
    # One topic with too many is the topic's own error, which says so of it.
    alone = controller_pb2.NewTopic(topic="a", partitions=MAX_PARTITIONS + 1)
    assert too_large(controller_pb2.CreateTopicsRequest(topics=[alone])) == ""
    grown = [controller_pb2.NewPartitions(topic=name, total=MAX_PARTITIONS) for name in "ab"]
    assert "20000 partitions" in too_large(controller_pb2.CreatePartitionsRequest(topics=grown))

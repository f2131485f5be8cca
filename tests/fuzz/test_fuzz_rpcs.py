"""Nothing of the contracts is forgotten: every service has servers, every RPC has calls, every field is filled."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from pathlib import Path
from random import Random

from google.protobuf.descriptor import Descriptor

from highwater.v1.controller_pb2 import CreateTopicsRequest, NewTopic

from .calls import Call, Finding, Sent, draw
from .left_alone import tame
from .live import PREY, STEADY, Live, number, topic_id
from .messages import MessageGenerator
from .rpcs import CONTROLLER, SERVED, rpcs, targets

PROTO = Path(__file__).parents[2] / "proto" / "highwater" / "v1"
LIVE = Live(
    numbers={"broker_epoch_1": 101, "controller_epoch": 3},
    topic_ids={STEADY: b"s" * 16, PREY[0]: b"p" * 16},
)


def test_every_rpc_of_the_contracts_is_called_at_every_server_that_has_it() -> None:
    declared = set()
    for path in PROTO.glob("*.proto"):
        service = ""
        for line in path.read_text().splitlines():
            if found := re.match(r"service (\w+)", line):
                service = found[1]
            elif found := re.match(r" +rpc (\w+)\(", line):
                declared.add(f"/highwater.v1.{service}/{found[1]}")
    assert set(rpcs()) == declared
    assert {rpc.service for rpc in rpcs().values()} == set(SERVED)
    drawn = Counter((call.server, call.path) for call in (draw(1, each) for each in range(3 * len(targets()))))
    assert drawn == {(server, rpc.path): 3 for server, rpc in targets()}


def test_every_field_of_every_request_is_filled_now_and_then() -> None:
    missing = {}
    for path, rpc in rpcs().items():
        seen: set[str] = set()
        for seed in range(200):
            message = rpc.new_request()
            MessageGenerator(Random(f"{path}:{seed}"), 0.3).fill(message)
            note(message, seen)
        if left := names(rpc.request, set()) - seen:
            missing[path] = left
    assert not missing


def names(descriptor: Descriptor, above: set[str]) -> set[str]:
    if descriptor.full_name in above:
        return set()
    found = set()
    for field in descriptor.fields:
        found.add(field.full_name)
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            found |= names(field.message_type, above | {descriptor.full_name})
    return found


def note(message: object, seen: set[str]) -> None:
    for field, value in message.ListFields():  # type: ignore[attr-defined]
        seen.add(field.full_name)
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for each in value if hasattr(value, "extend") else (value,):
                note(each, seen)


def test_a_seed_draws_the_same_calls_and_a_finding_keeps_them() -> None:
    calls = [draw(7, each) for each in range(500)]
    assert calls == [draw(7, each) for each in range(500)]
    assert calls != [draw(8, each) for each in range(500)]
    assert Finding.from_json(Finding("wrong", 7, calls).to_json()) == Finding("wrong", 7, calls)
    assert {call.ending for call in calls} == {"close", "cancel", "half"}
    assert any(sent.repeat for call in calls for sent in call.sent)
    assert any(sent.mutation for call in calls for sent in call.sent)


def test_a_call_is_kept_by_the_names_of_what_exists() -> None:
    rpc = rpcs()["/highwater.v1.LogStorage/FenceEpoch"]
    message = rpc.new_request()
    partition = message.partitions.add()  # type: ignore[attr-defined]
    partition.partition.topic_id = topic_id(PREY[0])
    partition.leader_epoch = number("leader_epoch")
    found = rpc.new_request()
    found.MergeFromString(Sent(message.SerializeToString()).bound(rpc, LIVE))
    assert found.partitions[0].partition.topic_id == b"p" * 16  # type: ignore[attr-defined]
    repeated = Sent(message.SerializeToString(), repeat=("partitions", 10)).bound(rpc, LIVE)
    found.MergeFromString(repeated)
    assert len(found.partitions) == 1 + 11  # type: ignore[attr-defined]


def test_no_call_may_do_by_right_what_the_oracle_looks_for() -> None:
    """Of what is drawn and mutated: nothing changes when it is tamed once more."""
    for each in range(800):
        call: Call = draw(3, each)
        for sent in call.sent:
            data = sent.bound(call.rpc, LIVE)
            if call.rpc.service in ("ReplicaControl", "LogStorage") and not call.rpc.method.startswith(
                ("Read", "List", "EndOffset", "Describe", "Watch")
            ):
                assert b"s" * 16 not in data or sent.mutation is not None
            message = call.rpc.new_request()
            try:
                message.MergeFromString(data)
            except Exception:
                continue
            before = message.SerializeToString(deterministic=True)
            tame(call.rpc, message, LIVE)
            assert message.SerializeToString(deterministic=True) == before
            assert getattr(message, "controller_epoch", 0) <= 3


async def test_a_call_of_many_elements_is_made_while_the_others_go_on() -> None:
    message = CreateTopicsRequest(topics=[NewTopic(topic=STEADY)])
    many = Sent(message.SerializeToString(), repeat=("topics", 10_001), mutation="10")
    making = asyncio.create_task(Call(CONTROLLER, "/highwater.v1.Controller/CreateTopics", (many,)).payloads(LIVE))
    turns = 0
    while not making.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert len((await making)[0]) > 10_001
    assert turns > 3

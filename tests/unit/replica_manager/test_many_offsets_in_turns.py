"""Requests that name thousands of offsets, or of groups, let others have their turn of the event loop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from counted_turns import with_turns

from highwater.errors import ErrorCode
from highwater.groups import requests as req
from highwater.groups.member import NOTHING as NO_PARTITIONS
from highwater.groups.records.values import MemberState, OffsetCommitValue
from highwater.groups.topics import Topic, TopicImage
from highwater.model.partition import PartitionKey
from highwater.replica_manager.server import group_servicer
from highwater.replica_manager.server.group_servicer import GroupServicer
from highwater.rpc.listeners import Listener
from highwater.rpc.process import loop_turn
from highwater.security.acls import Operation, ResourceType
from highwater.v1 import common_pb2, group_pb2

MANY = 50
NOTHING: Any = None
KEPT = {req.NamedPartition(f"t{number}", 0): OffsetCommitValue(number, -1, "", 0) for number in reversed(range(MANY))}
REFUSED = req.Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is none")
EXPECTED = [ErrorCode.NONE if number else ErrorCode.TOPIC_AUTHORIZATION_FAILED for number in range(MANY)]
EXPECTED[-1] = REFUSED.code


class Access:
    """Anything may be done but with topic `t0`."""

    def may(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        return name != "t0"

    def may_topic(self, operation: Operation, name: str) -> bool:
        return name != "t0"

    def may_group(self, operation: Operation, name: str) -> bool:
        return name == f"g{MANY - 1}"

    def may_cluster(self, operation: Operation) -> bool:
        return False

    def refusal(self, operation: Operation, resource_type: ResourceType, name: str) -> str:
        return "it may not"


class Coordinator:
    """Keeps nothing; the last partition of a request is refused."""

    image = TopicImage()

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def ask(self, group: str, request: Any) -> Any:
        self.asked.append(request)
        match request:
            case req.CommitOffsets() | req.AlterOffsets():
                return req.CommitAnswer(errors=(None,) * (len(request.offsets) - 1) + (REFUSED,))
            case req.DeleteOffsets():
                return req.DeleteAnswer(errors=(None,) * (len(request.partitions) - 1) + (REFUSED,))
            case req.FetchOffsets():
                if request.partitions is None:
                    return req.FetchAnswer(kept=KEPT)
                return req.FetchAnswer(offsets=tuple(req.FetchedOffset(each, None) for each in request.partitions))
            case req.DescribeGroup():
                return described(request.group, members=1)
        return req.DeleteAnswer(REFUSED if request.group == f"g{MANY - 1}" else None)


def described(group: str, *, members: int) -> req.GroupDescription:
    topics = frozenset(f"t{number}" for number in range(MANY))
    return req.GroupDescription(
        group,
        req.GroupState.STABLE,
        members=tuple(
            req.DescribedMember(
                f"m{number}",
                *("", "", "", "", 1, MemberState.STABLE),
                topics,
                *("", NO_PARTITIONS, NO_PARTITIONS, NO_PARTITIONS),
            )
            for number in range(members)
        ),
        kept=KEPT,
    )


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Coordinator:
    monkeypatch.setattr(loop_turn, "TURN_S", 0.0)
    return Coordinator()


def servicer(coordinator: Coordinator, access: Access | None = None) -> GroupServicer:
    made = GroupServicer(coordinator, Listener("I", "I"))  # type: ignore[arg-type]
    made._access = lambda context: access  # type: ignore[assignment,method-assign,return-value]
    return made


def named() -> list[common_pb2.TopicPartition]:
    return [common_pb2.TopicPartition(topic=f"t{number}") for number in range(MANY)]


def codes(results: Any) -> list[int]:
    return [each.error.code for each in results]


@pytest.mark.parametrize(
    ("method", "request_type"),
    [("CommitOffsets", group_pb2.CommitOffsetsRequest), ("AlterOffsets", group_pb2.AlterOffsetsRequest)],
)
async def test_offsets_that_are_stored(coordinator: Coordinator, method: str, request_type: Any) -> None:
    offsets = [group_pb2.CommittedOffset(partition=each, offset=9, metadata="m") for each in named()]
    handler = getattr(servicer(coordinator, Access()), method)
    response, turns = await with_turns(handler(request_type(group="g", offsets=offsets), NOTHING))
    assert codes(response.offsets) == EXPECTED
    assert [each.partition for each in response.offsets] == named()
    assert [each.topic for each in coordinator.asked[0].offsets] == [each.topic for each in named()[1:]]
    assert turns >= 2.5 * MANY


async def test_a_refusal_of_all_names_none(coordinator: Coordinator) -> None:
    async def ask(group: str, request: Any) -> req.Refusal | req.CommitAnswer:
        return REFUSED if group == "g" else req.CommitAnswer(REFUSED)

    coordinator.ask = ask  # type: ignore[method-assign]
    for group in ("g", "h"):
        request = group_pb2.CommitOffsetsRequest(group=group, offsets=[group_pb2.CommittedOffset()])
        response = await servicer(coordinator).CommitOffsets(request, NOTHING)
        assert response.error.code == int(REFUSED.code)
        assert not response.offsets


@pytest.mark.parametrize("partitions", [named(), []], ids=["named", "all"])
async def test_offsets_that_are_fetched(coordinator: Coordinator, partitions: list[common_pb2.TopicPartition]) -> None:
    request = group_pb2.FetchOffsetsRequest(group="g", partitions=partitions)
    response, turns = await with_turns(servicer(coordinator, Access()).FetchOffsets(request, NOTHING))
    in_order = sorted(named()[1:], key=lambda each: each.topic)
    assert [each.partition for each in response.offsets] == (partitions or in_order)
    assert codes(response.offsets)[:2] == ([EXPECTED[0], 0] if partitions else [0, 0])
    assert turns >= (2.5 if partitions else 0.9) * MANY


async def test_offsets_that_are_deleted(coordinator: Coordinator) -> None:
    request = group_pb2.DeleteOffsetsRequest(group="g", partitions=named())
    response, turns = await with_turns(servicer(coordinator, Access()).DeleteOffsets(request, NOTHING))
    assert codes(response.offsets) == EXPECTED
    assert [each.partition for each in response.offsets] == named()
    assert turns >= 2.5 * MANY


async def test_groups_that_are_deleted(coordinator: Coordinator) -> None:
    request = group_pb2.DeleteGroupsRequest(groups=[f"g{number}" for number in range(MANY)])
    response, turns = await with_turns(servicer(coordinator).DeleteGroups(request, NOTHING))
    assert codes(response.groups) == [0] * (MANY - 1) + [REFUSED.code]
    assert turns >= 0.9 * MANY


async def test_a_description_of_groups_is_no_larger_than_a_message(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,000 groups with 5,000 offsets each were gigabytes, made in memory for an answer that nobody could be sent."""

    monkeypatch.setattr(group_servicer, "MAX_ANSWER_BYTES", 10_000)
    request = group_pb2.DescribeGroupsRequest(groups=[f"g{number}" for number in range(MANY)], include_offsets=True)
    response = await servicer(coordinator).DescribeGroups(request, NOTHING)
    described = [each for each in response.groups if not each.HasField("error")]
    assert 0 < len(described) == len(coordinator.asked) - 1 < MANY
    assert sum(each.ByteSize() for each in described) <= 10_000
    refused = response.groups[len(described) :]
    assert {each.error.code for each in refused} == {int(ErrorCode.INVALID_REQUEST)}
    assert [each.group for each in response.groups] == list(request.groups)


async def test_a_description_of_one_group_is_no_larger_and_made_in_turns(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,000 members that name the same 10,000 topics: gigabytes of names, where each member's are a few bytes here."""
    monkeypatch.setattr(group_servicer, "MAX_ANSWER_BYTES", 10_000)

    async def ask(group: str, request: req.DescribeGroup) -> req.GroupDescription:
        return described(group, members=10 if group == "few" else 1_000)

    monkeypatch.setattr(coordinator, "ask", ask)
    request = group_pb2.DescribeGroupsRequest(groups=["few", "many", "behind"])
    response, turns = await with_turns(servicer(coordinator, Access()).DescribeGroups(request, NOTHING))
    few, many, behind = response.groups
    assert [len(each.members) for each in response.groups] == [10, 0, 0]
    assert list(few.members[0].topics) == sorted(f"t{number}" for number in range(1, MANY))
    assert {many.error.code, behind.error.code} == {int(ErrorCode.INVALID_REQUEST)}
    assert 1_000 + MANY < turns < 1_500  # all members are looked at for their topics, and told until it is too much


async def test_a_list_and_all_offsets_are_no_larger_than_a_message(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8,000 group ids of 16 KiB, or 40,000 offsets with 4 KiB of metadata, made an answer that nobody could be sent."""
    groups = [req.ListedGroup("g" * 90, req.GroupState.EMPTY, 0)] * 10

    async def list_groups(states: Any) -> tuple[list[req.ListedGroup], None]:
        return groups, None

    coordinator.list_groups = list_groups  # type: ignore[attr-defined]
    for most, wanted in ((10_000, [10, MANY]), (500, [0, 0])):
        monkeypatch.setattr(group_servicer, "MAX_ANSWER_BYTES", most)
        listed = await servicer(coordinator).ListGroups(group_pb2.ListGroupsRequest(), NOTHING)
        fetched = await servicer(coordinator).FetchOffsets(group_pb2.FetchOffsetsRequest(group="g"), NOTHING)
        assert [len(listed.groups), len(fetched.offsets)] == wanted
        expected = ErrorCode.NONE if any(wanted) else ErrorCode.INVALID_REQUEST
        assert {listed.error.code, fetched.error.code} == {int(expected)}


async def test_groups_that_are_not_to_be_seen_are_passed_over_in_turns(coordinator: Coordinator) -> None:
    async def list_groups(states: Any) -> tuple[list[req.ListedGroup], None]:
        return [req.ListedGroup(f"g{number}", req.GroupState.EMPTY, 0) for number in range(MANY)], None

    coordinator.list_groups = list_groups  # type: ignore[attr-defined]
    listed, turns = await with_turns(servicer(coordinator, Access()).ListGroups(group_pb2.ListGroupsRequest(), NOTHING))
    assert [each.group for each in listed.groups] == [f"g{MANY - 1}"]
    assert turns >= 0.9 * MANY


async def test_the_topics_of_a_member_are_looked_at_in_turns(coordinator: Coordinator) -> None:
    request = group_pb2.DescribeGroupsRequest(groups=["g"])
    response, turns = await with_turns(servicer(coordinator, Access()).DescribeGroups(request, NOTHING))
    assert len(response.groups[0].members[0].topics) == MANY - 1
    assert turns >= 1.9 * MANY  # names, and offsets


async def test_the_partitions_of_a_member_are_told_in_turns(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that had 100,000 partitions was described in one turn of 0.4 s."""
    few = group_pb2.DescribeGroupsRequest(groups=["g"])
    _, turns_of_none = await with_turns(servicer(coordinator).DescribeGroups(few, NOTHING))
    keys = frozenset(PartitionKey(b"%16d" % (number % MANY), number) for number in range(3 * MANY))

    async def ask(group: str, request: req.DescribeGroup) -> req.GroupDescription:
        group_of_one = described(group, members=1)
        return replace(group_of_one, members=(replace(group_of_one.members[0], assigned=keys, target=keys),))

    monkeypatch.setattr(coordinator, "ask", ask)
    response, turns = await with_turns(servicer(coordinator).DescribeGroups(few, NOTHING))
    assert turns - turns_of_none >= 1.9 * MANY
    ((member,),) = (each.members for each in response.groups)
    for told in (member.assignment, member.target):
        assert [(each.topic_id, n) for each in told for n in each.partitions] == sorted(keys)


async def test_a_topic_that_gets_its_name_in_between_is_told_to_nobody_who_may_not_see_it(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator that has loaded a group may not know the topics yet that its members have."""
    secret = Topic(b"s" * 16, "t0", 1)
    image = TopicImage()
    monkeypatch.setattr(coordinator, "image", image)
    asked = Access.may_topic

    def may_topic(self: Access, operation: Operation, name: str) -> bool:
        image.update({"t0": secret})
        return asked(self, operation, name)

    async def ask(group: str, request: req.DescribeGroup) -> req.GroupDescription:
        group_of_one = described(group, members=1)
        member = replace(group_of_one.members[0], topics=frozenset({"t1"}), assigned=frozenset(secret.keys))
        return replace(group_of_one, members=(member,))

    monkeypatch.setattr(Access, "may_topic", may_topic)
    monkeypatch.setattr(coordinator, "ask", ask)
    request = group_pb2.DescribeGroupsRequest(groups=["g"])
    response = await servicer(coordinator, Access()).DescribeGroups(request, NOTHING)
    (member,) = response.groups[0].members
    assert list(member.topics) == ["t1"]
    assert "t0" not in [each.topic for each in member.assignment]


async def test_a_group_that_is_not_there_is_told_so_behind_too_much(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_servicer, "MAX_ANSWER_BYTES", 200)

    async def ask(group: str, request: req.DescribeGroup) -> req.GroupDescription:
        return req.GroupDescription(group, req.GroupState.DEAD, error=REFUSED)

    monkeypatch.setattr(coordinator, "ask", ask)
    request = group_pb2.DescribeGroupsRequest(groups=["g" * 500, "h"])
    response = await servicer(coordinator).DescribeGroups(request, NOTHING)
    assert codes(response.groups) == [int(REFUSED.code), int(ErrorCode.INVALID_REQUEST)]
    assert response.groups[0].state == group_pb2.GROUP_STATE_DEAD

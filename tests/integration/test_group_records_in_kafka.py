"""Kafka's own parser reads the records that a group's life has left in `__consumer_offsets`: its DumpLogSegments, with
the serde that its coordinator loads groups by, over the segments as they lie in a broker's log directory."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from group_readers import ASSIGNMENT, Readers, send
from replica_manager_cluster import eventually
from running_cluster import HEAL_S, Deployment

from highwater.groups.group_partition import OFFSETS_TOPIC, partition_for
from highwater.groups.records import decode
from highwater.groups.records.keys import (
    CurrentAssignmentKey,
    GroupEpochKey,
    Key,
    MemberSubscriptionKey,
    OffsetCommitKey,
    PatternKey,
    TargetAssignmentKey,
    TargetEpochKey,
)
from highwater.groups.records.values import (
    CurrentAssignmentValue,
    GroupEpochValue,
    MemberState,
    MemberSubscriptionValue,
    OffsetCommitValue,
    PatternValue,
    TargetAssignmentValue,
    TargetEpochValue,
    Value,
)
from highwater.model.partition import PartitionKey
from highwater.replica_manager.groups import record_batches

LIBRARIES = Path(os.environ.get("HIGHWATER_KAFKA_HOME", ""), "libs")
DUMP_S = 60.0
_RECORD = re.compile(r"\| offset: (\d+) CreateTime: (\d+) .* key: (\{.*?\}) payload: (.*)")

pytestmark = pytest.mark.skipif(
    shutil.which("java") is None or not list(LIBRARIES.glob("kafka-group-coordinator-4.*.jar")),
    reason="Kafka's parser is not here: it needs Java, and HIGHWATER_KAFKA_HOME to name a Kafka 4.1 with its libs/",
)

Printed = tuple[int, int, Any, Any]
"""Offset, timestamp, key and value; None: a tombstone."""


async def test_kafka_reads_every_record_of_a_groups_life(grouped: Deployment, readers: Readers) -> None:
    group = "lived"
    await grouped.create_topic("lived.named", ASSIGNMENT)
    await grouped.create_topic("lived.matched", ASSIGNMENT)
    await send(grouped, "lived.named", 3)
    await send(grouped, "lived.matched", 3)
    pattern = r"lived\.m.*"
    first = await readers.join("lived.named", group, pattern=pattern, client_rack="a", instance_id="one")
    await first.owns(4)  # each topic has partitions 0 to 3
    await first.has_seen(24)
    second = await readers.join("lived.named", group, pattern=pattern, assignor="range", client_id="lecteur-é")
    await second.until(lambda: len(second.consumer.assignment()) == 4, "half of both topics")
    for each in (first, second):
        await each.suspend()
        await each.consumer.stop()
    log = await leaders_log(grouped, group)
    while_stable = await kafka_reads(log)
    # The static member keeps its partitions; another process under its instance id is another member.
    third = await readers.join("lived.named", group, instance_id="one", enable_auto_commit=False)
    await third.owns(4)
    await third.suspend()
    await third.consumer.stop()

    async def is_empty() -> bool:
        (described,) = await grouped.admin.describe_groups([group])
        return described.state == "empty"

    await eventually(is_empty, "the static member's session is over", HEAL_S)
    assert await grouped.admin.delete_groups([group]) == {group: None}

    printed = await kafka_reads(log)
    assert printed[: len(while_stable)] == while_stable
    assert printed == list(ours(log))
    kinds = Counter((each[2]["type"], each[3] is None) for each in printed if group in each[2]["data"].values())
    assert set(kinds) == {(kind, gone) for kind in ("1", "3", "5", "6", "7", "8", "16") for gone in (False, True)}
    of_members = [each[3]["data"] for each in printed if each[2]["type"] == "5" and each[3] is not None]
    assert {(each["instanceId"], each["rackId"], each["clientId"]) for each in of_members} >= {
        ("one", "a", "highwater-consumer"),
        (None, None, "lecteur-é"),
    }
    assert {each["subscribedTopicRegex"] for each in of_members} == {pattern, None}
    giving_up = [each[3]["data"] for each in printed if each[2]["type"] == "8" and each[3] is not None]
    assert any(each["partitionsPendingRevocation"] for each in giving_up)


async def leaders_log(deployed: Deployment, group: str) -> Path:
    """The segment of the group's coordinator; what is answered for is in it. (Nothing is rolled or compacted in a
    minute.)"""
    number = partition_for(group, 5)
    (state, *_) = (await deployed.states(OFFSETS_TOPIC, 5))[number:]
    (found,) = deployed.cluster.settings.data.glob(f"broker-{state.leader}/{OFFSETS_TOPIC}-{number}/*.log")
    return found


async def kafka_reads(segment: Path) -> list[Printed]:
    program = [
        *("java", "-Xmx256m", "-cp", f"{LIBRARIES}/*", "kafka.tools.DumpLogSegments"),
        *("--offsets-decoder", "--files", str(segment)),
    ]
    running = await asyncio.create_subprocess_exec(
        *program, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(DUMP_S):
            out, said = await running.communicate()
    finally:
        if running.returncode is None:
            running.kill()
            await running.wait()
    assert (running.returncode, said) == (0, b"")
    lines = out.decode().splitlines()
    assert "isvalid: false" not in out.decode()
    records = [line for line in lines if line.startswith("|")]
    parsed = [_RECORD.fullmatch(line) for line in records]
    assert all(parsed), [line for line, each in zip(records, parsed, strict=True) if each is None]
    return [_printed(*each.groups()) for each in parsed if each is not None]


def _printed(offset: str, time: str, key: str, payload: str) -> Printed:
    return int(offset), int(time), json.loads(key), None if payload == "<DELETE>" else json.loads(payload)


def ours(segment: Path) -> Iterator[Printed]:
    """What we read there, as Kafka is to print it."""
    for _, rows in record_batches.decode(segment.read_bytes()):
        for row in rows:
            assert row.key is not None
            record = decode(row.key, row.value)
            assert record is not None
            key, value = record
            yield row.offset, row.timestamp, as_kafka_prints_keys(key), value and as_kafka_prints_values(value)


def as_kafka_prints_keys(key: Key) -> Any:
    match key:
        case OffsetCommitKey(group, topic, partition):
            return {"type": "1", "data": {"group": group, "topic": topic, "partition": partition}}
        case GroupEpochKey(group):
            return {"type": "3", "data": {"groupId": group}}
        case TargetEpochKey(group):
            return {"type": "6", "data": {"groupId": group}}
        case MemberSubscriptionKey(group, member):
            return {"type": "5", "data": {"groupId": group, "memberId": member}}
        case TargetAssignmentKey(group, member):
            return {"type": "7", "data": {"groupId": group, "memberId": member}}
        case CurrentAssignmentKey(group, member):
            return {"type": "8", "data": {"groupId": group, "memberId": member}}
        case PatternKey(group, pattern):
            return {"type": "16", "data": {"groupId": group, "regularExpression": pattern}}


def as_kafka_prints_values(value: Value) -> Any:
    match value:
        case OffsetCommitValue():
            return {
                "version": "4",
                "data": {
                    "offset": value.offset,
                    "leaderEpoch": value.leader_epoch,
                    "metadata": value.metadata,
                    "commitTimestamp": value.commit_time_ms,
                    "topicId": _uuid(value.topic_id),
                },
            }
        case GroupEpochValue():
            hashed = {"metadataHash": value.metadata_hash} if value.metadata_hash else {}
            return {"version": "0", "data": {"epoch": value.epoch, **hashed}}
        case TargetEpochValue():
            return {"version": "0", "data": {"assignmentEpoch": value.epoch}}
        case MemberSubscriptionValue():
            return {
                "version": "0",
                "data": {
                    "instanceId": value.instance_id or None,
                    "rackId": value.rack or None,
                    "clientId": value.client_id,
                    "clientHost": value.client_host,
                    "subscribedTopicNames": sorted(value.topics),
                    "subscribedTopicRegex": value.pattern or None,
                    "rebalanceTimeoutMs": value.rebalance_timeout_ms,
                    "serverAssignor": value.assignor or None,
                },
            }
        case TargetAssignmentValue():
            return {"version": "0", "data": {"topicPartitions": _partitions(value.partitions)}}
        case CurrentAssignmentValue():
            assert value.state in MemberState
            return {
                "version": "0",
                "data": {
                    "memberEpoch": value.epoch,
                    "previousMemberEpoch": value.previous_epoch,
                    "state": int(value.state),
                    "assignedPartitions": _partitions(value.assigned),
                    "partitionsPendingRevocation": _partitions(value.revoking),
                },
            }
        case PatternValue():
            return {
                "version": "0",
                "data": {"topics": sorted(value.topics), "version": value.version, "timestamp": value.time_ms},
            }


def _partitions(partitions: Iterable[PartitionKey]) -> list[Any]:
    by_topic: dict[bytes, list[int]] = {}
    for topic_id, number in sorted(partitions):
        by_topic.setdefault(topic_id, []).append(number)
    return [{"topicId": _uuid(topic_id), "partitions": numbers} for topic_id, numbers in by_topic.items()]


def _uuid(topic_id: bytes) -> str:
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()

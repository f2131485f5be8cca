"""What a client reads of a partition that this broker does not serve."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from highwater.errors import ErrorCode
from highwater.log_storage_client.client import LogStorageClient
from highwater.model.partition import PartitionKey
from highwater.replica_manager.server.log_dirs import LogDirsHandler
from highwater.replica_manager.server.partition_errors import partition_error
from highwater.rpc.connections.channel import open_channel

KEY = PartitionKey(bytes.fromhex("6f" * 16), 3)


def test_the_leader_that_is_known_is_named() -> None:
    message = partition_error(KEY, ErrorCode.NOT_LEADER_OR_FOLLOWER, leader=(2, 5)).message
    assert message == (
        f"this broker does not lead partition 3 of topic id {'6f' * 16}, it last heard of broker 2, "
        "under leader epoch 5: ask for Metadata, and try the leader"
    )


def test_where_no_leader_is_known_that_is_said() -> None:
    for leader in ((-1, -1), (-1, 4)):
        message = partition_error(KEY, ErrorCode.NOT_LEADER_OR_FOLLOWER, leader=leader).message
        assert "and knows of no leader: ask for Metadata" in message


def test_an_unknown_id_is_named() -> None:
    assert f"no topic of id {'6f' * 16}," in partition_error(KEY, ErrorCode.UNKNOWN_TOPIC_ID).message
    assert "no topic of id nothing," in partition_error(PartitionKey(b"", 0), ErrorCode.UNKNOWN_TOPIC_ID).message


def test_a_sentence_that_knows_more_is_kept() -> None:
    error = partition_error(KEY, ErrorCode.NOT_LEADER_OR_FOLLOWER, "use acks=all", (2, 5))
    assert (error.code, error.message) == (int(ErrorCode.NOT_LEADER_OR_FOLLOWER), "use acks=all")
    assert partition_error(KEY, ErrorCode.OVERLOADED).message == ErrorCode.OVERLOADED.sentence


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "the log /data/hw/t-0 is offline: [Errno 5] Input/output error: '/data/hw/t-0/00000.log'",
            "the log t-0 is offline: [Errno 5] Input/output error: '00000.log'",
        ),
        ("/data: no space left", "data: no space left"),
        ("nobody answers at unix:/run/highwater/log-storage.sock", "nobody answers at unix:log-storage.sock"),
        ("12 records/s, and/or none", "12 records/s, and/or none"),
    ],
)
def test_a_client_is_not_told_where_files_stand(said: str, told: str) -> None:
    assert partition_error(KEY, ErrorCode.LOG_STORAGE_ERROR, said).message == told


async def test_nor_where_the_socket_of_a_log_storage_is_that_does_not_answer(tmp_path: Path) -> None:
    async with open_channel(f"unix:{tmp_path}/nobody") as channel:
        replica_manager: Any = SimpleNamespace(storage=LogStorageClient(channel, timeout_s=5.0))
        handler = LogDirsHandler(replica_manager)
        described = (await handler.describe([])).error
        (altered,) = await handler.alter([(KEY, "/data")])
    for error in (described, altered):
        assert error.code == ErrorCode.LOG_STORAGE_ERROR
        assert "UNAVAILABLE" in error.message, "an operator sees why"
        assert str(tmp_path) not in error.message, error.message

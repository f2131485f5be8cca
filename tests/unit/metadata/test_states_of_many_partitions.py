"""States of thousands of partitions are read at once: an assignment is parsed once then, and others have their turn."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from highwater.metadata.schema.cluster_view import versioned_topic
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import PartitionState, TopicAssignment
from highwater.metadata.state.partition_states import read_own_states
from highwater.metadata.store.transactions import Entry
from highwater.model.partition import PartitionKey
from highwater.rpc.process import loop_turn

KEYS = Keys("test")
TOPIC_ID = bytes(16)
MANY = 100


class Etcd:
    def __init__(self, topic_id: bytes = TOPIC_ID) -> None:
        values = {KEYS.topic("t"): TopicAssignment("t", topic_id, ((1, 2),) * MANY).to_json()}
        for partition in range(MANY - 1):  # the last one has none
            values[KEYS.state("t", partition)] = PartitionState(1, 5, 7, (1, 2)).to_json()
        values[KEYS.state("t", 7)] = b"not to be read"
        self._entries = {name: Entry(name, value, 1, 2) for name, value in values.items()}

    async def get_many(self, names: Iterable[str], **_: Any) -> tuple[dict[str, Entry], int]:
        return {name: self._entries[name] for name in names if name in self._entries}, 2


async def own_states(etcd: Any) -> set[int]:
    topics = {PartitionKey(TOPIC_ID, partition): "t" for partition in range(MANY)}
    return {key.partition for key in await read_own_states(etcd, KEYS, topics)}


async def test_an_assignment_is_parsed_once_for_all_its_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names every partition: parsed for each of thousands, the event loop is held for minutes, and with it the lease
    is lost."""
    parsed = []

    def counted(entry: Entry) -> Any:
        parsed.append(entry.key)
        return versioned_topic(entry)

    monkeypatch.setattr("highwater.metadata.state.partition_states.versioned_topic", counted)
    assert await own_states(Etcd()) == set(range(MANY - 1)) - {7}
    assert parsed == [KEYS.topic("t")]


async def test_states_of_a_topic_that_was_made_anew_are_not_taken() -> None:
    assert await own_states(Etcd(b"\1" * 16)) == set()


async def test_others_have_their_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_turn, "TURN_S", 0.0)
    turns = 0

    async def take() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    beside = asyncio.create_task(take())
    await own_states(Etcd())
    beside.cancel()
    assert turns >= MANY

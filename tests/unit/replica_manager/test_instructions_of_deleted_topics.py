"""A topic that was deleted while its logs were being made is not brought back by the instruction that has them made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from leading_broker import EPOCH, Leader, key

from highwater.errors import ErrorCode
from highwater.log_storage_client.values import CreateAnswer, NewLog, StorageError
from highwater.metadata.schema.models import PartitionState, VersionedState
from highwater.replica_manager.replicas import metadata_cache
from highwater.replica_manager.replicas.metadata_cache import CachedPartition, CachedTopic, MetadataCache, Term
from highwater.replica_manager.requests.control import Control
from highwater.replica_manager.requests.instructions import PartitionInstruction, Sender

BROKER_EPOCH = 101
TERM = Term(1, BROKER_EPOCH)
STATE = VersionedState(PartitionState(1, EPOCH, BROKER_EPOCH, (1,)), 10)


def topic(number: int, revision: int = STATE.revision) -> CachedTopic:
    return CachedTopic("t", bytes([number]) * 16, {}, {0: CachedPartition(STATE.state, revision, (1,))})


class Storage:
    """While it makes logs, something else happens."""

    def __init__(self, meanwhile: Callable[[], Awaitable[Any]]) -> None:
        self._meanwhile = meanwhile

    async def create_logs(self, logs: Sequence[NewLog]) -> list[CreateAnswer]:
        await self._meanwhile()
        return [CreateAnswer(StorageError(ErrorCode.NONE), "ls")] * len(logs)


async def test_an_instruction_that_is_overtaken_by_the_deletion() -> None:
    fencer: Any = SimpleNamespace(gathering=nullcontext, submit=lambda *_: None)
    replica_manager = Leader(0, fencer=fencer).replica_manager
    replica_manager.broker_epoch = BROKER_EPOCH
    unasked: Any = SimpleNamespace(await_registration=registered)
    control = Control(replica_manager, unasked, unasked)
    control.controller_epoch = 1

    async def deleted_meanwhile() -> None:
        told = [key(0).topic_id]
        await control.update_metadata(Sender(9, 1), "c:1", (), (), full=False, deleted=told, sequence=1)

    replica_manager.storage = Storage(deleted_meanwhile)  # type: ignore[assignment]
    instruction = PartitionInstruction("t", key(0), STATE, (1,), {})
    await control.leader_and_isr(Sender(9, 1, BROKER_EPOCH), [instruction], ())
    assert replica_manager.metadata.by_name("t") is None
    assert replica_manager.absent(key(0)) is ErrorCode.UNKNOWN_TOPIC_ID


async def registered(broker_epoch: int) -> None:
    """It is."""


def test_a_topic_of_the_same_name_keeps_it() -> None:
    cache = MetadataCache()
    cache.update([topic(2)], full=False, deleted=[topic(1).topic_id])
    cache.learn([topic(1)], TERM)
    assert cache.by_name("t") == topic(2)
    cache.learn([topic(3)], TERM)  # made after that, again
    assert cache.by_name("t") == topic(3)


def test_what_the_controller_tells_of_all_topics_counts(monkeypatch: Any) -> None:
    """Made again from the brokers' volumes, etcd has topics that were deleted after its backup (RULES 7.9)."""
    monkeypatch.setattr(metadata_cache, "KEPT_DELETED", 2)
    cache = MetadataCache()
    cache.update([], full=False, deleted=[topic(1).topic_id])
    cache.update([topic(1)], full=True)
    cache.learn([topic(1)], TERM)
    assert cache.by_name("t") == topic(1)
    cache.update([], full=False, deleted=[topic(number).topic_id for number in (1, 2, 3)])
    assert len(cache._deleted) == 2


def test_what_was_made_since_a_request_was_sent_is_not_forgotten() -> None:
    """All topics there are may be under way for seconds. A group's coordinator took one for deleted that an instruction
    had told of meanwhile, and removed the offsets that were committed of it."""
    cache = MetadataCache()
    cache.learn([topic(1)], TERM)
    cache.update([], full=True, term=TERM)
    assert cache.by_name("t") == topic(1)
    cache.update([], full=True, term=Term(1, BROKER_EPOCH + 1))  # nobody tells this registration that it was deleted
    assert cache.by_name("t") is None


def test_an_older_topic_does_not_take_the_name_back() -> None:
    cache = MetadataCache()
    cache.learn([topic(2, revision=30)], TERM)
    cache.update([topic(1, revision=20)], full=False)
    assert cache.by_name("t") == topic(2, revision=30)
    cache.update([], full=False, deleted=[topic(1).topic_id])
    assert cache.by_name("t") == topic(2, revision=30)

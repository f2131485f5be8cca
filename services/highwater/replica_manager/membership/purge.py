"""Deleting logs that nobody wants any more (RULES 9.3): after a linearizable read under the same cluster id, and only
what that read shows to be gone, marked, or assigned elsewhere."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from highwater.errors import ErrorCode
from highwater.log_storage_client.client import LogStorageClient
from highwater.log_storage_client.values import StorageError, StorageUnavailableError
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import TopicAssignment
from highwater.metadata.schema.reading import CorruptMetadataError
from highwater.metadata.state.partition_states import read_placements
from highwater.metadata.state.topics import read_topics
from highwater.metadata.store.etcd_errors import StoreError
from highwater.metadata.store.store import Store
from highwater.model.leader_epochs import NO_EPOCH
from highwater.model.partition import PartitionKey
from highwater.rpc.process.loop_turn import by_turns
from highwater.telemetry.log import get_logger, pairs

logger = get_logger("replica_manager.purge")

CONCURRENT_DELETIONS = 32
KEPT = StorageError(
    ErrorCode.INVALID_REQUEST, "the topic exists and this replica is assigned here: the log is kept (RULES 9.3)"
)


@dataclass(frozen=True, slots=True)
class _Doom:
    """A log that may be deleted, and the leader epoch to say so with (-1: a dead topic id)."""

    key: PartitionKey
    leader_epoch: int


class Purge:
    """`cluster_id` gives the one that this broker's logs belong to ("": not known yet); under another one nothing is
    deleted: an etcd that has lost everything must not take the records with it. `evict` stops the replica of a log that
    is about to be deleted, unless it is hosted under a higher leader epoch by now (-1: never), and tells whether that
    is so."""

    def __init__(
        self,
        broker_id: int,
        storage: LogStorageClient,
        store: Store,
        keys: Keys,
        *,
        cluster_id: Callable[[], str],
        evict: Callable[[PartitionKey, int], bool],
    ) -> None:
        self._broker_id = broker_id
        self._storage = storage
        self._store = store
        self._keys = keys
        self._cluster_id = cluster_id
        self._evict = evict

    async def delete(self, wanted: Iterable[PartitionKey]) -> dict[PartitionKey, StorageError]:
        """Deletes what the rules allow of `wanted`. NONE: gone; anything else: why it is still there."""
        wanted = list(wanted)
        try:
            dooms, kept = await self._judge(wanted)
        except StoreError as error:
            return dict.fromkeys(wanted, StorageError(ErrorCode.LOG_STORAGE_ERROR, f"etcd: {error}"))
        return dict.fromkeys(kept, KEPT) | await self._delete(dooms)

    async def _delete(self, dooms: Sequence[_Doom]) -> dict[PartitionKey, StorageError]:
        """Not a task for each: there may be thousands, and who gives up would have them all cancelled in one go."""
        errors: dict[PartitionKey, StorageError] = {}
        left = iter(dooms)

        async def delete_left() -> None:
            async for doom in by_turns(left):
                errors[doom.key] = await self._delete_one(doom)

        await asyncio.gather(*(delete_left() for _ in range(min(CONCURRENT_DELETIONS, len(dooms)))))
        outcomes, first = Counter[str](), dict[str, PartitionKey]()
        async for doom in by_turns(dooms):
            outcome = errors[doom.key].code.name
            outcomes[outcome] += 1
            first.setdefault(outcome, doom.key)
        for outcome, logs in outcomes.items():
            logger.info("deleted logs %s", pairs(logs=logs, outcome=outcome, first=first[outcome]))
        return errors

    async def _delete_one(self, doom: _Doom) -> StorageError:
        if not self._evict(doom.key, doom.leader_epoch):
            return KEPT  # wanted again since it was judged
        try:
            error = await self._storage.delete_log(doom.key, doom.leader_epoch)
        except StorageUnavailableError as unavailable:
            error = StorageError(ErrorCode.LOG_STORAGE_ERROR, str(unavailable))
        gone = error.code is ErrorCode.UNKNOWN_TOPIC_ID  # deleted before
        error = StorageError(ErrorCode.NONE) if gone else error
        logger.debug(
            "deleted a log %s",
            pairs(partition=doom.key, leader_epoch=doom.leader_epoch, outcome=error.code.name),
        )
        return error

    async def delete_strays(self, hosted: Collection[PartitionKey]) -> bool:
        """Deletes the logs of topics that were deleted, or moved, while this broker was away or cut off (RULES 9.2).
        Their replicas that are still `hosted` in memory end, too, whether they have a log or not.

        False: some log remained that may be deleted later; one that is offline waits for log-storage's next start.
        Raises `StoreError`, `StorageUnavailableError`.
        """
        described = await self._storage.describe()
        # What there is was listed first: a topic made after the read below cannot be among it.
        offline = {log.key for log in described.logs if log.offline}
        dooms, _ = await self._judge(list({log.key for log in described.logs} | set(hosted)))
        async for doom in by_turns(dooms):
            self._evict(doom.key, doom.leader_epoch)
        results = await self._delete([doom for doom in dooms if doom.key not in offline])
        return not any(error.code is ErrorCode.LOG_STORAGE_ERROR for error in results.values())

    async def _judge(self, wanted: Sequence[PartitionKey]) -> tuple[list[_Doom], list[PartitionKey]]:
        read = await read_topics(self._store, self._keys)
        ours = self._cluster_id()
        if not ours or read.cluster_id != ours:
            logger.error(
                "this etcd is of another cluster, no log is deleted %s",
                pairs(cluster_id=read.cluster_id or "none", ours=ours or "none"),
            )
            return [], list(wanted)
        if read.unreadable:
            logger.error(
                "etcd's keys cannot be read: no log is deleted whose topic is not found %s",
                pairs(keys=len(read.unreadable), first=read.unreadable[0]),
            )
        dooms, kept = [], []
        elsewhere: dict[bytes, list[PartitionKey]] = {}
        async for key in by_turns(wanted):
            topic = read.topics.get(key.topic_id)
            if key.topic_id in read.marked or (topic is None and not read.unreadable):
                dooms.append(_Doom(key, NO_EPOCH))
            elif topic is None or self._is_assigned(topic.assignment, key):  # one that cannot be read may be it
                kept.append(key)
            else:
                elsewhere.setdefault(key.topic_id, []).append(key)
        for topic_id, logs in elsewhere.items():
            some_dooms, some_kept = await self._judge_of_topic(read.topics[topic_id].assignment.topic, logs)
            dooms += some_dooms
            kept += some_kept
        return dooms, kept

    async def _judge_of_topic(
        self, topic: str, wanted: Sequence[PartitionKey]
    ) -> tuple[list[_Doom], list[PartitionKey]]:
        """Of a topic's partitions that were assigned elsewhere when the topics were listed. The assignment is read once
        for all of them: it is as long as the topic has partitions."""
        try:
            placements = await read_placements(self._store, self._keys, topic, [key.partition for key in wanted])
        except CorruptMetadataError:
            placements = None
        if placements is None:
            return [], list(wanted)
        assignment, states = placements
        dooms, kept = [], []
        async for key in by_turns(wanted):
            state = states.get(key.partition)
            if assignment.topic_id != key.topic_id:
                dooms.append(_Doom(key, NO_EPOCH))  # deleted since, and made again
            elif state is None or self._is_assigned(assignment, key):
                # By now the replica may be fenced under the leader epoch that came with the assignment.
                kept.append(key)
            else:
                dooms.append(_Doom(key, state.state.leader_epoch))
        return dooms, kept

    def _is_assigned(self, assignment: TopicAssignment, key: PartitionKey) -> bool:
        replicas = assignment.replicas
        return 0 <= key.partition < len(replicas) and self._broker_id in replicas[key.partition]

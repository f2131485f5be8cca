"""The logs of what a broker is instructed to host: made, or found, before the instruction is taken."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from highwater.errors import ErrorCode
from highwater.log_storage_client.values import CreateAnswer, NewLog, StorageError, StorageUnavailableError
from highwater.metadata.store.etcd_errors import StoreError
from highwater.model.damaged_replicas import fewest_sound
from highwater.model.partition import PartitionKey
from highwater.replica_manager.membership.purge import Purge
from highwater.replica_manager.partition.partition import Phase
from highwater.replica_manager.replicas.replica_manager import ReplicaManager
from highwater.replica_manager.requests.instructions import PartitionInstruction
from highwater.rpc.process.loop_turn import by_turns
from highwater.supervision import TaskSupervisor

PREPARING_PATIENCE_S = 0.5  # of a whole batch, for what has to happen before its logs can be made
_NONE = StorageError(ErrorCode.NONE)
_PREPARING = StorageError(
    ErrorCode.LOG_STORAGE_ERROR, "the log is being prepared (mended, or an earlier one deleted): ask again"
)


class LogCreation:
    """Waits for a disk, and never for long for what else has to happen first."""

    def __init__(self, replica_manager: ReplicaManager, purge: Purge, supervisor: TaskSupervisor) -> None:
        self._replica_manager = replica_manager
        self._purge = purge
        self._supervisor = supervisor
        self._preparing: dict[PartitionKey, asyncio.Future[StorageError]] = {}

    async def create(self, instructions: Sequence[PartitionInstruction]) -> dict[PartitionKey, CreateAnswer]:
        """The answers for those that were asked for; of any other the log is there, and log-storage, as it runs now,
        has the configuration; or it is not assigned here."""
        deadline = asyncio.get_running_loop().time() + PREPARING_PATIENCE_S
        wanted = [each async for each in by_turns(instructions) if self._is_wanted(each)]
        damaged = [each for each in wanted if each.key in self._replica_manager.damaged_logs]
        repaired = await asyncio.gather(*(self._prepared([each], self._repair, deadline) for each in damaged))
        answers = {
            key: CreateAnswer(error)
            for one in repaired
            for key, error in one.items()
            if error.code is not ErrorCode.NONE
        }
        answers |= await self._ask([each for each in wanted if each.key not in answers])
        in_the_way = [
            each
            for each in wanted
            if each.key in answers and answers[each.key].error.code is ErrorCode.INCONSISTENT_TOPIC_ID
        ]
        if in_the_way:
            deleted = await self._prepared(in_the_way, self._delete_earlier, deadline)
            answers |= {key: CreateAnswer(error) for key, error in deleted.items()}
            answers |= await self._ask([each for each in in_the_way if deleted[each.key].code is ErrorCode.NONE])
        return answers

    def _is_wanted(self, instruction: PartitionInstruction) -> bool:
        replica_manager, key = self._replica_manager, instruction.key
        if replica_manager.broker_id not in instruction.replicas:
            return False
        hosted = replica_manager.hosted.get(key)
        if hosted is None or hosted.partition.phase is Phase.UNFENCED or key in replica_manager.damaged_logs:
            return True  # where it is not fenced its log may be gone
        return hosted.log_config != (replica_manager.log_storage_incarnation, instruction.config)

    async def _ask(self, instructions: Sequence[PartitionInstruction]) -> dict[PartitionKey, CreateAnswer]:
        answers = await self._replica_manager.storage.create_logs(
            [NewLog(each.topic, each.key, each.config, self._older_log_storage(each)) for each in instructions]
        )
        return {each.key: answer for each, answer in zip(instructions, answers, strict=True)}

    def _older_log_storage(self, instruction: PartitionInstruction) -> str:
        """log-storage's incarnation where the topic was created after this broker registered with it: then none of the
        topic's logs can be in a log directory that could not be opened. Empty where it may be older."""
        broker_epoch = (
            self._replica_manager.broker_epoch
        )  # none under another incarnation than the registered one (RULES 1.4)
        if broker_epoch is None or instruction.topic_revision <= broker_epoch:
            return ""
        return self._replica_manager.log_storage_incarnation

    # What has to happen first

    async def _prepared(
        self,
        instructions: Sequence[PartitionInstruction],
        prepare: Callable[[Sequence[PartitionInstruction]], Awaitable[Mapping[PartitionKey, StorageError]]],
        deadline: float,
    ) -> dict[PartitionKey, StorageError]:
        """Returns what `prepare` answers, NONE where the log can be made or taken up. It waits for etcd and for
        deletions, so it goes on by itself where it is not done by the `deadline` (of the event loop): the other
        partitions of the batch, and the instructions behind it, must be answered within 5 s (RULES 7.7). These come
        again every second."""
        fresh = [each for each in instructions if each.key not in self._preparing]
        begun = {each.key: asyncio.get_running_loop().create_future() for each in fresh}
        self._preparing |= begun

        async def run() -> None:
            errors: Mapping[PartitionKey, StorageError] = {}
            failure = StorageError(ErrorCode.LOG_STORAGE_ERROR, "the log could not be prepared")
            try:
                errors = await prepare(fresh)
            except (StorageUnavailableError, StoreError) as error:
                failure = StorageError(ErrorCode.LOG_STORAGE_ERROR, str(error))
            finally:
                for key, outcome in begun.items():
                    del self._preparing[key]
                    if not outcome.done():
                        outcome.set_result(errors.get(key, failure))

        done = {each.key: self._preparing[each.key] for each in instructions}
        if begun:
            self._supervisor.run_once("prepare-logs", run)
        if done:
            await asyncio.wait(done.values(), timeout=max(deadline - asyncio.get_running_loop().time(), 0))
        return {key: outcome.result() if outcome.done() else _PREPARING for key, outcome in done.items()}

    async def _repair(self, instructions: Sequence[PartitionInstruction]) -> dict[PartitionKey, StorageError]:
        """Has a damaged log repaired (RULES 7.6)."""
        mend, outcomes = self._replica_manager.damaged_logs.mend, {}
        for each in instructions:
            minimum = self._replica_manager.topic_config(each.config).min_insync_replicas
            fewest = fewest_sound(minimum, each.replicas)
            outcomes[each.key] = await mend(each.topic, each.key, each.state.state, fewest) or _NONE
        return outcomes

    async def _delete_earlier(self, instructions: Sequence[PartitionInstruction]) -> dict[PartitionKey, StorageError]:
        """The logs of an earlier topic of this name are in the way: it was deleted while this broker was away (RULES
        9.2)."""
        wanted = {(each.topic, each.key.partition): each.key for each in instructions}
        described = await self._replica_manager.storage.describe()
        await self._purge.delete(
            log.key for log in described.logs if wanted.get((log.topic, log.key.partition), log.key) != log.key
        )
        return dict.fromkeys(wanted.values(), _NONE)

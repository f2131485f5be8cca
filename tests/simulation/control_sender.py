"""The way of one broker's instructions and metadata, from the production `Outbox` as `sender.py` has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from highwater.controller.sending.metadata_outbox import MetadataBatch, MetadataOutbox
from highwater.controller.sending.outbox import InstructionBatch, Outbox, StopBatch
from highwater.controller.state_machines.actions import InstructionAnswer
from highwater.controller.state_machines.election import LogTail
from highwater.controller.state_machines.topic_table import TopicTable
from highwater.errors import ErrorCode
from highwater.metadata.schema.models import LiveBroker
from highwater.replica_manager.replicas.metadata_cache import CachedPartition, CachedTopic

from .scheduler import Future

if TYPE_CHECKING:
    from .controllers import ActiveController

CONTROL_TIMEOUT_MS = 2500


class Sender:
    """One registration's outbox on its way: control requests one after the other, metadata beside them."""

    def __init__(self, active_controller: ActiveController, broker: LiveBroker) -> None:
        self.broker = broker
        self.outbox = Outbox(broker.registration.broker_id, broker.broker_epoch)
        self.outbox.metadata = MetadataOutbox(max_partitions=2)  # several pieces even of the few that there are
        self._active_controller = active_controller
        self._sending = False
        self._metadata_sending = False
        self.wake()

    def wake(self) -> None:
        self._active_controller.owner.after(0, self._run)

    def _run(self) -> None:
        owner = self._active_controller.owner
        if not self._active_controller.holds(self):
            return
        if not self._sending:
            self._sending = True
            owner.spawn(self._send_control())
        if not self._metadata_sending:
            self._metadata_sending = True
            owner.spawn(self._send_metadata())

    def _call(self, method: str, *args: Any) -> Future:
        world = self._active_controller.world
        node = world.nodes[self.outbox.broker_id]
        return world.network.call(
            self._active_controller.owner, node.broker_id, node.server, method, *args, timeout_ms=CONTROL_TIMEOUT_MS
        )

    async def _send_control(self) -> None:
        active_controller, outbox = self._active_controller, self.outbox
        owner = active_controller.owner
        while active_controller.holds(self):
            batch = outbox.next_control(owner.now_ms)
            if batch is None:
                break
            done = await (self._instruct(batch) if isinstance(batch, InstructionBatch) else self._stop(batch))
            if not active_controller.holds(self):
                break
            if not done:
                await owner.sleep(outbox.control_failed(batch, owner.now_ms))
        self._sending = False
        due_ms = outbox.control_due_ms()
        if due_ms is not None and active_controller.holds(self):
            owner.after(max(1, due_ms - owner.now_ms), self._run)

    async def _instruct(self, batch: InstructionBatch) -> bool:
        active_controller = self._active_controller
        cluster = active_controller.cluster
        told = {key: each for key in batch.keys if (each := cluster.instruction(key)) is not None}
        brokers = tuple(cluster.brokers.values())
        answer = await self._call(
            "on_leader_and_isr", active_controller.epoch, self.broker.broker_epoch, tuple(told.values()), brokers
        )
        if answer is None or not self._accepted(answer[0]) or not active_controller.holds(self):
            return False
        answers = []
        for key, (error, tail, offline, damaged) in answer[1].items():
            at = LogTail(*tail) if tail[1] >= 0 else None
            epoch = told[key].versioned.state.leader_epoch
            answers.append(InstructionAnswer(key, epoch, error, at, offline, damaged))
        good = {each.key for each in answers if each.error is ErrorCode.NONE}
        self.outbox.instructed(batch, told.keys() - good, active_controller.owner.now_ms)
        active_controller.perform(
            cluster.instruction_answered(self.outbox.broker_id, self.broker.broker_epoch, answers)
        )
        return True

    async def _stop(self, batch: StopBatch) -> bool:
        active_controller = self._active_controller
        answer = await self._call(
            "on_stop_replica", active_controller.epoch, self.broker.broker_epoch, batch.partitions
        )
        if answer is None or not self._accepted(answer[0]) or not active_controller.holds(self):
            return False
        good = {key for key, error in answer[1].items() if error is ErrorCode.NONE}
        gone = {key for key in batch.keys if active_controller.cluster.topics.identified(key.topic_id) is None}
        now_ms = active_controller.owner.now_ms
        self.outbox.stopped(batch, batch.keys.keys() - good - gone, now_ms)
        topic_ids = dict.fromkeys(key.topic_id for key in batch.keys)
        stopped = [each for each in topic_ids if not self.outbox.is_stopping(each)]
        active_controller.perform(
            active_controller.cluster.stop_answered(self.outbox.broker_id, self.broker.broker_epoch, stopped, now_ms)
        )
        return True

    async def _send_metadata(self) -> None:
        active_controller, outbox = self._active_controller, self.outbox
        owner, cluster = active_controller.owner, active_controller.cluster
        while active_controller.holds(self):
            batch = outbox.metadata.next(owner.now_ms, cluster.topics)
            if batch is None:
                break
            brokers = tuple(cluster.brokers.values())
            active_controller.metadata_requests += 1
            answer = await self._call(
                "on_update_metadata",
                active_controller.epoch,
                active_controller.metadata_requests,
                brokers,
                _told(batch, cluster.topics),
                batch.full,
                tuple(batch.deleted),
            )
            if answer is not None and self._accepted(answer):
                outbox.metadata.answered()
            else:
                outbox.metadata.failed(batch, owner.now_ms)
        self._metadata_sending = False
        due_ms = outbox.metadata.due_ms()
        if due_ms is not None and active_controller.holds(self):
            owner.after(max(1, due_ms - owner.now_ms), self._run)

    def _accepted(self, error: ErrorCode) -> bool:
        if error is ErrorCode.STALE_CONTROLLER_EPOCH:
            self._active_controller.depose()
        return error is ErrorCode.NONE


def _told(batch: MetadataBatch, table: TopicTable) -> list[CachedTopic]:
    """The topics of a request, as `MetadataMessages` puts them together."""
    parts: list[tuple[Any, Sequence[Any]]] = []
    if batch.full:
        parts += [(topic, ()) for topic in table]
    for each in batch.slices:
        topic = table.identified(each.topic_id)
        if topic is not None:
            parts.append((topic, topic.partitions[each.begin : each.end]))
    parts += [(table.identified(each.key.topic_id), (each,)) for each in table.partitions(batch.keys)]
    return [_cached(topic, partitions) for topic, partitions in parts if topic.deletion is None]


def _cached(topic: Any, told: Sequence[Any]) -> CachedTopic:
    partitions = {
        each.key.partition: CachedPartition(each.versioned.state, each.versioned.revision, each.replicas)
        for each in told
        if each.versioned is not None
    }
    return CachedTopic(topic.name, topic.topic_id, topic.config, partitions)

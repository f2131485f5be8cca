"""Carries one registered broker's outbox to it: instructions one after the other, metadata beside them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from logging import WARNING
from typing import Protocol

import grpc.aio

from highwater.controller.sending import wire
from highwater.controller.sending.metadata_messages import MetadataMessages
from highwater.controller.sending.metadata_outbox import MetadataBatch
from highwater.controller.sending.outbox import InstructionBatch, Outbox, StopBatch
from highwater.controller.state_machines.actions import InstructionAnswer, PartitionInstruction
from highwater.controller.state_machines.cluster import Cluster
from highwater.controller.topics.topic_admin import Refusal
from highwater.errors import ErrorCode
from highwater.metadata.schema.models import LiveBroker
from highwater.model.partition import PartitionKey
from highwater.rpc.connections.channel import ReplaceableChannel, open_channel
from highwater.rpc.connections.tls import Certificates
from highwater.rpc.errors import from_proto
from highwater.rpc.partition_keys import from_key
from highwater.supervision import TaskGroup, UnaskedCancellationError, uncancelled
from highwater.telemetry.log import get_logger, pairs
from highwater.telemetry.summed_log import SummedLog
from highwater.v1 import replica_control_pb2, replica_control_pb2_grpc

_log = get_logger(__name__)
_complaints = SummedLog(_log)

CONTROL_TIMEOUT_S = 10.0
METADATA_TIMEOUT_S = 5.0
DESCRIBE_TIMEOUT_S = 2.0
_UPDATE_METADATA = "/highwater.v1.ReplicaControl/UpdateMetadata"
# The other of the two requests may have replaced the channel, as that of a broker that says goodbye and stays: what is
# under way on it then is cancelled (RULES 8.8).
_UNANSWERED = (grpc.aio.AioRpcError, UnaskedCancellationError)


class Answers(Protocol):
    """The listener to what the broker said."""

    def instructed(self, broker: LiveBroker, answers: Sequence[InstructionAnswer]) -> None: ...

    def stopped(self, broker: LiveBroker, topic_ids: Sequence[bytes]) -> None: ...

    def metadata_told(self) -> None: ...

    def deposed(self, reason: str) -> None:
        """The broker knows a newer controller (RULES 1.2)."""
        ...


class BrokerSender:
    """Run it until the registration ends. What is sent is read from the cluster at that moment, so however often a
    partition changed while the broker was busy, it hears of the last state only."""

    def __init__(
        self,
        broker: LiveBroker,
        cluster: Cluster,
        answers: Answers,
        endpoints: wire.Endpoints,
        messages: MetadataMessages,
        controller_address: str,
        clock_ms: Callable[[], int],
        certificates: Certificates | None = None,
    ) -> None:
        self._certificates = certificates
        self.broker = broker
        self.outbox = Outbox(broker.registration.broker_id, broker.broker_epoch)
        self._cluster = cluster
        self._answers = answers
        self._endpoints = endpoints  # of all senders
        self._messages = messages  # of all senders
        self._controller_address = controller_address
        self._clock_ms = clock_ms
        self._control_woken = asyncio.Event()
        self._metadata_woken = asyncio.Event()
        self._reachable = True
        self._complaints: dict[PartitionKey, ErrorCode] = {}
        self._told_everything = False

    def has_told_everything(self) -> bool:
        """Tells whether this registration has answered, without an error, for all that it hosts (RULES 8.6). Once it
        has, it stays so: what changes from then on is told as it changes."""
        if not self._told_everything and self.outbox.greeted and not self.outbox.untold:
            # What a write is under way for is told when that ended.
            self._told_everything = self._cluster.is_settled(self.outbox.broker_id)
        return self._told_everything

    def wake(self) -> None:
        """The outbox has something new."""
        self._control_woken.set()
        self._metadata_woken.set()

    async def run(self) -> None:
        link = ReplaceableChannel(lambda: open_channel(self.broker.registration.address, self._certificates))
        try:
            async with TaskGroup() as tasks:
                tasks.create_task(self._send_control(link))
                tasks.create_task(self._send_metadata(link))
        finally:
            await link.close()

    async def describe_config(self) -> Sequence[tuple[str, str, bool, str]] | Refusal:
        """The settings that its services were started with: key, value, whether it is the default, service."""
        broker_id = self.broker.registration.broker_id
        channel = open_channel(self.broker.registration.address, self._certificates)
        try:
            response = await replica_control_pb2_grpc.ReplicaControlStub(channel).DescribeBrokerConfig(
                replica_control_pb2.DescribeBrokerConfigRequest(), timeout=DESCRIBE_TIMEOUT_S
            )
        except grpc.aio.AioRpcError as error:
            message = f"broker {broker_id} does not say what it was started with: {error.code().name}"
            return Refusal(ErrorCode.NETWORK_EXCEPTION, message)
        finally:
            await channel.close(None)
        return [(each.key, each.value, each.is_default, each.service) for each in response.settings]

    async def _send_control(self, link: ReplaceableChannel) -> None:
        while True:
            self._control_woken.clear()
            batch = self.outbox.next_control(self._clock_ms())
            if batch is None:
                await self._sleep(self._control_woken, self.outbox.control_due_ms())
                continue
            stub = _stub(link)
            try:
                done = await uncancelled(
                    self._instruct(stub, batch) if isinstance(batch, InstructionBatch) else self._stop(stub, batch)
                )
            except _UNANSWERED as error:
                self._unreachable(error)
                done = False
            if not done:
                pause_ms = self.outbox.control_failed(batch, self._clock_ms())
                await asyncio.sleep(pause_ms / 1000)

    async def _instruct(self, stub: replica_control_pb2_grpc.ReplicaControlAsyncStub, batch: InstructionBatch) -> bool:
        told: Mapping[PartitionKey, PartitionInstruction] = {
            key: instruction for key in batch.keys if (instruction := self._cluster.instruction(key)) is not None
        }
        request = replica_control_pb2.LeaderAndIsrRequest(
            controller_id=self._cluster.controller_id,
            controller_epoch=self._cluster.controller_epoch,
            broker_epoch=self.broker.broker_epoch,
            partitions=map(wire.instruction, told.values()),
            live_brokers=self._endpoints.of(self._cluster.brokers),
        )
        response = await stub.LeaderAndIsr(request, timeout=CONTROL_TIMEOUT_S)
        if not self._accepted(from_proto(response.error), response.error.message):
            return False
        answers = wire.answers(response, told)
        good = {answer.key for answer in answers if answer.error is ErrorCode.NONE}
        self._complain(answers)
        self.outbox.instructed(batch, told.keys() - good, self._clock_ms())
        self._answers.instructed(self.broker, answers)
        return True

    async def _stop(self, stub: replica_control_pb2_grpc.ReplicaControlAsyncStub, batch: StopBatch) -> bool:
        request = replica_control_pb2.StopReplicaRequest(
            controller_id=self._cluster.controller_id,
            controller_epoch=self._cluster.controller_epoch,
            broker_epoch=self.broker.broker_epoch,
            partitions=map(wire.stop, batch.partitions),
        )
        response = await stub.StopReplica(request, timeout=CONTROL_TIMEOUT_S)
        if not self._accepted(from_proto(response.error), response.error.message):
            return False
        good = {from_key(each.partition) for each in response.results if from_proto(each.error) is ErrorCode.NONE}
        # A log that cannot be deleted now is purged by its topic id when the broker starts again (RULES 9.2).
        gone = [key for key in batch.keys if self._cluster.topics.identified(key.topic_id) is None]
        self.outbox.stopped(batch, batch.keys.keys() - good - set(gone), self._clock_ms())
        topic_ids = {key.topic_id for key in batch.keys}
        self._answers.stopped(self.broker, [each for each in topic_ids if not self.outbox.is_stopping(each)])
        return True

    async def _send_metadata(self, link: ReplaceableChannel) -> None:
        while True:
            self._metadata_woken.clear()
            batch = self.outbox.metadata.next(self._clock_ms(), self._cluster.topics)
            if batch is None:
                await self._sleep(self._metadata_woken, self.outbox.metadata.due_ms())
                continue
            try:
                response = await uncancelled(
                    _update_metadata(link)(self._metadata_request(batch), timeout=METADATA_TIMEOUT_S)
                )
                done = self._accepted(from_proto(response.error), response.error.message)
            except _UNANSWERED as error:
                self._unreachable(error)
                done = False
            if done:
                self.outbox.metadata.answered()
                self._answers.metadata_told()
            else:
                self.outbox.metadata.failed(batch, self._clock_ms())

    def _metadata_request(self, batch: MetadataBatch) -> bytes:
        head = replica_control_pb2.UpdateMetadataRequest(
            controller_id=self._cluster.controller_id,
            controller_epoch=self._cluster.controller_epoch,
            controller_address=self._controller_address,
            live_brokers=self._endpoints.of(self._cluster.brokers),
            full=batch.full,
            deleted_topic_ids=batch.deleted,
        )
        return self._messages.request(head, batch, self._cluster.topics)

    def _complain(self, answers: Sequence[InstructionAnswer]) -> None:
        """An error is sent for again every second, and logged when it begins."""
        for answer in answers:
            if answer.error is ErrorCode.NONE:
                self._complaints.pop(answer.key, None)
            elif self._complaints.get(answer.key) is not answer.error:
                self._complaints[answer.key] = answer.error
                error = answer.error.name
                details = pairs(broker=self.outbox.broker_id, partition=answer.key, error=error)
                _complaints.note(WARNING, "instruction refused", details, cause=error)

    def _accepted(self, error: ErrorCode, message: str) -> bool:
        if error is ErrorCode.STALE_CONTROLLER_EPOCH:
            self._answers.deposed(f"broker {self.outbox.broker_id}: {message}")
        if error is not ErrorCode.NONE:
            _log.warning("request refused %s", pairs(broker=self.outbox.broker_id, error=error.name, reason=message))
            return False
        self._reachable = True
        return True

    def _unreachable(self, error: grpc.aio.AioRpcError | UnaskedCancellationError) -> None:
        if self._reachable:  # once an outage
            reason = error.details() if isinstance(error, grpc.aio.AioRpcError) else "the connection was replaced"
            _log.warning("broker does not answer %s", pairs(broker=self.outbox.broker_id, reason=reason))
        self._reachable = False

    async def _sleep(self, woken: asyncio.Event, due_ms: int | None) -> None:
        waiting: Awaitable[object] = woken.wait()
        if due_ms is None:
            await waiting
            return
        try:
            async with asyncio.timeout(max(due_ms - self._clock_ms(), 0) / 1000):
                await waiting
        except TimeoutError:
            return


def _stub(link: ReplaceableChannel) -> replica_control_pb2_grpc.ReplicaControlAsyncStub:
    """For the next request: over a new channel where the present one cannot connect."""
    link.replace_failed()
    stub: replica_control_pb2_grpc.ReplicaControlAsyncStub = replica_control_pb2_grpc.ReplicaControlStub(link.channel)
    return stub


def _update_metadata(link: ReplaceableChannel) -> Callable[..., Awaitable[replica_control_pb2.UpdateMetadataResponse]]:
    """The same call of a request that is serialised already."""
    link.replace_failed()
    call: Callable[..., Awaitable[replica_control_pb2.UpdateMetadataResponse]] = link.channel.unary_unary(
        _UPDATE_METADATA,
        request_serializer=bytes,
        response_deserializer=replica_control_pb2.UpdateMetadataResponse.FromString,
    )
    return call

"""The controller's values as protobuf messages, and back. Nothing but this file and the server's edge knows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from highwater.controller.state_machines.actions import InstructionAnswer, PartitionInstruction, StopPartition
from highwater.controller.state_machines.election import LogTail
from highwater.controller.state_machines.partition_state_machine import PartitionStateMachine
from highwater.controller.topics.topic_admin import NewTopic
from highwater.controller.topics.topic_growth import NewPartitions
from highwater.metadata.schema.models import LiveBroker, VersionedState
from highwater.model.partition import PartitionKey
from highwater.rpc.errors import from_proto
from highwater.rpc.partition_keys import from_key, to_key
from highwater.v1 import common_pb2, controller_pb2, replica_control_pb2


def endpoint(broker: LiveBroker) -> common_pb2.BrokerEndpoint:
    registration = broker.registration
    return common_pb2.BrokerEndpoint(
        broker_id=registration.broker_id,
        broker_epoch=broker.broker_epoch,
        address=registration.address,
        rack=registration.rack,
        listeners=[
            common_pb2.ListenerAddress(name=name, address=address) for name, address in registration.listeners.items()
        ],
    )


class Endpoints:
    """Every broker as a message, made anew only where its registration has changed: each message to each broker names
    all of them."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[LiveBroker, common_pb2.BrokerEndpoint]] = {}

    def of(self, brokers: Mapping[int, LiveBroker]) -> list[common_pb2.BrokerEndpoint]:
        made, self._made = self._made, {}
        for broker_id, broker in brokers.items():
            known = made.get(broker_id)
            self._made[broker_id] = known if known is not None and known[0] is broker else (broker, endpoint(broker))
        return [message for _, message in self._made.values()]


def partition_state(
    versioned: VersionedState, replicas: Iterable[int], offline_replicas: Iterable[int]
) -> common_pb2.PartitionState:
    state = versioned.state
    return common_pb2.PartitionState(
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        leader_broker_epoch=state.leader_broker_epoch,
        isr=state.isr,
        elr=state.elr,
        lost=state.lost,
        unclean_epoch=state.unclean_epoch,
        controller_epoch=state.controller_epoch,
        state_revision=versioned.revision,
        replicas=replicas,
        offline_replicas=offline_replicas,
    )


def instruction(told: PartitionInstruction) -> replica_control_pb2.PartitionInstruction:
    return replica_control_pb2.PartitionInstruction(
        topic=told.topic,
        partition=to_key(told.key),
        state=partition_state(told.versioned, told.replicas, told.offline_replicas),
        config=told.config,
        topic_revision=told.topic_revision,
    )


def stop(stopped: StopPartition) -> replica_control_pb2.StopPartition:
    return replica_control_pb2.StopPartition(
        partition=to_key(stopped.key), leader_epoch=stopped.leader_epoch, delete_log=stopped.delete_log
    )


def indexed_state(partition: PartitionStateMachine) -> replica_control_pb2.IndexedPartitionState:
    """Of a partition that has a state."""
    assert partition.versioned is not None
    return replica_control_pb2.IndexedPartitionState(
        partition=partition.key.partition,
        state=partition_state(partition.versioned, partition.replicas, partition.offline_replicas),
    )


def answers(
    response: replica_control_pb2.LeaderAndIsrResponse, told: Mapping[PartitionKey, PartitionInstruction]
) -> list[InstructionAnswer]:
    """The answers for the partitions that were told; others are dropped."""
    found = []
    for result in response.results:
        key = from_key(result.partition)
        if key in told:
            tail = None
            if result.HasField("tail"):
                tail = LogTail(result.tail.last_epoch, result.tail.log_end_offset)
            epoch = told[key].versioned.state.leader_epoch
            found.append(
                InstructionAnswer(key, epoch, from_proto(result.error), tail, result.log_offline, result.log_damaged)
            )
    return found


def new_topic(message: controller_pb2.NewTopic, *, internal: bool = False) -> NewTopic:
    return NewTopic(
        message.topic,
        message.partitions,
        message.replication_factor,
        dict(message.config),
        {each.partition: tuple(each.replicas) for each in message.assignment},
        internal,
    )


def new_partitions(message: controller_pb2.NewPartitions) -> NewPartitions:
    return NewPartitions(
        message.topic, message.total, {each.partition: tuple(each.replicas) for each in message.assignment}
    )

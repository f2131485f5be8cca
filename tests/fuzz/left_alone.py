"""What requests may not do, as the package's docstring says: each is changed until it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from .live import GROUP, OFFSETS, PREY, STEADY, Live, is_list
from .rpcs import Rpc

# Of the services that trust who asks: what changes nothing.
_READING = {"Read", "ListOffsets", "ListBatches", "EndOffsetForEpoch", "DescribeLogs", "WatchFollowing"}
_CHANGING = {"Produce", "ProduceStream", "DeleteRecords", "AlterReplicaLogDirs"}
_CHANGING_TOPICS = {"CreateTopics", "DeleteTopics", "CreatePartitions", "AlterConfigs", "ElectLeaders"}
TRUSTING = {"ReplicaControl", "LogStorage"}
_LIVE_BROKERS = (1, 2)
_FEW, _MOST_PARTITIONS = 3, 10_000  # more are refused; what is between costs what so many partitions cost


def tame(rpc: Rpc, message: Message, live: Live) -> None:
    """In place. A message of live values, as it is to be sent."""
    trusting = rpc.service in TRUSTING and rpc.method not in _READING
    if trusting or (rpc.service == "Broker" and rpc.method in _CHANGING) or rpc.method in _CHANGING_TOPICS:
        spared = {live.topic_ids.get(STEADY), live.topic_ids.get(OFFSETS)} - {None}
        prey = live.topic_ids.get(PREY[0], b"")
        _replace(message, lambda _, value: prey if value in spared else value)
        _replace(message, lambda _, value: PREY[0] if value in (STEADY, OFFSETS) else value)
    if rpc.service == "ReplicaControl":
        _controllers(message, live)
    if rpc.service == "Broker" and rpc.method in ("Fetch", "FetchStream"):
        _not_the_followers_own(message)
    if rpc.service == "Controller":
        _replace(
            message,
            lambda name, value: (
                _FEW if name in ("partitions", "total") and _FEW < value <= _MOST_PARTITIONS else value  # type: ignore[operator]
            ),
        )
    if rpc.method == "ControlledShutdown":
        epochs = {value for name, value in live.numbers.items() if name.startswith("broker_epoch")}
        _replace(message, lambda name, value: 0 if name == "broker_epoch" and value in epochs else value)
    if rpc.service == "GroupCoordinator":
        _replace(message, lambda name, value: GROUP if name in ("group", "groups") and value == STEADY else value)


def _not_the_followers_own(message: Any) -> None:
    if message.HasField("replica") and message.replica.fetcher_id == 0:
        message.replica.fetcher_id = 7


def _controllers(message: Any, live: Live) -> None:
    newest = live.numbers.get("controller_epoch", 0)
    _replace(message, lambda name, value: min(value, newest) if name == "controller_epoch" else value)  # type: ignore[call-overload]
    if _has(message, "sequence"):
        message.sequence = min(message.sequence, 0)
        message.full = False
    if _has(message, "live_brokers"):
        # What has no address would be connected to, by every client.
        kept = [each for each in message.live_brokers if each.broker_id not in _LIVE_BROKERS and each.address]
        del message.live_brokers[:]
        message.live_brokers.extend(kept)


def _has(message: Message, field: str) -> bool:
    return field in message.DESCRIPTOR.fields_by_name


def _replace(message: Message, change: Callable[[str, object], object]) -> None:
    """Every value that is no message becomes what `change` makes of its field's name and it."""
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for each in value if is_list(value) else (value,):
                _replace(each, change)
        elif is_list(value):
            for index, each in enumerate(value):
                if (changed := change(field.name, each)) != each:
                    value[index] = changed
        elif (changed := change(field.name, value)) != value:
            setattr(message, field.name, changed)

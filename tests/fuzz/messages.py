"""Messages by their descriptors: fields that could be right, by their names, and some that could not, by their type."""

from __future__ import annotations

from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from . import batches, live

MOST_DEPTH = 6
_INT32 = (0, 1, -1, 2, 3, 7, 100, 10_001, 2**15, 2**31 - 1, -(2**31), -2, 65_536)
_INT64 = (*_INT32, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, -(2**63), 253_402_300_800_000)
_TEXTS = (
    *("", " ", "a", "..", ".", "/", "../../etc", "a" * 249, "a" * 250, "b" * 256, "c" * 4097, "d" * 32_768),
    *("\0", "new\nline", "tab\t", "\u202e", "\U0001f600", "é" * 200, "%s%n", "{}", "-1", "1e9", "٣", "__internal"),
    *("unix:/nowhere", "256.0.0.1:99999", "localhost:1", "[::1]:0", "host", ":", "nan", "true", "null", "[]", '"'),
)
_BYTES = (b"", b"\0", b"a", b"\xff" * 16, bytes(16), b"0123456789abcdef", b"x" * 15, b"x" * 17, b"y" * 5000)
_TOPIC_IDS = tuple(map(live.topic_id, (*live.PREY, *live.PREY, live.STEADY, live.OFFSETS)))
_TOPICS = (*live.PREY, *live.PREY, "fuzz-a", "fuzz_a", "fuzz.b", live.STEADY, live.OFFSETS)
_PATTERNS = (
    *("prey-.*", "(a|a)*b", "((a+)+)+$", "(((((((((((((((((((((a)))))))))))))))))))))", "[", "(?=a)", "\\1", "a{9999}"),
    *(
        "((){9}){9}",
        "(a{1,99}){1,99}",
        "[^a-z]*" * 30,
        "^^^",
        "$",
        "\\",
        "(?:x)?",
        "[z-a]",
        ".*.*.*.*.*.*.*.*x",
        "|" * 255,
    ),
)
_CONFIG = {
    "cleanup.policy": ("delete", "compact", "delete,compact", ""),
    "retention.ms": ("-1", "1", "60000", "9223372036854775808"),
    "retention.bytes": ("-1", "0", "100000"),
    "segment.bytes": ("1024", "1", "1000000", "2147483648"),
    "segment.ms": ("1", "0", "100000"),
    "max.message.bytes": ("1", "100", "1048588", "2147483647"),
    "min.insync.replicas": ("1", "2", "0", "٣"),
    "message.timestamp.type": ("CreateTime", "LogAppendTime", "x"),
    "payload.format": ("any", "rows", "columns"),
    "min.cleanable.dirty.ratio": ("0.5", "nan", "inf", "-1"),
    "unclean.leader.election.enable": ("true", "false", "yes"),
    "leader.replication.throttled.replicas": ("*", "0:1", "x" * 4097),
}
# By the names of fields: what could be right.
_NUMBERS: dict[str, tuple[int, ...]] = {
    "acks": (0, 1, -1),
    "acked_offset": (0, 1, live.number("log_end"), live.number("high_watermark")),
    "base_sequence": (0, 1),
    "broker_epoch": (live.number("broker_epoch_1"), live.number("broker_epoch_2")),
    "broker_id": (1, 2),
    "controller_epoch": (live.number("controller_epoch"),),
    "controller_id": (0,),
    "correlation_id": (1, 2, 3),
    "current_leader_epoch": (-1, 0, live.number("leader_epoch")),
    "fetch_offset": (0, 1, live.number("log_end"), live.number("high_watermark")),
    "fetcher_id": (1, 2),
    "high_watermark": (0, live.number("high_watermark")),
    "leader": (1, 2),
    "leader_broker_epoch": (live.number("broker_epoch_1"), live.number("broker_epoch_2")),
    "leader_epoch": (0, -1, live.number("leader_epoch")),
    "max_batches": (1, 10, 1000),
    "max_bytes": (0, 1000, 1 << 20),
    "max_offset": (0, -1, live.number("log_end")),
    "max_wait_ms": (0, 0, 0, 10, 100),
    "member_epoch": (0, -1, -2, live.number("member_epoch")),
    "min_bytes": (0, 1),
    "offset": (0, 1, -1, -2, live.number("log_end"), live.number("high_watermark")),
    "partition": (0, 0, 1),
    "partitions": (1, 3, -1),
    "rebalance_timeout_ms": (1000, 60_000),
    "replica_id": (-1, 1),
    "replication_factor": (1, 2, -1),
    "state_revision": (live.number("state_revision"),),
    "timeout_ms": (0, 100, 1000),
    "timestamp": (-1, -2, 0, live.number("now_ms")),
    "topic_revision": (live.number("state_revision"), 0),
    "total": (2, 3, 4),
}
_STRINGS: dict[str, tuple[str, ...]] = {
    "address": (live.text("address"),),
    "assignor": ("", "uniform", "range"),
    "client_id": ("fuzz",),
    "fetcher_incarnation": ("fuzz",),
    "group": (live.GROUP, live.GROUP, "fuzz-group", live.STEADY),
    "groups": (live.GROUP, "fuzz-group", live.STEADY),
    "incarnation": (live.text("log_storage_incarnation"),),
    "instance_id": ("", "i-1"),
    "log_dir": (live.text("log_dir"),),
    "member_id": (live.text("member_id"), "0f9e1c4e-0000-4000-8000-000000000000"),
    "name": _TOPICS,
    "newer_than_incarnation": ("", live.text("log_storage_incarnation")),
    "pattern": ("", *_PATTERNS),
    "replica_manager_incarnation": ("fuzz",),
    "topic": _TOPICS,
    "topics": _TOPICS,
}
_IDS = {"topic_id", "topic_ids", "deleted_topic_ids"}
_INTEGERS = {
    FieldDescriptor.TYPE_INT32: _INT32,
    FieldDescriptor.TYPE_INT64: _INT64,
    FieldDescriptor.TYPE_FIXED32: (0, 1, 2**32 - 1),
}


class MessageGenerator:
    """`wild` is the share of fields that are filled by their type alone; the same draws make the same message."""

    def __init__(self, random: Random, wild: float) -> None:
        self._random = random
        self._wild = wild

    def fill(self, message: Message, depth: int = 0) -> None:
        for field in message.DESCRIPTOR.fields:
            if self._random.random() < 0.1:
                continue
            if field.containing_oneof is not None and len(field.containing_oneof.fields) > 1:
                if self._random.randrange(len(field.containing_oneof.fields)):
                    continue
                getattr(message, field.name).SetInParent()
            value = getattr(message, field.name)
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                self._fill_config(value)
            elif live.is_list(value):
                self._fill_list(value, field, depth)
            elif field.message_type is not None:
                if depth < MOST_DEPTH:
                    value.SetInParent()
                    self.fill(value, depth + 1)
            else:
                setattr(message, field.name, self._value(field))

    def _fill_list(self, values: Any, field: FieldDescriptor, depth: int) -> None:
        most = (0, 1, 1, 2, 3) if depth else (0, 1, 1, 2, 3, 17)
        for _ in range(self._random.choice(most)):
            if field.message_type is None:
                values.append(self._value(field))
            elif depth < MOST_DEPTH:
                self.fill(values.add(), depth + 1)

    def _fill_config(self, config: Any) -> None:
        for _ in range(self._random.choice((0, 1, 2, 4))):
            if self._random.random() < self._wild:
                config[self._random.choice(_TEXTS)] = self._random.choice(_TEXTS)
            else:
                name = self._random.choice(sorted(_CONFIG))
                config[name] = self._random.choice(_CONFIG[name])

    def _value(self, field: FieldDescriptor) -> object:
        random, wild = self._random, self._random.random() < self._wild
        if field.enum_type is not None:
            return random.choice((-1, 99, 2**31 - 1)) if wild else random.choice(field.enum_type.values).number
        if field.type == FieldDescriptor.TYPE_BOOL:
            return random.random() < 0.5
        if field.type == FieldDescriptor.TYPE_STRING:
            right = _STRINGS.get(field.name)
            return random.choice(_TEXTS if wild or right is None else right)
        if field.type == FieldDescriptor.TYPE_BYTES:
            if field.name == "records" and not wild:
                return batches.some(random)
            return random.choice(_TOPIC_IDS if field.name in _IDS and not wild else _BYTES)
        numbers = _INTEGERS[field.type]
        right_numbers = _NUMBERS.get(field.name)
        return random.choice(numbers if wild or right_numbers is None else right_numbers)

"""Limits of a client's request before it is read. Pure.

Its messages are made in one go, by C that lets nothing else of the process run, and each is a multiple of its bytes:
128 MiB of two bytes each stand for 67 million of them, which take seconds and gigabytes. So of a large request is found
first how many there may be, over its bytes. A small one is read as it is: it is over before that could matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from highwater.records.errors import CorruptPayloadError
from highwater.records.varint import read_varint
from highwater.rpc.requests.request_limits import MAX_PRODUCED
from highwater.v1 import broker_pb2, controller_pb2, group_pb2

SMALL_BYTES = 512 << 10
"""What a request has that is read as it is: some 25 ms at the worst."""
MAX_PRODUCE_FIELDS = 6 * MAX_PRODUCED
"""Of all messages of a Produce: a partition with its records is five."""
MAX_TEXT_BYTES = 64 << 10
"""Of a text of a Produce."""
_OF_CLIENTS = {contract.DESCRIPTOR.name for contract in (broker_pb2, controller_pb2, group_pb2)}
_VARINT, _FIXED64, _DELIMITED, _GROUP, _GROUP_END, _FIXED32 = range(6)


class UnreadableRequestError(Exception):
    """The request is not read; the message says why, and what to do."""


class _Limits(NamedTuple):
    """`most_elements`: bytes that may begin a message or a text, each some 50 ns to read. Such a field's first byte has
    the lowest bits of `_DELIMITED`; so have other bytes, one in eight of ids and of names."""

    most_bytes: int
    most_elements: int


MAX_BYTES = 4 << 20
_ANY = _Limits(MAX_BYTES, 700_000)
_LIMITS: Mapping[type[Message], _Limits] = {
    broker_pb2.FetchRequest: _Limits(10 << 20, 1_700_000),
    broker_pb2.MetadataRequest: _Limits(8 << 20, 1_300_000),
}
_OTHERS = bytes(byte for byte in range(256) if byte & 7 != _DELIMITED)


def guarded(deserializer: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """`deserializer`, of a message that a client sends, with what raises `UnreadableRequestError` in front of it; any
    other one as it is."""
    message: Any = getattr(deserializer, "__self__", None)
    if not isinstance(message, type) or not issubclass(message, Message):
        return deserializer
    if message.DESCRIPTOR.file.name not in _OF_CLIENTS:
        return deserializer

    def read(raw: bytes) -> Any:
        if len(raw) > SMALL_BYTES and (refused := refusal(message, raw)):
            del raw  # the traceback, which may outlive the call, does not hold it
            raise UnreadableRequestError(refused)
        return deserializer(raw)

    return read


def refusal(message: type[Message], raw: bytes) -> str:
    """The sentence for which `raw`, such a message, is not to be read; empty: it is."""
    if message is broker_pb2.ProduceRequest:
        return _produce_refusal(raw)
    limits = _LIMITS.get(message, _ANY)
    if len(raw) > limits.most_bytes:
        return f"a request of {len(raw)} bytes: {limits.most_bytes} are the most, send several"
    if len(raw.translate(None, _OTHERS)) > limits.most_elements:
        return f"a request of {len(raw)} bytes with too many elements: send several"
    return ""


def _produce_refusal(raw: bytes) -> str:
    """Most of it are records, which are bytes alone: its fields are counted one by one."""
    try:
        left = _count(raw, 0, len(raw), broker_pb2.ProduceRequest.DESCRIPTOR, MAX_PRODUCE_FIELDS)
    except CorruptPayloadError as error:  # protobuf may take it all the same, and read on
        return f"a request of {len(raw)} bytes that is not read: {error}"
    if left < 0:
        return f"a request of {len(raw)} bytes with more than {MAX_PRODUCE_FIELDS} fields: send several"
    return ""


@cache
def _messages(descriptor: Any) -> Mapping[int, Any]:
    """The fields that are messages, by number."""
    return {field.number: field.message_type for field in descriptor.fields if field.message_type is not None}


@cache
def _bytes(descriptor: Any) -> frozenset[int]:
    """The numbers of the fields that are bytes, which cost nothing to read."""
    return frozenset(field.number for field in descriptor.fields if field.type == FieldDescriptor.TYPE_BYTES)


def _count(raw: bytes, position: int, end: int, descriptor: Any, left: int) -> int:
    """The fields that may come after these, of `left`; negative: there are more. What is no protobuf ends it: nothing
    is made of that either. Raises `CorruptPayloadError`."""
    messages = _messages(descriptor)
    try:
        while position < end and left >= 0:
            left -= 1
            tag = raw[position]
            position += 1
            if tag >= 0x80:
                tag, position = read_varint(raw, position - 1)
            wire = tag & 7
            if wire == _DELIMITED:
                length = raw[position]
                position += 1
                if length >= 0x80:
                    length, position = read_varint(raw, position - 1)
                number = tag >> 3
                if number in messages:
                    if position + length <= end:
                        left = _count(raw, position, position + length, messages[number], left)
                elif length > MAX_TEXT_BYTES and number not in _bytes(descriptor):
                    raise CorruptPayloadError(f"a text of {length} bytes: {MAX_TEXT_BYTES} are the most")
                position += length
            elif wire == _VARINT:
                position = position + 1 if raw[position] < 0x80 else read_varint(raw, position)[1]
            elif wire in (_FIXED64, _FIXED32):
                position += 8 if wire == _FIXED64 else 4
            elif wire not in (_GROUP, _GROUP_END):
                break
    except IndexError:
        pass
    return left

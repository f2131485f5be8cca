"""Limits of a client's request before it is read. Pure.

Its messages are made in one go, by C that lets nothing else of the process run, and each is a multiple of its bytes:
128 MiB of two bytes each stand for 67 million of them, which take seconds and gigabytes. So of a large request its
fields are counted first, over its bytes. A small one is read as it is: it is over before that could matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from highwater.records.errors import CorruptPayloadError
from highwater.records.varint import read_varint
from highwater.rpc.requests.request_limits import MAX_FETCH_PARTITIONS, MAX_METADATA_TOPICS
from highwater.v1 import broker_pb2, controller_pb2, group_pb2

SMALL_BYTES = 512 << 10
"""What a request has that is read as it is: some 25 ms at the worst."""
MAX_FIELDS = 80_000
"""Of all messages of a request, set once or more: what the limits of what it may name come to, and room."""
MAX_BYTES = 4 << 20
_FETCH_BYTES = 10 << 20
_METADATA_BYTES = 16 << 20
_TAGS_EACH = 12
"""Bytes of one element that may look like a tag of the request itself."""
_OF_CLIENTS = {contract.DESCRIPTOR.name for contract in (broker_pb2, controller_pb2, group_pb2)}
_VARINT, _FIXED64, _DELIMITED, _GROUP, _GROUP_END, _FIXED32 = range(6)


class UnreadableRequestError(Exception):
    """The request is not read; the message says why, and what to do."""


@dataclass(frozen=True)
class _Limits:
    """`most_bytes` None: what the server takes. `elements`: of so many fields of the request itself that their exact
    number would take too long to count; 0: all fields are counted."""

    most_bytes: int | None = MAX_BYTES
    elements: int = 0


_ANY = _Limits()
_LIMITS: Mapping[type[Message], _Limits] = {
    broker_pb2.ProduceRequest: _Limits(most_bytes=None),
    broker_pb2.FetchRequest: _Limits(_FETCH_BYTES, MAX_FETCH_PARTITIONS),
    broker_pb2.MetadataRequest: _Limits(_METADATA_BYTES, MAX_METADATA_TOPICS),
}


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
    limits = _LIMITS.get(message, _ANY)
    if limits.most_bytes is not None and len(raw) > limits.most_bytes:
        return f"a request of {len(raw)} bytes: {limits.most_bytes} are the most, send several"
    if limits.elements:
        # Whatever a field of the request is, its tag is one of these bytes; others may be the same, a few an element.
        tags = len(raw) - len(raw.translate(None, _tags(message.DESCRIPTOR)))
        many = tags > limits.elements * _TAGS_EACH
        return f"a request with more than {limits.elements} elements: send several" if many else ""
    try:
        left = _count(raw, 0, len(raw), message.DESCRIPTOR, MAX_FIELDS)
    except CorruptPayloadError as error:  # protobuf may take it all the same, and read on
        return f"a request of {len(raw)} bytes that is no message: {error}"
    return f"a request of {len(raw)} bytes with more than {MAX_FIELDS} fields: send several" if left < 0 else ""


@cache
def _tags(descriptor: Any) -> bytes:
    """The tags that are one byte, of any wire type that the field may have."""
    found = set()
    for field in descriptor.fields:
        wires = {_VARINT, _DELIMITED} if field.type == FieldDescriptor.TYPE_ENUM else {_wire(field)}
        found |= {field.number << 3 | wire for wire in wires if field.number < 16}
    return bytes(sorted(found))


def _wire(field: FieldDescriptor) -> int:
    delimited = (FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
    return _DELIMITED if field.type in delimited else _VARINT


@cache
def _messages(descriptor: Any) -> Mapping[int, Any]:
    """The fields that are messages, by number."""
    return {field.number: field.message_type for field in descriptor.fields if field.message_type is not None}


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
                within = messages.get(tag >> 3)
                if within is not None and position + length <= end:
                    left = _count(raw, position, position + length, within, left)
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

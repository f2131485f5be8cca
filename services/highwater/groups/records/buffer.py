"""Kafka's primitive types, big-endian, in their old form and in the compact one of flexible versions."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from highwater.model.partition import TOPIC_ID_BYTES, PartitionKey

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")


class UnreadableRecordError(ValueError):
    """A key or value that is not what its type and version say."""


class Writer:
    """Appends values to a buffer."""

    __slots__ = ("_out",)

    def __init__(self) -> None:
        self._out = bytearray()

    def finished(self) -> bytes:
        return bytes(self._out)

    def int8(self, value: int) -> None:
        self._out += value.to_bytes(1, "big", signed=True)

    def int16(self, value: int) -> None:
        self._out += _INT16.pack(value)

    def int32(self, value: int) -> None:
        self._out += _INT32.pack(value)

    def int64(self, value: int) -> None:
        self._out += _INT64.pack(value)

    def packed(self, layout: struct.Struct, *values: int | bytes) -> None:
        """Several values of a fixed size at once."""
        self._out += layout.pack(*values)

    def unsigned_varint(self, value: int) -> None:
        while value > 0x7F:
            self._out.append(value & 0x7F | 0x80)
            value >>= 7
        self._out.append(value)

    def string(self, value: str) -> None:
        """An int16 with the length in bytes, and the UTF-8. Longer than 32,767 bytes is a `struct.error`."""
        encoded = value.encode()
        self._out += _INT16.pack(len(encoded))
        self._out += encoded

    def compact_string(self, value: str) -> None:
        """An unsigned varint with the length in bytes + 1, and the UTF-8."""
        encoded = value.encode()
        self.unsigned_varint(len(encoded) + 1)
        self._out += encoded

    def compact_nullable_string(self, value: str) -> None:
        """As `compact_string`; the empty string, which stands for none here, is null: length 0."""
        if value:
            self.compact_string(value)
        else:
            self.unsigned_varint(0)

    def compact_strings(self, values: Iterable[str]) -> None:
        """A compact array, sorted as Kafka sorts names of topics."""
        listed = sorted(values)
        self.unsigned_varint(len(listed) + 1)
        for value in listed:
            self.compact_string(value)

    def compact_partitions(self, partitions: Iterable[PartitionKey]) -> None:
        """A compact array of (uuid, compact array of int32, tagged fields), one a topic, in ascending order: one
        assignment has one spelling."""
        by_topic: dict[bytes, list[int]] = {}
        for topic_id, partition in partitions:
            by_topic.setdefault(topic_id, []).append(partition)
        self.unsigned_varint(len(by_topic) + 1)
        for topic_id in sorted(by_topic):
            numbers = sorted(by_topic[topic_id])
            self._out += topic_id
            self.unsigned_varint(len(numbers) + 1)
            self._out += struct.pack(f">{len(numbers)}i", *numbers)
            self.no_tagged_fields()

    def no_tagged_fields(self) -> None:
        self._out.append(0)

    def tagged_fields(self, fields: dict[int, bytes]) -> None:
        """Their number, and by ascending tag: tag, size, and the bytes."""
        self.unsigned_varint(len(fields))
        for tag in sorted(fields):
            self.unsigned_varint(tag)
            self.unsigned_varint(len(fields[tag]))
            self._out += fields[tag]


class Reader:
    """Takes values from a buffer. What is cut short or malformed is an `UnreadableRecordError`."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise UnreadableRecordError(f"{size} bytes wanted at {self._at} of {len(self._data)}")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def int8(self) -> int:
        return int.from_bytes(self.take(1), "big", signed=True)

    def int16(self) -> int:
        return int(_INT16.unpack(self.take(2))[0])

    def int32(self) -> int:
        return int(_INT32.unpack(self.take(4))[0])

    def int64(self) -> int:
        return int(_INT64.unpack(self.take(8))[0])

    def unsigned_varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 28:
                raise UnreadableRecordError("a varint of more than five bytes")

    def _text(self, size: int) -> str:
        try:
            return self.take(size).decode()
        except UnicodeDecodeError as error:
            raise UnreadableRecordError(str(error)) from error

    def string(self) -> str:
        return self._text(self.int16())

    def compact_string(self) -> str:
        """Null reads as the empty string."""
        return self._text(max(self.unsigned_varint() - 1, 0))

    def compact_strings(self) -> tuple[str, ...]:
        return tuple(self.compact_string() for _ in range(self.unsigned_varint() - 1))

    def compact_partitions(self) -> frozenset[PartitionKey]:
        found: list[PartitionKey] = []
        for _ in range(self.unsigned_varint() - 1):
            topic_id = self.take(TOPIC_ID_BYTES)
            count = max(self.unsigned_varint() - 1, 0)
            numbers = struct.unpack(f">{count}i", self.take(4 * count))
            found += [PartitionKey(topic_id, number) for number in numbers]
            self.tagged_fields()
        return frozenset(found)

    def tagged_fields(self) -> dict[int, bytes]:
        """All of them, those included that this version does not know."""
        fields = {}
        for _ in range(self.unsigned_varint()):
            tag = self.unsigned_varint()
            fields[tag] = self.take(self.unsigned_varint())
        return fields

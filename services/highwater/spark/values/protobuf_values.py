"""Protobuf messages as structs, column by column. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from highwater.spark.errors import OptionError
from highwater.spark.values.decoding import BadValue, Decoded
from highwater.spark.values.schema_types import TIMESTAMP, list_of

_WELL_KNOWN = (
    any_pb2,
    descriptor_pb2,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
_SIMPLE = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_ENUM: pa.utf8(),
}
_TIMESTAMP = "google.protobuf.Timestamp"
_WRAPPERS = {f"google.protobuf.{name}" for name in wrappers_pb2.DESCRIPTOR.message_types_by_name}
Column = Callable[[Sequence[Any]], pa.Array]


class ProtobufDecoder:
    def __init__(self, descriptors: bytes, message: str | None) -> None:
        """`descriptors` is a `FileDescriptorSet`, as `protoc --include_imports --descriptor_set_out` writes it; the
        message may be left out where the last file of it has only one. Raises `OptionError`."""
        descriptor = _descriptor(descriptors, message)
        self._class = GetMessageClass(descriptor)
        self.type, self._column = _struct(descriptor, ())

    def decode(self, values: pa.BinaryArray) -> Decoded:
        messages: list[Message | None] = []
        errors: dict[int, str] = {}
        for place, value in enumerate(values.to_pylist()):
            try:
                messages.append(self._message(value))
            except BadValue as error:
                errors[place] = str(error)
                messages.append(None)
        try:
            return Decoded(self._column(messages), errors)
        except (BadValue, pa.ArrowException, ValueError, OverflowError):
            pass
        for place, one in enumerate(messages):
            try:
                self._column([one])
            except (BadValue, pa.ArrowException, ValueError, OverflowError) as error:
                errors[place] = str(error).partition("\n")[0][:80]
                messages[place] = None
        return Decoded(self._column(messages), errors)

    def _message(self, value: bytes) -> Message:
        found = self._class()
        try:
            found.ParseFromString(value)
        except DecodeError:
            raise BadValue(f"it is no message {self._class.DESCRIPTOR.full_name}") from None
        if not found.IsInitialized():
            missing = found.FindInitializationErrors()[0]  # type: ignore[attr-defined] # its stubs have it not
            raise BadValue(f"field {missing} is missing, and it is required")
        return found


def _descriptor(descriptors: bytes, message: str | None) -> Descriptor:
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors).file
    except DecodeError:
        files = descriptor_pb2.FileDescriptorSet().file
    if not files:
        raise OptionError(
            "option valueSchema holds no descriptors: write them with protoc --include_imports --descriptor_set_out"
        )
    pool, there = DescriptorPool(), {one.name for one in files}
    for module in _WELL_KNOWN:
        if module.DESCRIPTOR.name not in there:
            pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    try:
        for file in files:
            pool.AddSerializedFile(file.SerializeToString())
    except (TypeError, KeyError) as error:
        raise OptionError(
            f"option valueSchema holds no whole descriptors ({str(error)[:80]}): write them with protoc "
            "--include_imports"
        ) from None
    if message is None:
        names = [one.name for one in files[-1].message_type]
        package = files[-1].package
        if len(names) != 1:
            raise OptionError(f"option valueMessage is missing: say which of {', '.join(names)} a value is")
        message = f"{package}.{names[0]}" if package else names[0]
    try:
        return pool.FindMessageTypeByName(message)
    except KeyError:
        known = sorted(f"{file.package}.{one.name}".removeprefix(".") for file in files for one in file.message_type)
        raise OptionError(
            f"option valueMessage is {message}, which valueSchema does not have; it has {', '.join(known)[:200]}"
        ) from None


def _struct(descriptor: Descriptor, above: tuple[str, ...]) -> tuple[pa.StructType, Column]:
    """The column of a field of messages (or None)."""
    if descriptor.full_name in above:
        raise OptionError(f"message {descriptor.full_name} contains itself: a column has a type of a fixed depth")
    fields = [(one.name, *_field(one, (*above, descriptor.full_name))) for one in descriptor.fields]
    if not fields:
        raise OptionError(f"message {descriptor.full_name} has no fields: a struct has some")
    kind = pa.struct([pa.field(name, each) for name, each, _ in fields])

    def column(messages: Sequence[Message | None]) -> pa.StructArray:
        missing = np.fromiter((one is None for one in messages), np.bool_, len(messages))
        children = [each(messages) for _, _, each in fields]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=pa.array(missing))

    return kind, column


def _field(field: FieldDescriptor, above: tuple[str, ...]) -> tuple[pa.DataType, Column]:
    """The column of a field, null for messages that lack it."""
    name = field.name
    if _is_map(field):
        return _map(field, above)
    kind, items = _items(field, above)
    if field.is_repeated:
        return _repeated(name, kind, items)
    if field.has_presence:
        return kind, lambda messages: items(
            [getattr(one, name) if one is not None and one.HasField(name) else None for one in messages]
        )
    return kind, lambda messages: items([None if one is None else getattr(one, name) for one in messages])


def _repeated(name: str, kind: pa.DataType, items: Column) -> tuple[pa.DataType, Column]:
    whole = list_of(pa.field("element", kind))

    def column(messages: Sequence[Any]) -> pa.Array:
        lists = [() if one is None else getattr(one, name) for one in messages]
        flat = items([item for each in lists for item in each])
        return pa.ListArray.from_arrays(_offsets(lists), flat, type=whole)

    return whole, column


def _map(field: FieldDescriptor, above: tuple[str, ...]) -> tuple[pa.DataType, Column]:
    assert field.message_type is not None
    name, entry = field.name, field.message_type.fields_by_name
    key_kind, keys = _items(entry["key"], above)
    kind, items = _items(entry["value"], above)
    whole = pa.map_(key_kind, kind)

    def column(messages: Sequence[Any]) -> pa.Array:
        maps = [{} if one is None else getattr(one, name) for one in messages]
        flat = [key for each in maps for key in each]
        values = [each[key] for each in maps for key in each]
        return pa.MapArray.from_arrays(_offsets(maps), keys(flat), items(values), type=whole)

    return whole, column


def _items(field: FieldDescriptor, above: tuple[str, ...]) -> tuple[pa.DataType, Column]:
    """The array of single values of a field (or None)."""
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        assert field.enum_type is not None
        of, names = field.enum_type.full_name, field.enum_type.values_by_number

        def name(number: int | None) -> str | None:
            if number is not None and number not in names:
                raise BadValue(f"field {field.name}: {number} is no value of {of}")
            return None if number is None else names[number].name

        return pa.utf8(), lambda values: pa.array([name(one) for one in values], pa.utf8())
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        simple = pa.binary() if field.type == FieldDescriptor.TYPE_BYTES else pa.utf8()
        return simple, lambda values: pa.array(values, simple)
    if field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE:
        kind = _SIMPLE[field.cpp_type]
        return kind, lambda values: pa.array(values, kind)
    message = field.message_type
    assert message is not None
    if message.full_name == _TIMESTAMP:
        return TIMESTAMP, lambda values: pa.array(
            [None if one is None else one.seconds * 1_000_000 + one.nanos // 1000 for one in values], TIMESTAMP
        )
    if message.full_name in _WRAPPERS:
        kind, items = _items(message.fields_by_name["value"], above)
        return kind, lambda values: items([None if one is None else one.value for one in values])
    return _struct(message, above)


def _is_map(field: FieldDescriptor) -> bool:
    message = field.message_type
    return message is not None and bool(message.GetOptions().map_entry)


def _offsets(lists: Sequence[Any]) -> pa.Array:
    ends = np.zeros(len(lists) + 1, np.int32)
    np.cumsum([len(one) for one in lists], out=ends[1:])
    return pa.array(ends)

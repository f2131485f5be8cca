"""The columns of a read whose values have a type: `value` as a struct, `valueError` and `rawValue` beside it. Pure."""

from __future__ import annotations

import struct
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from highwater.client.exceptions import HighwaterError
from highwater.spark.values.decoding import Decoded, decoded_column
from highwater.spark.values.value_options import RawValues, ValueErrors, ValueOptions

VALUE_ERROR, RAW_VALUE = "valueError", "rawValue"
REMEDY = "correct valueSchema, or set valueErrors to null"
_OF_VALUES = ("value", VALUE_ERROR, RAW_VALUE)
_REGISTRY = struct.Struct(">bI")  # 0, and the schema's id


class BadValueError(HighwaterError):
    """A record has a value that does not fit the schema."""


class TypedColumns:
    """`columns` are those that the read has."""

    def __init__(self, options: ValueOptions, columns: tuple[str, ...]) -> None:
        """Raises `OptionError`."""
        self._options = options
        self._columns = columns
        self._decoder = options.decoder()
        self._decodes = any(name in columns for name in _OF_VALUES)
        read = [name for name in columns if name not in _OF_VALUES]
        added = [name for name in ("value", "offset") if self._decodes and name not in read]
        self.read = (*read, *added)
        """The columns to read of the log."""

    def of(self, rows: pa.RecordBatch, topic: str, partition: int) -> pa.RecordBatch:
        """Rows of `read`. Raises `BadValueError`."""
        if not self._decodes:
            return rows.select(list(self._columns))
        raw = rows.column("value")
        found = self._decoded(raw)
        if found.errors and self._options.errors is ValueErrors.FAIL:
            place = min(found.errors)
            raise BadValueError(
                f"{topic}-{partition}, offset {rows.column('offset')[place]}: the value cannot be read as "
                f"{self._options.format.value}: {found.errors[place]}; {REMEDY}"
            )
        made = {
            "value": lambda: found.values,
            VALUE_ERROR: lambda: _reasons(found),
            RAW_VALUE: lambda: raw if self._options.raw is RawValues.ALL else _bad(raw, found),
        }
        arrays = [made[name]() if name in made else rows.column(name) for name in self._columns]
        kinds = [
            found.values.type if name == "value" else one.type for name, one in zip(self._columns, arrays, strict=True)
        ]
        fields = [pa.field(name, kind) for name, kind in zip(self._columns, kinds, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def _decoded(self, raw: pa.BinaryArray) -> Decoded:
        if self._options.schema_id is None:
            return decoded_column(self._decoder, raw)
        strange = {
            place: why
            for place, one in enumerate(pc.binary_slice(raw, 0, _REGISTRY.size).to_pylist())
            if one is not None and (why := _registry_error(one, self._options.schema_id)) is not None
        }
        bodies = pc.binary_replace_slice(raw, 0, _REGISTRY.size, b"")
        if not strange:
            return decoded_column(self._decoder, bodies)
        mask = pa.array([place in strange for place in range(len(raw))])
        found = decoded_column(self._decoder, pc.if_else(mask, pa.scalar(None, pa.binary()), bodies))
        return Decoded(found.values, {**found.errors, **strange})


def _registry_error(header: bytes, schema_id: int) -> str | None:
    if len(header) < _REGISTRY.size or header[0] != 0:
        return "it does not begin with 0 and a schema's id, and valueSchemaId is set"
    _, found = _REGISTRY.unpack(header)
    return None if found == schema_id else f"it was written with schema {found}, and valueSchemaId is {schema_id}"


def _reasons(found: Decoded) -> pa.Array:
    return _sparse(found.errors, len(found.values), pa.utf8())


def _bad(raw: pa.BinaryArray, found: Decoded) -> pa.Array:
    """The bytes of the values that are not decoded."""
    return _sparse({place: raw[place].as_py() for place in found.errors}, len(raw), pa.binary())


def _sparse(values: Mapping[int, object], count: int, kind: pa.DataType) -> pa.Array:
    if not values:
        return pa.nulls(count, kind)
    return pa.array([values.get(place) for place in range(count)], kind)

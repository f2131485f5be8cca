"""Avro's binary encoding, without the header of a file, as structs. Pure.

fastavro makes Python objects of each record, and Arrow columns of them. Times stay the numbers that they are, so that
Arrow converts them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import pyarrow as pa

from highwater.extras import how_to_install
from highwater.spark.errors import OptionError
from highwater.spark.values.decoding import BadValue, Decoded
from highwater.spark.values.schema_types import list_of, plain

_SIMPLE = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.utf8(),
}
_LOGICAL = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("ms", tz="UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", tz="UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
_MAX_PRECISION = 38


class AvroDecoder:
    def __init__(self, schema: str) -> None:
        """Raises `OptionError`."""
        try:
            from fastavro import parse_schema, schemaless_reader  # noqa: PLC0415 - an extra
        except ModuleNotFoundError:
            raise OptionError(
                f"valueFormat avro needs fastavro on the driver and the executors: {how_to_install('avro')}"
            ) from None
        try:
            said = json.loads(schema)
        except json.JSONDecodeError as error:
            raise OptionError(f"option valueSchema is no Avro schema: it is no JSON ({error})") from None
        try:
            parsed = parse_schema(said)
            self._schema = parse_schema(_numbers_for_times(said))
        except Exception as error:  # fastavro's own, and KeyErrors
            raise OptionError(f"option valueSchema is no Avro schema: {type(error).__name__}: {error}") from None
        self._declared = _Types().of(parsed, "the schema", ())
        if not pa.types.is_struct(self._declared):
            raise OptionError("option valueSchema is no record: a value is a struct of fields")
        self.type = plain(self._declared)
        self._read = schemaless_reader

    def decode(self, values: pa.BinaryArray) -> Decoded:
        rows: list[Any] = []
        errors: dict[int, str] = {}
        for place, value in enumerate(values.to_pylist()):
            try:
                rows.append(self._row(value))
            except BadValue as error:
                errors[place] = str(error)
                rows.append(None)
        try:
            return Decoded(self._column(rows), errors)
        except (pa.ArrowException, ValueError, OverflowError):  # ArrowInvalid is a ValueError: a time too far away
            pass
        for place, row in enumerate(rows):
            try:
                self._column([row])
            except (pa.ArrowException, ValueError, OverflowError) as error:
                errors[place] = str(error).partition("\n")[0][:80]
                rows[place] = None
        return Decoded(self._column(rows), errors)

    def _row(self, value: bytes) -> Any:
        stream = BytesIO(value)
        try:
            row = self._read(stream, self._schema, None)
        except Exception as error:  # whatever stumbles over bytes that are something else
            raise BadValue(f"it does not fit the Avro schema ({type(error).__name__}){_hint(value)}") from None
        if stream.tell() < len(value):
            left = len(value) - stream.tell()
            raise BadValue(f"it does not fit the Avro schema: {left} of its {len(value)} bytes are left{_hint(value)}")
        return row

    def _column(self, rows: list[Any]) -> pa.StructArray:
        # Several times as fast as `pa.array(rows, self._declared)`.
        children = [
            pa.array([None if row is None else row[one.name] for row in rows], one.type) for one in self._declared
        ]
        missing = pa.array([row is None for row in rows], pa.bool_())
        column = pa.StructArray.from_arrays(children, fields=list(self._declared), mask=missing)
        return column if self._declared == self.type else column.cast(self.type)


def _hint(value: bytes) -> str:
    return "; it begins as values of a schema registry do: see option valueSchemaId" if value[:1] == b"\0" else ""


def _numbers_for_times(schema: Any) -> Any:
    """The schema without logical types but for decimals."""
    if isinstance(schema, list):
        return [_numbers_for_times(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key != "logicalType" or value == "decimal"}
    for key in ("type", "items", "values"):
        if key in kept:
            kept[key] = _numbers_for_times(kept[key])
    if isinstance(kept.get("fields"), list):
        kept["fields"] = [_numbers_for_times(one) for one in kept["fields"]]
    return kept


class _Types:
    """Arrow types of a schema that fastavro has parsed: names are whole, and mean what came before."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}

    def of(self, schema: Any, where: str, above: tuple[str, ...]) -> pa.DataType:
        if isinstance(schema, list):
            others = [one for one in schema if one != "null"]
            if len(others) != 1:
                raise OptionError(f"{where} may be of {len(others)} types: a column has one type (and null)")
            return self.of(others[0], where, above)
        if isinstance(schema, str):
            if schema in _SIMPLE:
                return _SIMPLE[schema]
            if schema in above:
                raise OptionError(f"{where} contains itself ({schema}): a column has a type of a fixed depth")
            if schema not in self._named:
                raise OptionError(f"{where} is of type {schema}: a column cannot be")
            return self.of(self._named[schema], where, above)
        return self._of_object(schema, where, above)

    def _of_object(self, schema: Mapping[str, Any], where: str, above: tuple[str, ...]) -> pa.DataType:
        kind = schema["type"]
        if "name" in schema:
            self._named[schema["name"]] = schema
        if kind in ("record", "error"):
            inside = (*above, schema["name"])
            return pa.struct(
                [
                    pa.field(one["name"], self.of(one["type"], f"field {one['name']}", inside))
                    for one in schema["fields"]
                ]
            )
        if kind == "array":
            return list_of(pa.field("element", self.of(schema["items"], where, above)))
        if kind == "map":
            return pa.map_(pa.utf8(), self.of(schema["values"], where, above))
        if kind == "enum":
            return pa.utf8()
        logical = str(schema.get("logicalType"))
        if logical == "decimal" and kind in ("bytes", "fixed"):
            precision, scale = schema["precision"], schema.get("scale", 0)
            if precision > _MAX_PRECISION:
                raise OptionError(f"{where} is a decimal of {precision} digits: Spark has at most {_MAX_PRECISION}")
            return pa.decimal128(precision, scale)
        if kind == "fixed":
            return pa.binary()
        if isinstance(kind, str) and (kind, logical) in _LOGICAL:
            return _LOGICAL[kind, logical]
        return self.of(kind, where, above)

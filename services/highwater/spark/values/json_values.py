"""JSON objects as structs. Pure.

Arrow's own parser reads a whole column at once, from lines. What it refuses, or what it would take that does not fit,
is looked for by halves and then read record by record, which also says what is wrong.
"""

from __future__ import annotations

import json
import math
import os
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Context, Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.types as pt

from highwater.spark.values.decoding import BadValue, Decoded, shown
from highwater.spark.values.schema_types import TIMESTAMP, allowed_of, plain

# Arrow's parser costs a millisecond before it begins: so many values are read one by one as soon as that.
_FEW = 64
_FEW_AND_BAD = 256  # of which one at least is bad
_FIRST, _LAST = pa.scalar(datetime.min, TIMESTAMP), pa.scalar(datetime.max, TIMESTAMP)  # that Python knows
_EXACT = Context(prec=100)
Converter = Callable[[Any], Any]


class _NotSoSimpleError(Exception):
    """A column that has to be read record by record."""


class JsonDecoder:
    def __init__(self, declared: pa.StructType) -> None:
        self.type = plain(declared)
        self._declared = declared
        self._convert = _struct(declared, "")
        self._columns = ColumnReader(declared) if _is_simple(declared) else None

    def decode(self, values: pa.BinaryArray) -> Decoded:
        pieces: list[pa.StructArray] = []
        errors: dict[int, str] = {}
        left = [(0, len(values))] if len(values) else []
        while left:
            begin, end = left.pop()
            some = values.slice(begin, end - begin)
            if self._columns is not None and end - begin > _FEW:
                try:
                    pieces.append(self._columns.read(some))
                    continue
                except (_NotSoSimpleError, pa.ArrowInvalid, pa.ArrowNotImplementedError):
                    if end - begin > _FEW_AND_BAD:
                        middle = (begin + end) // 2
                        left += [(middle, end), (begin, middle)]
                        continue
            pieces.append(self._one_by_one(some.to_pylist(), begin, errors))
        found = pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces or [pa.array([], self.type)])
        return Decoded(found, errors)

    def _one_by_one(self, values: list[bytes], begin: int, errors: dict[int, str]) -> pa.StructArray:
        rows = []
        for place, value in enumerate(values, begin):
            try:
                rows.append(self._convert(_parsed(value)))
            except BadValue as error:
                errors[place] = str(error)
                rows.append(None)
        return pa.array(rows, self.type)


# By columns


class ColumnReader:
    """Lines of one object each, through Arrow's parser.

    That does not care for lines: what is no object by itself could shift the others. So each gets its number as its
    first field, under a name that no record can know, and all numbers must come back in their places.
    """

    def __init__(self, declared: pa.StructType) -> None:
        self._declared = declared
        self._number = f"highwater-{os.urandom(12).hex()}"
        read = [pa.field(one.name, pa.utf8() if pt.is_date(one.type) else plain(one.type)) for one in declared]
        self._options = pj.ParseOptions(
            explicit_schema=pa.schema([pa.field(self._number, pa.int64()), *read]), unexpected_field_behavior="ignore"
        )

    def read(self, values: pa.BinaryArray) -> pa.StructArray:
        """Raises `_NotSoSimpleError`, or Arrow's errors."""
        count = len(values)
        if not pc.all(pc.starts_with(values.cast(pa.utf8()), "{")).as_py():  # the cast finds what is not UTF-8
            raise _NotSoSimpleError
        begun = pa.scalar(f'{{"{self._number}":'.encode())
        rest = pc.binary_replace_slice(values, 0, 1, b",")
        lines = pc.binary_join_element_wise(begun, _numbers(count), rest, b"\n", b"")
        _, offsets, data = lines.buffers()
        ends = np.frombuffer(offsets, np.int32)[lines.offset : lines.offset + count + 1]
        begin, size = int(ends[0]), int(ends[-1] - ends[0])
        table = pj.read_json(
            pa.BufferReader(data.slice(begin, size)),
            pj.ReadOptions(use_threads=False, block_size=size + 1),
            self._options,
        ).combine_chunks()
        numbers = table.column(0).combine_chunks()
        if len(numbers) != count or numbers.null_count or not np.array_equal(numbers.to_numpy(), np.arange(count)):
            raise _NotSoSimpleError
        columns = []
        for one in self._declared:
            column = table.column(one.name).combine_chunks()
            column = column.cast(pa.date32()) if pt.is_date(one.type) else column
            _check(column, one, 0)
            columns.append(column)
        return pa.StructArray.from_arrays(columns, fields=[pa.field(x.name, plain(x.type)) for x in self._declared])


def _is_simple(kind: pa.DataType, *, top: bool = True) -> bool:
    """Tells whether Arrow reads the type as we do. Nested dates it does not, and a decimal like 1e-999999999 crashes
    it."""
    if pt.is_struct(kind):
        names = [one.name for one in kind]
        return bool(names) and all(_is_simple(one.type, top=False) or (top and pt.is_date(one.type)) for one in kind)
    if pt.is_list(kind):
        return _is_simple(kind.value_type, top=False)
    simple = (pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float64(), pa.utf8(), TIMESTAMP)
    return kind in simple


def _check(column: pa.Array, field: pa.Field, null_above: int) -> None:
    """Raises `_NotSoSimpleError` where something does not fit. `null_above`: rows whose parent is null."""
    if not field.nullable and column.null_count != null_above:
        raise _NotSoSimpleError
    if column.null_count == len(column):
        return
    if pt.is_struct(field.type):
        for one, child in zip(field.type, column.flatten(), strict=True):
            _check(child, one, column.null_count)
    elif pt.is_list(field.type):
        _check(column.flatten(), field.type.value_field, 0)
    elif pt.is_floating(field.type):
        if not pc.all(pc.is_finite(column)).as_py():
            raise _NotSoSimpleError
    elif pt.is_timestamp(field.type):
        ends = pc.min_max(column)
        if pc.less(ends["min"], _FIRST).as_py() or pc.greater(ends["max"], _LAST).as_py():
            raise _NotSoSimpleError
    allowed = allowed_of(field)
    if allowed is not None:
        known = pc.is_in(column, pa.array(allowed, column.type), skip_nulls=True)
        if pc.sum(known).as_py() != len(column) - column.null_count:
            raise _NotSoSimpleError


def _numbers(count: int) -> pa.Array:
    return _first_numbers(1 << count.bit_length()).slice(0, count)


@lru_cache(maxsize=4)
def _first_numbers(count: int) -> pa.Array:
    return pa.array(np.arange(count)).cast(pa.utf8()).cast(pa.binary())


# Record by record


def _parsed(value: bytes) -> Any:
    try:
        found = json.loads(value.decode("utf-8"), parse_float=_number)
    except UnicodeDecodeError:
        raise BadValue("it is not UTF-8") from None
    except RecursionError:
        raise BadValue("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise BadValue(f"it is no JSON: {error.msg.removesuffix(' at')} at character {error.pos}") from None
    except ValueError:  # more digits than Python takes for a number
        raise BadValue("it has a number of too many digits") from None
    if not isinstance(found, dict):
        raise BadValue(f"{shown(found)} is no JSON object")
    return found


def _number(text: str) -> Decimal | float:
    """The number with all of its digits."""
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent that not even a Decimal has: infinity, or zero
        return float(text)


def _converter(field: pa.Field, path: str) -> Converter:
    """The converter of values that are not null; it raises `BadValue`."""
    convert = _of_type(field.type, path)
    allowed = allowed_of(field)
    if allowed is None:
        return convert

    def one_of(value: Any) -> Any:
        found = convert(value)
        if found not in allowed:
            raise BadValue(f"field {path}: {shown(value)} is none of {shown(allowed)}")
        return found

    return one_of


def _of_type(kind: pa.DataType, path: str) -> Converter:
    if pt.is_struct(kind):
        return _struct(kind, path)
    if pt.is_list(kind):
        return _list(kind.value_field, path)
    if pt.is_map(kind):
        return _map(kind.item_field, path)
    if pt.is_integer(kind):
        return _integer(kind.bit_width, path)
    if pt.is_decimal(kind):
        return _decimal(kind, path)
    return _SIMPLE[kind](path)


def _struct(kind: pa.StructType, path: str) -> Converter:
    below = f"{path}." if path else ""
    fields = [(one.name, one.nullable, _converter(one, below + one.name)) for one in kind]

    def convert(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise BadValue(f"field {path}: {shown(value)} is no object")
        found = {}
        for name, nullable, each in fields:
            one = value.get(name)
            if one is not None:
                found[name] = each(one)
            elif not nullable:
                raise BadValue(f"field {below}{name} is {'null' if name in value else 'missing'}, and it is required")
        return found

    return convert


def _list(item: pa.Field, path: str) -> Converter:
    each = _item(item, f"{path}[]")

    def convert(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise BadValue(f"field {path}: {shown(value)} is no array")
        return [each(one) for one in value]

    return convert


def _map(item: pa.Field, path: str) -> Converter:
    each = _item(item, f"{path}[]")

    def convert(value: Any) -> list[tuple[str, Any]]:
        if not isinstance(value, dict):
            raise BadValue(f"field {path}: {shown(value)} is no object")
        return [(_encodable(name, path), each(one)) for name, one in value.items()]

    return convert


def _item(item: pa.Field, path: str) -> Converter:
    convert = _converter(item, path)

    def each(value: Any) -> Any:
        if value is not None:
            return convert(value)
        if not item.nullable:
            raise BadValue(f"field {path} is null, and it is required")
        return None

    return each


def _integer(bits: int, path: str) -> Converter:
    limit = 1 << (bits - 1)

    def convert(value: Any) -> int:
        # 1.0 and 1e2 are integers, too; 1e999999999 is not to be written out.
        if isinstance(value, Decimal) and value.adjusted() <= 18 and value == value.to_integral_value():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise BadValue(f"field {path}: {shown(_undone(value))} is no integer")
        if not -limit <= value < limit:
            raise BadValue(f"field {path}: {shown(value)} is more than {bits} bits hold")
        return value

    return convert


def _floating(most: float, path: str) -> Converter:
    def convert(value: Any) -> float:
        if not isinstance(value, int | float | Decimal) or isinstance(value, bool):
            raise BadValue(f"field {path}: {shown(value)} is no number")
        try:
            found = float(value)
        except OverflowError:
            found = math.inf
        if not abs(found) <= most:
            raise BadValue(f"field {path}: {shown(_undone(value))} is no number that the type holds")
        return found

    return convert


def _decimal(kind: pa.Decimal128Type, path: str) -> Converter:
    unit, zero = Decimal(1).scaleb(-kind.scale), Decimal(0)

    def convert(value: Any) -> Decimal:
        if isinstance(value, bool) or not isinstance(value, int | str | Decimal):
            raise BadValue(f"field {path}: {shown(value)} is no decimal number")
        try:
            found = Decimal(value)
        except InvalidOperation:
            raise BadValue(f"field {path}: {shown(value)} is no decimal number") from None
        whole = kind.precision - kind.scale
        if not found.is_finite() or (found and found.adjusted() >= whole) or not _has_scale(found, kind.scale):
            raise BadValue(f"field {path}: {shown(_undone(value))} does not fit decimal({kind.precision},{kind.scale})")
        return found.quantize(unit, context=_EXACT) if found else zero

    return convert


def _has_scale(value: Decimal, scale: int) -> bool:
    """Tells whether it has at most `scale` digits behind the point; zeros at the end do not count."""
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    behind = -exponent - scale
    return behind <= 0 or (behind <= len(digits) and not any(digits[-behind:])) or not any(digits)


def _text(path: str) -> Converter:
    def convert(value: Any) -> str:
        if not isinstance(value, str):
            raise BadValue(f"field {path}: {shown(_undone(value))} is no text")
        return _encodable(value, path)

    return convert


def _boolean(path: str) -> Converter:
    def convert(value: Any) -> bool:
        if not isinstance(value, bool):
            raise BadValue(f"field {path}: {shown(_undone(value))} is neither true nor false")
        return value

    return convert


def _binary(path: str) -> Converter:
    def convert(value: Any) -> bytes:
        if isinstance(value, str):
            try:
                return b64decode(value, validate=True)
            except (Base64Error, ValueError):
                pass
        raise BadValue(f"field {path}: {shown(_undone(value))} is no base64")

    return convert


def _date(path: str) -> Converter:
    def convert(value: Any) -> date:
        if isinstance(value, str):
            try:
                return date.fromisoformat(value)
            except ValueError:
                pass
        raise BadValue(f"field {path}: {shown(_undone(value))} is no date (2026-11-21)")

    return convert


def _timestamp(path: str) -> Converter:
    """The converter of timestamps; one without an offset is in UTC."""

    def convert(value: Any) -> datetime:
        try:
            found = datetime.fromisoformat(value) if isinstance(value, str) else None
            if found is not None:
                return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
        except (ValueError, OverflowError):
            pass
        raise BadValue(f"field {path}: {shown(_undone(value))} is no time (2026-11-21T02:00:00Z)")

    return convert


def _timestamp_ntz(path: str) -> Converter:
    def convert(value: Any) -> datetime:
        try:
            found = datetime.fromisoformat(value) if isinstance(value, str) else None
            if found is not None and found.tzinfo is None:
                return found
        except ValueError:
            pass
        raise BadValue(f"field {path}: {shown(_undone(value))} is no time without an offset (2026-11-21T02:00:00)")

    return convert


def _encodable(text: str, path: str) -> str:
    """Half a surrogate pair is none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadValue(f"field {path}: {shown(text)} is no Unicode") from None
    return text


def _undone(value: Any) -> Any:
    """A number as it was written."""
    return float(value) if isinstance(value, Decimal) else value


_SIMPLE: dict[pa.DataType, Callable[[str], Converter]] = {
    pa.bool_(): _boolean,
    pa.float32(): lambda path: _floating(float(np.finfo(np.float32).max), path),
    pa.float64(): lambda path: _floating(float(np.finfo(np.float64).max), path),
    pa.utf8(): _text,
    pa.binary(): _binary,
    pa.date32(): _date,
    TIMESTAMP: _timestamp,
    pa.timestamp("us"): _timestamp_ntz,
}

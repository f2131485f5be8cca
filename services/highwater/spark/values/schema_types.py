"""Types of values. A schema is declared as an Arrow struct: a field that is not nullable is required, and its metadata
may name the values that it can have. What Spark gets is the same struct with every field nullable. Pure.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

_ALLOWED = b"highwater.allowed"
TIMESTAMP = pa.timestamp("us", tz="UTC")
TIMESTAMP_NTZ = pa.timestamp("us")
_SPARK_NAMES = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.utf8(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    TIMESTAMP: "timestamp",
    TIMESTAMP_NTZ: "timestamp_ntz",
}


def with_allowed(field: pa.Field, allowed: list[Any]) -> pa.Field:
    """The field, which can only have these values."""
    return field.with_metadata({_ALLOWED: json.dumps(allowed).encode()})


def allowed_of(field: pa.Field) -> list[Any] | None:
    """The values that a field may have; None: any of its type."""
    said = (field.metadata or {}).get(_ALLOWED)
    return None if said is None else list(json.loads(said))


def list_of(item: pa.Field) -> pa.DataType:
    """Spark calls the items `element`."""
    return pa.list_(item.with_name("element"))


def plain(kind: pa.DataType) -> pa.DataType:
    """The type exactly as Spark expects it of an Arrow batch."""
    if pt.is_struct(kind):
        return pa.struct([pa.field(one.name, plain(one.type)) for one in kind])
    if pt.is_list(kind):
        return list_of(pa.field("element", plain(kind.value_type)))
    if pt.is_map(kind):
        return pa.map_(kind.key_type, plain(kind.item_type))
    if pt.is_timestamp(kind):
        return TIMESTAMP if kind.tz else TIMESTAMP_NTZ
    return kind


def spark_type(kind: pa.DataType) -> str:
    """The type as Spark's DDL."""
    if pt.is_struct(kind):
        return f"struct<{','.join(f'{quoted(one.name)}:{spark_type(one.type)}' for one in kind)}>"
    if pt.is_list(kind):
        return f"array<{spark_type(kind.value_type)}>"
    if pt.is_map(kind):
        return f"map<{spark_type(kind.key_type)},{spark_type(kind.item_type)}>"
    if pt.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _SPARK_NAMES[kind]


def quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"

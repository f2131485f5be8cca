"""Spark's DDL as a declared struct: `carrier STRING NOT NULL, stops ARRAY<STRUCT<at: TIMESTAMP>>`. Pure.

A source's processes have no JVM to ask."""

from __future__ import annotations

import re

import pyarrow as pa

from highwater.spark.errors import OptionError
from highwater.spark.values.schema_types import TIMESTAMP, TIMESTAMP_NTZ, list_of

_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|('(?:[^'\\]|\\.)*')|(\w+)|(.))", re.DOTALL)
_TYPES = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.utf8(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "timestamp_ltz": TIMESTAMP,
    "timestamp_ntz": TIMESTAMP_NTZ,
}
_DECIMALS = ("decimal", "dec", "numeric")
_MAX_PRECISION = 38


def parse_ddl(text: str) -> pa.StructType:
    """`NOT NULL` makes a field required. Raises `OptionError`."""
    return _Parser(text).whole()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = ["".join(groups) for groups in _TOKEN.findall(text.strip())]
        self._at = 0

    def whole(self) -> pa.StructType:
        fields = self._fields(until="")
        if self._at < len(self._tokens):
            raise self._wrong()
        return pa.struct(fields)

    def _fields(self, until: str) -> list[pa.Field]:
        found = [self._field()]
        while self._taken(","):
            found.append(self._field())
        if until:
            self._need(until)
        names = [one.name for one in found]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise OptionError(f"the schema has the field {twice} twice")
        return found

    def _field(self) -> pa.Field:
        name = self._next()
        if name.startswith("`"):
            name = name[1:-1].replace("``", "`")
        elif not name.isidentifier() and not name.isalnum():
            raise self._wrong()
        self._taken(":")
        kind = self._type()
        required = self._taken("not")
        if required:
            self._need("null")
        if self._taken("comment"):
            self._next()
        return pa.field(name, kind, nullable=not required)

    def _type(self) -> pa.DataType:
        name = self._next().lower()
        if name in _DECIMALS:
            return self._decimal()
        if name == "array":
            self._need("<")
            item = self._type()
            self._need(">")
            return list_of(pa.field("element", item))
        if name == "map":
            self._need("<")
            key = self._type()
            self._need(",")
            item = self._type()
            self._need(">")
            if key != pa.utf8():
                raise OptionError(f"the schema has a map whose keys are {key}: those of JSON are STRING")
            return pa.map_(key, item)
        if name == "struct":
            self._need("<")
            return pa.struct(self._fields(until=">"))
        if name not in _TYPES:
            raise OptionError(
                f"the schema has the type {name or '(none)'}, in {self._text[:80]!r}: there are "
                f"{', '.join(one.upper() for one in (*_TYPES, 'decimal', 'array', 'map', 'struct'))}"
            )
        return _TYPES[name]

    def _decimal(self) -> pa.DataType:
        precision, scale = 10, 0
        if self._taken("("):
            precision = self._number()
            if self._taken(","):
                scale = self._number()
            self._need(")")
        if not (0 < precision <= _MAX_PRECISION and scale <= precision):
            raise OptionError(f"the schema has DECIMAL({precision},{scale}): Spark has at most {_MAX_PRECISION} digits")
        return pa.decimal128(precision, scale)

    def _number(self) -> int:
        text = self._next()
        if not text.isdecimal():
            raise self._wrong()
        return int(text)

    def _next(self) -> str:
        token = self._tokens[self._at] if self._at < len(self._tokens) else ""
        self._at += 1
        return token

    def _taken(self, wanted: str) -> bool:
        if self._at < len(self._tokens) and self._tokens[self._at].lower() == wanted:
            self._at += 1
            return True
        return False

    def _need(self, wanted: str) -> None:
        if not self._taken(wanted):
            raise self._wrong()

    def _wrong(self) -> OptionError:
        return OptionError(
            f"{self._text[:80]!r} is neither JSON Schema, nor a file that there is, nor DDL as Spark has it "
            "(carrier STRING, delay DOUBLE)"
        )

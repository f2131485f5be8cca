"""`valueFormat` and its relatives: how the options of a read say what values are."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from json import JSONDecodeError, loads
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse

from highwater.spark.errors import OptionError

if TYPE_CHECKING:
    from highwater.spark.values.decoding import ValueDecoder

VALUE_OPTIONS = ("valueFormat", "valueSchema", "valueMessage", "valueSchemaId", "valueErrors", "includeRawValue")
_MAX_SCHEMA_ID = (1 << 32) - 1


class ValueFormat(Enum):
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class ValueErrors(Enum):
    """The effect of a value that does not fit its schema."""

    FAIL = "fail"
    NULL = "null"


class RawValues(Enum):
    """`includeRawValue`: which records have their bytes in a column `rawValue`."""

    NONE = "false"
    OF_ERRORS = "errors"
    ALL = "true"


@dataclass(frozen=True, slots=True)
class ValueOptions:
    """Goes to the executors pickled, with the schema itself: they need not reach its file."""

    format: ValueFormat
    schema: bytes
    message: str | None  # of Protobuf
    schema_id: int | None  # values have the header of a schema registry, with this id
    errors: ValueErrors
    raw: RawValues

    def decoder(self) -> ValueDecoder:
        """One for each process. Raises `OptionError`."""
        return _decoder(self.format, self.schema, self.message)

    def spark_type(self) -> str:
        """The type of the values as Spark's DDL. Raises `OptionError`."""
        from highwater.spark.values.schema_types import spark_type  # noqa: PLC0415 - Arrow, where values have a type

        return spark_type(self.decoder().type)


def parse_value_options(options: Mapping[str, str]) -> ValueOptions | None:
    """`options` by lower-case name; None: values are bytes. Reads the schema's file. Raises `OptionError`."""
    text = options.get("valueformat", "binary").strip().lower()
    names = {one.value for one in ValueFormat}
    if text == "binary":
        given = [name for name in VALUE_OPTIONS[1:] if name.lower() in options]
        if given and (given != ["includeRawValue"] or raw_values(options) is not RawValues.NONE):
            raise OptionError(f"option {given[0]} needs valueFormat: it can be {', '.join(sorted(names))}")
        return None
    if text not in names:
        raise OptionError(f"option valueFormat is {text!r}; it can be binary, {', '.join(sorted(names))}")
    kind = ValueFormat(text)
    said = options.get("valueschema")
    if said is None or not said.strip():
        raise OptionError(f"valueFormat {text} needs option valueSchema: {_WANTED[kind]}")
    message = options.get("valuemessage")
    if message is not None and kind is not ValueFormat.PROTOBUF:
        raise OptionError("option valueMessage is for valueFormat protobuf: remove it")
    return ValueOptions(
        kind, _schema(kind, said), message, _schema_id(options, kind), value_errors(options), raw_values(options)
    )


def value_errors(options: Mapping[str, str]) -> ValueErrors:
    """Raises `OptionError`."""
    text = options.get("valueerrors", "fail").strip().lower()
    if text not in {one.value for one in ValueErrors}:
        raise OptionError(f"option valueErrors is {text!r}; it can be fail or null")
    return ValueErrors(text)


def raw_values(options: Mapping[str, str]) -> RawValues:
    """Raises `OptionError`."""
    text = options.get("includerawvalue", "false").strip().lower()
    if text not in {one.value for one in RawValues}:
        raise OptionError(f"option includeRawValue is {text!r}; it can be true, errors or false")
    return RawValues(text)


_WANTED = {
    ValueFormat.JSON: "JSON Schema or Spark's DDL, or a file with it",
    ValueFormat.AVRO: "an Avro schema, or a file with it",
    ValueFormat.PROTOBUF: "a file with descriptors, as protoc --include_imports --descriptor_set_out writes it",
}


def _schema_id(options: Mapping[str, str], kind: ValueFormat) -> int | None:
    text = options.get("valueschemaid")
    if text is None:
        return None
    if kind is ValueFormat.PROTOBUF:
        raise OptionError("option valueSchemaId is for valueFormat avro and json: remove it")
    if not text.strip().isdecimal() or int(text) > _MAX_SCHEMA_ID:
        raise OptionError(f"option valueSchemaId is {text!r}; it is the number of valueSchema in its registry")
    return int(text)


def _schema(kind: ValueFormat, said: str) -> bytes:
    """The text itself, or what is in the file that it names."""
    text = said.strip()
    if kind is not ValueFormat.PROTOBUF and text[:1] in "{[":
        return text.encode()
    if (content := _content(text)) is not None:
        return content
    if kind is ValueFormat.JSON:
        return text.encode()  # DDL
    if kind is ValueFormat.PROTOBUF:
        try:
            return b64decode(text, validate=True)
        except (Base64Error, ValueError):
            pass
    raise OptionError(f"option valueSchema is {text[:80]!r}, and there is no such file: give {_WANTED[kind]}")


def _content(text: str) -> bytes | None:
    """The content of a file, by its path or URI; None where the text is neither."""
    try:
        if "://" not in text and not text.startswith("file:"):
            return Path(text).read_bytes() if Path(text).is_file() else None
        if urlparse(text).scheme == "file":
            return Path(urlparse(text).path).read_bytes()
        from pyarrow.fs import FileSystem  # noqa: PLC0415 - slow to import

        system, path = FileSystem.from_uri(text)
        with system.open_input_stream(path) as stream:
            return bytes(stream.read())
    except (OSError, ValueError) as error:
        if "://" not in text and not text.startswith("file:"):
            return None  # too long, or of characters that no path has
        raise OptionError(f"option valueSchema: {text} cannot be read: {error}") from None


@lru_cache(maxsize=8)
def _decoder(kind: ValueFormat, schema: bytes, message: str | None) -> ValueDecoder:
    if kind is ValueFormat.PROTOBUF:
        from highwater.spark.values.protobuf_values import ProtobufDecoder  # noqa: PLC0415 - of one format only

        return ProtobufDecoder(schema, message)
    try:
        text = schema.decode()
    except UnicodeDecodeError:
        raise OptionError("option valueSchema is no text: it must be UTF-8") from None
    if kind is ValueFormat.AVRO:
        from highwater.spark.values.avro_values import AvroDecoder  # noqa: PLC0415 - the same

        return AvroDecoder(text)
    from highwater.spark.values.ddl import parse_ddl  # noqa: PLC0415 - the same
    from highwater.spark.values.json_schema import parse_json_schema  # noqa: PLC0415 - the same
    from highwater.spark.values.json_values import JsonDecoder  # noqa: PLC0415 - the same

    if not text.lstrip().startswith("{"):
        return JsonDecoder(parse_ddl(text))
    try:
        return JsonDecoder(parse_json_schema(loads(text)))
    except JSONDecodeError as error:
        raise OptionError(f"option valueSchema is no JSON Schema: {error}") from None

"""`--value-schema`: values of records as structs, in the pipelines that read them."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import TYPE_CHECKING, Annotated

import typer

from highwater.errors import UserError
from highwater.spark.errors import OptionError
from highwater.spark.options.data_source_options import lower_case
from highwater.spark.pipelines.command.pipeline_options import PipelineOptions, StreamOptions, key_values
from highwater.spark.pipelines.files.hadoop_files import HadoopFiles
from highwater.spark.values.schema_types import spark_type
from highwater.spark.values.typed_columns import REMEDY
from highwater.spark.values.value_options import parse_value_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Of the source's options: those that `--value-schema` says.
_OF_VALUES = ("valueformat", "valueschema", "valuemessage", "valueerrors", "includerawvalue")
_MESSAGE = re.compile(r"(.+):(\w+(?:\.\w+)*)")


class ValueFormat(StrEnum):
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


_BY_ENDING = {
    ".json": ValueFormat.JSON,
    ".ddl": ValueFormat.JSON,
    ".avsc": ValueFormat.AVRO,
    ".desc": ValueFormat.PROTOBUF,
}


@dataclass(frozen=True, kw_only=True)
class ValueTypeOptions(PipelineOptions):
    """Options of a pipeline whose values may have a type."""

    option: Annotated[
        list[str],
        typer.Option(metavar="KEY=VALUE", help="an option of the Spark source, e.g. highwater.…; may be repeated"),
    ] = field(default_factory=list)
    value_schema: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="file (any of Spark's file systems) with the schema of the values: .json (JSON Schema), .ddl, .avsc, "
            ".desc or .desc:MESSAGE",
            show_default=False,
        ),
    ] = None
    value_format: Annotated[
        ValueFormat | None,
        typer.Option(help="of values and schema; default: as the file's ending says", show_default=False),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_value_options(self.option, "say --value-schema PATH")
        if self.value_format is not None and self.value_schema is None:
            raise UserError("--value-format is of --value-schema: say that, too")
        if self.value_schema is not None:
            _ = self.schema_file

    @property
    def schema_file(self) -> tuple[str, ValueFormat, str | None]:
        """Its path, its format and Protobuf's message. Raises `UserError`."""
        assert self.value_schema is not None
        path, message = self.value_schema, None
        kind = self.value_format or _of_ending(path)
        if kind in (None, ValueFormat.PROTOBUF) and (found := _MESSAGE.fullmatch(path)) is not None:
            kind = kind or _of_ending(found[1])
            path, message = (found[1], found[2]) if kind is ValueFormat.PROTOBUF else (path, None)
        if kind is None:
            raise UserError(f"--value-schema {path}: say with --value-format whether that is json, avro or protobuf")
        return path, kind, message


@dataclass(frozen=True, kw_only=True)
class ValueSchemaOptions(ValueTypeOptions, StreamOptions):
    dead_letter: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC",
            help="where records go whose values cannot be processed, with their error in the headers; it must exist",
            show_default=False,
        ),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dead_letter is not None:
            check_not_read(self.dead_letter, self.topic, self.pattern)


def _of_ending(path: str) -> ValueFormat | None:
    return next((kind for ending, kind in _BY_ENDING.items() if path.endswith(ending)), None)


def check_value_options(items: list[str], instead: str) -> None:
    """Refuses those of `--option` that would give values a type behind the pipeline's back. Raises `UserError`."""
    for name in lower_case(key_values("--option", items)):
        if name in _OF_VALUES:
            raise UserError(f"--option {name} is not for a pipeline: {instead}")


def check_not_read(dead_letter: str, topics: Sequence[str], pattern: str | None) -> None:
    """Raises `UserError` where what goes to the topic would be read again."""
    if dead_letter in topics or (pattern is not None and re.fullmatch(pattern, dead_letter)):
        raise UserError(f"--dead-letter {dead_letter} is one of the topics that are read: name another topic")


@dataclass(frozen=True, slots=True)
class ValueType:
    ddl: str = "binary"  # the type of the column `value`
    source_options: Mapping[str, str] = field(default_factory=dict)


BYTES = ValueType()


class BadValues(Enum):
    """The treatment by the source of values that do not fit."""

    FAIL = auto()
    NULL = auto()  # with a column `valueError`
    RAW = auto()  # and `rawValue` of those
    ALL_RAW = auto()  # and of all


_OPTIONS = {
    BadValues.FAIL: {},
    BadValues.NULL: {"valueErrors": "null"},
    BadValues.RAW: {"valueErrors": "null", "includeRawValue": "errors"},
    BadValues.ALL_RAW: {"valueErrors": "null", "includeRawValue": "true"},
}


def value_type(spark: SparkSession, options: ValueTypeOptions, bad: BadValues) -> ValueType:
    """The type of the values as `options` give it. Raises `UserError`."""
    if options.value_schema is None:
        return BYTES
    path, kind, message = options.schema_file
    files = HadoopFiles(spark, path)
    if not files.exists(path):
        raise UserError(f"--value-schema {path}: there is no such file")
    content = files.read(path)
    found = {"valueFormat": kind.value, **_OPTIONS[bad]}
    try:
        found["valueSchema"] = b64encode(content).decode() if kind is ValueFormat.PROTOBUF else content.decode()
        if message is not None:
            found["valueMessage"] = message
        parsed = parse_value_options(lower_case({**key_values("--option", options.option), **found}))
        assert parsed is not None
        return ValueType(spark_type(parsed.decoder().type), found)
    except UnicodeDecodeError:
        raise UserError(f"--value-schema {path} is no text: it must be UTF-8") from None
    except OptionError as error:
        raise UserError(re.sub(r"\boption valueSchema\b", f"--value-schema {path}", str(error))) from None


@contextmanager
def remedy_named(remedy: str) -> Iterator[None]:
    """Names the remedy, in errors of values that do not fit, that the user of a pipeline has."""
    try:
        yield
    except UserError as error:
        if REMEDY not in str(error):
            raise
        raise UserError(str(error).replace(REMEDY, remedy)) from error

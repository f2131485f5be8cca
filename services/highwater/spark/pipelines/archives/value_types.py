"""The type of an archive's values: bytes, or a struct where it is written with `--value-schema`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from highwater.errors import UserError
from highwater.spark.pipelines.archives.files import directories
from highwater.spark.pipelines.files.hadoop_files import HadoopFiles
from highwater.spark.pipelines.typed_values.value_schema import BYTES, ValueType
from highwater.spark.values.schema_types import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SHOWN_CHARS = 200  # of a type


def value_type_of(rows: DataFrame) -> str:
    """The type of the values as Spark's DDL, as `ValueType` has it."""
    return _ddl(rows.schema["value"].dataType) if "value" in rows.columns else BYTES.ddl


def value_type_of_files(spark: SparkSession, files: HadoopFiles, directory: str) -> str | None:
    """The type of the values in one of the files; None where there is none."""
    paths = (one.path(name) for one in directories(files, directory) for name in one.sizes_bytes)
    first = next((path for path in paths if path.endswith(".parquet")), None)
    return None if first is None else value_type_of(spark.read.parquet(f"{directory}/{first}"))


def check_value_type(archive: str, found: str, values: ValueType) -> None:
    """Raises `UserError` where other values would go into an archive than it has."""
    if found == values.ddl:
        return
    if found == BYTES.ddl:
        raise UserError(f"{archive} has values as bytes: leave --value-schema out, or name another directory")
    if values.ddl == BYTES.ddl:
        raise UserError(f"{archive} has values with a type: say --value-schema, as it was written with")
    raise UserError(
        f"{archive} has values of another type than --value-schema says, {found[:_SHOWN_CHARS]}: take the schema that "
        "it was written with, or another directory"
    )


def check_bytes(archive: str, found: str | None) -> None:
    """Raises `UserError` where an archive does not have the values as they were."""
    if found not in (None, BYTES.ddl):
        raise UserError(
            f"{archive} was written with --value-schema: it has not the bytes of its values, and cannot be replayed"
        )


def _ddl(kind: Any) -> str:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        return f"struct<{','.join(f'{quoted(one.name)}:{_ddl(one.dataType)}' for one in kind.fields)}>"
    if isinstance(kind, ArrayType):
        return f"array<{_ddl(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{_ddl(kind.keyType)},{_ddl(kind.valueType)}>"
    return str(kind.simpleString())

"""The query of a rollup: records of JSON as columns, and what is computed from them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from highwater.errors import UserError
from highwater.spark.pipelines.files.hadoop_files import HadoopFiles
from highwater.spark.values.typed_columns import VALUE_ERROR

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

VIEW = "records"
# Beside the fields of the values, for SQL.
RECORD_COLUMNS = ("_key", "_topic", "_partition", "_offset", "_timestamp")

ERROR = "_error"
REMEDY = "correct --schema, --value-schema or --time-column, or say --dead-letter TOPIC or --bad-records skip"

_BAD = "_corrupt_record"
_NOTHING: Mapping[str, str] = {}
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


@dataclass(frozen=True, slots=True)
class Rollup:
    """The computation of a rollup. Intervals are Spark's, e.g. `10 minutes`."""

    time_column: str | None
    watermark: str
    window: str | None
    slide: str | None
    group_by: tuple[str, ...]
    count: bool
    sums: tuple[str, ...]
    means: tuple[str, ...]
    sql: str | None
    key: tuple[str, ...]

    def fields(self) -> tuple[str, ...]:
        """Those of the values that are named."""
        named = (*((self.time_column,) if self.time_column else ()), *self.group_by, *self.sums, *self.means)
        return tuple(dict.fromkeys(named))


@dataclass(frozen=True, slots=True)
class Result:
    rows: DataFrame
    key: tuple[str, ...]  # the columns that say which row it is; empty: not known

    def keyed(self) -> DataFrame:
        """Rows as records: JSON of the key's columns, and of all."""
        from pyspark.sql import functions as f

        value = f.to_json(f.struct(*self.rows.columns)).alias("value")
        key = f.to_json(f.struct(*self.key)) if self.key else f.lit(None).cast("string")
        return self.rows.select(key.alias("key"), value)


def interval(option: str, text: str) -> str:
    """`10m` as Spark writes it; raises `UserError`."""
    found = re.fullmatch(r"(\d+) *(ms|s|m|h|d)", text)
    if found is None:
        raise UserError(f"{option} is {text!r}; it can be a time like 500ms, 30s, 10m, 1h, 1d")
    return f"{found[1]} {_UNITS[found[2]]}"


def same_schema(
    spark: SparkSession, checkpoint: str, option: str, given: StructType | None, sample: Callable[[], DataFrame]
) -> StructType:
    """The schema that the job was begun with: what Spark keeps in the checkpoint depends on it. A new job takes
    what `option` gives, or that of the values of a sample, and writes it down. Raises `UserError`."""
    from pyspark.sql.types import StructType

    files, path = HadoopFiles(spark, checkpoint), f"{checkpoint}/rollup/schema"
    noted = StructType.fromJson(json.loads(files.read(path))) if files.exists(path) else None
    if noted is not None:
        if given is not None and given != noted:
            raise UserError(
                f"{option} is not the one that {checkpoint} was begun with, {noted.simpleString()}: take that, or "
                "another checkpoint"
            )
        return noted
    schema = given if given is not None else _inferred(spark, sample())
    files.write(path, schema.json().encode())
    return schema


def _inferred(spark: SparkSession, sample: DataFrame) -> StructType:
    values = sample.where("value is not null").selectExpr("cast(value as string) value")
    schema: Any = spark.read.json(values.rdd.map(lambda row: row.value)).schema
    fields = [name for name in schema.fieldNames() if name != _BAD]
    if not fields:
        raise UserError("there is no JSON object among the first records to take the schema from: say it with --schema")
    found: StructType = schema if _BAD not in schema.fieldNames() else type(schema)([schema[name] for name in fields])
    return found


def marked_records(
    frame: DataFrame, schema: StructType, time_column: str | None, *, extra: Mapping[str, str] = _NOTHING
) -> DataFrame:
    """The fields of the values, and `RECORD_COLUMNS`, of a read whose values are JSON, or have a type; in `ERROR` why a
    record cannot count, null where it can. Tombstones are left out. `extra`: other columns of the read, and what they
    are called. Raises `UserError` where the time column cannot be a time."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import BinaryType, StructType

    error: Column
    if isinstance(frame.schema["value"].dataType, BinaryType):
        with_bad = StructType([*schema.fields]).add(_BAD, "string")  # a list of its own: it adds to it
        value = f.from_json(f.col("value").cast("string"), with_bad, {"columnNameOfCorruptRecord": _BAD})
        frame, there = frame.where("value is not null"), f.col(f"_json.{_BAD}").isNull() & f.col("_json").isNotNull()
        error = f.when(~there, f.lit("the value is not a JSON object of the schema"))
    elif VALUE_ERROR in frame.columns:
        value, error = f.col("value"), f.col(ERROR)
        frame = frame.where(f"value is not null or {VALUE_ERROR} is not null")
        extra = {**extra, VALUE_ERROR: ERROR}
    else:
        value, error = f.col("value"), f.lit(None).cast("string")
        frame = frame.where("value is not null")
    parsed = frame.select(
        value.alias("_json"),
        *(f.col(name[1:]).alias(name) for name in RECORD_COLUMNS),
        *(f.col(name).alias(called) for name, called in extra.items()),
    )
    time = "_timestamp"
    columns: list[Column] = [f.col(f"_json.`{name}`").alias(name) for name in schema.fieldNames()]
    if time_column is not None:
        time = time_column
        columns[schema.fieldNames().index(time)] = _time(schema, time).alias(time)
    others = [called for called in extra.values() if called != ERROR]
    flat = parsed.select(*columns, error.alias(ERROR), *RECORD_COLUMNS, *others)
    timeless = f.when(f.col(f"`{time}`").isNull(), f.lit(f"the value has no time in {time}"))
    return flat.withColumn(ERROR, f.coalesce(f.col(ERROR), timeless))


def parsed_records(frame: DataFrame, schema: StructType, rollup: Rollup, *, skip_bad: bool) -> DataFrame:
    """The fields of the values, and `RECORD_COLUMNS`, with the watermark.

    Raises `UserError` where a field that is named is not there, or cannot be a time."""
    from pyspark.sql import functions as f

    missing = [name for name in rollup.fields() if name not in schema.fieldNames()]
    if missing:
        raise UserError(f"the values have no field {missing[0]}: the schema is {schema.simpleString()}")
    marked = marked_records(frame, schema, rollup.time_column)
    wrong = f.col(ERROR).isNotNull()
    if skip_bad:
        marked = marked.where(~wrong)
    else:
        marked = marked.where(f.when(wrong, f.raise_error(_complaint()).cast("boolean")).otherwise(f.lit(True)))
    return marked.drop(ERROR).withWatermark(rollup.time_column or "_timestamp", rollup.watermark)


def _complaint() -> Column:
    from pyspark.sql import functions as f

    return f.concat(
        f.col("_topic"),
        f.lit("-"),
        f.col("_partition").cast("string"),
        f.lit(", offset "),
        f.col("_offset").cast("string"),
        f.lit(": "),
        f.col(ERROR),
        f.lit(f"; {REMEDY}"),
    )


def _time(schema: StructType, name: str) -> Column:
    from pyspark.sql import functions as f

    kind = schema[name].dataType.simpleString()
    column = f.col(f"_json.`{name}`")
    if kind in ("timestamp", "timestamp_ntz", "date"):
        return column.cast("timestamp")
    if kind == "string":
        return f.try_to_timestamp(column)
    if kind in ("bigint", "int"):
        return f.timestamp_millis(column)
    raise UserError(f"--time-column {name} is {kind}; it can be a TIMESTAMP, a STRING that is one, or a BIGINT of ms")


def rolled_up(spark: SparkSession, records: DataFrame, rollup: Rollup) -> Result:
    """Raises `UserError`, and what Spark says of a query that cannot be run."""
    from pyspark.sql import functions as f

    if rollup.sql is not None:
        records.createOrReplaceTempView(VIEW)
        rows = spark.sql(rollup.sql)
        missing = [name for name in rollup.key if name not in rows.columns]
        if missing:
            raise UserError(f"--key {missing[0]}: the query has the columns {', '.join(rows.columns)}")
        return Result(rows, rollup.key)
    groups: list[Column] = [f.col(f"`{name}`") for name in rollup.group_by]
    begins: list[Column] = []
    if rollup.window is not None:
        time = f.col(f"`{rollup.time_column}`") if rollup.time_column is not None else f.col("_timestamp")
        groups.insert(0, f.window(time, rollup.window, rollup.slide).alias("window"))
        begins = [f.col("window.start").alias("start"), f.col("window.end").alias("end")]
    sums = [f.sum(_number(records, name)).alias(f"sum_{name}") for name in rollup.sums]
    means = [f.avg(_number(records, name)).alias(f"mean_{name}") for name in rollup.means]
    counts = [f.count(f.lit(1)).alias("count")] if rollup.count else []
    made = [*counts, *sums, *means]
    rows = records.groupBy(*groups).agg(*made)
    kept = [name for name in rows.columns if name != "window"]
    key = (*(("start", "end") if begins else ()), *rollup.group_by)
    return Result(rows.select(*begins, *(f"`{name}`" for name in kept)), key)


def _number(records: DataFrame, name: str) -> Column:
    """The number that text says (as rows of a CSV file have become JSON), null where it says none."""
    from pyspark.sql import functions as f

    column = f.col(f"`{name}`")
    return column.try_cast("double") if records.schema[name].dataType.simpleString() == "string" else column

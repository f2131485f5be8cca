"""Bytes in a column `value` as structs, for rows that do not come from the source (which decodes its own)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from highwater.spark.schema import spark_schema
from highwater.spark.values.typed_columns import RAW_VALUE, VALUE_ERROR, TypedColumns
from highwater.spark.values.value_options import RawValues, ValueErrors, ValueOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def decoded(rows: DataFrame, options: ValueOptions) -> DataFrame:
    """Decodes values, adding `valueError`, and `rawValue` where it is asked for. `rows` has columns of a read; values
    that do not fit are to be null. Raises `OptionError`."""
    assert options.errors is ValueErrors.NULL
    raw = () if options.raw is RawValues.NONE else (RAW_VALUE,)
    columns = (*rows.columns, VALUE_ERROR, *raw)
    return rows.mapInArrow(partial(_decoded, options, columns), spark_schema(columns, options.spark_type()))


def _decoded(
    options: ValueOptions, columns: tuple[str, ...], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    typed = TypedColumns(options, columns)
    for batch in batches:
        yield typed.of(batch.select(list(typed.read)), "", 0)  # it names a place only where a bad value is an error

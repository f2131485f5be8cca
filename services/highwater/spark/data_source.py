"""`format("highwater")`: the data source that Spark makes for each read and each write.

Readers and writers are imported where they are made: Spark starts a Python process to find this class, another one to
ask it for its schema, and a third one to make a reader, all before a query's first task."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from highwater.spark.errors import OptionError, ShortTraceback
from highwater.spark.options.data_source_options import lower_case, parse_columns
from highwater.spark.schema import spark_schema
from highwater.spark.values.value_options import parse_value_options


class HighwaterDataSource(DataSource):
    """The data source. Options that cannot be used raise `OptionError`, which Spark shows when the query is planned."""

    @classmethod
    def name(cls) -> str:
        return "highwater"

    def schema(self) -> str:
        with ShortTraceback():
            values = parse_value_options(lower_case(self.options))
            value = None if values is None else values.spark_type()
            return spark_schema(parse_columns(self.options), value)

    def reader(self, schema: StructType) -> DataSourceReader:
        from highwater.spark.source.batch_reader import batch_reader

        with ShortTraceback():
            self._check_schema(schema)
            return batch_reader(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from highwater.spark.source.stream_reader import HighwaterStreamReader

        with ShortTraceback():
            self._check_schema(schema)
            return HighwaterStreamReader(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from highwater.spark.sink.writer import HighwaterWriter

        with ShortTraceback():
            return HighwaterWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from highwater.spark.sink.writer import HighwaterStreamWriter

        with ShortTraceback():
            return HighwaterStreamWriter(self.options, schema, overwrite=overwrite)

    def _check_schema(self, schema: StructType) -> None:
        wanted = list(parse_columns(self.options))
        if schema.fieldNames() != wanted:
            raise OptionError(
                f"the schema of a topic is fixed ({', '.join(wanted)}): leave .schema(...) out; "
                "the option columns chooses some of them, and valueFormat gives values a type"
            )

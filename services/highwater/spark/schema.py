"""The columns of a read: those of Spark's Kafka source. Pure."""

from __future__ import annotations

READ_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
VALUE_COLUMNS = ("valueError", "rawValue")  # of values with a type, where they are asked for
_SPARK_TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
    "valueError": "string",
    "rawValue": "binary",
}
# `headers` for rows that go to Python. Nulls cost Spark the square of their number: after each row it looks how large
# its batch of Arrow is, and Arrow then goes over all the nulls behind the last array.
NO_NULL_HEADERS = f"coalesce(headers, cast(array() as {_SPARK_TYPES['headers']})) as headers"


def spark_schema(columns: tuple[str, ...], value: str | None = None) -> str:
    """The schema of these columns as Spark's DDL. `value`: the type of the values, where it is not binary."""
    types = _SPARK_TYPES if value is None else {**_SPARK_TYPES, "value": value}
    return ", ".join(f"`{name}` {types[name]}" for name in columns)

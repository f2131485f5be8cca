"""The columns of a read: those of Spark's Kafka source. Pure."""

from __future__ import annotations

READ_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
_SPARK_TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}


def spark_schema(columns: tuple[str, ...]) -> str:
    """As Spark's DDL."""
    return ", ".join(f"`{name}` {_SPARK_TYPES[name]}" for name in columns)

"""Values with a type: structs instead of bytes, in batch and in streams, through Spark's own idea of the columns."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import to_the_end
from fastavro import parse_schema, schemaless_writer
from google.protobuf import descriptor_pb2, text_format
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from highwater.cli.local_cluster import LocalCluster
from highwater.client.blocking import Admin, Producer

Read = Callable[..., DataFrame]
DDL = (
    "id INT NOT NULL, name STRING, day DATE, at TIMESTAMP, at_ntz TIMESTAMP_NTZ, fare DECIMAL(8,2), raw BINARY, "
    "ok BOOLEAN, x FLOAT, stops ARRAY<STRUCT<iata: STRING, legs: ARRAY<BIGINT>>>, tags MAP<STRING, STRUCT<n: DOUBLE>>"
)
ROW = {
    "id": 1,
    "name": "ä",
    "day": "2026-11-21",
    "at": "2026-11-21T12:00:00Z",
    "at_ntz": "2026-11-21T12:00:00",
    "fare": 12.5,
    "raw": "AAE=",
    "ok": True,
    "x": 0.5,
    "stops": [{"iata": "EWR", "legs": [1, None]}, None],
    "tags": {"a": {"n": 1}, "b": None},
}
AVRO = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "string"}}},
    ],
}
PROTO = """
name: "flight.proto" syntax: "proto3"
message_type {
  name: "Flight"
  field { name: "id" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL }
  field { name: "miles" number: 2 type: TYPE_UINT64 label: LABEL_REPEATED }
}
"""


def json_of(row: Any) -> bytes:
    return json.dumps(row).encode()


def avro_of(row: Any) -> bytes:
    stream = io.BytesIO()
    schemaless_writer(stream, parse_schema(AVRO), row)
    return stream.getvalue()


@pytest.fixture(scope="module")
def topics(cluster: LocalCluster, admin: Admin) -> None:
    """`typed-…`: of each format, some values; the third is bad, the fourth is a tombstone."""
    values = {
        "json": [json_of(ROW), b'{"id":2,"other":[1]}', b'{"name":"x"}', None],
        "avro": [avro_of({"id": 1, "at": 0, "tags": {"a": ["x"]}}), avro_of({"id": 2, "tags": {}}), b"?", None],
        "protobuf": [b"\x08\x01\x12\x02\x05\x06", b"\x08\x02", b"\x08", None],
    }
    with Producer(cluster.bootstrap) as producer:
        for name, rows in values.items():
            admin.create_topic(f"typed-{name}", 1, 1)
            producer.send_table(f"typed-{name}", pa.table({"value": pa.array(rows, pa.binary())}))


def options_of(kind: str, directory: Path) -> dict[str, Any]:
    found = {"subscribe": f"typed-{kind}", "valueFormat": kind, "startingOffsets": "earliest"}
    if kind == "json":
        return {**found, "valueSchema": DDL}
    if kind == "avro":
        (directory / "flight.avsc").write_text(json.dumps(AVRO))
        return {**found, "valueSchema": directory / "flight.avsc"}
    file = text_format.Parse(PROTO, descriptor_pb2.FileDescriptorProto())
    (directory / "air.desc").write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    return {**found, "valueSchema": directory / "air.desc", "valueMessage": "Flight"}


FOUND = {
    "json": (
        '{"id":1,"name":"ä","day":"2026-11-21","at":"2026-11-21T12:00:00.000Z","at_ntz":"2026-11-21T12:00:00.000",'
        '"fare":12.50,"raw":"AAE=","ok":true,"x":0.5,"stops":[{"iata":"EWR","legs":[1,null]},null],'
        '"tags":{"a":{"n":1.0},"b":null}}'
    ),
    "avro": '{"id":1,"at":"1970-01-01T00:00:00.000Z","tags":{"a":["x"]}}',
    "protobuf": '{"id":1,"miles":[5,6]}',
}


@pytest.mark.parametrize("kind", FOUND)
@pytest.mark.usefixtures("topics")
def test_a_batch_read(kind: str, read: Read, tmp_path: Path) -> None:
    frame = read(**options_of(kind, tmp_path), valueErrors="null", includeRawValue="errors")
    rows = frame.selectExpr("to_json(value) text", "value.id", "valueError", "rawValue").collect()
    assert rows[0].text == FOUND[kind]
    assert [row.id for row in rows] == [1, 2, None, None]
    assert [row.valueError is None for row in rows] == [True, True, False, True]
    assert [row.rawValue is None for row in rows] == [True, True, False, True]
    assert frame.where("value.id = 2 and valueError is null").count() == 1


@pytest.mark.usefixtures("topics")
def test_a_bad_value_fails_a_read_with_one_sentence(read: Read, tmp_path: Path) -> None:
    with pytest.raises(PySparkException) as error:
        read(**options_of("json", tmp_path)).collect()
    (line,) = [one for one in str(error.value).splitlines() if "BadValueError: " in one]
    assert line.partition("Error: ")[2] == (
        "typed-json-0, offset 2: the value cannot be read as json: field id is missing, and it is required; correct "
        "valueSchema, or set valueErrors to null"
    )


@pytest.mark.usefixtures("topics")
def test_a_stream(read_stream: Read, spark: SparkSession, tmp_path: Path) -> None:
    frame = read_stream(**options_of("avro", tmp_path), valueErrors="null", columns="value,valueError,offset")
    writer = frame.writeStream.format("memory").queryName("typed").option("checkpointLocation", str(tmp_path / "c"))
    to_the_end(writer)
    assert [row.id for row in spark.table("typed").orderBy("offset").selectExpr("value.id").collect()] == [
        1,
        2,
        None,
        None,
    ]


@pytest.mark.usefixtures("topics")
def test_values_of_a_schema_registry(
    cluster: LocalCluster, admin: Admin, read: Read, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, 1, 1)
    values = [b"\0\0\0\0\7" + avro_of({"id": 5, "tags": {}})]
    with Producer(cluster.bootstrap) as producer:
        producer.send_table(topic, pa.table({"value": values}))
    given = {**options_of("avro", tmp_path), "subscribe": topic, "valueSchemaId": 7}
    assert [row.id for row in read(**given).select("value.id").collect()] == [5]

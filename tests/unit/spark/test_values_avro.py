"""Avro values as structs."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_writer
from hypothesis import given
from hypothesis import strategies as st

from highwater.spark.errors import OptionError
from highwater.spark.values.avro_values import AvroDecoder
from highwater.spark.values.decoding import decoded_column
from highwater.spark.values.schema_types import spark_type

PLACE = {"type": "record", "name": "Place", "fields": [{"name": "iata", "type": "string"}]}
FLIGHT = {
    "type": "record",
    "name": "Flight",
    "namespace": "air",
    "fields": [
        {"name": "number", "type": "int"},
        {"name": "miles", "type": ["null", "long"], "default": None},
        {"name": "delay", "type": "float"},
        {"name": "late", "type": "boolean"},
        {"name": "carrier", "type": {"type": "enum", "name": "Carrier", "symbols": ["UA", "AA"]}},
        {"name": "origin", "type": PLACE},
        {"name": "stops", "type": {"type": "array", "items": ["null", "Place"]}},
        {"name": "tags", "type": {"type": "map", "values": "bytes"}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "fare", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "at_us", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "local", "type": ["null", {"type": "long", "logicalType": "local-timestamp-millis"}]},
    ],
}
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
WRITTEN: dict[str, Any] = {
    "number": 15,
    "miles": None,
    "delay": -2.5,
    "late": False,
    "carrier": "AA",
    "origin": {"iata": "EWR"},
    "stops": [{"iata": "IAH"}, None],
    "tags": {"gate": b"A1"},
    "hash": b"\0\1",
    "id": "5d9e7a3c-0000-4000-8000-000000000000",
    "fare": Decimal("120.50"),
    "day": date(2026, 11, 21),
    "at": NOON,
    "at_us": NOON.replace(microsecond=1),
    "local": NOON.replace(tzinfo=None),
}


def encoded(schema: Any, row: Any) -> bytes:
    stream = io.BytesIO()
    schemaless_writer(stream, parse_schema(json.loads(json.dumps(schema))), row)
    return stream.getvalue()


def test_every_type() -> None:
    decoder = AvroDecoder(json.dumps(FLIGHT))
    assert spark_type(decoder.type) == (
        "struct<`number`:int,`miles`:bigint,`delay`:float,`late`:boolean,`carrier`:string,`origin`:struct<`iata`:string>,"
        "`stops`:array<struct<`iata`:string>>,`tags`:map<string,binary>,`hash`:binary,`id`:string,`fare`:decimal(6,2),"
        "`day`:date,`at`:timestamp,`at_us`:timestamp,`local`:timestamp_ntz>"
    )
    found = decoded_column(decoder, pa.array([encoded(FLIGHT, WRITTEN), None], pa.binary()))
    assert found.values.type == decoder.type
    assert found.values.to_pylist() == [{**WRITTEN, "tags": [("gate", b"A1")]}, None]
    assert not found.errors


def test_what_does_not_fit() -> None:
    good = encoded(FLIGHT, WRITTEN)
    far = encoded({"type": "record", "name": "F", "fields": [{"name": "at", "type": "long"}]}, {"at": 2**62})
    values = [good, good[:-1], good + b"x", b"", b"\0\0\0\0\7" + good]
    found = decoded_column(AvroDecoder(json.dumps(FLIGHT)), pa.array(values))
    assert found.values.is_valid().to_pylist() == [True, False, False, False, False]
    assert list(found.errors) == [1, 2, 3, 4]
    assert found.errors[1].startswith("it does not fit the Avro schema (")
    assert found.errors[2] == f"it does not fit the Avro schema: 1 of its {len(good) + 1} bytes are left"
    assert found.errors[4].endswith("; it begins as values of a schema registry do: see option valueSchemaId")

    at = {"type": "record", "name": "F", "fields": [{"name": "at", "type": {"type": "long"}}]}
    at["fields"][0]["type"]["logicalType"] = "timestamp-millis"  # type: ignore[index]
    here = encoded({"type": "record", "name": "F", "fields": [{"name": "at", "type": "long"}]}, {"at": 0})
    found = decoded_column(AvroDecoder(json.dumps(at)), pa.array([here, far, here]))
    assert found.values.to_pylist() == [{"at": datetime(1970, 1, 1, tzinfo=UTC)}, None, found.values[0].as_py()]
    assert list(found.errors) == [1]


@given(st.lists(st.binary(max_size=20), max_size=5))
def test_any_bytes_are_a_value_or_bad(values: list[bytes]) -> None:
    found = decoded_column(AvroDecoder(json.dumps(FLIGHT)), pa.array(values, pa.binary()))
    assert [one is None for one in found.values] == [place in found.errors for place in range(len(values))] or values
    assert len(found.values) == len(values)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("{", "option valueSchema is no Avro schema: it is no JSON"),
        ('{"type": "record"}', "option valueSchema is no Avro schema: "),
        ('"string"', "option valueSchema is no record"),
        (json.dumps({**PLACE, "fields": [{"name": "a", "type": ["int", "string"]}]}), "field a may be of 2 types"),
        (json.dumps({**PLACE, "fields": [{"name": "a", "type": "null"}]}), "field a is of type null"),
        (
            json.dumps({**PLACE, "fields": [{"name": "a", "type": ["null", "Place"]}]}),
            "field a contains itself (Place)",
        ),
    ],
)
def test_schemas_that_no_column_has(schema: str, said: str) -> None:
    with pytest.raises(OptionError) as error:
        AvroDecoder(schema)
    assert str(error.value).startswith(said)

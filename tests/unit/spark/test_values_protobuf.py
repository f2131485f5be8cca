"""Protobuf values as structs."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, text_format, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from highwater.spark.errors import OptionError
from highwater.spark.values.decoding import Decoded, decoded_column
from highwater.spark.values.protobuf_values import ProtobufDecoder
from highwater.spark.values.schema_types import spark_type

FILE = """
name: "flight.proto" package: "air" syntax: "proto3"
dependency: "google/protobuf/timestamp.proto" dependency: "google/protobuf/wrappers.proto"
enum_type { name: "Carrier" value { name: "NONE" number: 0 } value { name: "UA" number: 1 } }
message_type { name: "Place" field { name: "iata" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL } }
message_type { name: "Loop" field { name: "a" number: 1 type: TYPE_MESSAGE type_name: ".air.Loop" } }
message_type { name: "Empty" }
message_type {
  name: "Flight"
  field { name: "number" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL }
  field { name: "miles" number: 2 type: TYPE_UINT64 label: LABEL_OPTIONAL proto3_optional: true oneof_index: 1 }
  field { name: "delay" number: 3 type: TYPE_FLOAT label: LABEL_OPTIONAL }
  field { name: "carrier" number: 4 type: TYPE_ENUM type_name: ".air.Carrier" label: LABEL_OPTIONAL }
  field { name: "origin" number: 5 type: TYPE_MESSAGE type_name: ".air.Place" label: LABEL_OPTIONAL }
  field { name: "stops" number: 6 type: TYPE_MESSAGE type_name: ".air.Place" label: LABEL_REPEATED }
  field { name: "codes" number: 7 type: TYPE_SINT64 label: LABEL_REPEATED }
  field { name: "tags" number: 8 type: TYPE_MESSAGE type_name: ".air.Flight.TagsEntry" label: LABEL_REPEATED }
  field { name: "at" number: 9 type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp" label: LABEL_OPTIONAL }
  field { name: "seats" number: 10 type: TYPE_MESSAGE type_name: ".google.protobuf.UInt32Value" label: LABEL_OPTIONAL }
  field { name: "gate" number: 11 type: TYPE_STRING label: LABEL_OPTIONAL oneof_index: 0 }
  field { name: "stand" number: 12 type: TYPE_BYTES label: LABEL_OPTIONAL oneof_index: 0 }
  nested_type {
    name: "TagsEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type: TYPE_MESSAGE type_name: ".air.Place" label: LABEL_OPTIONAL }
  }
  oneof_decl { name: "place" }
  oneof_decl { name: "_miles" }
}
"""
OLD = """
name: "old.proto" package: "old"
message_type { name: "Old" field { name: "id" number: 1 type: TYPE_INT32 label: LABEL_REQUIRED } }
"""


def descriptors(*texts: str) -> bytes:
    files = [text_format.Parse(text, descriptor_pb2.FileDescriptorProto()) for text in texts]
    return descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()


def flight(**fields: Any) -> bytes:
    pool = DescriptorPool()
    for module in (timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    pool.Add(text_format.Parse(FILE, descriptor_pb2.FileDescriptorProto()))
    made = GetMessageClass(pool.FindMessageTypeByName("air.Flight"))(**fields)
    return bytes(made.SerializeToString())


def read(*values: bytes | None) -> Decoded:
    return decoded_column(ProtobufDecoder(descriptors(FILE), "air.Flight"), pa.array(values, pa.binary()))


NOTHING: dict[str, Any] = {
    "number": 0,
    "miles": None,
    "delay": 0.0,
    "carrier": "NONE",
    "origin": None,
    "stops": [],
    "codes": [],
    "tags": [],
    "at": None,
    "seats": None,
    "gate": None,
    "stand": None,
}


def test_every_type() -> None:
    decoder = ProtobufDecoder(descriptors(FILE), "air.Flight")
    assert spark_type(decoder.type) == (
        "struct<`number`:int,`miles`:decimal(20,0),`delay`:float,`carrier`:string,`origin`:struct<`iata`:string>,"
        "`stops`:array<struct<`iata`:string>>,`codes`:array<bigint>,`tags`:map<string,struct<`iata`:string>>,"
        "`at`:timestamp,`seats`:bigint,`gate`:string,`stand`:binary>"
    )
    value = flight(
        number=-15,
        miles=2**64 - 1,
        carrier="UA",
        origin={"iata": "EWR"},
        stops=[{"iata": "IAH"}, {}],
        codes=[1, -(2**63)],
        tags={"x": {"iata": "y"}},
        at={"seconds": 60, "nanos": 5999},
        seats={"value": 2**32 - 1},
        stand=b"\0",
    )
    found = read(value, None, b"")
    assert found.values.type == decoder.type
    assert found.values.to_pylist() == [
        {
            **NOTHING,
            "number": -15,
            "miles": Decimal(2**64 - 1),
            "carrier": "UA",
            "origin": {"iata": "EWR"},
            "stops": [{"iata": "IAH"}, {"iata": ""}],
            "codes": [1, -(2**63)],
            "tags": [("x", {"iata": "y"})],
            "at": datetime(1970, 1, 1, 0, 1, 0, 5, tzinfo=UTC),
            "seats": 2**32 - 1,
            "stand": b"\0",
        },
        None,
        NOTHING,
    ]
    assert not found.errors


def test_what_does_not_fit() -> None:
    far = {"seconds": 2**62}
    found = read(flight(number=1), b"\x08", flight(carrier=7), flight(at=far), b"\x9a\x06\x01x")
    assert found.errors[1] == "it is no message air.Flight"
    assert found.errors[2] == "field carrier: 7 is no value of air.Carrier"
    assert list(found.errors) == [1, 2, 3]
    assert [one["number"] if one else None for one in found.values.to_pylist()] == [1, None, None, None, 0]

    old = decoded_column(ProtobufDecoder(descriptors(OLD), None), pa.array([b"\x08\x05", b""]))
    assert old.values.to_pylist() == [{"id": 5}, None]
    assert old.errors == {1: "field id is missing, and it is required"}


@given(st.lists(st.binary(max_size=20), max_size=5))
def test_any_bytes_are_a_value_or_bad(values: list[bytes]) -> None:
    found = read(*values)
    assert [one is None for one in found.values.to_pylist()] == [place in found.errors for place in range(len(values))]


@pytest.mark.parametrize(
    ("content", "message", "said"),
    [
        (b"", None, "option valueSchema holds no descriptors: write them with protoc"),
        (b"\xff", None, "option valueSchema holds no descriptors: write them with protoc"),
        (descriptors(FILE), None, "option valueMessage is missing: say which of Place, Loop, Empty, Flight a value is"),
        (
            descriptors(FILE),
            "air.Ship",
            "option valueMessage is air.Ship, which valueSchema does not have; it has air.",
        ),
        (descriptors(FILE), "air.Loop", "message air.Loop contains itself"),
        (descriptors(FILE), "air.Empty", "message air.Empty has no fields"),
        (
            descriptors(FILE.replace("flight.proto", "a").replace("google/protobuf/wrappers", "x")),
            None,
            "option valueS",
        ),
    ],
)
def test_descriptors_that_no_column_has(content: bytes, message: str | None, said: str) -> None:
    with pytest.raises(OptionError) as error:
        ProtobufDecoder(content, message)
    assert str(error.value).startswith(said)

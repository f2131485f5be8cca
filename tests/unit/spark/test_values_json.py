"""JSON values as structs: what fits a schema, what does not and how that is said, by columns and one by one."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from highwater.spark.errors import OptionError
from highwater.spark.values.ddl import parse_ddl
from highwater.spark.values.decoding import Decoded, decoded_column
from highwater.spark.values.json_schema import parse_json_schema
from highwater.spark.values.json_values import JsonDecoder
from highwater.spark.values.schema_types import TIMESTAMP, spark_type

MANY = 300  # read by columns
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def read(schema: str | dict[str, Any], *values: bytes | None) -> Decoded:
    declared = parse_ddl(schema) if isinstance(schema, str) else parse_json_schema(schema)
    return decoded_column(JsonDecoder(declared), pa.array(values, pa.binary()))


def both_ways(schema: str, text: str) -> Any:
    """The field `a` of one value, which is the same where others are read with it; or why there is none."""
    value = f'{{"a":{text}}}'.encode()
    alone, among = read(schema, value), read(schema, *[value] * MANY)
    assert among.values.to_pylist() == alone.values.to_pylist() * MANY
    assert among.errors == dict.fromkeys(range(MANY), alone.errors[0]) if alone.errors else not among.errors
    return alone.errors[0] if alone.errors else alone.values[0]["a"].as_py()


@pytest.mark.parametrize(
    ("kind", "text", "found"),
    [
        ("INT", "5", 5),
        ("INT", "5.0", 5),
        ("INT", "1e2", 100),
        ("INT", "null", None),
        ("BIGINT", "9223372036854775807", 2**63 - 1),
        ("TINYINT", "-128", -128),
        ("DOUBLE", "5", 5.0),
        ("DOUBLE", "-1.5e3", -1500.0),
        ("FLOAT", "0.5", 0.5),
        ("STRING", '"\\u00e4\\n"', "ä\n"),
        ("BOOLEAN", "true", True),
        ("BINARY", '"AAE="', b"\0\1"),
        ("DATE", '"2026-11-21"', date(2026, 11, 21)),
        ("TIMESTAMP", '"2026-11-21T12:00:00Z"', NOON),
        ("TIMESTAMP", '"2026-11-21T13:30:00+01:30"', NOON),
        ("TIMESTAMP", '"2026-11-21 12:00:00"', NOON),
        ("TIMESTAMP", '"2026-11-21T12:00:00.000000999Z"', NOON),
        ("TIMESTAMP_NTZ", '"2026-11-21T12:00:00"', NOON.replace(tzinfo=None)),
        ("DECIMAL(5,2)", "1.250", Decimal("1.25")),
        ("DECIMAL(5,2)", '"-999.99"', Decimal("-999.99")),
        ("DECIMAL(5,2)", "1e2", Decimal(100)),
        ("DECIMAL(38,0)", "9" * 38, Decimal("9" * 38)),
        ("ARRAY<INT>", "[1,null,3]", [1, None, 3]),
        ("ARRAY<INT>", "[]", []),
        ("STRUCT<b: INT, c: STRUCT<d: STRING>>", '{"c":{"d":"x","e":1}}', {"b": None, "c": {"d": "x"}}),
        ("MAP<STRING, ARRAY<INT>>", '{"x":[1],"y":null}', [("x", [1]), ("y", None)]),
        ("ARRAY<STRUCT<b: DATE>>", '[{"b":"2026-11-21"}]', [{"b": date(2026, 11, 21)}]),
    ],
)
def test_what_fits(kind: str, text: str, found: Any) -> None:
    assert both_ways(f"a {kind}", text) == found


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("INT", "2147483648", "field a: 2147483648 is more than 32 bits hold"),
        ("BIGINT", "9223372036854775808", "field a: 9223372036854775808 is more than 64 bits hold"),
        ("INT", "1.5", "field a: 1.5 is no integer"),
        ("INT", "1e999999999", "field a: inf is no integer"),
        ("INT", '"5"', "field a: '5' is no integer"),
        ("INT", "true", "field a: True is no integer"),
        ("DOUBLE", "1e400", "field a: inf is no number that the type holds"),
        ("DOUBLE", "1e99999999999999999999", "field a: inf is no number that the type holds"),
        ("DOUBLE", "NaN", "field a: nan is no number that the type holds"),
        ("FLOAT", "1e39", "field a: 1e+39 is no number that the type holds"),
        ("DOUBLE", '"5"', "field a: '5' is no number"),
        ("STRING", "5", "field a: 5 is no text"),
        ("STRING", '"\\ud800"', "field a: '\\ud800' is no Unicode"),
        ("STRING", '"' + "x" * 100 + "", "it is no JSON: Unterminated string starting at character 5"),
        ("BOOLEAN", "0", "field a: 0 is neither true nor false"),
        ("BINARY", '"?"', "field a: '?' is no base64"),
        ("DATE", '"2026-11-31"', "field a: '2026-11-31' is no date (2026-11-21)"),
        ("DATE", "5", "field a: 5 is no date (2026-11-21)"),
        ("TIMESTAMP", '"noon"', "field a: 'noon' is no time (2026-11-21T02:00:00Z)"),
        ("TIMESTAMP", '"0000-01-01T00:00:00Z"', "field a: '0000-01-01T00:00:00Z' is no time (2026-11-21T02:00:00Z)"),
        ("TIMESTAMP_NTZ", '"2026-11-21T12:00:00Z"', "field a: '2026-11-21T12:00:00Z' is no time without an offset"),
        ("DECIMAL(5,2)", "1000", "field a: 1000 does not fit decimal(5,2)"),
        ("DECIMAL(5,2)", "1.255", "field a: 1.255 does not fit decimal(5,2)"),
        ("DECIMAL(5,2)", '"NaN"', "field a: 'NaN' does not fit decimal(5,2)"),
        ("DECIMAL(5,2)", "1e-999999999", "field a: 0.0 does not fit decimal(5,2)"),
        ("ARRAY<INT>", '[1,"x"]', "field a[]: 'x' is no integer"),
        ("ARRAY<INT>", "1", "field a: 1 is no array"),
        ("STRUCT<b: INT NOT NULL>", "{}", "field a.b is missing, and it is required"),
        ("STRUCT<b: INT NOT NULL>", '{"b":null}', "field a.b is null, and it is required"),
        ("STRUCT<b: INT>", "[]", "field a: [] is no object"),
        ("MAP<STRING, INT>", '{"x":"y"}', "field a[]: 'y' is no integer"),
        ("INT NOT NULL", "null", "field a is null, and it is required"),
        ("INT", "1" * 5000, "it has a number of too many digits"),
    ],
)
def test_what_does_not_fit(kind: str, text: str, said: str) -> None:
    found = both_ways(f"a {kind}", text)
    assert found.startswith(said)
    assert len(found) < 160  # of the value a little


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"", "it is no JSON: Expecting value at character 0"),
        (b"{", "it is no JSON: Expecting property name enclosed in double quotes at character 1"),
        (b'{"a":1} {"a":2}', "it is no JSON: Extra data at character 8"),
        (b'{"a":1},"b":2}', "it is no JSON: Extra data at character 7"),
        (b"[1]", "[1] is no JSON object"),
        (b'{"b":"\xff"}', "it is not UTF-8"),
        (b'{"b":' + b"[" * 100_000, "it is nested too deeply"),
    ],
)
def test_no_object(value: bytes, said: str) -> None:
    good = b'{"a":1}'
    for values in ([value], [good] * MANY + [value] + [good] * MANY):
        found = read("a INT", *values)
        assert found.errors == {values.index(value): said}
        assert [row for row in found.values.to_pylist() if row != {"a": 1}] == [None]


def test_fields_may_be_missing_and_others_are_ignored() -> None:
    for count in (1, MANY):
        found = read("a INT, b STRING", *[b' {"c":{"a":5},"a":1}', b"{}", b'{"b":"x","a":null}'] * count)
        assert found.values.to_pylist() == [{"a": 1, "b": None}, {"a": None, "b": None}, {"a": None, "b": "x"}] * count
        assert not found.errors


def test_a_tombstone_stays_null() -> None:
    for count in (1, MANY):
        found = read("a INT", *[None, b'{"a":1}', b"?", None] * count)
        assert found.values.to_pylist() == [None, {"a": 1}, None, None] * count
        assert list(found.errors) == [2 + 4 * place for place in range(count)]
    assert read("a INT", None).values.to_pylist() == [None]
    assert read("a INT").values.to_pylist() == []


def test_records_that_only_together_are_json_shift_nobody() -> None:
    """Arrow's parser does not care where a line ends."""
    values = [b'{"a":', b'{"b":1}}', b'{"a":1}{"a":2}', b'{"a":3}'] * MANY
    found = read("a BIGINT", *values)
    assert found.values.to_pylist() == [None, None, None, {"a": 3}] * MANY
    assert len(found.errors) == 3 * MANY


SCHEMA = (
    "a INT, b STRING NOT NULL, c DOUBLE, d TIMESTAMP, e DATE, f DECIMAL(6,2), g ARRAY<BIGINT>, "
    "h STRUCT<x: STRING NOT NULL, y: BOOLEAN>"
)
_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from(["2026-11-21", "2026-11-21T12:00:00Z", "2026-11-21T12:00", "1.25", "1e3"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abhxy"), inner, max_size=2),
    max_leaves=4,
)
_objects = st.fixed_dictionaries(
    {}, optional=dict.fromkeys("aecdfghz", _json) | {"b": st.text(max_size=2), "a": st.integers(0, 2**32)}
)


@settings(max_examples=150, deadline=None)
@given(st.lists(_objects.map(lambda one: json.dumps(one).encode()) | st.binary(max_size=3), min_size=1, max_size=8))
def test_by_columns_it_is_as_one_by_one(values: list[bytes]) -> None:
    one_by_one = [read(SCHEMA, value) for value in values]
    count = -(-MANY // len(values))
    found = read(SCHEMA, *values * count)
    assert found.values.to_pylist() == [each.values[0].as_py() for each in one_by_one] * count
    assert [found.errors.get(place) for place in range(len(values))] == [each.errors.get(0) for each in one_by_one]


def test_json_schema() -> None:
    schema = {
        "$defs": {"Place": {"type": "object", "properties": {"iata": {"type": "string"}}, "required": ["iata"]}},
        "type": "object",
        "required": ["carrier", "origin"],
        "properties": {
            "carrier": {"enum": ["UA", "AA"]},
            "delay": {"anyOf": [{"type": "number"}, {"type": "null"}]},
            "at": {"type": ["string", "null"], "format": "date-time"},
            "day": {"type": "string", "format": "date"},
            "seats": {"type": "integer", "format": "int32"},
            "stops": {"type": "array", "items": {"$ref": "#/$defs/Place"}},
            "origin": {"$ref": "#/$defs/Place"},
            "tags": {"type": "object", "additionalProperties": {"type": "string"}},
            "scan": {"type": "string", "contentEncoding": "base64"},
        },
    }
    assert spark_type(parse_json_schema(schema)) == (
        "struct<`carrier`:string,`delay`:double,`at`:timestamp,`day`:date,`seats`:int,"
        "`stops`:array<struct<`iata`:string>>,`origin`:struct<`iata`:string>,`tags`:map<string,string>,`scan`:binary>"
    )
    good: dict[str, Any] = {"carrier": "UA", "origin": {"iata": "EWR"}}
    for values, said in [
        (good, None),
        ({**good, "carrier": "XX"}, "field carrier: 'XX' is none of ['UA', 'AA']"),
        ({**good, "origin": {}}, "field origin.iata is missing, and it is required"),
        ({"carrier": "UA"}, "field origin is missing, and it is required"),
        ({**good, "stops": [None]}, "field stops[] is null, and it is required"),
        ({**good, "stops": None, "delay": None}, None),
    ]:
        value = json.dumps(values).encode()
        for count in (1, MANY):
            assert read(schema, *[value] * count).errors.get(0) == said


def test_by_columns_the_same_of_enums_and_lists() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": ["string", "null"], "enum": ["x", None]},
            "b": {"type": "array", "items": {"type": "integer", "enum": [1, 2]}},
        },
    }
    values = [b'{"a":"x","b":[1]}', b'{"a":"y"}', b'{"b":[3]}', b'{"b":[null]}', b'{"a":null,"b":null}']
    said = [None, "'y' is none of ['x']", "field b[]: 3 is none of [1, 2]", "field b[] is null", None]
    for count in (1, MANY):
        found = read(schema, *values * count)
        for place, part in enumerate(said):
            assert (part or "") in found.errors.get(place, "")
            assert (found.errors.get(place) is None) == (part is None)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "string"}, "the JSON Schema is not of an object with properties"),
        ({"properties": {"a": {}}}, "field a of the JSON Schema is of type nothing"),
        ({"properties": {"a": True}}, "field a of the JSON Schema says nothing of its type"),
        ({"properties": {"a": {"type": ["string", "integer"]}}}, "field a of the JSON Schema is of type string or int"),
        ({"properties": {"a": {"oneOf": [{}, {}]}}}, "field a of the JSON Schema may be of 2 types"),
        ({"properties": {"a": {"$ref": "#"}}}, "field a.a of the JSON Schema contains itself (#)"),
        (
            {"properties": {"a": {"$ref": "#/x"}}},
            "field a of the JSON Schema refers to #/x, which is not in the schema",
        ),
        ({"properties": {"a": {"$ref": "other.json"}}}, "field a of the JSON Schema refers to other.json: only"),
        ({"properties": {"a": {"type": "object"}}}, "field a of the JSON Schema is an object without properties"),
        ({"properties": {"a": {"type": "array"}}}, "field a[] of the JSON Schema says nothing of its type"),
        ({"properties": {"a": {"type": "money"}}}, "field a of the JSON Schema is of type money: there are string"),
        ({"properties": {"a": {"enum": [1.5]}}}, "field a of the JSON Schema is of type float: there are"),
    ],
)
def test_json_schemas_that_no_column_has(schema: Any, said: str) -> None:
    with pytest.raises(OptionError) as error:
        parse_json_schema(schema)
    assert str(error.value).startswith(said)


def test_ddl() -> None:
    found = parse_ddl("`a b` string NOT NULL COMMENT 'x, y', c: ARRAY<MAP<STRING,dec(3)>>, d TIMESTAMP_LTZ")
    assert [one.nullable for one in found] == [False, True, True]
    assert found.field("d").type == TIMESTAMP
    assert spark_type(found) == "struct<`a b`:string,`c`:array<map<string,decimal(3,0)>>,`d`:timestamp>"


@pytest.mark.parametrize(
    "text", ["a", "a INT b INT", "a INT,", "a ARRAY<INT", "a DECIMAL(x)", "<a INT>", "a INT NOT 5"]
)
def test_no_ddl(text: str) -> None:
    with pytest.raises(OptionError, match=r"neither JSON Schema, nor a file|the schema has the type \(none\)"):
        parse_ddl(text)


@pytest.mark.parametrize("text", ["a VARIANT", "a MAP<INT, INT>", "a INT, a INT", "a DECIMAL(39,0)", "a DECIMAL(3,4)"])
def test_ddl_that_no_json_has(text: str) -> None:
    with pytest.raises(OptionError, match="the schema has"):
        parse_ddl(text)

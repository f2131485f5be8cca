"""The options of values with a type, and the columns of a read that has such."""

from __future__ import annotations

import json
import pickle
from base64 import b64encode
from pathlib import Path

import pyarrow as pa
import pytest
from test_values_protobuf import FILE, descriptors

from highwater.spark.errors import OptionError
from highwater.spark.options.data_source_options import parse_columns
from highwater.spark.values.decoding import ValueDecoder
from highwater.spark.values.typed_columns import BadValueError, TypedColumns
from highwater.spark.values.value_options import ValueOptions, parse_value_options

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
ALL = ("key", "value", "offset", "valueError", "rawValue")


def options(**given: str) -> ValueOptions:
    found = parse_value_options({"valueformat": "json", "valueschema": "a INT", **given})
    assert found is not None
    return found


def rows(*values: bytes | None) -> pa.RecordBatch:
    count = len(values)
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([b"k"] * count, pa.binary()),
            "offset": pa.array(range(7, 7 + count), pa.int64()),
            "value": pa.array(values, pa.binary()),
        }
    )


def test_values_are_bytes_unless_the_options_say_otherwise() -> None:
    assert parse_value_options({}) is None
    assert parse_value_options({"valueformat": "Binary"}) is None


def test_a_schema_is_text_or_in_a_file(tmp_path: Path) -> None:
    text, file = json.dumps(SCHEMA), tmp_path / "a schema.json"
    file.write_text(text)
    for said in (text, f" {text}", str(file), f"file://{file}"):
        assert options(valueschema=said).schema.strip() == text.encode()
    assert options(valueschema="a INT, b STRING").schema == b"a INT, b STRING"

    written = descriptors(FILE)
    (tmp_path / "air.desc").write_bytes(written)
    for said in (str(tmp_path / "air.desc"), b64encode(written).decode()):
        found = options(valueformat="protobuf", valueschema=said, valuemessage="air.Flight")
        assert found.schema == written
        assert found.decoder().type.field(0).name == "number"


def test_an_executor_needs_no_file() -> None:
    sent = pickle.loads(pickle.dumps(options()))
    assert sent == options()
    assert sent.decoder() is options().decoder()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"valueformat": "xml"}, "option valueFormat is 'xml'; it can be binary, avro, json, protobuf"),
        ({"valueformat": "avro"}, "valueFormat avro needs option valueSchema: an Avro schema"),
        ({"valueschema": "a INT"}, "option valueSchema needs valueFormat"),
        ({"includerawvalue": "true"}, "option includeRawValue needs valueFormat"),
        (
            {"valueformat": "json", "valueschema": "a INT", "includerawvalue": "x"},
            "option includeRawValue is 'x'; it can",
        ),
        ({"valueformat": "json", "valueschema": "a INT", "valueerrors": "skip"}, "option valueErrors is 'skip'"),
        (
            {"valueformat": "json", "valueschema": "a INT", "valuemessage": "x"},
            "option valueMessage is for valueFormat",
        ),
        ({"valueformat": "json", "valueschema": "a INT", "valueschemaid": "x"}, "option valueSchemaId is 'x'"),
        ({"valueformat": "protobuf", "valueschema": "AA==", "valueschemaid": "1"}, "option valueSchemaId is for"),
        (
            {"valueformat": "avro", "valueschema": "/no/such.avsc"},
            "option valueSchema is '/no/such.avsc', and there is",
        ),
        (
            {"valueformat": "json", "valueschema": "file:///no/such"},
            "option valueSchema: file:///no/such cannot be read",
        ),
        ({"valueformat": "json", "valueschema": "/no/such.json"}, "'/no/such.json' is neither JSON Schema, nor a file"),
        ({"valueformat": "json", "valueschema": "{"}, "option valueSchema is no JSON Schema"),
    ],
)
def test_wrong_options(given: dict[str, str], said: str) -> None:
    def decoder() -> ValueDecoder | None:
        found = parse_value_options(given)
        return found and found.decoder()

    with pytest.raises(OptionError) as error:
        decoder()
    assert str(error.value).startswith(said)


def test_columns_of_bad_values_are_asked_for() -> None:
    assert parse_columns({"valueErrors": "null"})[-1] == "valueError"
    assert parse_columns({"valueErrors": "null", "includeRawValue": "true"})[-2:] == ("valueError", "rawValue")
    assert parse_columns({"valueErrors": "null", "columns": "valueerror,value"}) == ("value", "valueError")
    with pytest.raises(OptionError, match="option columns names 'valueError'"):
        parse_columns({"columns": "valueError"})


def test_a_bad_value_fails_with_its_place() -> None:
    with pytest.raises(BadValueError) as error:
        TypedColumns(options(), ("value",)).of(rows(b'{"a":1}', b'{"a":"x"}'), "events", 3)
    assert str(error.value) == (
        "events-3, offset 8: the value cannot be read as json: field a: 'x' is no integer; correct valueSchema, or set "
        "valueErrors to null"
    )


def test_or_is_null_beside_its_reason_and_its_bytes() -> None:
    typed = TypedColumns(options(valueerrors="null", includerawvalue="errors"), ALL)
    found = typed.of(rows(b'{"a":1}', None, b"?"), "t", 0)
    assert found.schema.names == list(ALL)
    assert found.column("value").to_pylist() == [{"a": 1}, None, None]
    assert found.column("valueError").to_pylist() == [None, None, "it is no JSON: Expecting value at character 0"]
    assert found.column("rawValue").to_pylist() == [None, None, b"?"]
    every = TypedColumns(options(valueerrors="null", includerawvalue="true"), ALL).of(rows(b"{}", None, b"?"), "t", 0)
    assert every.column("rawValue").to_pylist() == [b"{}", None, b"?"]
    assert typed.of(rows(b"{}"), "t", 0).schema == every.schema == found.schema
    assert typed.of(rows(), "t", 0).schema == found.schema


def test_only_what_is_asked_for_is_read_and_made() -> None:
    typed = TypedColumns(options(), ("key", "offset"))
    assert typed.read == ("key", "offset")
    assert typed.of(rows(b"?").select(["key", "offset"]), "t", 0).schema.names == ["key", "offset"]
    typed = TypedColumns(options(valueerrors="null"), ("valueError",))
    assert typed.read == ("value", "offset")
    assert typed.of(rows(b"{}"), "t", 0).to_pydict() == {"valueError": [None]}


def test_the_header_of_a_schema_registry() -> None:
    typed = TypedColumns(
        options(valueschemaid="7", valueerrors="null", includerawvalue="errors"), ("value", "valueError", "rawValue")
    )
    values = [b'\0\0\0\0\7{"a":1}', b'{"a":1}', b'\0\0\0\0\x08{"a":1}', None, b"\0\0", b"\0\0\0\0\7?"]
    found = typed.of(rows(*values), "t", 0).to_pydict()
    assert found["value"] == [{"a": 1}, None, None, None, None, None]
    assert found["valueError"] == [
        None,
        "it does not begin with 0 and a schema's id, and valueSchemaId is set",
        "it was written with schema 8, and valueSchemaId is 7",
        None,
        "it does not begin with 0 and a schema's id, and valueSchemaId is set",
        "it is no JSON: Expecting value at character 0",
    ]
    assert found["rawValue"] == [None, values[1], values[2], None, values[4], values[5]]

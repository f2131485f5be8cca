"""`--value-schema`, `--value-format` and `--dead-letter`: what can be said, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from highwater.errors import UserError
from highwater.spark.pipelines.archives.options import ArchiveOptions
from highwater.spark.pipelines.archives.value_types import check_bytes, check_value_type
from highwater.spark.pipelines.mirror import MirrorOptions
from highwater.spark.pipelines.rollup import BadRecords, RollupOptions
from highwater.spark.pipelines.typed_values.value_schema import BYTES, BadValues, ValueFormat, ValueType
from highwater.spark.pipelines.verify import VerifyOptions


def archive(**given: Any) -> ArchiveOptions:
    return ArchiveOptions(**{"topic": ["t"], "to": "a", "checkpoint": "c", **given})


@pytest.mark.parametrize(
    ("path", "said", "found"),
    [
        ("s/a.json", None, ("s/a.json", ValueFormat.JSON, None)),
        ("a.ddl", None, ("a.ddl", ValueFormat.JSON, None)),
        ("hdfs://h:1/a.avsc", None, ("hdfs://h:1/a.avsc", ValueFormat.AVRO, None)),
        ("a.desc", None, ("a.desc", ValueFormat.PROTOBUF, None)),
        ("hdfs://h:1/a.desc:air.Flight", None, ("hdfs://h:1/a.desc", ValueFormat.PROTOBUF, "air.Flight")),
        ("a.bin:Flight", "protobuf", ("a.bin", ValueFormat.PROTOBUF, "Flight")),
        ("hdfs://h:1/a", "protobuf", ("hdfs://h:1/a", ValueFormat.PROTOBUF, None)),
        ("a.txt", "json", ("a.txt", ValueFormat.JSON, None)),
        ("a.json:x", "json", ("a.json:x", ValueFormat.JSON, None)),
    ],
)
def test_the_files_ending_says_the_format(path: str, said: str | None, found: tuple[Any, ...]) -> None:
    kind = None if said is None else ValueFormat(said)
    assert archive(value_schema=path, value_format=kind).schema_file == found


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"value_schema": "a.txt"},
            "--value-schema a.txt: say with --value-format whether that is json, avro or proto",
        ),
        ({"value_format": ValueFormat.JSON}, "--value-format is of --value-schema: say that, too"),
        ({"dead_letter": "d"}, "--dead-letter needs --value-schema"),
        ({"value_schema": "a.json", "dead_letter": "t"}, "--dead-letter t is one of the topics that are read"),
        (
            {"value_schema": "a.json", "dead_letter": "dead", "topic": [], "pattern": "d.*"},
            "--dead-letter dead is one of the topics that are read",
        ),
        ({"option": ["VALUEFORMAT=json"]}, "--option valueformat is not for a pipeline: say --value-schema PATH"),
    ],
)
def test_what_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as error:
        archive(**given)
    assert str(error.value).startswith(said)


def test_pipelines_that_need_bytes() -> None:
    with pytest.raises(UserError, match="--option valueschema is not for a pipeline: a mirror copies bytes"):
        MirrorOptions(topic=["t"], to="h:1", checkpoint="c", option=["valueSchema=a INT"])
    with pytest.raises(UserError, match="--option valueformat is not for a pipeline: say --value-schema"):
        VerifyOptions(archive="a", option=["valueFormat=json"])


def test_an_archive_keeps_the_type_of_its_values() -> None:
    typed = ValueType("struct<`a`:int>")
    check_value_type("/a", "binary", BYTES)
    check_value_type("/a", typed.ddl, typed)
    for found, values, said in [
        ("binary", typed, "/a has values as bytes: leave --value-schema out"),
        (typed.ddl, BYTES, "/a has values with a type: say --value-schema"),
        ("struct<`a`:bigint>", typed, "/a has values of another type than --value-schema says, struct<`a`:bigint>"),
    ]:
        with pytest.raises(UserError) as error:
            check_value_type("/a", found, values)
        assert str(error.value).startswith(said)
    check_bytes("/a", None)
    check_bytes("/a", "binary")
    with pytest.raises(UserError, match="/a was written with --value-schema: it has not the bytes of its values"):
        check_bytes("/a", typed.ddl)


def test_rollups_that_say_two_things() -> None:
    def rollup(**given: Any) -> RollupOptions:
        return RollupOptions(topic=["t"], checkpoint="c", to_topic="o", count=True, **given)

    assert rollup(dead_letter="d").bad_values is BadValues.NULL
    assert rollup(bad_records=BadRecords.SKIP).bad_values is BadValues.NULL
    assert rollup().bad_values is BadValues.FAIL
    with pytest.raises(UserError, match="--value-schema says what values are: leave --schema out"):
        rollup(schema="a INT", value_schema="a.json")
    with pytest.raises(UserError, match="--dead-letter takes bad records: leave --bad-records out"):
        rollup(dead_letter="d", bad_records=BadRecords.SKIP)

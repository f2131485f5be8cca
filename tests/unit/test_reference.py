"""docs/reference/ is what proto/ says, and proto/ says something of everything."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from test_docs import ROOT

FOLDER = ROOT / "docs" / "reference"
SOURCES = sorted(ROOT.glob("proto/**/*.proto"))


@cache
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", FOLDER / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def contracts() -> dict[Path, Any]:
    """By file. The stubs may be older than the file: then `make` makes them anew."""
    return {ROOT / contract.source: contract for contract in generator().contracts()}


def test_there_is_a_contract_for_each_file() -> None:
    assert list(contracts()) == SOURCES


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_everything_has_a_comment_of_its_own(source: Path) -> None:
    contract = contracts()[source]
    places = dict(contract.places())
    assert [name for place, name in places.items() if not contract.comments.get(place)] == []
    assert {place for place in contract.comments if place not in places} == set()


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_the_comments_are_those_of_the_file_as_it_is(source: Path) -> None:
    """All of them, and in front of what they belong to: a comment behind a field would be nobody's."""
    contract = contracts()[source]
    lines = source.read_text().splitlines()
    taken = 0
    for location in contract.file.source_code_info.location:
        comment = contract.comments.get(tuple(location.path))
        if comment is not None:
            above = takewhile(lambda line: line.lstrip().startswith("//"), reversed(lines[: location.span[0]]))
            block = [re.sub(r"^ *// ?", "", line) for line in above][::-1]
            assert "\n".join(block) == comment
            taken += len(block)
    assert taken == sum("//" in line for line in lines)


def test_a_rule_is_cited_behind_the_sentence_that_says_it() -> None:
    for contract in contracts().values():
        for place, comment in contract.comments.items():
            said = re.sub(r"\(RULES\s\d+\.\d+(, \d+\.\d+)*\)", "", comment)
            assert "RULES" not in said or place == (generator().SYNTAX,), comment
            assert said.strip(" ."), comment


def test_every_rpc_says_which_errors_it_answers() -> None:
    for contract in contracts().values():
        for place, name in contract.places():
            if place[0] == generator().SERVICES and len(place) > 2:
                assert re.search(r"\b(errors?|UNIMPLEMENTED|Not served)\b", contract.comments[place], re.I), name


def prefix(enum: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", enum).upper() + "_"


ZEROS = {
    "ERROR_CODE_NONE": "an Error that is not set says that nothing went wrong; Kafka's 0 as well",
    "ELECTION_TYPE_PREFERRED": "a request that does not say is one for the preferred leader; Kafka's 0 as well",
}
"""The values 0 that mean something, and why."""


def test_the_values_of_an_enum_have_its_prefix_and_0_is_unspecified() -> None:
    enums = [enum for each in contracts().values() for enum in each.file.enum_type]
    assert len(enums) >= 6
    for enum in enums:
        for value in enum.value:
            assert value.name.startswith(prefix(enum.name)), value.name
            assert value.number or value.name == f"{prefix(enum.name)}UNSPECIFIED" or value.name in ZEROS, value.name


def test_every_code_that_is_named_exists() -> None:
    enums = [enum for each in contracts().values() for enum in each.file.enum_type]
    values = {value.name for enum in enums for value in enum.value}
    values |= {name.removeprefix("ERROR_CODE_") for name in values if name.startswith("ERROR_CODE_")}
    named = {
        word
        for contract in contracts().values()
        for comment in contract.comments.values()
        for word in re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", comment)
    }
    assert named - values == {"KAFKA_STORAGE_ERROR"}  # Kafka's name of one


def test_the_pages_are_fresh() -> None:
    """`make reference` writes them."""
    there = {path.name: path.read_text() for path in FOLDER.glob("*.md")}
    assert there == generator().pages()


def test_no_page_has_two_headings_of_one_anchor() -> None:
    for path in FOLDER.glob("*.md"):
        headings = [heading.lower() for heading in re.findall(r"^#+ (.+)$", path.read_text(), re.M)]
        assert len(headings) == len(set(headings)), path.name

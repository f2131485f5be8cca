"""Tables for people, whatever the width; and records as JSON."""

from __future__ import annotations

import base64
import io

import pytest
from rich.console import Console

from highwater.cli.records.record_fields import record_fields
from highwater.console import output

NAME = "a-topic-with-a-name-that-is-longer-than-most-terminals-are-wide-and-then-some-more-of-it-to-be-sure"
COLUMNS = ["topic", "partitions", "replication factor", "without leader", "under-replicated"]


def drawn(monkeypatch: pytest.MonkeyPatch, width: int | None, rows: list[list[object]]) -> list[str]:
    """On a terminal so wide; None: to what is none."""
    text = io.StringIO()
    console = Console(file=text, width=width, force_terminal=width is not None, color_system=None, highlight=False)
    monkeypatch.setattr(output, "screen", console if width is not None else Console(file=text, width=10_000))
    output.table("", COLUMNS, rows)
    return text.getvalue().splitlines()


def test_what_is_no_terminal_gets_a_line_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = drawn(monkeypatch, None, [[NAME, 6, 3, 0, 0], ["[short]", 1, 1, 0, 0]])
    assert [line.split()[1::2] for line in lines if NAME in line] == [[NAME, "6", "3", "0", "0"]]
    assert any("[short]" in line for line in lines)
    assert not output._console().is_terminal
    assert output._console().width == 10_000


def test_eighty_columns_break_no_number_and_no_word_of_a_header(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = drawn(monkeypatch, 80, [[NAME, 1_000_000, 3, 12_345_678, 0], ["short", 1, 1, 0, 0]])
    assert all(len(line) <= 80 for line in lines)
    for word in ("partitions", "replication", "factor", "without", "leader", "under-replicated", "1000000", "12345678"):
        assert sum(word in line for line in lines) == 1, "\n".join(lines)
    folded = "".join(line.split("│")[1].strip() for line in lines if line.startswith("│"))
    assert NAME in folded


def test_text_is_itself() -> None:
    assert record_fields(b"k", b'{"a": 1}', [("h", b"x"), ("n", None)]) == {
        "key": "k",
        "value": '{"a": 1}',
        "headers": [["h", "x"], ["n", None]],
    }
    assert record_fields(None, None, ()) == {"key": None, "value": None}


def test_bytes_that_are_no_text_come_back_whole() -> None:
    fields = record_fields(b"key", b"\xff\x00", [("h", b"x"), ("b", b"\xfe")])
    assert fields["key"] == "key"
    assert base64.b64decode(fields["value"]) == b"\xff\x00"
    assert [(name, base64.b64decode(text)) for name, text in fields["headers"]] == [("h", b"x"), ("b", b"\xfe")]
    assert fields["encoding"] == {"value": "base64", "headers": "base64"}

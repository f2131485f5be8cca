"""Tables for people, whatever the width; and records as JSON."""

from __future__ import annotations

import base64
import io

import pytest
import typer

from highwater.cli.records.record_fields import record_fields
from highwater.client.exceptions import HighwaterError
from highwater.console import exit_status, output
from highwater.console.output import PlainConsole

NAME = "a-topic-with-a-name-that-is-longer-than-most-terminals-are-wide-and-then-some-more-of-it-to-be-sure"
COLUMNS = ["topic", "partitions", "replication factor", "without leader", "under-replicated"]


def drawn(monkeypatch: pytest.MonkeyPatch, width: int | None, rows: list[list[object]]) -> list[str]:
    """On a terminal so wide; None: to what is none."""
    text = io.StringIO()
    terminal = width is not None
    console = PlainConsole(file=text, width=width or 10_000, force_terminal=terminal, color_system=None)
    monkeypatch.setattr(output, "screen", console)
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


HOSTILE = "[/nope]\x1b]0;owned\x07[red]:bug:\x9b2J\u202e"
HARMLESS = r"[/nope]\x1b]0;owned\x07[red]:bug:\x9b2J\u202e"


@pytest.mark.parametrize("width", [200, None], ids=["terminal", "pipe"])
def test_what_others_wrote_is_harmless_in_a_table_and_its_title(
    monkeypatch: pytest.MonkeyPatch, width: int | None
) -> None:
    text = io.StringIO()
    console = PlainConsole(file=text, width=width or 10_000, force_terminal=width is not None, color_system=None)
    monkeypatch.setattr(output, "screen", console)
    output.table(f"topic {HOSTILE}", ["key", "value"], [["x", HOSTILE + "\nforged"], ["y", [HOSTILE]]])
    lines = text.getvalue().splitlines()
    assert f"topic {HARMLESS}" in lines[0]
    assert [HARMLESS in line for line in lines].count(True) == 3
    assert any(rf"{HARMLESS}\nforged" in line for line in lines)


def test_a_terminal_gets_no_control_character_of_what_is_printed_and_a_pipe_gets_it_as_it_is() -> None:
    for terminal, expected in ((True, f"{HARMLESS}\nnext\n"), (False, f"{HOSTILE}\nnext\n".replace("\x07", ""))):
        text = io.StringIO()
        PlainConsole(file=text, width=200, force_terminal=terminal, color_system=None).print(f"{HOSTILE}\nnext")
        assert text.getvalue() == expected


def test_an_error_that_quotes_what_others_wrote_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    monkeypatch.setattr(
        exit_status, "errors", PlainConsole(file=text, width=200, force_terminal=True, color_system=None)
    )
    app = typer.Typer()

    @app.command()
    def fail() -> None:
        raise HighwaterError(HOSTILE)

    assert exit_status.exit_status(app, []) == 1
    assert text.getvalue() == f"highwater: {HARMLESS}\n"


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

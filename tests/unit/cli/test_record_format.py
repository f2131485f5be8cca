"""`consume --format`, and what of a record reaches a terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from highwater.cli.records.record_format import DIRECTIVES, RecordFormat
from highwater.client import ConsumerRecord
from highwater.console.output import json_line
from highwater.console.record_text import RecordOutput, escaped, escaped_text
from highwater.errors import UserError
from highwater.records import Record, encode_rows

RECORD = ConsumerRecord("t", 3, 41, 1_767_225_600_123, b"k", b"v\xff", (("a", b"1"), ("b", None)))
TOMBSTONE = ConsumerRecord("t", 0, 0, -1, None, None, ())


@pytest.mark.parametrize(
    ("form", "record", "expected"),
    [
        (r"%t %p %o %k %v\n", RECORD, b"t 3 41 k v\xff\n"),
        ("%T %d", RECORD, b"1767225600123 2026-01-01T00:00:00.123Z"),
        ("%h|%H|%K|%V", RECORD, b"a=1,b=|2|1|2"),
        ("%k|%v|%h|%d|%T|%K|%V|%H", TOMBSTONE, b"||||-1|-1|-1|0"),
        (r"100%% \\ \t\r\0\x1b ü", RECORD, "100% \\ \t\r\0\x1b ü".encode()),
        ("", RECORD, b""),
        ("plain", RECORD, b"plain"),
        ("%d", TOMBSTONE._replace(timestamp_ms=1 << 62), b""),
    ],
)
def test_a_line(form: str, record: ConsumerRecord, expected: bytes) -> None:
    assert RecordFormat(form).line(record, lambda data: data) == expected


@pytest.mark.parametrize(
    ("form", "part"),
    [
        ("%x", "%x, which is no directive; there are %t topic; "),
        ("%v%", "a lone % at its end; a percent sign is %%; there are "),
        ("% v", "% , which is no directive"),
        (r"\q", r"\q, which is no escape; there are \n, "),
        ("\\", "\\, which is no escape"),
        (r"\x1", r"\x, which is no escape"),
    ],
)
def test_what_no_format_has(form: str, part: str) -> None:
    with pytest.raises(UserError) as refused:
        RecordFormat(form)
    assert part in str(refused.value)


def test_every_directive_is_listed_and_works() -> None:
    for letter in DIRECTIVES:
        assert RecordFormat(f"%{letter}").line(RECORD, lambda data: data)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"plain \xc3\xbc\ttext", "plain ü\ttext"),
        (b"\x1b]0;owned\x07", r"\x1b]0;owned\x07"),
        (b"a\r\nb\0\x7f", r"a\r\nb\x00\x7f"),
        (b"\xff\x9b", r"\xff\x9b"),
        ("\x9b31m".encode(), r"\x9b31m"),
        ("\u202eabc\u2066".encode(), r"\u202eabc\u2066"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(data: bytes, expected: str) -> None:
    assert escaped(data).decode() == expected


def test_only_a_terminal_gets_it_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    for terminal, expected in ((True, rb"\x1b"), (False, b"\x1b")):
        monkeypatch.setattr("sys.stdout.isatty", lambda terminal=terminal: terminal, raising=False)
        assert RecordOutput().text(b"\x1b") == expected
        line = RecordFormat(r"\x1b%k%h").line(
            RECORD._replace(key=b"\x1b", headers=(("\x1b", b"\x1b"),)), RecordOutput().text
        )
        assert line == b"\x1b" + expected + expected + b"=" + expected


def test_a_dump_to_a_terminal(tmp_path: Path) -> None:
    log = tmp_path / f"{0:020}.log"
    log.write_bytes(encode_rows([Record(0, 1, b"k", b"\x1b]0;owned\x07", ())]))
    command = [sys.executable, "-m", "highwater.cli.main", "log", "dump", str(log), "--records"]
    assert b"value=\x1b]0;owned" in subprocess.run(command, capture_output=True, check=True).stdout
    ours, theirs = pty.openpty()
    subprocess.run(command, stdout=theirs, check=True)
    os.close(theirs)
    assert rb"value=\x1b]0;owned\x07" in os.read(ours, 10_000)
    os.close(ours)


def test_json_has_no_control_character(capsys: pytest.CaptureFixture[str]) -> None:
    content = "".join(map(chr, range(0x100))) + "\u202e"
    json_line({"value": content})
    line = capsys.readouterr().out
    assert json.loads(line) == {"value": content}
    assert escaped_text(line.rstrip("\n")) == line.rstrip("\n")

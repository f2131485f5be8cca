r"""`consume --format '%t %p %o %k %v\n'`: a line for each record. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from highwater.errors import UserError

if TYPE_CHECKING:
    from highwater.client import ConsumerRecord

Text = Callable[[bytes], bytes]

DIRECTIVES = {
    "t": "topic",
    "p": "partition",
    "o": "offset",
    "k": "key",
    "v": "value",
    "h": "headers, name=value separated by commas",
    "T": "timestamp, ms since 1970",
    "d": "timestamp, ISO 8601 in UTC",
    "K": "bytes of the key, -1: null",
    "V": "bytes of the value, -1: null",
    "H": "number of headers",
    "%": "a percent sign",
}
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_TOKEN = re.compile(r"%(?P<directive>.?)|\\x(?P<hex>[0-9a-fA-F]{2})|\\(?P<escape>.?)|(?P<text>[^%\\]+)", re.S)


class RecordFormat:
    """A format that was parsed. Raises `UserError` for a directive or an escape that there is not, with those that
    there are."""

    def __init__(self, text: str) -> None:
        self._parts: list[bytes | str] = []  # bytes as they are; the letter of a directive
        for token in _TOKEN.finditer(text):
            if (letter := token["directive"]) is not None:
                self._parts.append(b"%" if letter == "%" else _known(letter))
            elif token["hex"] is not None:
                self._parts.append(bytes.fromhex(token["hex"]))
            elif (letter := token["escape"]) is not None:
                self._parts.append(_escape(letter))
            else:
                self._parts.append(token["text"].encode())

    def line(self, record: ConsumerRecord, text: Text) -> bytes:
        """`text` makes the contents of a record fit for where they go."""
        return b"".join(part if isinstance(part, bytes) else _FIELDS[part](record, text) for part in self._parts)


def _known(letter: str) -> str:
    if letter in DIRECTIVES:
        return letter
    wrong = f"%{letter}, which is no directive" if letter else "a lone % at its end; a percent sign is %%"
    listed = "; ".join(f"%{name} {meaning}" for name, meaning in DIRECTIVES.items())
    raise UserError(f"--format has {wrong}; there are {listed}")


def _escape(letter: str) -> bytes:
    if letter in _ESCAPES and letter:
        return _ESCAPES[letter]
    raise UserError(rf"--format has \{letter}, which is no escape; there are \n, \t, \r, \0, \\ and \xHH")


def _length(data: bytes | None) -> bytes:
    return b"-1" if data is None else b"%d" % len(data)


def _headers(headers: Sequence[tuple[str, bytes | None]], text: Text) -> bytes:
    return b",".join(text(name.encode()) + b"=" + text(value or b"") for name, value in headers)


def _time(timestamp_ms: int) -> bytes:
    """Empty where there is none, or no date shows it."""
    try:
        return (
            b""
            if timestamp_ms < 0
            else datetime.fromtimestamp(timestamp_ms // 1000, UTC)
            .replace(microsecond=timestamp_ms % 1000 * 1000)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z")
            .encode()
        )
    except (ValueError, OverflowError, OSError):
        return b""


_FIELDS: dict[str, Callable[[ConsumerRecord, Text], bytes]] = {
    "t": lambda record, text: record.topic.encode(),
    "p": lambda record, text: b"%d" % record.partition,
    "o": lambda record, text: b"%d" % record.offset,
    "k": lambda record, text: text(record.key or b""),
    "v": lambda record, text: text(record.value or b""),
    "h": lambda record, text: _headers(record.headers, text),
    "T": lambda record, text: b"%d" % record.timestamp_ms,
    "d": lambda record, text: _time(record.timestamp_ms),
    "K": lambda record, text: _length(record.key),
    "V": lambda record, text: _length(record.value),
    "H": lambda record, text: b"%d" % len(record.headers),
}

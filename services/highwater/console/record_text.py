"""The words of others on their way to a screen: the one place where they are made harmless.

Whoever may write to a topic, or configure one, writes what somebody's terminal gets: an escape sequence could rename
its window, hide what stands in other lines or answer in the user's name. A pipe or a file gets the bytes as they are.
"""

from __future__ import annotations

import re
import sys

# Control characters (C0 but tabs, DEL, C1), and those that end lines or turn the order of what follows.
_UNSAFE = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def escaped_text(text: str) -> str:
    r"""The text with `\x1b`, `\n`, `\u202e` for the characters that a terminal would obey."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def escaped_lines(text: str) -> str:
    """The same, of a text that may have several lines."""
    return "\n".join(map(escaped_text, text.split("\n")))


def escaped(data: bytes) -> bytes:
    r"""UTF-8 with such characters escaped, and `\xff` for what is not UTF-8."""
    return escaped_text(data.decode("utf-8", "backslashreplace")).encode()


class RecordOutput:
    """Standard output for records: raw bytes, unless it is a terminal."""

    def __init__(self) -> None:
        self._raw = not sys.stdout.isatty()

    def text(self, data: bytes) -> bytes:
        """Makes a record's key, value or header fit for where it goes."""
        return data if self._raw else escaped(data)

    def write(self, line: bytes) -> None:
        """Writes what is our own, or went through `text`."""
        sys.stdout.buffer.write(line)

    def flush(self) -> None:
        sys.stdout.flush()

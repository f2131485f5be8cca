"""Numbers of things, in words."""

from __future__ import annotations


def counted(number: int, one: str, several: str = "") -> str:
    """`1 record`, `1,200 records`, `0 batches`; `several` where it is not `one` with an s."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"

"""The SDK's values in notebooks: tables, by `_repr_html_`, which IPython asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from html import escape
from typing import Any, TypeVar

ItemT = TypeVar("ItemT")

MAX_ROWS = 100  # of a list
MAX_CHARACTERS = 200  # of a cell


class RowList(list[ItemT]):
    """A list of named tuples or dataclasses, which a notebook shows as a table."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        if not self or not all(_names(item) for item in self[:MAX_ROWS]):
            return f"<pre>{escape(repr(list(self)))}</pre>"
        more = f"<p>… of {len(self):,}</p>" if len(self) > MAX_ROWS else ""
        return _table(self[:MAX_ROWS]) + more


class ShownAsTable:
    """Mixed into a dataclass or a named tuple. What it has several of is a table below its single fields."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        values = {name: getattr(self, name) for name in _names(self)}
        tables = {name: value for name, value in values.items() if _is_rows(value)}
        single = [(name, value) for name, value in values.items() if name not in tables]
        lines = "".join(f"<tr><th>{escape(name)}</th><td>{_cell(value)}</td></tr>" for name, value in single)
        below = "".join(f"<p><b>{escape(name)}</b></p>{_table(value)}" for name, value in tables.items())
        return f"<p><b>{type(self).__name__}</b></p><table>{lines}</table>{below}"


def _names(item: Any) -> Sequence[str]:
    """Its fields; empty: it has none."""
    if is_dataclass(item):
        return [field.name for field in fields(item)]
    return getattr(item, "_fields", ())


def _is_rows(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and not _names(value) and bool(_names(value[0]))


def _table(items: Iterable[Any]) -> str:
    rows = list(items)
    names = _names(rows[0])
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{_cell(getattr(row, name))}</td>" for name in names) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    if value is None:
        text = ""
    elif isinstance(value, bytes):
        text = value.decode("utf-8") if _is_text(value) else value.hex()
    elif isinstance(value, Mapping):
        text = ", ".join(f"{key}={content}" for key, content in value.items())
    elif isinstance(value, tuple | list) and not _names(value):
        text = ", ".join(str(part) for part in value)
    else:
        text = str(value)
    return escape(text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}…")


def _is_text(value: bytes) -> bool:
    try:
        return value.decode("utf-8").isprintable()
    except UnicodeDecodeError:
        return False

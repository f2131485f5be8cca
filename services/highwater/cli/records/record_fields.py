"""A record's key, value and headers as JSON has them, for whoever reads the lines of `--json`."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

Headers = Sequence[tuple[str, bytes | None]]


def record_fields(key: bytes | None, value: bytes | None, headers: Headers) -> dict[str, Any]:
    """`key`, `value` and, where there are some, `headers` as text. What is not UTF-8 is base64, and `encoding` names
    it: `{"value": "base64"}`; of headers all values are, or none."""
    encoding: dict[str, str] = {}
    contents = [content for _, content in headers]
    fields: dict[str, Any] = {
        "key": _texts("key", [key], encoding)[0],
        "value": _texts("value", [value], encoding)[0],
    }
    if headers:
        texts = _texts("headers", contents, encoding)
        fields["headers"] = [[name, text] for (name, _), text in zip(headers, texts, strict=True)]
    if encoding:
        fields["encoding"] = encoding
    return fields


def _texts(field: str, contents: Sequence[bytes | None], encoding: dict[str, str]) -> list[str | None]:
    try:
        return [None if content is None else content.decode() for content in contents]
    except UnicodeDecodeError:
        encoding[field] = "base64"
        return [None if content is None else base64.b64encode(content).decode() for content in contents]

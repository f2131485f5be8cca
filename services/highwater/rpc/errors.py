"""`ErrorCode` to and from the protobuf `Error`."""

from __future__ import annotations

from typing import Any

from highwater.errors import ErrorCode
from highwater.v1 import common_pb2

_CODES = {int(code): code for code in ErrorCode}


def to_proto(code: ErrorCode, message: str = "") -> common_pb2.Error:
    """Without a message it has the code's own sentence."""
    return common_pb2.Error(code=int(code), message=message or code.sentence, retriable=code.retriable)  # type: ignore[arg-type]


def from_proto(error: common_pb2.Error) -> ErrorCode:
    """An unset error is NONE; a code that this version does not know is UNKNOWN_SERVER_ERROR."""
    return _CODES.get(error.code, ErrorCode.UNKNOWN_SERVER_ERROR)


def error_names(response: Any) -> str:
    """The names of a response's errors, its own and its results', each once; empty: it went well."""
    codes = {from_proto(response.error), *(from_proto(result.error) for result in response.results)}
    return ", ".join(sorted(code.name for code in codes - {ErrorCode.NONE}))

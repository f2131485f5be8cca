"""The part of a log that a reader of row payloads only may be given (RULES 10.1). Pure."""

from __future__ import annotations

from collections.abc import Sequence

from highwater.errors import ErrorCode
from highwater.records import first_columnar
from highwater.rpc.embedding import Piece


def rows_before_columns(pieces: Sequence[Piece]) -> tuple[ErrorCode, Sequence[Piece]]:
    """The batches in front of the first columnar one; UNSUPPORTED_FOR_MESSAGE_FORMAT where that is the first."""
    joined = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    position = first_columnar(joined)
    if position is None:
        return ErrorCode.NONE, (joined,)
    if position == 0:
        return ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ()
    return ErrorCode.NONE, (memoryview(joined)[:position],)

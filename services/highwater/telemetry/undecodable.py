"""Log records about bytes that are no message: a line takes their place, without a traceback. gRPC raises it where a
handler would have been called or reads its stream, and gRPC's logger and ours tell of it as of a mistake of this
program: whoever reaches a port could fill the disk with it."""

from __future__ import annotations

import logging

from google.protobuf.message import DecodeError

from highwater.telemetry.log import get_logger, pairs
from highwater.telemetry.summed_log import SummedLog

_NOT_SENT = "ExecuteBatchError"  # gRPC's, which it does not export
_told = SummedLog(get_logger("rpc.undecodable"))


def leave_out_undecodable(record: logging.LogRecord) -> bool:
    """A filter for a handler: instead of a record about bytes that are no message there is one line for all within a
    moment."""
    error = record.exc_info[1] if record.exc_info else None
    if error is None:
        return True
    if type(error).__name__ == _NOT_SENT:
        # The peer has hung up, and is not even told that it was refused. What for has been logged before, or is below.
        _told.note(logging.INFO, "a refusal was not sent", pairs(reason="the peer has hung up"))
        return False
    if not _is_undecodable(error):
        return True
    # Of several the first: they are one request's, or one stream's.
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    _told.note(logging.WARNING, "bytes that are no message were refused", pairs(reason=error))
    return False


def _is_undecodable(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_undecodable, error.exceptions))
    return isinstance(error, DecodeError)

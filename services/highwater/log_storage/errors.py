"""What a log refuses, and why."""

from __future__ import annotations

from highwater.errors import ErrorCode


class LogError(Exception):
    """A refused or failed operation on one log. The log is as it was before, unless the code is LOG_STORAGE_ERROR:
    then it may be offline."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

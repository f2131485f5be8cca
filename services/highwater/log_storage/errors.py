"""The errors of a log: operations that it refuses, and those that fail."""

from __future__ import annotations

from highwater.errors import ErrorCode


class LogError(Exception):
    """A refused or failed operation on one log. The log is as it was before, unless the code is LOG_STORAGE_ERROR:
    then it may be offline."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class DamagedError(LogError):
    """A read that met what is not what was written (CORRUPT_MESSAGE), in the segment that begins at `base_offset`."""

    def __init__(self, base_offset: int, message: str) -> None:
        super().__init__(
            ErrorCode.CORRUPT_MESSAGE,
            f"{message}. It is copied anew by itself where the ISR can spare this replica; else restore the file",
        )
        self.base_offset = base_offset

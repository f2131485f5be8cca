"""The errors that are raised for bytes that are not a whole, well-formed batch."""

from __future__ import annotations


class CorruptBatchError(ValueError):
    """A batch that is truncated, damaged or not of this format. Nothing of it has been decoded.

    Attributes:
        position: where the batch starts in the buffer it was read from, in bytes.
        reason: what is wrong with it, with the values found.
    """

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"corrupt batch at byte {position}: {reason}")
        self.position = position
        self.reason = reason

    def __reduce__(self) -> tuple[type[CorruptBatchError], tuple[int, str]]:
        return type(self), (self.position, self.reason)


class CorruptPayloadError(ValueError):
    """The payload of a batch is damaged. Stays inside `records`: `decode` adds the batch's position."""


class PayloadTooLargeError(CorruptPayloadError):
    """The payload expands beyond the limit."""


class TooManyHeadersError(CorruptPayloadError):
    """A record, or a batch, has more headers than they may."""

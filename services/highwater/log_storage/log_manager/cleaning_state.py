"""Tells whether a log is being cleaned, and who forbids it. Pure.

    none ── begin ──> in progress ── end ──> none
                           │ pause
                           v
                        aborted ── end ──> paused ── resume ──> none
    none ── pause ──> paused

Who truncates, deletes or moves a log pauses its cleaning, waits until it is not aborted any more but paused, and
resumes it afterwards. Pauses are counted: the log is free when the last has been resumed.
"""

from __future__ import annotations

from enum import Enum


class CleaningState(Enum):
    NONE = "none"
    IN_PROGRESS = "in progress"
    ABORTED = "aborted"  # it has been told to stop, and has not yet
    PAUSED = "paused"


class Cleaning:
    """The state of one log's cleaning."""

    __slots__ = ("_pauses", "_running")

    def __init__(self) -> None:
        self._running = False
        self._pauses = 0

    @property
    def state(self) -> CleaningState:
        if self._running:
            return CleaningState.ABORTED if self._pauses else CleaningState.IN_PROGRESS
        return CleaningState.PAUSED if self._pauses else CleaningState.NONE

    def begin(self) -> bool:
        """Tells whether a cleaning may begin now; it then has, until `end`."""
        if self.state is not CleaningState.NONE:
            return False
        self._running = True
        return True

    def end(self) -> None:
        """The cleaning is over, done or not."""
        assert self._running
        self._running = False

    def pause(self) -> None:
        """Forbids cleaning until `resume`. One that is in progress is aborted by it."""
        self._pauses += 1

    def resume(self) -> None:
        assert self._pauses > 0
        self._pauses -= 1

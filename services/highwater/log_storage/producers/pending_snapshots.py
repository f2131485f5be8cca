"""Snapshots of a log's producers that a roll has asked for and that are not on disk yet.

A roll happens in the middle of an append, and there may be many producers: what the snapshot says is kept aside, as a
copy that nobody changes, and written beside the appends. Until then a crash finds the snapshot before it, and the
batches behind that one. Only before records go it has to be there (`LogStart`), and with records that
go it goes.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

from highwater.log_storage.producers import producer_snapshots
from highwater.log_storage.producers.producer_states import ProducerStates

MAX_PENDING = 4  # of a log; each holds a copy of all its producers
_PAUSE_S = 20e-6


class PendingSnapshots:
    """Of one log. May be used from several threads: one writes at a time, and what is dropped is not written after
    that."""

    def __init__(self) -> None:
        self._writing = threading.Lock()
        self._changing = threading.Lock()  # never held for long
        self._pending: dict[int, ProducerStates] = {}
        self._claimed = False
        self._failed = False

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, offset: int, states: ProducerStates) -> None:
        """`states` must not change any more."""
        with self._changing:
            self._pending[offset] = states
            self._failed = False

    @property
    def full(self) -> bool:
        return len(self._pending) >= MAX_PENDING

    def first(self) -> int | None:
        """The lowest offset of those that are not written."""
        with self._changing:
            return min(self._pending, default=None)

    def claim(self) -> bool:
        """Tells whether the caller is to have them written, by `write`, in a thread. Not where somebody else does so
        already, nor where that has failed and nothing has come since."""
        if not self._pending or self._claimed or self._failed:
            return False
        self._claimed = True
        return True

    def write(self, directory: Path, wall_offset_ms: int) -> None:
        """Writes all. Raises `OSError`: what could not be written is still pending."""
        self._failed = False
        try:
            while True:
                with self._writing:
                    offset = self.first()
                    if offset is None:
                        return
                    states = self._pending[offset]
                    producer_snapshots.write(directory, offset, states, wall_offset_ms, pause=pause)
                    with self._changing:
                        if self._pending.get(offset) is states:
                            del self._pending[offset]
        except OSError:
            self._failed = True
            raise
        finally:
            self._claimed = False

    def drop_above(self, offset: int) -> None:
        """Those of a part of the log that goes. One of them that is being written is on disk when this returns."""
        with self._changing:  # what stays may be written meanwhile: that takes long
            if max(self._pending, default=offset) <= offset:
                return
        with self._writing, self._changing:
            for found in [found for found in self._pending if found > offset]:
                del self._pending[found]


def pause() -> None:
    """Lets other threads run: to encode many producers takes longer than appends can wait."""
    time.sleep(_PAUSE_S)

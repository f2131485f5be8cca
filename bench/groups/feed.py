"""A steady flow of records to a few partitions, from a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Self


class Feed:
    """Sends a record to each of the partitions every period, one after the other. `send` returns at once."""

    def __init__(self, send: Callable[[int], None], partitions: Sequence[int], period_s: float) -> None:
        self._send = send
        self._partitions = partitions
        self._period_s = period_s
        self._over = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Raises what kept it from sending."""
        self._over.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        due = monotonic()
        try:
            while True:
                for partition in self._partitions:
                    due += self._period_s / len(self._partitions)
                    if self._over.wait(max(0.0, due - monotonic())):
                        return
                    self._send(partition)
        except Exception as error:
            self._failure = error

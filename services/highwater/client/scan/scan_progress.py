"""The progress of a scan, for whoever waits for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ScanProgress:
    """`records` and `bytes` (of the log's batches, as compressed as they are) were read; `offsets` of `total_offsets`
    are behind the scan, those among them that compaction has left empty."""

    records: int
    bytes: int
    offsets: int
    total_offsets: int

    @property
    def fraction(self) -> float:
        """From 0 to 1."""
        return self.offsets / self.total_offsets if self.total_offsets else 1.0


ProgressCallback = Callable[[ScanProgress], object]


class ProgressDisplay(Protocol):
    def show(self, progress: ScanProgress) -> None: ...

    def close(self) -> None: ...


class CallbackDisplay:
    """Hands progress to the caller's function."""

    def __init__(self, callback: ProgressCallback) -> None:
        self._callback = callback

    def show(self, progress: ScanProgress) -> None:
        self._callback(progress)

    def close(self) -> None:
        """Nothing is open."""


class NoDisplay:
    def show(self, progress: ScanProgress) -> None:
        """Shows nothing."""

    def close(self) -> None:
        """Nothing is open."""


class ProgressBar:
    """A bar on stderr, or in a notebook. Made where `rich` is installed."""

    def __init__(self, topic: str) -> None:
        from rich.console import Console  # noqa: PLC0415  an extra brings it
        from rich.progress import Progress, TextColumn  # noqa: PLC0415

        columns = (*Progress.get_default_columns(), TextColumn("{task.fields[records]:,} records"))
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task(f"reading {topic}", total=1.0, records=0)
        self._bar.start()

    def show(self, progress: ScanProgress) -> None:
        self._bar.update(self._task, completed=progress.fraction, records=progress.records)

    def close(self) -> None:
        self._bar.stop()


def progress_display(progress: bool | ProgressCallback, topic: str) -> ProgressDisplay:
    """A bar for True, where `rich` is there to draw it."""
    if callable(progress):
        return CallbackDisplay(progress)
    if progress:
        try:
            return ProgressBar(topic)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "rich":
                raise
    return NoDisplay()

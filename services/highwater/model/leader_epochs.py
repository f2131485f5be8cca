"""The leader-epoch cache: where each leader epoch starts in a log. Pure; log-storage keeps it on disk.

Divergence between two logs is found with it and with nothing else (RULES 4.2, 4.3).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

NO_EPOCH = -1
NO_OFFSET = -1


class EpochEntry(NamedTuple):
    leader_epoch: int
    start_offset: int  # of the epoch's first batch, or the log end offset at which a leader took over


class EpochEnd(NamedTuple):
    """The largest epoch at or below the one asked for and its end offset; `NO_EPOCH, NO_OFFSET` where there is none."""

    leader_epoch: int
    end_offset: int


NO_EPOCH_END = EpochEnd(NO_EPOCH, NO_OFFSET)


class LeaderEpochCache:
    """Entries in order; epochs and start offsets both strictly increase. At most one entry an epoch, and an epoch that
    wrote nothing is replaced by the next, so the cache never holds more entries than the log holds epochs plus one."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[EpochEntry | tuple[int, int]] = ()) -> None:
        """Raises `ValueError` where epochs or start offsets do not strictly increase."""
        self._entries = [EpochEntry(*entry) for entry in entries]
        for before, after in zip(self._entries, self._entries[1:], strict=False):
            if after.leader_epoch <= before.leader_epoch or after.start_offset <= before.start_offset:
                raise ValueError(f"leader epochs out of order: {before} then {after}")
        if self._entries and (self._entries[0].leader_epoch < 0 or self._entries[0].start_offset < 0):
            raise ValueError(f"negative leader epoch or offset: {self._entries[0]}")

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        return tuple(self._entries)

    @property
    def latest_epoch(self) -> int:
        """The last entry's epoch, whether or not it has written anything; `NO_EPOCH` for an empty cache."""
        return self._entries[-1].leader_epoch if self._entries else NO_EPOCH

    def copy(self) -> LeaderEpochCache:
        made = LeaderEpochCache()
        made._entries = self._entries.copy()
        return made

    def assign(self, leader_epoch: int, start_offset: int) -> bool:
        """Notes that `leader_epoch` starts at `start_offset`, unless it is known already. Entries that start there or
        later wrote nothing and are replaced. Whether anything changed; a lower epoch than the last is a `ValueError`
        (an epoch in a log never decreases)."""
        latest = self.latest_epoch
        if leader_epoch == latest and leader_epoch >= 0:
            return False
        if leader_epoch < latest or leader_epoch < 0 or start_offset < 0:
            raise ValueError(f"leader epoch {leader_epoch} at offset {start_offset} after leader epoch {latest}")
        self.truncate_from_end(start_offset)
        self._entries.append(EpochEntry(leader_epoch, start_offset))
        return True

    def last_epoch_below(self, offset: int) -> int:
        """The epoch of the batch before `offset`: with the log end offset, the epoch of the log's last batch."""
        index = bisect_left(self._entries, offset, key=_start)
        return self._entries[index - 1].leader_epoch if index else NO_EPOCH

    def start_of(self, leader_epoch: int) -> int | None:
        index = bisect_left(self._entries, leader_epoch, key=_epoch)
        if index < len(self._entries) and self._entries[index].leader_epoch == leader_epoch:
            return self._entries[index].start_offset
        return None

    def end_offset_for(self, leader_epoch: int, log_end_offset: int) -> EpochEnd:
        """The largest epoch at or below `leader_epoch` and its end: the start of the next greater one in the cache,
        else the log end offset (RULES 4.3)."""
        index = bisect_right(self._entries, leader_epoch, key=_epoch)
        if index == 0:
            return NO_EPOCH_END
        end = self._entries[index].start_offset if index < len(self._entries) else log_end_offset
        return EpochEnd(self._entries[index - 1].leader_epoch, end)

    def diverging(self, last_epoch: int, fetch_offset: int, log_end_offset: int) -> EpochEnd | None:
        """Tells what a leader with this cache answers to a follower whose last batch below `fetch_offset` has
        `last_epoch`: None where the logs agree, else the diverging epoch and its end (RULES 4.2, 4.3). A log without
        batches (`NO_EPOCH`) agrees."""
        if last_epoch == NO_EPOCH:
            return None
        end = self.end_offset_for(last_epoch, log_end_offset)
        return None if end.leader_epoch == last_epoch and fetch_offset <= end.end_offset else end

    def truncate_from_end(self, offset: int) -> bool:
        """Drops the entries that start at `offset` or later. With the log end offset: those that wrote nothing, as
        TruncateTo and a follower's fence do (RULES 4.3). Whether anything changed."""
        keep = bisect_left(self._entries, offset, key=_start)
        changed = keep < len(self._entries)
        del self._entries[keep:]
        return changed

    def truncate_from_start(self, offset: int) -> bool:
        """Drops the entries of epochs that end at or below `offset`, the new log start. The last entry stays even where
        the log is empty now: it tells the epoch that the log had reached. Whether anything changed."""
        drop = max(bisect_right(self._entries, offset, key=_start) - 1, 0)
        del self._entries[:drop]
        return drop > 0

    def clear(self) -> None:
        self._entries.clear()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LeaderEpochCache) and self._entries == other._entries

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"LeaderEpochCache({[tuple(entry) for entry in self._entries]})"


def _epoch(entry: EpochEntry) -> int:
    return entry.leader_epoch


def _start(entry: EpochEntry) -> int:
    return entry.start_offset

"""Requests that wait: produces for the high watermark, fetches for bytes.

Pure and bounded: `add` refuses at the limit (OVERLOADED is the answer then). What is to be answered is the caller's
opaque token; it comes back exactly once, from whichever call ends the wait. A produce of several partitions waits with
one token each, as it is answered partition by partition (RULES 5.3). `Purgatory` is all that waits on a broker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush
from typing import Generic, NamedTuple, Protocol, TypeVar

from highwater.errors import ErrorCode
from highwater.model.partition import PartitionKey
from highwater.replica_manager.replicas.session_waits import SessionWaits

T = TypeVar("T")


class Waiting(Generic[T]):
    """One wait. Opaque to callers, who hand it to `cancel`."""

    __slots__ = ("bytes_needed", "done", "keys", "token")

    def __init__(self, token: T, keys: Mapping[PartitionKey, int], bytes_needed: int = 0) -> None:
        self.token = token
        self.keys = keys  # partition -> required offset (a produce) or fetch offset (a fetch)
        self.bytes_needed = bytes_needed  # of a fetch; 0 for a produce
        self.done = False


class _Heap(Generic[T]):
    """Waits by a number (an offset, a deadline). Those that are done already stay until they are met, or until they
    are the most."""

    __slots__ = ("_entries", "_pushed", "live")

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, Waiting[T]]] = []
        self._pushed = 0  # makes the order of equals that of arrival
        self.live = 0

    def push(self, order: int, waiting: Waiting[T]) -> None:
        self._pushed += 1
        self.live += 1
        heappush(self._entries, (order, self._pushed, waiting))

    def pop_up_to(self, limit: int) -> list[Waiting[T]]:
        """Those that still wait, in order. They count as live until `forget`."""
        popped = []
        while self._entries and self._entries[0][0] <= limit:
            waiting = heappop(self._entries)[2]
            if not waiting.done:
                popped.append(waiting)
        return popped

    def pop_all(self) -> list[Waiting[T]]:
        popped = [entry[2] for entry in sorted(self._entries, key=_order) if not entry[2].done]
        self._entries.clear()
        return popped

    def forget(self) -> None:
        """One of those pushed is done."""
        self.live -= 1
        if len(self._entries) > 64 + 2 * self.live:
            self._entries = [entry for entry in self._entries if not entry[2].done]
            heapify(self._entries)


class ProducePurgatory(Generic[T]):
    """Appended `acks=all` produces until the high watermark has passed their last record, duplicates' old one too
    (RULES 5.3, 6.1)."""

    def __init__(self, limit: int) -> None:
        """`limit`: how many may wait at once, over all partitions."""
        self.limit = limit
        self._by_key: dict[PartitionKey, _Heap[T]] = {}
        self._deadlines: _Heap[T] = _Heap()

    def __len__(self) -> int:
        return self._deadlines.live

    def add(
        self, key: PartitionKey, required_offset: int, deadline_ms: int, token: T, *, bounded: bool = True
    ) -> Waiting[T] | None:
        """Waits until the high watermark is at or above `required_offset`. None: full, where it is `bounded`."""
        if bounded and len(self) >= self.limit:
            return None
        waiting = Waiting(token, {key: required_offset})
        heap = self._by_key.get(key)
        if heap is None:
            heap = self._by_key[key] = _Heap()
        heap.push(required_offset, waiting)
        self._deadlines.push(deadline_ms, waiting)
        return waiting

    def reached(self, key: PartitionKey, high_watermark: int) -> list[T]:
        """The tokens that waited for no more than that, by required offset. The partition's `produce_outcome` says
        what to answer (RULES 5.3)."""
        heap = self._by_key.get(key)
        return self._end(heap.pop_up_to(high_watermark)) if heap is not None else []

    def interrupted(self, key: PartitionKey) -> list[T]:
        """Leadership was: all that wait fail now (RULES 5.4)."""
        heap = self._by_key.get(key)
        return self._end(heap.pop_all()) if heap is not None else []

    def expired(self, now_ms: int) -> list[T]:
        """Those whose deadline is not after `now_ms` (REQUEST_TIMED_OUT)."""
        return self._end(self._deadlines.pop_up_to(now_ms))

    def cancel(self, waiting: Waiting[T]) -> bool:
        """The caller has gone. Whether it still waited."""
        return bool(self._end([waiting]))

    def _end(self, ended: list[Waiting[T]]) -> list[T]:
        tokens = []
        for waiting in ended:
            if waiting.done:
                continue
            waiting.done = True
            tokens.append(waiting.token)
            self._deadlines.forget()
            for key in waiting.keys:
                heap = self._by_key[key]
                heap.forget()
                if heap.live == 0:
                    del self._by_key[key]
        return tokens


class FetchPurgatory(Generic[T]):
    """Fetches until enough bytes are there (RULES 5.7). One for those that may read up to the log end (replicas) and
    one for those that read below the high watermark (consumers): what grows differs."""

    def __init__(self, limit: int) -> None:
        """`limit`: how many fetches may wait at once."""
        self.limit = limit
        self._by_key: dict[PartitionKey, dict[Waiting[T], int]] = {}
        self._deadlines: _Heap[T] = _Heap()

    def __len__(self) -> int:
        return self._deadlines.live

    def add(
        self, fetch_offsets: Mapping[PartitionKey, int], bytes_needed: int, deadline_ms: int, token: T
    ) -> Waiting[T] | None:
        """Waits until `bytes_needed` more bytes can be read, over all its partitions. `fetch_offsets` is kept, not
        copied. None: full."""
        if len(self) >= self.limit:
            return None
        waiting = Waiting(token, fetch_offsets, bytes_needed)
        for key, fetch_offset in fetch_offsets.items():
            self._by_key.setdefault(key, {})[waiting] = fetch_offset
        self._deadlines.push(deadline_ms, waiting)
        return waiting

    def waits_for(self, key: PartitionKey) -> bool:
        return key in self._by_key

    def grown(self, key: PartitionKey, end_offset: int, size_bytes: int) -> list[T]:
        """Takes note that what can be read of the partition grew by about `size_bytes` and now ends at `end_offset`:
        the tokens that have enough. A fetch from beyond the end has got nothing by it."""
        waiting_here = self._by_key.get(key)
        if waiting_here is None:
            return []
        enough = []
        for waiting, fetch_offset in waiting_here.items():
            if fetch_offset < end_offset:
                waiting.bytes_needed -= size_bytes
                if waiting.bytes_needed <= 0:
                    enough.append(waiting)
        return self._end(enough)

    def interrupted(self, key: PartitionKey) -> list[T]:
        """The partition can no longer be read as it was: all that wait for it are answered now (RULES 5.7)."""
        waiting_here = self._by_key.get(key)
        return self._end(list(waiting_here)) if waiting_here is not None else []

    def expired(self, now_ms: int) -> list[T]:
        """Those whose deadline is not after `now_ms`: answered with what there is."""
        return self._end(self._deadlines.pop_up_to(now_ms))

    def cancel(self, waiting: Waiting[T]) -> bool:
        """The caller has gone, or the stream's next request ends the wait. Whether it still waited."""
        return bool(self._end([waiting]))

    def _end(self, ended: list[Waiting[T]]) -> list[T]:
        tokens = []
        for waiting in ended:
            if waiting.done:
                continue
            waiting.done = True
            tokens.append(waiting.token)
            self._deadlines.forget()
            for key in waiting.keys:
                waiting_here = self._by_key[key]
                del waiting_here[waiting]
                if not waiting_here:
                    del self._by_key[key]
        return tokens


def _order(entry: tuple[int, int, Waiting[T]]) -> tuple[int, int]:
    return entry[0], entry[1]


class WaitingProduce(NamedTuple):
    """One partition of a produce that log-storage has answered for and that is not committed yet."""

    leader_epoch: int
    end_offset: int
    done: Callable[[ErrorCode], None]


class WaitingFetch(Protocol):
    """One fetch that waits for data."""

    def wake(self) -> None:
        """Something moved: look again."""

    def end(self) -> None:
        """Answer now, with whatever there is."""


class Purgatory:
    """All that waits on this broker."""

    def __init__(self, *, max_produces: int, max_fetches: int) -> None:
        """`max_produces` counts partitions, `max_fetches` requests of either kind, and consumers' sessions."""
        self.produces: ProducePurgatory[WaitingProduce] = ProducePurgatory(max_produces)
        self.replicas: FetchPurgatory[WaitingFetch] = FetchPurgatory(max_fetches)  # for the log end to move
        self.sessions = SessionWaits(max_fetches)  # that name what has changed alone
        self.consumers: FetchPurgatory[WaitingFetch] = FetchPurgatory(max_fetches)  # for the high watermark to move

    @property
    def fetches(self) -> int:
        """Requests of either kind that wait."""
        return len(self.replicas) + len(self.consumers) + self.sessions.waiting

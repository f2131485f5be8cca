"""The memory that all of a broker's fetchers may fill together with what leaders send. Pure.

Each request is granted so many bytes for its response, and holds them from when it goes out until it is answered; the
data that it brings holds its size until log-storage has answered for it, or it is dropped. A request that waits at a
leader holds its grant for as long: it may be answered at any moment.

Every fetcher may have so many requests and appends under way, and each of those has an equal share of the whole. That
is what is granted while all have much to fetch, and so nobody waits for anybody. Where a leader has said that it has
more, its next request may have a larger part of what is free, as long as half of the whole is not held: so a few that
catch up are quick while others are idle. A request is never held back: with one byte it is answered with one batch
(RULES 4.8). So what is held exceeds the whole by at most one batch for each request.
"""

from __future__ import annotations


class FetchBudget:
    def __init__(self, total_bytes: int, under_way: int) -> None:
        """`total_bytes`: `replica.fetch.total.max.bytes`; `under_way`: requests and appends that one fetcher has at
        most."""
        self._total = total_bytes
        self._under_way = under_way
        self._fetchers = 0
        self._held = 0

    @property
    def held(self) -> int:
        """Bytes: the grants of requests that are not answered, and the data of appends that are not."""
        return self._held

    def resize(self, total_bytes: int) -> None:
        """Takes another size. What is held beyond it is given back in its own time."""
        self._total = total_bytes

    def join(self) -> None:
        """A fetcher is opened: shares are smaller from now on."""
        self._fetchers += 1

    def leave(self) -> None:
        assert self._fetchers > 0
        self._fetchers -= 1

    def grant(self, wanted: int, *, more: bool) -> int:
        """Returns what a request may ask for, 1 at least, which is held from here on. `more`: the leader has said that
        there is more, so that it is answered at once."""
        share = self._total // (self._under_way * max(1, self._fetchers))
        spare = (self._total // 2 - self._held) // 2 if more else 0
        granted = max(1, min(wanted, self._total - self._held, max(share, spare)))
        self._held += granted
        return granted

    def hold(self, size: int) -> None:
        """Data that has come, of a request whose grant was given back."""
        self._held += size

    def give_back(self, size: int) -> None:
        assert 0 <= size <= self._held
        self._held -= size

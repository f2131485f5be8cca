"""A seek to a position that has to be looked up."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any

from highwater.client.consumer.fetch_buffer import FetchBuffer


class Seeking:
    """A seek that has begun. Await it to know that the positions have been looked up; or poll, which waits for that.

    Awaiting raises `RequestTimedOutError` where a partition has no leader that answers.
    """

    __slots__ = ("_looked_up", "_seeking")

    def __init__(
        self,
        looked_up: Callable[[Sequence[tuple[FetchBuffer, int]]], Coroutine[Any, Any, None]],
        seeking: Sequence[tuple[FetchBuffer, int]],
    ) -> None:
        self._looked_up = looked_up
        self._seeking = seeking

    def __await__(self) -> Generator[Any, None, None]:
        return self._looked_up(self._seeking).__await__()

"""Work of a thread beside the event loop's, in small portions: Python runs one of them at a time, and lets another have
its turn after 5 ms at the soonest, each time that it asks for one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")

AT_ONCE = 250
PAUSE_S = 0.0005


def politely(items: Iterable[Item], *, at_once: int = AT_ONCE) -> Iterator[Item]:
    """The items, with a pause after every so many."""
    for number, item in enumerate(items, 1):
        yield item
        if number % at_once == 0:
            time.sleep(PAUSE_S)

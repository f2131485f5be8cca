"""The search for logs that nobody wants any more is repeated while some may be left (RULES 9.2)."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from highwater.model.partition import PartitionKey
from highwater.replica_manager.membership.strays import FIRST_PAUSE_MS, LONGEST_PAUSE_MS, Strays


class Search:
    """Finds everything deleted; a deletion fails while the first one is under way, of a log that it passed over."""

    def __init__(self, fails: bool) -> None:
        self.now_ms, self.searches, self._fails = 0, 0, fails
        self.strays = Strays(self, (), lambda: self.now_ms)  # type: ignore[arg-type]

    async def delete_strays(self, _: Collection[PartitionKey]) -> bool:
        self.searches += 1
        if self._fails and self.searches == 1:
            self.strays.remained()
        return True


@pytest.mark.parametrize("fails", [False, True])
async def test_a_deletion_that_fails_during_a_search_has_another_follow(fails: bool) -> None:
    search = Search(fails)
    search.strays.registered()
    for _ in range(4):
        await search.strays.tick()
        search.now_ms += LONGEST_PAUSE_MS
    assert search.searches == 1 + fails


async def test_a_registration_during_a_search_has_another_follow_at_whichever_moment() -> None:
    search = Search(fails=False)

    async def registered_as_the_pause_ends(_: Collection[PartitionKey]) -> bool:
        search.searches += 1
        if search.searches == 1:
            search.now_ms += FIRST_PAUSE_MS
            search.strays.registered()
        return True

    search.delete_strays = registered_as_the_pause_ends  # type: ignore[method-assign]
    search.strays.registered()
    for _ in range(3):
        await search.strays.tick()
    assert search.searches == 2

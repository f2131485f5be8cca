"""The throttle of what a broker copies: of listed replicas that are behind, and that no commit waits for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from highwater.fetcher.follower_throttle import FollowerThrottle
from highwater.model.partition import PartitionKey

LISTED, OTHER = PartitionKey(bytes(16), 0), PartitionKey(bytes(16), 1)


def follower(key: PartitionKey, lag: int = 100) -> Any:
    return SimpleNamespace(key=key, lag=lag)


class Throttle(FollowerThrottle):
    """At 1,000 bytes a second, of which 2,500 have been copied at once: 2 s are owed."""

    def __init__(self) -> None:
        self.now_ms = 0
        super().__init__(lambda: self.now_ms)
        self.configure(1_000)
        self.list(LISTED, listed=True)
        self.copied(LISTED, 2_500, awaited=False)


def test_a_listed_replica_that_is_behind_waits_until_what_it_copied_is_paid() -> None:
    throttle = Throttle()
    assert throttle.held_back_ms(follower(LISTED)) == 2_000
    throttle.now_ms = 1_500
    assert throttle.held_back_ms(follower(LISTED)) == 500
    throttle.now_ms = 2_000
    assert throttle.held_back_ms(follower(LISTED)) == 0


def test_others_and_who_lacks_nothing_do_not_wait() -> None:
    throttle = Throttle()
    throttle.copied(OTHER, 10**9, awaited=False)
    assert throttle.held_back_ms(follower(OTHER)) == 0
    assert throttle.held_back_ms(follower(LISTED, lag=0)) == 0
    assert throttle.held_back_ms(follower(LISTED)) == 2_000, "what others copy is not charged"
    throttle.list(LISTED, listed=False)
    assert throttle.held_back_ms(follower(LISTED)) == 0


def test_one_for_which_commits_wait_does_not_wait_and_is_not_charged() -> None:
    throttle = Throttle()
    throttle.copied(LISTED, 10**9, awaited=True)
    assert throttle.held_back_ms(follower(LISTED)) == 0
    throttle.copied(LISTED, 1_000, awaited=False)
    assert throttle.held_back_ms(follower(LISTED)) == 3_000


def test_a_rate_that_is_given_goes_before_the_configured_one() -> None:
    throttle = Throttle()
    throttle.give(2_000)
    assert throttle.held_back_ms(follower(LISTED)) == 1_000
    throttle.configure(10)
    assert throttle.held_back_ms(follower(LISTED)) == 1_000
    throttle.give(None)
    throttle.configure(None)
    assert throttle.held_back_ms(follower(LISTED)) == 0

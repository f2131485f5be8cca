"""The pace at which a client asks for metadata again."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from highwater.client.cluster.metadata import MetadataAnswer

# Between two refreshes, however many ask for one. A topic that was not asked for before does not wait for it. Doubled
# up to the second while nobody waits and the answers stay the same, and up to the third where one is slow to come: a
# thousand clients of a partition that has no leader must not keep those who are to help it busy with their questions.
# Doubled up to the fourth where one after another is: a process that once stood still can keep up all the same.
MIN_REFRESH_INTERVAL_S = 0.1
MAX_REFRESH_INTERVAL_S = 0.5
FIRST_SLOW_REFRESH_INTERVAL_S = 2.0
MAX_SLOW_REFRESH_INTERVAL_S = 10.0
SAME_ANSWERS = 5
"""As many in a row leave the interval as it is: others lead what a killed broker led after 0.3 to 0.4 s (RULES 8.3),
and who asks again at 0.7 s has stood still for as long again."""


class RefreshPace:
    """`began` and `answered` follow each refresh; `left_s` says when the next one may begin."""

    def __init__(self, clock_s: Callable[[], float] = monotonic) -> None:
        self._clock_s = clock_s
        self._pause_s = MIN_REFRESH_INTERVAL_S  # from one refresh to the next that nobody waits for
        self._began_s = float("-inf")
        self._last_answer: MetadataAnswer | None = None
        self._same = 0  # answers in a row

    def asked(self) -> None:
        """Somebody asks for a refresh: after a long rest it is not one more of a row."""
        if self._clock_s() - self._began_s > 2 * max(self._pause_s, FIRST_SLOW_REFRESH_INTERVAL_S):
            self._pause_s = MIN_REFRESH_INTERVAL_S
            self._same = 0

    def left_s(self, *, waited_for: bool) -> float:
        """Seconds until the next one may begin; none are left at 0 and below."""
        pause_s = MIN_REFRESH_INTERVAL_S if waited_for else self._pause_s
        return self._began_s + pause_s - self._clock_s()

    def began(self) -> float:
        """A refresh begins: returns when."""
        self._began_s = self._clock_s()
        return self._began_s

    def answered(self, answer: MetadataAnswer) -> None:
        """The refresh that began last has its answer."""
        self._same = self._same + 1 if answer == self._last_answer else 0
        self._last_answer = answer
        took_s = self._clock_s() - self._began_s
        soon = self._same < SAME_ANSWERS
        pause_s = MIN_REFRESH_INTERVAL_S if soon else min(2 * self._pause_s, MAX_REFRESH_INTERVAL_S)
        slow_s = min(max(2 * self._pause_s, FIRST_SLOW_REFRESH_INTERVAL_S), MAX_SLOW_REFRESH_INTERVAL_S)
        self._pause_s = max(pause_s, min(2 * took_s, slow_s))

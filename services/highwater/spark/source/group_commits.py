"""Offsets of a streaming query, committed to a group for whoever watches its lag."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from highwater.client.blocking import Admin

_TIMEOUT_MS = 5_000  # what a micro-batch waits for a commit at most
_AGAIN_S = 60.0  # how long a commit that failed is not tried again: each may have taken that long

logger = logging.getLogger(__name__)


class GroupCommits:
    """Commits without being a member, and never raises: what could not be committed is in the log, and the next commit
    says all of it again. Connects with the first one."""

    def __init__(
        self,
        bootstrap: tuple[str, ...],
        group: str,
        settings: Mapping[str, Any],
        now_s: Callable[[], float] = monotonic,
    ) -> None:
        timeout_ms = min(settings.get("request_timeout_ms", _TIMEOUT_MS), _TIMEOUT_MS)
        self._admin = Admin(bootstrap, **{**settings, "request_timeout_ms": timeout_ms, "max_block_ms": timeout_ms})
        self._group = group
        self._now_s = now_s
        self._not_before_s = self._silent_until_s = 0.0
        self._committed: Mapping[tuple[str, int], int] = {}

    def commit(self, offsets: Mapping[tuple[str, int], int]) -> None:
        if offsets == self._committed or self._now_s() < self._not_before_s:
            return
        try:
            outcomes = self._admin.alter_offsets(self._group, offsets)
        except Exception as error:  # whatever it is: a query does not fail because it cannot be watched
            self._not_before_s = self._now_s() + _AGAIN_S
            self._say(str(error) or type(error).__name__)
            return
        if errors := [str(error) for error in outcomes.values() if error is not None]:
            self._say("; ".join(errors[:3]))  # a topic so new that the coordinator has not heard of it, say
        else:
            self._committed = dict(offsets)

    def _say(self, why: str) -> None:
        if self._now_s() >= self._silent_until_s:
            self._silent_until_s = self._now_s() + _AGAIN_S
            logger.warning("offsets were not committed to group %s: %s", self._group, why)

    def close(self) -> None:
        self._admin.stop()

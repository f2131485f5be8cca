"""The lags of many groups, round after round: what it costs the cluster is bounded."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from highwater.cli.groups.end_history import EndHistory
from highwater.cli.groups.lags import find_ends, record_times
from highwater.client.exceptions import RetriableError, UnknownTopicError

if TYPE_CHECKING:
    from highwater.client import Admin, GroupDescription, TopicPartition

DESCRIBED_AT_ONCE = 50
ASKED_AT_ONCE = 1_000  # partitions
MOST_READ = 200  # partitions of which a record is read, in one round
_ATTEMPTS = 3  # at reading one of a partition

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Lag:
    offsets: int
    seconds: float  # since the next record that is to be read came; 0: there is none


@dataclass(slots=True)
class Round:
    """A look at all groups. One that did not answer is in `listed` alone."""

    listed: frozenset[str] = frozenset()
    members: dict[str, int] = field(default_factory=dict)
    lags: dict[str, dict[TopicPartition, Lag]] = field(default_factory=dict)
    left_out: int = 0
    """Groups that would have been more partitions than are looked at."""
    unknown: int = 0
    """Offsets of which the partition's end is not known."""


class LagRounds:
    """`most_partitions` counts a partition for each group that has committed something of it. Groups are taken by name
    until there would be more."""

    def __init__(
        self,
        admin: Admin,
        bootstrap: str,
        pattern: re.Pattern[str] | None,
        most_partitions: int,
        now_ms: Callable[[], int],
    ) -> None:
        self._admin = admin
        self._bootstrap = bootstrap
        self._pattern = pattern
        self._most_partitions = most_partitions
        self._now_ms = now_ms
        self._histories: dict[TopicPartition, EndHistory] = {}
        self._attempts: dict[TopicPartition, int] = {}

    async def take(self, deadline_s: float) -> Round:
        """One round, of which the ends that are not known by then are left open. Raises `HighwaterError` where there is
        no list of groups, and `TimeoutError` where the groups are not told in time."""
        found = Round()
        ends: dict[TopicPartition, int] = {}
        async with asyncio.timeout(deadline_s):
            committed = await self._committed(found)
        wanted = sorted({one for offsets in committed.values() for one in offsets})
        try:
            async with asyncio.timeout(deadline_s):
                for some in _pieces(wanted, ASKED_AT_ONCE):
                    ends |= await self._ends_of(some)
        except TimeoutError:
            pass
        await self._note(wanted, ends, committed.values())
        now_ms = self._now_ms()
        for group, offsets in committed.items():
            found.lags[group] = {
                one: self._lag(one, offset, ends[one], now_ms) for one, offset in offsets.items() if one in ends
            }
            found.unknown += len(offsets) - len(found.lags[group])
        return found

    async def _committed(self, found: Round) -> dict[str, dict[TopicPartition, int]]:
        listed = await self._admin.list_groups()
        names = [one.group for one in listed if self._pattern is None or self._pattern.fullmatch(one.group)]
        found.listed = frozenset(names)
        committed: dict[str, dict[TopicPartition, int]] = {}
        partitions = 0
        for some in _pieces(names, DESCRIBED_AT_ONCE):
            if found.left_out:
                found.left_out += len(some)
                continue
            for group in await self._described(some):
                if found.left_out or partitions + len(group.offsets) > self._most_partitions:
                    found.left_out += 1
                    continue
                partitions += len(group.offsets)
                committed[group.group] = {one: each.offset for one, each in group.offsets.items()}
                found.members[group.group] = len(group.members)
        return committed

    async def _described(self, names: list[str]) -> list[GroupDescription]:
        try:
            groups = await self._admin.describe_groups(names, include_offsets=True)
        except RetriableError:
            return []  # a coordinator is on its way: the next round will tell
        return [group for group in groups if group.error is None]

    async def _ends_of(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        try:
            return {one: each.offset for one, each in (await self._admin.list_offsets(partitions)).items()}
        except (RetriableError, UnknownTopicError):
            ends, _ = await find_ends(self._admin, partitions)  # each topic by itself
            return ends

    async def _note(
        self,
        wanted: Iterable[TopicPartition],
        ends: Mapping[TopicPartition, int],
        committed: Iterable[Mapping[TopicPartition, int]],
    ) -> None:
        """Keeps the ends, and has a record read of a partition where a group is behind all that was seen of it."""
        now_ms = self._now_ms()
        self._histories = {one: self._histories.get(one) or EndHistory() for one in wanted}
        self._attempts = {one: times for one, times in self._attempts.items() if one in self._histories}
        for one, end in ends.items():
            self._histories[one].saw(end, now_ms)
        lowest: dict[TopicPartition, int] = {}
        for offsets in committed:
            for one, offset in offsets.items():
                lowest[one] = min(offset, lowest.get(one, offset))
        unread: dict[TopicPartition, int] = {}
        for one, offset in lowest.items():
            history = self._histories[one]
            history.forget_below(offset)
            if history.reaches(offset):
                self._attempts.pop(one, None)
            elif one in ends and self._attempts.get(one, 0) < _ATTEMPTS and len(unread) < MOST_READ:
                unread[one] = offset
                self._attempts[one] = self._attempts.get(one, 0) + 1
        for one, time_ms in (await record_times(unread, self._bootstrap)).items():
            self._histories[one].read(unread[one], time_ms)

    def _lag(self, partition: TopicPartition, committed: int, end: int, now_ms: int) -> Lag:
        if committed >= end:
            return Lag(0, 0.0)
        return Lag(end - committed, max(now_ms - self._histories[partition].came_ms(committed), 0) / 1000)


def _pieces(items: list[_Item], size: int) -> Iterator[list[_Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]

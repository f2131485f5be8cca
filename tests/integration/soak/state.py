"""What all parts of a soak share."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from time import monotonic

NUMBERED, COMPACTED, EXITS = "numbered", "compacted", "exits"
NUMBERED_REPLICAS = [[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 3, 2], [2, 1, 3], [3, 2, 1]]
COMPACTED_REPLICAS = NUMBERED_REPLICAS[:3]
EXITS_PARTITIONS = 3
DELIVERY_TIMEOUT_S = 150.0  # longer than any outage that the faults add up to
SETTLE_S = 120.0
SHOWN_PROBLEMS = 20  # a lost record shifts all that follow


@dataclass
class KindFigures:
    """Of one kind of fault."""

    faults: int = 0
    longest_heal_s: float = 0.0  # from the last fault of an episode to all in sync and all partitions taking records
    longest_pause_s: float = 0.0  # without an acknowledgement, of a partition, in an episode
    findings: int = 0


@dataclass
class Soak:
    seed: int
    bootstrap: str
    begun: float = field(default_factory=monotonic)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    problems: int = 0
    acked: dict[int, int] = field(default_factory=lambda: defaultdict(int))  # of each numbered partition
    seen: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    values: dict[bytes, bytes] = field(default_factory=dict)  # acknowledged last, of each key
    topics: int = 0  # made, written, read and deleted
    refused_topics: int = 0
    exits: dict[str, int] = field(default_factory=dict)  # of each client process that ended well: its records
    clients: Counter[str] = field(default_factory=Counter)  # client processes that ended, by what they did
    kinds: dict[str, KindFigures] = field(default_factory=lambda: defaultdict(KindFigures))
    episode: tuple[str, ...] = ()  # the kinds of fault of the last episode
    _waiting_since: dict[int, float] = field(default_factory=dict)  # of each partition with records unacknowledged
    _outstanding: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    _longest_pause_s: float = 0.0

    def say(self, text: str) -> None:
        print(f"{monotonic() - self.begun:7.1f} s  {text}", flush=True)

    def problem(self, text: str) -> None:
        self.problems += 1
        for kind in set(self.episode):
            self.kinds[kind].findings += 1
        if self.problems <= SHOWN_PROBLEMS:
            after = f" (after {', '.join(self.episode)})" if self.episode else ""
            self.say(f"PROBLEM: {text}{after}")

    def random(self, part: str) -> Random:
        """Of its own for each part, so that one does not change what another draws."""
        return Random(f"{self.seed} {part}")

    async def pause(self, seconds: float) -> None:
        """At most so long, and not beyond the end of the faults."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.stopped.wait(), seconds)

    # How long a partition goes without an acknowledgement while one is due.

    def waits(self, partition: int) -> None:
        """A record of it is sent."""
        if not self._outstanding[partition]:
            self._waiting_since[partition] = monotonic()
        self._outstanding[partition] += 1

    def acknowledged(self, partition: int) -> None:
        now = monotonic()
        self._longest_pause_s = max(self._longest_pause_s, now - self._waiting_since[partition])
        self._waiting_since[partition] = now
        self._outstanding[partition] -= 1
        self.acked[partition] += 1

    def begin_episode(self) -> None:
        self.episode = ()
        now = monotonic()
        self._longest_pause_s = 0.0
        for partition in self._waiting_since:
            self._waiting_since[partition] = now

    def longest_pause_s(self) -> float:
        """Of any partition since `begin_episode`, up to now."""
        now = monotonic()
        waiting = [now - since for partition, since in self._waiting_since.items() if self._outstanding[partition]]
        return max([self._longest_pause_s, *waiting])

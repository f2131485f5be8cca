"""What all parts of a soak share."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from threading import Lock
from time import monotonic

SHOWN_PROBLEMS = 20


@dataclass
class Soak:
    seed: int
    begun: float = field(default_factory=monotonic)
    counts: Counter[str] = field(default_factory=Counter)  # of failures, of what else was done, of how processes ended
    rounds: int = 0  # in each of which the table was the topics
    rows: int = 0  # compared, each once
    problems: list[str] = field(default_factory=list)
    _saying: Lock = field(default_factory=Lock)

    def random(self, part: str) -> Random:
        """Of its own for each part, so that one does not change what another draws."""
        return Random(f"{self.seed} {part}")

    def say(self, text: str) -> None:
        with self._saying:
            print(f"{monotonic() - self.begun:7.1f} s  {text}", flush=True)

    def did(self, what: str, more: str = "") -> None:
        self.counts[what] += 1
        self.say(f"{what} {more}".rstrip())

    def problem(self, text: str) -> None:
        self.problems.append(text)
        if len(self.problems) <= SHOWN_PROBLEMS:
            self.say(f"PROBLEM: {text}")

"""Whether somebody was allowed something at some time, and what became of what they tried. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from soak.operating.disturbances import Disturbances

HEARD_S = 3.0  # in which every broker goes by a change that was acknowledged


@dataclass
class Change:
    allowed: bool
    begun: float
    done: float = inf  # acknowledged
    seen: float = inf  # something that was tried afterwards ended as it says
    late_s: float = 0.0  # after it was done something was tried, and still ended as before


class Permission:
    """Of one principal, from what was changed, and when."""

    def __init__(self, name: str, disturbances: Disturbances, *, allowed: bool = True, since: float = 0.0) -> None:
        self.name = name
        self._disturbances = disturbances
        self.changes = [Change(allowed, since, since)]

    def change(self, allowed: bool, now: float) -> Change:
        made = Change(allowed, now)
        self.changes.append(made)
        return made

    def tried(self, begun: float, ended: float, allowed: bool) -> str:
        """Notes one try; the sentence that says why it may not have ended so, or nothing."""
        last = self.changes[-1]
        if last.done <= begun and last.allowed == allowed:
            last.seen = min(last.seen, ended)
        elif last.done <= begun:
            last.late_s = max(last.late_s, begun - last.done)
        if allowed in self._possible(begun, ended):
            return ""
        last = max((change for change in self.changes if change.begun <= ended), key=lambda one: one.begun)
        what, is_ = ("was let in", "denied") if allowed else ("was refused", "allowed")
        return f"{self.name} {what} {begun - last.done:.1f} s after they had been {is_}"

    def due(self, change: Change) -> float:
        """When it must be seen."""
        return self._disturbances.due(change.done, HEARD_S)

    def _possible(self, begun: float, ended: float) -> set[bool]:
        """The answers that something tried between these times may have had."""
        possible = set()
        for change in reversed(self.changes):
            if change.begun <= ended:
                possible.add(change.allowed)
            if begun > self.due(change):
                break  # those before count no more
        return possible

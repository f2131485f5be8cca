"""What the parts of a soak of operating share."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import TypeVar

from running_cluster import Deployment

from highwater.client import HighwaterError
from soak.cluster import SoakCluster
from soak.operating.disturbances import Disturbances
from soak.operating.principals import Identities
from soak.state import Soak

DEADLINE_S = 90.0  # of what an operator wants, tried again and again
_T = TypeVar("_T")


@dataclass
class Operating:
    soak: Soak
    cluster: SoakCluster
    deployed: Deployment
    identities: Identities
    data: Path
    disturbances: Disturbances = field(default_factory=Disturbances)
    etcd_is_kept: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by whoever breaks etcd, or starts it again: one at a time."""
    acts: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    """Of whom and what, each as it should be."""
    longest: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """The largest of each figure."""

    def note(self, figure: str, value: float) -> None:
        self.longest[figure] = max(self.longest[figure], value)

    def act(self, kind: str, text: str) -> None:
        self.acts[kind] += 1
        self.soak.say(f"{kind}: {text}")

    async def insist(self, what: str, attempt: Callable[[], Awaitable[_T]]) -> _T:
        """Until it succeeds: processes die meanwhile. Raises `AssertionError` after `DEADLINE_S`."""
        ends = monotonic() + DEADLINE_S
        while True:
            try:
                return await attempt()
            except HighwaterError as error:
                if monotonic() > ends:
                    raise AssertionError(f"{what} for {DEADLINE_S} s: {error}") from error
            await asyncio.sleep(0.3)

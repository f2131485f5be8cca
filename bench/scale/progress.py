"""Words on the way, beside the table of results."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def say(what: str) -> None:
    print(f"  {what}", file=sys.stderr, flush=True)


def say_grown(idle: int, added: int, creations: Sequence[float]) -> None:
    """At every thousand of idle partitions."""
    if idle % 1000 < added:
        say(f"{idle:,} idle partitions, the last {added} in {creations[-1]:.2f} s")


def say_failed_over(partitions: int, all_led_s: float, served_s: float, before_s: float) -> None:
    say(
        f"{partitions:,} partitions were led elsewhere after {all_led_s:.2f} s and had a record each after "
        f"{served_s:.2f} s, which took {before_s:.2f} s before the kill"
    )

"""Replicas whose replication is throttled, as a topic's configuration names them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ThrottledReplicas:
    """`everything`: each replica of the topic; else (partition, broker) pairs."""

    everything: bool = False
    pairs: frozenset[tuple[int, int]] = frozenset()

    def __contains__(self, replica: tuple[int, int]) -> bool:
        return self.everything or replica in self.pairs

    def __bool__(self) -> bool:
        return self.everything or bool(self.pairs)


NONE_THROTTLED = ThrottledReplicas()


def parse_throttled_replicas(text: str | None) -> ThrottledReplicas:
    """`*`, or `partition:broker` pairs with commas between. Anything else counts as none: the controller refuses it,
    and a broker must go on with whatever it finds."""
    if text == "*":
        return ThrottledReplicas(everything=True)
    if not text:
        return NONE_THROTTLED
    try:
        pairs = frozenset(
            (int(partition), int(broker)) for partition, broker in (p.split(":") for p in text.split(","))
        )
    except ValueError:
        return NONE_THROTTLED
    return ThrottledReplicas(pairs=pairs)

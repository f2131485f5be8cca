"""When appends wait for the disk: drawn for the brokers and for each topic, which may say otherwise than its broker."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from soak.state import COMPACTED, EXITS, NUMBERED

NEVER = str(2**63 - 1)
_BROKERS = (NEVER, NEVER, "1", "50")
_TOPICS = ("", "", "1", "50", NEVER)  # empty: as the broker says
_INTERVALS_MS = ("", "500", "5000")


@dataclass(frozen=True)
class FlushModes:
    broker: dict[str, str]  # settings
    topics: dict[str, dict[str, str]]  # configuration of each topic

    @property
    def all(self) -> dict[str, str]:
        of_topics = {f"{topic} {key}": value for topic, config in self.topics.items() for key, value in config.items()}
        return {**self.broker, **of_topics}

    def __str__(self) -> str:
        return ", ".join(f"{key}={value}" for key, value in self.all.items())


def draw(random: Random) -> FlushModes:
    broker = {"flush.messages": random.choice(_BROKERS)}
    interval = random.choice(_INTERVALS_MS)
    if interval:
        broker["log.flush.interval.ms"] = interval
    topics = {}
    for topic in (NUMBERED, COMPACTED, EXITS):
        messages = random.choice(_TOPICS)
        topics[topic] = {"flush.messages": messages} if messages else {}
    return FlushModes(broker, topics)

"""The cluster's topics as a coordinator sees them: their ids, partitions and racks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import islice

from highwater.groups.patterns import matching
from highwater.model.partition import PartitionKey
from highwater.model.topic_name import is_internal_topic

KEPT_GONE = 50_000  # ids of topics that went, the last ones: their offsets are removed with the next look at changes


@dataclass(frozen=True)
class Topic:
    """`racks` has for each partition the racks of its replicas; empty: none is known."""

    topic_id: bytes
    name: str
    partitions: int
    racks: tuple[frozenset[str], ...] = ()

    @cached_property
    def keys(self) -> tuple[PartitionKey, ...]:
        return tuple(PartitionKey(self.topic_id, number) for number in range(self.partitions))

    @cached_property
    def digest(self) -> bytes:
        """Another one whenever an assignment may have to be another one."""
        text = "\x1f".join(["\x1e".join(sorted(racks)) for racks in self.racks])
        return blake2b(
            b"%s%s\0%d\0%s" % (self.topic_id, self.name.encode(), self.partitions, text.encode()), digest_size=16
        ).digest()


class TopicImage:
    """All topics by name and by id. One for all shards of a broker; the server tells it what changes, then the shards
    (`GroupShard.topics_changed`)."""

    def __init__(self, topics: Iterable[Topic] = ()) -> None:
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        self._gone: dict[bytes, None] = {}  # in the order in which they went
        self.version = 0  # counts the updates
        self.names_bytes = 0  # of all names together
        self._matched: tuple[int, str, frozenset[str]] = (0, "", frozenset())  # at that version, by that pattern
        self.update({topic.name: topic for topic in topics})

    def update(self, changed: Mapping[str, Topic | None]) -> None:
        """None: the topic was deleted."""
        self.version += 1
        for name, topic in changed.items():
            before = self._by_name.pop(name, None)
            self.names_bytes += len(name) * ((topic is not None) - (before is not None))
            if before is not None and self._by_id.get(before.topic_id) is before:
                del self._by_id[before.topic_id]
                self._gone[before.topic_id] = None
            if topic is not None:
                self._by_name[name] = topic
                self._by_id[topic.topic_id] = topic
                self._gone.pop(topic.topic_id, None)
        for topic_id in list(islice(self._gone, max(len(self._gone) - KEPT_GONE, 0))):
            del self._gone[topic_id]

    def named(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def of_id(self, topic_id: bytes) -> Topic | None:
        return self._by_id.get(topic_id)

    def has_gone(self, name: str, topic_id: bytes | None) -> bool:
        """Tells whether the topic was here, and is not any more. One that never was may have been made a moment ago.
        Without an id it is any of the name."""
        return topic_id in self._gone if topic_id else name not in self._by_name

    def has(self, name: str, topic_id: bytes | None) -> bool:
        """Tells whether the topic is here. Without an id it is any of the name."""
        topic = self.named(name)
        return topic is not None and (not topic_id or topic.topic_id == topic_id)

    def name_of(self, topic_id: bytes) -> str:
        """Empty where the topic is not there any more."""
        topic = self.of_id(topic_id)
        return "" if topic is None else topic.name

    def names(self) -> tuple[str, ...]:
        return tuple(self._by_name)

    def matching(self, pattern: str) -> frozenset[str]:
        """The topics that a pattern of a group matches: no internal ones (RULES 11.9). Looks at all names, but for what
        it was asked last: a join asks twice."""
        version, asked, found = self._matched
        if version != self.version or asked != pattern:
            found = matching(pattern, (name for name in self._by_name if not is_internal_topic(name)))
            self._matched = (self.version, pattern, found)
        return found

    def hash_of(self, names: Iterable[str]) -> int:
        """A signed 64-bit hash of those of the topics that exist; 0 for none of them, and practically never else."""
        found = [self._by_name[name].digest for name in sorted(names) if name in self._by_name]
        if not found:
            return 0
        return int.from_bytes(blake2b(b"".join(found), digest_size=8).digest(), "big", signed=True)

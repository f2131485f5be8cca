"""Topics as coordinators see them, kept by what changes in the broker's metadata and not by looks at all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from highwater.groups.topics import Topic, TopicImage
from highwater.replica_manager.replicas.metadata_cache import CachedTopic, MetadataCache


class TopicFeed:
    """`image` has what `take` has taken. Leaders and ISRs change nothing in it."""

    def __init__(self, metadata: MetadataCache) -> None:
        self.image = TopicImage()
        self.complete = asyncio.Event()  # the controller has told of all topics: what is missing is not there
        self._metadata = metadata
        self._changed: set[str] = set()
        self._racks: dict[int, str] = {}  # of every broker that was ever seen, as it last said
        metadata.listeners.append(self._note)

    def _note(self, names: Collection[str]) -> None:
        self._changed.update(names)

    def take(self) -> set[str]:
        """Brings the image up to date; the names of the topics that are others now."""
        if not self._metadata.complete:
            return set()
        self._learn_racks()
        changed, self._changed = self._changed, set()
        update: dict[str, Topic | None] = {}
        for name in changed:
            cached = self._metadata.by_name(name)
            before = self.image.named(name)
            after = None if cached is None else self._topic(cached, before)
            if after != before:
                update[name] = after
        if update:
            self.image.update(update)
        self.complete.set()
        return set(update)

    def _topic(self, cached: CachedTopic, before: Topic | None) -> Topic | None:
        numbered = cached.numbered()
        if not numbered:
            return before if before is not None and before.topic_id == cached.topic_id else None
        racks: tuple[frozenset[str], ...] = ()
        if any(self._racks.values()):
            racks = tuple(
                frozenset(rack for replica in each.replicas if (rack := self._racks.get(replica, "")))
                for _, each in numbered
            )
        return Topic(cached.topic_id, cached.topic, len(numbered), racks)

    def _learn_racks(self) -> None:
        """A broker that is away keeps its rack: its replicas are where they were."""
        racks = self._racks | {broker.broker_id: broker.rack for broker in self._metadata.brokers.values()}
        if racks != self._racks:
            if {rack for rack in racks.items() if rack[1]} != {rack for rack in self._racks.items() if rack[1]}:
                self._changed.update(topic.topic for topic in self._metadata.topics())
            self._racks = racks

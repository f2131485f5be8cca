"""Brokers, topics and leaders, as far as a client knows them. Pure.

Leader epochs only rise (RULES 5.7): a broker that lags, or a deposed leader that does not know it, may describe the
past, and a client that went back to it would believe a short log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from highwater.errors import ErrorCode

NO_LEADER = -1
MAX_REPLACED_IDS = 1024


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    broker_id: int
    broker_epoch: int
    address: str
    rack: str = ""


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    partition: int
    leader: int  # broker id; NO_LEADER
    leader_epoch: int
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, weakref_slot=True)
class TopicInfo:
    """`partitions` is indexed by partition number."""

    topic: str
    topic_id: bytes
    partitions: tuple[PartitionInfo, ...]
    config: Mapping[str, str] = field(default_factory=dict)
    internal: bool = False


@dataclass(frozen=True, slots=True)
class TopicError:
    """A broker's reason not to describe a topic. `message`: its sentence, which may be empty."""

    code: ErrorCode
    message: str = ""

    def about(self, topic: str) -> str:
        """One sentence that names the topic."""
        said = self.message or self.code.name
        return said if repr(topic) in said else f"topic {topic!r}: {said}"


@dataclass(frozen=True, slots=True)
class MetadataAnswer:
    """One broker's view. `missing` are topics it does not know, or has an error for."""

    cluster_id: str
    brokers: tuple[BrokerInfo, ...]
    topics: tuple[TopicInfo, ...]
    missing: Mapping[str, TopicError]
    controller_id: int
    controller_address: str


@dataclass(frozen=True, slots=True)
class Missing:
    """The reason why a topic is not described, by a broker that was asked at `asked_s`."""

    error: TopicError
    asked_s: float


class Metadata:
    """The cache. `merge` takes an answer; nothing it takes lowers a leader epoch of the same topic id."""

    def __init__(self) -> None:
        self.cluster_id = ""
        self.brokers: dict[int, BrokerInfo] = {}
        self.began_anew = False
        """True where the latest answer shows broker epochs that are not to be compared with those before."""
        self.missing: dict[str, Missing] = {}  # topics as of the latest answer that spoke of them
        self.controller_id = -1
        self.controller_address = ""
        # Kept where a topic goes missing too: the answer may be a broker's that lags, and the epochs must outlive it.
        self._topics: dict[str, TopicInfo] = {}
        self._replaced_ids: deque[bytes] = deque(maxlen=MAX_REPLACED_IDS)

    def topic(self, name: str) -> TopicInfo | None:
        return None if name in self.missing else self._topics.get(name)

    def forget(self, name: str) -> None:
        """A topic that was never described, and that nobody looks for any more."""
        if name not in self._topics:
            self.missing.pop(name, None)

    def merge(self, answer: MetadataAnswer, asked_s: float) -> None:
        """`asked_s`: when the broker was asked, by the client's clock."""
        self.cluster_id = answer.cluster_id or self.cluster_id
        if answer.brokers:
            self.began_anew = self._began_anew(answer.brokers)
            if self.began_anew:
                self.brokers = {}
            self.brokers = {broker.broker_id: self._newer_broker(broker) for broker in answer.brokers}
        self.controller_id = answer.controller_id
        self.controller_address = answer.controller_address
        for name, error in answer.missing.items():
            self.missing[name] = Missing(error, asked_s)
        for topic in answer.topics:
            if topic.topic_id in self._replaced_ids:
                continue  # a broker that has not heard that the topic was made again
            self.missing.pop(topic.topic, None)
            self._topics[topic.topic] = self._newer_topic(topic)

    def _began_anew(self, brokers: Iterable[BrokerInfo]) -> bool:
        """True where broker epochs count from the beginning again: in an etcd that was made again (RULES 7.9) each of
        them is lower than before. One that merely lags knows of some broker, itself if no other, what was last heard;
        where it does not, the next answer has the higher epochs again. The other way round nothing would put it right:
        beside epochs of the new etcd one of the old would be taken for the latest for good."""
        epochs = {broker.broker_id: broker.broker_epoch for broker in brokers}
        both = self.brokers.keys() & epochs.keys()
        return bool(both) and all(epochs[broker_id] < self.brokers[broker_id].broker_epoch for broker_id in both)

    def _newer_broker(self, broker: BrokerInfo) -> BrokerInfo:
        known = self.brokers.get(broker.broker_id)
        return known if known is not None and known.broker_epoch > broker.broker_epoch else broker

    def _newer_topic(self, topic: TopicInfo) -> TopicInfo:
        known = self._topics.get(topic.topic)
        if known is None:
            return topic
        if known.topic_id != topic.topic_id:
            self._replaced_ids.append(known.topic_id)
            return topic
        if known is topic:
            return topic
        partitions = list(topic.partitions)
        newer = False
        for old in known.partitions:
            if old.partition >= len(partitions):
                partitions.append(old)  # an answer from before the partitions were added
            elif old.leader_epoch > partitions[old.partition].leader_epoch:
                partitions[old.partition] = old
            else:
                continue
            newer = True
        return replace(topic, partitions=tuple(partitions)) if newer else topic

    def learn_leader(self, topic: str, topic_id: bytes, partition: int, leader: int, leader_epoch: int) -> bool:
        """A leader named in an error answer, or only an epoch (`leader` NO_LEADER) that a batch was seen with. True: it
        was news."""
        known = self.topic(topic)
        if known is None or known.topic_id != topic_id or partition >= len(known.partitions):
            return False
        old = known.partitions[partition]
        if leader_epoch <= old.leader_epoch:
            return False
        partitions = list(known.partitions)
        partitions[partition] = replace(old, leader=leader, leader_epoch=leader_epoch)
        self._topics[topic] = replace(known, partitions=tuple(partitions))
        return True

    def partition(self, topic: str, partition: int) -> PartitionInfo | None:
        known = self.topic(topic)
        if known is None or not 0 <= partition < len(known.partitions):
            return None
        return known.partitions[partition]

    def leader_address(self, topic: str, partition: int) -> str | None:
        """The address of the partition's leader; None: no leader, or it is not registered."""
        info = self.partition(topic, partition)
        if info is None:
            return None
        broker = self.brokers.get(info.leader)
        return None if broker is None else broker.address

    def stale(self, topics: Iterable[str]) -> bool:
        """True where some of these topics have no entry, or a partition without a registered leader."""
        for name in topics:
            known = self.topic(name)
            if known is None or any(info.leader not in self.brokers for info in known.partitions):
                return True
        return False

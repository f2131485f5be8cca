"""The metadata that etcd is to hold: made from the inventories of the brokers' volumes and, where there is one, a
backup. Pure.

The volumes know which topics there are, by their ids, who has which log, and every leader epoch that counts. They do
not know configurations, deletions that were under way, and the order of an assignment: of these the backup tells, as
they were when it was taken.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from highwater.errors import UserError
from highwater.kube.lost_etcd.backup_file import Backup
from highwater.kube.lost_etcd.choice import choose
from highwater.kube.lost_etcd.inventory import NO_PRODUCER_ID, BrokerInventory, Replica
from highwater.metadata.schema.cluster_view import ClusterSnapshot, decode_snapshot
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import NO_LEADER, PartitionState, TopicAssignment, config_to_json
from highwater.metadata.state.acls import ACL_VALUE
from highwater.metadata.store.transactions import Entry, Listing
from highwater.model.leader_epochs import NO_EPOCH
from highwater.model.partition import PartitionKey
from highwater.security.acls import Acl

CONTROLLER_EPOCHS_UNSEEN = 1_000_000
"""More than there were elections of controllers since the backup, or without one ever."""
LEADER_EPOCHS_UNSEEN = 1_000_000
"""More than there were elections in a partition that only brokers without an inventory know of."""
PRODUCER_IDS_UNSEEN = 1_000_000_000
"""More than were given to producers that left no trace in a log: none must be given again."""
UNKNOWN_CONFIG = {"cleanup.policy": "delete", "retention.bytes": "-1", "retention.ms": "-1"}
"""Of a topic whose configuration is lost: nothing is let go of, whatever the brokers' defaults are."""


@dataclass(frozen=True)
class PlannedPartition:
    """`leader_log`: the broker that the partition goes on with; None: no log has a record, and every replica begins
    with the same, nothing. `doubts`: why acknowledged records may be missing."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    state: PartitionState
    leader_log: int | None
    log_end_offset: int
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlannedTopic:
    assignment: TopicAssignment
    config: Mapping[str, str]
    config_known: bool
    from_backup: bool
    partitions: tuple[PlannedPartition, ...]


@dataclass(frozen=True)
class Plan:
    cluster_id: str
    topics: tuple[PlannedTopic, ...]
    controller_epoch: int
    next_producer_id: int
    doubted_dirs: tuple[str, ...]
    tail_lost: tuple[int, ...]  # brokers that are known to start as such
    doubts: tuple[str, ...] = ()
    """Why topics that nobody knows of may be missing."""
    notes: tuple[str, ...] = ()
    acls: tuple[Acl, ...] = ()
    entity_configs: tuple[tuple[str, bytes], ...] = ()
    """Those of brokers, clients, users and the cluster, by their keys without the cluster's prefix, as the backup has
    them: what they say of retention counts for topics that say nothing."""

    @property
    def partitions(self) -> list[PlannedPartition]:
        return [partition for topic in self.topics for partition in topic.partitions]

    @property
    def doubtful(self) -> list[PlannedPartition]:
        return [partition for partition in self.partitions if partition.doubts]

    def values(self, keys: Keys) -> list[tuple[str, bytes]]:
        """The values that are to stand in etcd, but for the two counters and the cluster's id, in an order in which
        every beginning is harmless: a topic comes after all of its states, and so needs none made."""
        found = [(f"{keys.prefix}{key}", value) for key, value in self.entity_configs]
        found += ((keys.doubted_dir(directory_id), b"") for directory_id in self.doubted_dirs)
        found += dict.fromkeys((acl.unreadable or keys.acl(acl), ACL_VALUE) for acl in self.acls)
        for topic in self.topics:
            name = topic.assignment.topic
            found.append((keys.topic_config(name), config_to_json(topic.config)))
            found += ((keys.state(name, each.partition), each.state.to_json()) for each in topic.partitions)
        return found

    def topic_values(self, keys: Keys) -> list[tuple[str, bytes]]:
        return [(keys.topic(topic.assignment.topic), topic.assignment.to_json()) for topic in self.topics]


def plan(
    inventories: Sequence[BrokerInventory],
    backup: Backup | None = None,
    *,
    brokers: Collection[int] = (),
    without: Collection[int] = (),
    min_insync_replicas: int = 1,
    topic_ids: Mapping[str, bytes] | None = None,
) -> Plan:
    """`brokers` are those that there are, as far as the caller knows; those of the backup's assignments count too. Of
    those in `without` the volumes are gone for good. `min_insync_replicas`: the brokers' setting. `topic_ids` decides
    between two topics of one name.

    Raises `UserError` where the parts do not go together.
    """
    by_id = _by_id(inventories)
    known = None if backup is None else _decode(backup)
    cluster_id = cluster_id_of(inventories, backup)
    expected = {*brokers, *by_id}
    if known is not None:
        expected |= {broker for topic in known.topics.values() for each in topic.assignment.replicas for broker in each}
    doubted = _doubted_dirs(backup)
    planner = _Planner(by_id, known, expected, min_insync_replicas, doubted)
    topics = planner.topics(topic_ids or {})
    known_epoch = 0 if known is None else known.controller_epoch
    return Plan(
        cluster_id,
        topics,
        known_epoch + CONTROLLER_EPOCHS_UNSEEN,
        _next_producer_id(inventories, backup),
        doubted,
        tuple(sorted(planner.tail_lost)),
        tuple(_unknown(broker) for broker in sorted(planner.not_whole - set(without))),
        tuple(_notes(inventories, sorted(expected - by_id.keys()), topics, backup, planner.deleted, planner.tail_lost)),
        _acls(backup),
        _entity_configs(backup),
    )


class _Planner:
    def __init__(
        self,
        inventories: Mapping[int, BrokerInventory],
        known: ClusterSnapshot | None,
        expected: Collection[int],
        min_insync_replicas: int,
        doubted_dirs: Collection[str],
    ) -> None:
        self._known = known
        self._inventories = inventories
        self._min_insync_replicas = min_insync_replicas
        self.not_whole = {broker for broker in expected if not _whole(inventories.get(broker))}
        # They register so, for what the inventory says or for what etcd will (RULES 7.2).
        self.tail_lost = {
            broker
            for broker, inventory in inventories.items()
            if inventory.tail_lost or any(each.directory_id in doubted_dirs for each in inventory.directories)
        }
        self.deleted: list[str] = []
        """Topics whose deletion had begun when the backup was taken."""
        self._logs: dict[PartitionKey, dict[int, Replica]] = defaultdict(dict)
        self._names: dict[str, set[bytes]] = defaultdict(set)
        self._last: dict[bytes, int] = defaultdict(lambda: -1)  # the highest partition, by topic id
        self._unidentified: dict[tuple[str, int], set[int]] = defaultdict(set)
        for broker, inventory in inventories.items():
            for replica in inventory.replicas:
                self._logs[replica.key][broker] = replica
                self._names[replica.topic].add(replica.topic_id)
                self._last[replica.topic_id] = max(self._last[replica.topic_id], replica.partition)
            for topic_partition in inventory.unidentified:
                self._unidentified[topic_partition].add(broker)

    def topics(self, chosen: Mapping[str, bytes]) -> tuple[PlannedTopic, ...]:
        """Raises `UserError`."""
        known = {} if self._known is None else self._known.topics
        deletions = {} if self._known is None else self._known.deletions
        made = []
        for name in sorted({*self._names, *known}):
            ids = set(self._names.get(name, ()))
            if name in known:
                ids.add(known[name].assignment.topic_id)
            if deletions.get(name) in ids:
                ids.discard(deletions[name])
                self.deleted.append(name)
            if name in chosen:
                if chosen[name] not in ids:
                    raise UserError(f"no volume has a topic {name} of the id {chosen[name].hex()}, nor has the backup")
                ids = {chosen[name]}
            in_volumes = ids & self._names.get(name, set())
            if len(in_volumes) > 1:
                raise UserError(self._two_topics(name, in_volumes))
            # The backup's is one that was made again since, where the volumes have another one.
            for topic_id in in_volumes or ids:
                made.append(self._topic(name, topic_id))
        return tuple(made)

    def _two_topics(self, name: str, ids: Iterable[bytes]) -> str:
        told = []
        for topic_id in sorted(ids):
            logs = [
                (broker, log)
                for key in self._logs
                if key.topic_id == topic_id
                for broker, log in self._logs[key].items()
            ]
            held = ", ".join(map(str, sorted({broker for broker, _ in logs})))
            records = sum(log.log_end_offset - log.log_start_offset for _, log in logs)
            told.append(f"{topic_id.hex()} (brokers {held}; {records} offsets in {len(logs)} logs)")
        return (
            f"there are logs of {len(told)} topics named {name}: {'; '.join(told)}. One was deleted while a broker was "
            f"away, and made again. Say which one there is with --topic {name}=ID: the logs of the other are deleted"
        )

    def _topic(self, name: str, topic_id: bytes) -> PlannedTopic:
        assigned: tuple[tuple[int, ...], ...] = ()
        config: dict[str, str] | None = None
        known = None if self._known is None else self._known.topics.get(name)
        from_backup = self._known is not None and known is not None and known.assignment.topic_id == topic_id
        if from_backup:
            assert known is not None
            assert self._known is not None
            assigned = known.assignment.replicas
            config = self._known.topic_configs.get(name)
        count = max(len(assigned), self._last[topic_id] + 1)
        hosts = sorted({broker for n in range(count) for broker in self._logs.get(PartitionKey(topic_id, n), ())})
        partitions = tuple(
            self._partition(name, PartitionKey(topic_id, n), assigned[n] if n < len(assigned) else (), hosts, config)
            for n in range(count)
        )
        return PlannedTopic(
            TopicAssignment(name, topic_id, tuple(each.replicas for each in partitions)),
            UNKNOWN_CONFIG if config is None else config,
            config is not None,
            from_backup,
            partitions,
        )

    def _partition(
        self,
        name: str,
        key: PartitionKey,
        assigned: tuple[int, ...],
        hosts: Sequence[int],
        config: Mapping[str, str] | None,
    ) -> PlannedPartition:
        logs = self._logs.get(key, {})
        replicas = _replicas(key.partition, assigned, logs, hosts)
        read = {broker: log for broker, log in logs.items() if not log.failure}
        # Whoever might have a replica, and of whom it is not known what is in it.
        might = {*assigned} if assigned else {*self.not_whole}
        absent = (might & self.not_whole) - read.keys() | (logs.keys() - read.keys())
        absent |= self._unidentified.get((name, key.partition), set()) - read.keys()
        before = None
        if assigned and self._known is not None:
            versioned = self._known.states.get((name, key.partition))
            before = None if versioned is None else versioned.state
        epochs = [epoch for log in logs.values() for epoch in (log.fence_epoch, log.led_epoch or 0, log.last_epoch)]
        epoch = max([0 if before is None else before.leader_epoch, *epochs], default=0) + 1
        if absent:
            epoch += LEADER_EPOCHS_UNSEEN
        leader, log_end_offset, doubts = None, 0, tuple[str, ...]()
        if read:
            least = self._least_acknowledging(config, len(replicas))
            # A volume that took the place of another one has lost all of the log.
            tail_lost = self.tail_lost & {*replicas} if assigned else self.tail_lost
            choice = choose(read, absent=absent, tail_lost=tail_lost, min_insync_replicas=least)
            log_end_offset, doubts = choice.replica.log_end_offset, choice.doubts
            leader = choice.broker_id if log_end_offset > 0 else None
        elif absent:
            told = ", ".join(map(str, sorted(absent)))
            doubts = (f"no replica could be read: brokers {told} have, or may have, one",)
        unclean = epoch if doubts else NO_EPOCH if before is None else before.unclean_epoch
        isr = tuple(sorted(set(replicas) - absent or set(replicas))) if leader is None else (leader,)
        state = PartitionState(NO_LEADER, epoch, 0, isr, unclean_epoch=unclean)
        return PlannedPartition(name, key.partition, replicas, state, leader, log_end_offset, doubts)

    def _least_acknowledging(self, config: Mapping[str, str] | None, replicas: int) -> int:
        """The least replicas that had a record when it was acknowledged; of a topic whose configuration is not known it
        may have been one."""
        configured = 1 if config is None else int(config.get("min.insync.replicas", self._min_insync_replicas))
        return max(min(configured, replicas), 1)


def _replicas(
    partition: int, assigned: tuple[int, ...], logs: Mapping[int, Replica], hosts: Sequence[int]
) -> tuple[int, ...]:
    """In the order of preference: as the backup has it, else another one first in each partition. A partition without
    any log is given what hosts the topic's others."""
    if assigned:
        return (*assigned, *sorted(logs.keys() - set(assigned)))
    found = sorted(logs) or list(hosts)
    turn = partition % len(found)
    return (*found[turn:], *found[:turn])


def _unknown(broker: int) -> str:
    return (
        f"it is not known what broker {broker} has, or had: of a topic that nobody else knows it would delete the "
        f"logs, once it is back. Bring its volumes, or give --without-broker {broker} if they are gone for good"
    )


def _whole(inventory: BrokerInventory | None) -> bool:
    return inventory is not None and inventory.whole


def _by_id(inventories: Sequence[BrokerInventory]) -> dict[int, BrokerInventory]:
    by_id: dict[int, BrokerInventory] = {}
    for inventory in inventories:
        if inventory.broker_id in by_id:
            raise UserError(f"there are two inventories of broker {inventory.broker_id}: give the one that is true")
        by_id[inventory.broker_id] = inventory
    if not by_id:
        raise UserError("there is no inventory: take one of each broker's volumes, or nothing is known of the logs")
    return by_id


def _decode(backup: Backup) -> ClusterSnapshot:
    keys = Keys(backup.cluster)
    entries = (Entry(f"{keys.prefix}{key}", value, 0, backup.revision) for key, value in backup.entries.items())
    return decode_snapshot(keys, Listing(tuple(entries), backup.revision))


def cluster_id_of(inventories: Sequence[BrokerInventory], backup: Backup | None = None) -> str:
    """Raises `UserError`: there is none, or there are several."""
    found = {f"broker {each.broker_id}": each.cluster_id for each in inventories if each.cluster_id}
    if backup is not None:
        found["the backup"] = backup.cluster_id
    if not found:
        raise UserError(
            "no volume has ever been used in a cluster, and there is no backup: there is nothing to rebuild"
        )
    if len(set(found.values())) > 1:
        told = ", ".join(f"{what} is of {cluster_id}" for what, cluster_id in found.items())
        raise UserError(
            f"these are of several clusters: {told}. Give what belongs to one; a broker that was started with empty "
            "volumes beside an emptied etcd has taken the id that it found there: empty its directories again"
        )
    return next(iter(found.values()))


def _next_producer_id(inventories: Sequence[BrokerInventory], backup: Backup | None) -> int:
    value = None if backup is None else backup.entries.get("/producer_ids")
    known = 0 if value is None else int(json.loads(value)["next"])
    seen = max((log.highest_producer_id for each in inventories for log in each.replicas), default=NO_PRODUCER_ID)
    return max(known, seen + 1) + PRODUCER_IDS_UNSEEN


def _entity_configs(backup: Backup | None) -> tuple[tuple[str, bytes], ...]:
    if backup is None:
        return ()
    keys = Keys(backup.cluster)
    prefixes = tuple(prefix.removeprefix(keys.prefix) for prefix in keys.entity_configs.values())
    return tuple((key, value) for key, value in sorted(backup.entries.items()) if key.startswith(prefixes))


def _doubted_dirs(backup: Backup | None) -> tuple[str, ...]:
    """Their disks may still lack what was written; that it is said once too often costs an election by log."""
    prefix = "/brokers/doubted_dirs/"
    entries = {} if backup is None else backup.entries
    return tuple(sorted(key.removeprefix(prefix) for key in entries if key.startswith(prefix)))


def _acls(backup: Backup | None) -> tuple[Acl, ...]:
    """Those of the backup; no volume knows of any. One that cannot be read stays what it was: it may deny something."""
    found: list[Acl] = []
    if backup is not None:
        keys = Keys(backup.cluster)
        for key in sorted(keys.prefix + key for key in backup.entries):
            if key.startswith(keys.acls):
                try:
                    found.append(keys.parse_acl(key))
                except ValueError:
                    found += keys.unreadable_acls(key)
    return tuple(found)


def _notes(
    inventories: Sequence[BrokerInventory],
    missing: Sequence[int],
    topics: Sequence[PlannedTopic],
    backup: Backup | None,
    deleted: Sequence[str],
    tail_lost: Collection[int],
) -> Iterable[str]:
    """Tells what whoever runs it should know, besides the doubts."""
    for broker in missing:
        yield f"broker {broker}: there is no inventory of it"
    for each in inventories:
        if each.missing_directories:
            yield f"broker {each.broker_id}: {each.missing_directories} log directories are missing that it had"
        for directory in each.directories:
            if directory.failure:
                yield f"broker {each.broker_id}: {directory.path} cannot be used: {directory.failure}"
        for topic, partition in each.unidentified:
            yield f"broker {each.broker_id}: whose log {topic}-{partition} is, is not known (partition.metadata)"
        for replica in each.replicas:
            if replica.failure:
                yield f"broker {each.broker_id}: {replica.topic}-{replica.partition} cannot be read: {replica.failure}"
        if each.broker_id in tail_lost and each.replicas:
            yield (
                f"broker {each.broker_id}: its machine or disk was lost, or stopped; what it wrote last may be gone "
                "(RULES 7.2), and its partitions begin with an election by log"
            )
    if backup is not None:
        yield f"configurations of {sum(topic.config_known for topic in topics)} topics are as of {backup.taken}"
    unknown = [topic.assignment.topic for topic in topics if not topic.config_known]
    if unknown:
        yield (
            f"the configuration of {', '.join(unknown)} is lost: they keep everything (cleanup.policy=delete, "
            "retention.ms=-1, retention.bytes=-1) until it is set again (highwater topics alter, or topics apply)"
        )
    for name in deleted:
        yield f"topic {name} was being deleted when the backup was taken, and stays deleted"

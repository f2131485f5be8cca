"""The replicas that an audit compares, the offsets up to which each has to go, and the segments that tasks read. No
Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from highwater.client.blocking import Admin
from highwater.client.topic_partition import TopicPartition
from highwater.log_storage.inspect.replica_files import DirectoryFiles, ReplicaFiles, read_directory
from highwater.log_storage.inspect.segment_audit import SegmentTask
from highwater.model.partition import format_topic_id


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica, and the offsets that it has to have: from `start` to `end`."""

    files: ReplicaFiles
    group: int  # replicas of one partition of one topic id have the same
    start: int
    end: int
    compacted_to: int  # below, replicas may have kept other batches; the same for the whole group

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.files.topic, self.files.partition)

    def tasks(self) -> Iterator[SegmentTask]:
        bases = [segment.base_offset for segment in self.files.segments]
        for segment, until in zip(self.files.segments, [*bases[1:], None], strict=True):
            if until is None or until > self.start:
                yield SegmentTask(
                    segment.path,
                    segment.base_offset,
                    until,
                    self.start,
                    self.end,
                    self.compacted_to,
                    segment.size_bytes,
                )


@dataclass(frozen=True, slots=True)
class ClusterPartition:
    """The state of a partition as the cluster says it."""

    topic_id: str
    high_watermark: int
    replicas: tuple[str, ...]
    in_sync: tuple[str, ...]
    compacted: bool


Cluster = Mapping[TopicPartition, ClusterPartition]


def read_cluster(bootstrap: Sequence[str], wanted: Callable[[str], bool]) -> Cluster:
    """The cluster as of a moment before the files are read. Raises the SDK's errors."""
    with Admin(list(bootstrap)) as admin:
        names = [name for name in admin.list_topics(include_internal=True) if wanted(name)]
        described = admin.describe_topics(names) if names else []
        led = [
            TopicPartition(topic.topic, one.partition)
            for topic in described
            for one in topic.partitions
            if one.leader is not None
        ]
        ends = admin.list_offsets(led) if led else {}
        # Who is in sync is asked for after the high watermark: those have all that is below it.
        described = admin.describe_topics(names) if names else []
    found = {}
    for topic in described:
        for one in topic.partitions:
            partition = TopicPartition(topic.topic, one.partition)
            end = ends.get(partition)
            found[partition] = ClusterPartition(
                format_topic_id(topic.topic_id),
                end.offset if end is not None else 0,
                tuple(str(broker) for broker in one.replicas),
                tuple(str(broker) for broker in one.isr),
                "compact" in topic.config.get("cleanup.policy", ""),
            )
    return found


@dataclass(frozen=True, slots=True)
class AuditTargets:
    """The replicas to audit, and the problems that are found without reading them."""

    replicas: tuple[Replica, ...]
    lost: tuple[tuple[str, TopicPartition], ...]  # broker, and a log that it should have and has no directory for
    problems: tuple[str, ...]

    def tasks(self) -> Iterator[tuple[int, SegmentTask]]:
        """Number of the replica, and a segment of it."""
        for number, replica in enumerate(self.replicas):
            for task in replica.tasks():
                yield number, task


def find(directories: Sequence[str], wanted: Callable[[str], bool], cluster: Cluster | None) -> AuditTargets:
    """Raises `UserError`, `OSError`."""
    read = [read_directory(Path(directory), wanted) for directory in directories]
    files = [one for directory in read for one in directory.replicas if _belongs(one, cluster)]
    groups: dict[tuple[str, int, str], list[ReplicaFiles]] = {}
    for one in files:
        groups.setdefault((one.topic, one.partition, one.topic_id), []).append(one)
    replicas = []
    for number, members in enumerate(groups.values()):
        said = cluster.get(TopicPartition(members[0].topic, members[0].partition)) if cluster is not None else None
        ends = [_end(one, said) for one in members]
        compacted_to = max(one.cleaned_to for one in members)
        if said is not None and said.compacted:
            compacted_to = max(compacted_to, *ends)
        replicas += [
            Replica(one, number, one.log_start_offset, end, compacted_to)
            for one, end in zip(members, ends, strict=True)
        ]
    problems = tuple(f"{directory.broker}: {problem}" for directory in read for problem in directory.problems)
    return AuditTargets(tuple(replicas), tuple(sorted(_lost(read, files, cluster))), problems)


def _belongs(files: ReplicaFiles, cluster: Cluster | None) -> bool:
    """A log that the cluster no longer has, or another of the same name, is about to be deleted."""
    if cluster is None:
        return True
    said = cluster.get(TopicPartition(files.topic, files.partition))
    return said is not None and files.topic_id in ("", said.topic_id) and files.broker in said.replicas


def _end(files: ReplicaFiles, said: ClusterPartition | None) -> int:
    """The replica's own high watermark; one that is in sync has what the cluster has. What was compacted was
    committed."""
    end = max(files.high_watermark, files.cleaned_to)
    return max(end, said.high_watermark) if said is not None and files.broker in said.in_sync else end


def _lost(
    read: Sequence[DirectoryFiles], files: Sequence[ReplicaFiles], cluster: Cluster | None
) -> Iterator[tuple[str, TopicPartition]]:
    """Replicas without a directory. A broker may have several directories of `log.dirs`, each with logs of its own."""
    have = {(one.broker, TopicPartition(one.topic, one.partition)) for one in files}
    if cluster is not None:
        brokers = {directory.broker for directory in read}
        for partition, said in cluster.items():
            for broker in said.in_sync:
                if broker in brokers and (broker, partition) not in have and said.high_watermark:
                    yield broker, partition
        return
    alive = {partition for _, partition in have}
    for directory in read:
        for topic, number in directory.lost:
            partition = TopicPartition(topic, number)
            # Where no other replica has it, the topic was deleted, and the checkpoint is the older of the two.
            if (directory.broker, partition) not in have and partition in alive:
                yield directory.broker, partition


def only(targets: AuditTargets, partitions: set[TopicPartition]) -> AuditTargets:
    """Narrows what was found to some partitions."""
    return replace(
        targets,
        replicas=tuple(one for one in targets.replicas if one.partition in partitions),
        lost=tuple(one for one in targets.lost if one[1] in partitions),
    )

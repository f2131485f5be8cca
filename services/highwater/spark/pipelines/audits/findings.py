"""Findings of an audit, and the replicas to blame where they differ. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from highwater.client.topic_partition import TopicPartition
from highwater.log_storage.inspect.segment_audit import Damage

TOLD = 10_000


@dataclass(frozen=True, slots=True)
class Finding:
    """Offsets `first` to `last` of a replica; all of it, or no replica but another file, where `first` is above
    `last`."""

    kind: Damage
    topic: str
    partition: int
    broker: str
    first: int
    last: int
    file: str
    problem: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def log(self) -> str:
        return f"{self.topic}-{self.partition}" if self.topic else ""

    @property
    def offsets(self) -> str:
        return f"{self.first}-{self.last}" if self.first <= self.last else ""


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums of what was read of a partition."""

    replicas: int = 0
    segments: int = 0
    batches: int = 0
    size_bytes: int = 0
    unbounded: int = 0  # replicas of which no high watermark is known: nothing was asked of them


@dataclass(frozen=True, slots=True)
class Audited:
    findings: tuple[Finding, ...]
    by_partition: Mapping[TopicPartition, Sums] = field(default_factory=dict)

    @property
    def partitions(self) -> int:
        return len(self.by_partition)

    @property
    def replicas(self) -> int:
        return sum(one.replicas for one in self.by_partition.values())

    @property
    def segments(self) -> int:
        return sum(one.segments for one in self.by_partition.values())

    @property
    def batches(self) -> int:
        return sum(one.batches for one in self.by_partition.values())

    @property
    def size_bytes(self) -> int:
        return sum(one.size_bytes for one in self.by_partition.values())

    @property
    def unbounded(self) -> int:
        return sum(one.unbounded for one in self.by_partition.values())


class Version(NamedTuple):
    """A batch as one replica has it."""

    replica: int
    file: str
    position: int
    base: int
    last: int
    epoch: int
    crc: int
    size: int

    @property
    def identity(self) -> tuple[int, ...]:
        return self[3:]


def blame(versions: Sequence[Version], brokers: Mapping[int, str]) -> list[tuple[Version, str]]:
    """Finds, among batches of one base offset that are not all the same, those that differ from what most replicas
    have, and how; every one, where there is no majority."""
    by_identity: dict[tuple[int, ...], list[Version]] = defaultdict(list)
    for version in versions:
        by_identity[version.identity].append(version)
    majority = max(by_identity.values(), key=len)
    if 2 * len(majority) <= len(versions):
        told = "; ".join(f"{_named(same, brokers)}: {_described(same[0])}" for same in by_identity.values())
        return [(version, f"no two agree, {told}") for version in versions]
    return [
        (version, f"{_described(version)}; {_named(majority, brokers)}: {_described(majority[0])}")
        for same in by_identity.values()
        if same is not majority
        for version in same
    ]


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """Sorted, and what goes on from one batch to the next as one."""
    found: list[Finding] = []
    order = sorted(findings, key=lambda one: (one.topic, one.partition, one.broker, one.kind, one.first, one.last))
    for one in order:
        before = found[-1] if found else None
        if before is not None and _goes_on(before, one):
            found[-1] = replace(before, last=max(one.last, before.last))
        else:
            found.append(one)
    return found


def _goes_on(before: Finding, one: Finding) -> bool:
    same = (before.kind, before.topic, before.partition, before.broker, before.file)
    return same == (one.kind, one.topic, one.partition, one.broker, one.file) and one.first <= before.last + 1


def _named(versions: Sequence[Version], brokers: Mapping[int, str]) -> str:
    names = sorted(brokers[version.replica] for version in versions)
    return f"broker {names[0]}" if len(names) == 1 else f"brokers {', '.join(names)}"


def _described(version: Version) -> str:
    return f"epoch {version.epoch}, {version.size} bytes, crc {version.crc:08x}, to offset {version.last}"

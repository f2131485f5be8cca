"""Up to where topics are archived, and which topics these are. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from highwater.client.topic_partition import TopicPartition
from highwater.errors import UserError

Offsets = Mapping[str, Mapping[int, int]]  # topic to partition to the offset after the last one archived


def archived_at(offsets: Offsets, partition: TopicPartition) -> int:
    return offsets.get(partition.topic, {}).get(partition.partition, 0)


def knows(offsets: Offsets, partition: TopicPartition) -> bool:
    return partition.partition in offsets.get(partition.topic, {})


def check_topics(archived: Mapping[str, str], present: Mapping[str, str], archive: str) -> None:
    """Compares topics by their ids. Raises `UserError` where one was made anew: its offsets mean other records than
    those that are archived under its name."""
    anew = [topic for topic, topic_id in present.items() if archived.get(topic, topic_id) != topic_id]
    if anew:
        raise UserError(
            f"{', '.join(sorted(anew))} was deleted and made anew since {archive} was written: archive what is there "
            "now into another directory, with a checkpoint of its own"
        )


def merged_offsets(offsets: Offsets, reached: Iterable[tuple[str, int, int]]) -> dict[str, dict[int, int]]:
    """`offsets` after records up to `(topic, partition, offset)` were archived, too."""
    merged = {topic: dict(partitions) for topic, partitions in offsets.items()}
    for topic, partition, offset in reached:
        partitions = merged.setdefault(topic, {})
        partitions[partition] = max(partitions.get(partition, 0), offset + 1)
    return merged

"""What a pipeline notes before it writes a micro-batch: offsets by partition, in files beside the checkpoint.

A micro-batch that Spark runs again finds the note of its first run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from highwater.client.topic_partition import TopicPartition
from highwater.errors import UserError
from highwater.spark.pipelines.files.hadoop_files import HadoopFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class BatchNotes:
    """Files `<directory>/<batch id>`, there as a whole or not at all."""

    def __init__(self, spark: SparkSession, directory: str) -> None:
        self._files = HadoopFiles(spark, directory)
        self._directory = directory

    def read(self, batch_id: int) -> dict[TopicPartition, int] | None:
        """None where there is no note. Raises `UserError` for one that cannot be read."""
        path = self._path(batch_id)
        return parsed(self._files.read(path), path) if self._files.exists(path) else None

    def write(self, batch_id: int, offsets: Mapping[TopicPartition, int]) -> None:
        self._files.write(self._path(batch_id), text_of(offsets).encode())

    def forget_before(self, batch_id: int) -> None:
        """Micro-batches before this one are committed: they are never run again."""
        self._files.delete(self._path(batch_id - 1))

    def _path(self, batch_id: int) -> str:
        return f"{self._directory}/{batch_id}"


def text_of(offsets: Mapping[TopicPartition, int]) -> str:
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        topics.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(topics)


def parsed(text: bytes, path: str) -> dict[TopicPartition, int]:
    """Raises `UserError`."""
    try:
        return {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, partitions in json.loads(text).items()
            for partition, offset in partitions.items()
        }
    except (ValueError, AttributeError, TypeError):
        raise UserError(
            f"{path} is not a note of this pipeline: begin with a checkpoint directory of its own"
        ) from None

"""A write-ahead log of offsets: those by partition that a pipeline writes down before it writes a micro-batch.

A micro-batch that Spark runs again finds the entry of its first run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from highwater.client.topic_partition import TopicPartition
from highwater.errors import UserError
from highwater.spark.offsets.stream_offset import offsets_json
from highwater.spark.pipelines.files.hadoop_files import HadoopFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class OffsetLog:
    """Entries in files `<directory>/<batch id>`, there as a whole or not at all."""

    def __init__(self, spark: SparkSession, directory: str) -> None:
        self._files = HadoopFiles(spark, directory)
        self._directory = directory

    def read(self, batch_id: int) -> dict[TopicPartition, int] | None:
        """The entry of a micro-batch; None where there is none. Raises `UserError` for one that cannot be read."""
        path = self._path(batch_id)
        return parse_offsets(self._files.read(path), path) if self._files.exists(path) else None

    def write(self, batch_id: int, offsets: Mapping[TopicPartition, int]) -> None:
        self._files.write(self._path(batch_id), offsets_text(offsets).encode())

    def purge_before(self, batch_id: int) -> None:
        """Deletes the entry of the micro-batch before this one, which is committed and never run again."""
        self._files.delete(self._path(batch_id - 1))

    def _path(self, batch_id: int) -> str:
        return f"{self._directory}/{batch_id}"


def offsets_text(offsets: Mapping[TopicPartition, int]) -> str:
    """Offsets as the data source's options take them: `{"events": {"0": 1200}}`."""
    return json.dumps(offsets_json(offsets))


def parse_offsets(text: bytes, path: str) -> dict[TopicPartition, int]:
    """The offsets of an entry at this path. Raises `UserError`."""
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

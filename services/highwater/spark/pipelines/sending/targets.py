"""Topics that a pipeline sends to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from highwater.client.topic_partition import TopicPartition
from highwater.errors import UserError
from highwater.spark.offsets.topic_offsets import TopicOffsets
from highwater.spark.options.data_source_options import Subscription

Append = Annotated[
    bool, typer.Option("--append", help="with a new checkpoint, send to topics that have records already, too")
]


def check_empty(
    bootstrap: Sequence[str],
    partitions: Sequence[TopicPartition],
    checkpoint: str,
    settings: dict[str, Any] | None = None,
) -> None:
    """Confirms, for a pipeline whose checkpoint is new, that its targets are empty. Raises `UserError` where a
    partition has records: the pipeline may have sent them itself, and have lost its checkpoint. `settings` are those of
    the `Admin` that looks."""
    with TopicOffsets(tuple(bootstrap), Subscription(), settings or {}) as topics:
        firsts, ends = topics.earliest(partitions), topics.latest(partitions)
    if having := sorted({one.topic for one in partitions if ends[one] > firsts[one]}):
        raise UserError(
            f"topic {', '.join(having)} has records, and checkpoint {checkpoint} is new: if one was lost, what was "
            "sent would be sent again; to send everything all the same, say --append"
        )

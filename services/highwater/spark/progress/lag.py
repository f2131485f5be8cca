"""The lag of a streaming query, from its progress reports. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from highwater.client.topic_partition import TopicPartition
from highwater.spark.offsets.stream_offset import parse_stream_offset


def lag(progress: Mapping[str, Any], source: int = 0) -> dict[TopicPartition, int]:
    """Offsets of each partition that the query has still to read, from one of its progress reports.

        for partition, behind in lag(query.lastProgress).items(): ...

    Args:
        progress: `query.lastProgress`, or the `progress` of a listener's event by `json.loads(progress.json)`.
        source: which of the query's sources, where it has several. Of one that is not `format("highwater")` nothing is
            known.
    """
    reported = progress["sources"][source]
    latest = parse_stream_offset(_read(reported.get("latestOffset")))
    reached = parse_stream_offset(_read(reported.get("endOffset")))
    return {partition: max(end - reached.ends.get(partition, 0), 0) for partition, end in sorted(latest.ends.items())}


def _read(offset: Any) -> Mapping[str, Any]:
    """Spark gives an offset as text or as what the text says."""
    found = json.loads(offset) if isinstance(offset, str) else offset
    of_topics = isinstance(found, Mapping) and all(isinstance(one, Mapping) for one in found.values())
    return found if of_topics else {}

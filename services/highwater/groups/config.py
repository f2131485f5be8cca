"""A coordinator's settings, under Kafka's names, and their defaults."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Of every group of a broker."""

    session_timeout_ms: int = 45_000  # group.consumer.session.timeout.ms
    heartbeat_interval_ms: int = 5_000  # group.consumer.heartbeat.interval.ms
    max_size: int = 10_000  # group.consumer.max.size: members of a group
    assignor: str = "uniform"  # where no member names one
    offset_metadata_max_bytes: int = 4096  # offset.metadata.max.bytes
    broker_session_timeout_ms: int = 4_000  # broker.session.timeout.ms
    offsets_retention_ms: int = 7 * 24 * 3_600_000  # offsets.retention.minutes
    retention_check_interval_ms: int = 600_000  # offsets.retention.check.interval.ms: between two looks at one group

    @property
    def heard_within_ms(self) -> int:
        """A coordinator that some in-sync replica has not followed for so long takes no word (RULES 11.12). A broker
        that was lost with its machine is out of the ISR well before (8.9)."""
        return 2 * self.broker_session_timeout_ms

    @property
    def handover_ms(self) -> int:
        """The coordinator before may take words for so long after this one has begun (RULES 11.12): a fetch that it has
        gone by may have waited in its queues for as long as its lease lasts."""
        return 3 * self.broker_session_timeout_ms

"""The group coordinator of a broker, by its settings."""

from __future__ import annotations

from highwater.groups.config import GroupConfig
from highwater.replica_manager.groups.group_coordinator import GroupCoordinator
from highwater.replica_manager.groups.metrics import GroupMetrics
from highwater.replica_manager.groups.offsets_topic import OffsetsTopic, OffsetsTopicConfig
from highwater.replica_manager.membership.active_controller import ActiveControllerLookup
from highwater.replica_manager.replicas.replica_manager import ReplicaManager
from highwater.replica_manager.settings import ReplicaManagerSettings
from highwater.rpc.connections.channel import SILENCE_MS
from highwater.supervision import TaskSupervisor
from highwater.telemetry.log import get_logger, pairs
from highwater.telemetry.metrics import Metrics

logger = get_logger("replica_manager.groups")


def group_coordinator(
    settings: ReplicaManagerSettings,
    replica_manager: ReplicaManager,
    controller: ActiveControllerLookup,
    metrics: Metrics,
    supervisor: TaskSupervisor,
) -> GroupCoordinator:
    topic = OffsetsTopic(
        OffsetsTopicConfig(
            settings.offsets_topic_num_partitions,
            settings.offsets_topic_replication_factor,
            settings.offsets_topic_segment_bytes,
        ),
        replica_manager.metadata,
        controller,
        supervisor,
    )
    config = GroupConfig(
        session_timeout_ms=settings.group_consumer_session_timeout_ms,
        heartbeat_interval_ms=settings.group_consumer_heartbeat_interval_ms,
        max_size=settings.group_consumer_max_size,
        broker_session_timeout_ms=settings.broker_session_timeout_ms,
        offset_metadata_max_bytes=settings.offset_metadata_max_bytes,
        offsets_retention_ms=settings.offsets_retention_minutes * 60_000,
        retention_check_interval_ms=settings.offsets_retention_check_interval_ms,
    )
    shortest_ms = SILENCE_MS + settings.broker_session_timeout_ms
    if config.session_timeout_ms < shortest_ms:
        logger.warning(
            "group.consumer.session.timeout.ms is short: where a coordinator stands still, a member may for seconds go "
            "on with partitions that the next coordinator has given to another %s",
            pairs(session_timeout_ms=config.session_timeout_ms, safe_from_ms=shortest_ms),
        )
    return GroupCoordinator(replica_manager, topic, config, GroupMetrics(metrics), supervisor)

"""The states of a broker, by Kafka's numbers (`BrokerState`)."""

from __future__ import annotations

from enum import Enum, IntEnum


class BrokerState(IntEnum):
    NOT_RUNNING = 0  # never told: who does not run serves no metrics
    STARTING = 1  # or registering anew
    RECOVERY = 2  # log-storage opens its logs
    RUNNING = 3
    PENDING_CONTROLLED_SHUTDOWN = 6
    SHUTTING_DOWN = 7


class Stage(Enum):
    """The course of a replica-manager's process."""

    SERVING = "serving"
    LEAVING = "leaving"
    STOPPING = "stopping"


def broker_state(stage: Stage, *, registered: bool, logs_opening: bool) -> BrokerState:
    if stage is Stage.LEAVING:
        return BrokerState.PENDING_CONTROLLED_SHUTDOWN
    if stage is Stage.STOPPING:
        return BrokerState.SHUTTING_DOWN
    if registered:
        return BrokerState.RUNNING
    return BrokerState.RECOVERY if logs_opening else BrokerState.STARTING

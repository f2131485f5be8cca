"""The principals of Highwater's own processes, and which RPCs each of them may call. Pure.

An RPC that is not listed here is nobody's: a new one is refused until it is.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from enum import Enum

from highwater.security.principal import Principal, parse_principal

BROKER_ID = "{id}"
_V1 = "/highwater.v1."


class Peer(Enum):
    CONTROLLER = "a controller"
    BROKER = "a broker"
    OWN_BROKER = "the broker of this process"
    ADMINISTRATOR = "a super user"


_OF_CONTROLLERS = frozenset({Peer.CONTROLLER})
_OF_THE_BROKER = frozenset({Peer.OWN_BROKER})
_OF_THE_BROKER_AND_PEOPLE = frozenset({Peer.OWN_BROKER, Peer.ADMINISTRATOR})
_OF_BROKERS_AND_PEOPLE = frozenset({Peer.BROKER, Peer.ADMINISTRATOR})
_OF_THE_CLUSTER = frozenset({Peer.BROKER, Peer.CONTROLLER, Peer.ADMINISTRATOR})

CALLERS: Mapping[str, frozenset[Peer]] = {
    f"{_V1}{service}/{method}": peers
    for service, methods, peers in (
        (
            "ReplicaControl",
            ("LeaderAndIsr", "StopReplica", "UpdateMetadata", "DescribeBrokerConfig"),
            _OF_CONTROLLERS,
        ),
        ("ReplicaControl", ("WatchFollowing", "WatchConfig"), _OF_THE_BROKER),
        (
            "LogStorage",
            (
                *("CreateLog", "CreateLogs", "DeleteLog", "Append", "Read", "ListOffsets", "ListBatches"),
                *("EndOffsetForEpoch", "TruncateTo", "TruncateFullyAndStartAt", "DropDamaged", "RaiseLogStart"),
                *("FenceEpoch", "CheckpointHighWatermarks", "AlterLogConfig", "AlterBrokerConfig"),
                *("AlterReplicaLogDirs", "Flush"),
            ),
            _OF_THE_BROKER,
        ),
        ("LogStorage", ("DescribeLogs",), _OF_THE_BROKER_AND_PEOPLE),
        ("Fetcher", ("Describe", "SetThrottle"), _OF_THE_BROKER_AND_PEOPLE),
        (
            "Controller",
            (
                *("CreateTopics", "DeleteTopics", "CreatePartitions", "DescribeCluster", "AlterConfigs"),
                *("DescribeConfigs", "ReassignPartitions", "ElectLeaders", "CreateAcls", "DescribeAcls", "DeleteAcls"),
            ),
            _OF_THE_CLUSTER,
        ),
        ("Controller", ("ControlledShutdown", "DescribeReadiness"), _OF_BROKERS_AND_PEOPLE),
    )
    for method in methods
}
"""By the full name of an RPC, of servers and listeners that clients do not use. The `Controller` service here is the
controllers' own; the brokers' asks ACLs."""

OF_THE_NAMED_BROKER = frozenset({f"{_V1}Controller/ControlledShutdown", f"{_V1}Controller/DescribeReadiness"})
"""Of these a broker may name itself alone in `broker_id` of its request, and a super user any."""


class InternalPeers:
    """`brokers` is the principal of every broker, with `{id}` for its id; `own_broker` the id of the broker that the
    server belongs to, None: to none."""

    def __init__(
        self,
        brokers: str,
        controllers: Collection[Principal],
        administrators: Collection[Principal],
        own_broker: int | None = None,
    ) -> None:
        """Raises `ValueError` where `brokers` is no principal."""
        parse_principal(brokers)
        if BROKER_ID not in brokers:
            raise ValueError(f"{brokers!r} is the same for all brokers: write {BROKER_ID} where a broker's id stands")
        self._brokers = brokers
        self._any_broker = re.compile(re.escape(brokers).replace(re.escape(BROKER_ID), "[0-9]+"))
        self._controllers = frozenset(controllers)
        self._administrators = frozenset(administrators)
        self._own_broker = own_broker

    def broker(self, broker_id: int) -> Principal:
        return parse_principal(self._brokers.replace(BROKER_ID, str(broker_id)))

    def is_a(self, principal: Principal, peer: Peer) -> bool:
        match peer:
            case Peer.CONTROLLER:
                return principal in self._controllers
            case Peer.BROKER:
                return self._any_broker.fullmatch(str(principal)) is not None
            case Peer.OWN_BROKER:
                return self._own_broker is not None and principal == self.broker(self._own_broker)
            case Peer.ADMINISTRATOR:
                return principal in self._administrators

    def refusal(self, method: str, principal: Principal) -> str:
        """The sentence that refuses a call of an internal RPC; empty: it is taken."""
        peers = CALLERS.get(method, frozenset())
        if any(self.is_a(principal, peer) for peer in peers):
            return ""
        who = " or ".join(sorted(peer.value for peer in peers)) or "nobody"
        return (
            f"{principal} may not call {method.rpartition('.')[2]}, which is for {who}: see broker.principal, "
            "controller.principals and super.users"
        )

    def named_refusal(self, method: str, broker_id: int, principal: Principal) -> str:
        """The sentence that refuses a call of `OF_THE_NAMED_BROKER` for that broker; empty: it is taken."""
        if principal == self.broker(broker_id) or self.is_a(principal, Peer.ADMINISTRATOR):
            return ""
        return (
            f"{principal} may not call {method.rpartition('.')[2]} for broker {broker_id}, which is "
            f"{self.broker(broker_id)} (broker.principal)"
        )

    def replica_refusal(self, broker_id: int, principal: Principal) -> str:
        """The sentence that refuses a fetch as a replica; empty: it is that broker's."""
        if principal == self.broker(broker_id):
            return ""
        return f"{principal} is not broker {broker_id}, which is {self.broker(broker_id)} (broker.principal)"

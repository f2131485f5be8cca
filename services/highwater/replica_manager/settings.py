"""The settings of the replica-manager."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, ValidationInfo, field_validator
from pydantic_settings import NoDecode

from highwater.rpc.connections.channel import MAX_MESSAGE_BYTES
from highwater.rpc.listeners import (
    check_advertised,
    check_inter_broker_name,
    check_listener_name,
    check_protocols,
    inter_broker_name,
    parse_by_listener,
    parse_listeners,
    tls_listeners,
)
from highwater.rpc.settings import (
    CERTIFICATES_REQUIRED,
    NO_CERTIFICATES,
    LogDefaultsSettings,
    LogStorageUserSettings,
    OptionalAddress,
    ReplicationSettings,
    TlsServiceSettings,
    check_client_auth,
    check_tls_listener,
)
from highwater.security.settings import AuthorizerSettings

SIGNS_IN_A_SESSION = 3  # of a group's member, at least
ListenerMap = Annotated[dict[str, str], NoDecode]


class ReplicaManagerSettings(
    TlsServiceSettings, LogDefaultsSettings, LogStorageUserSettings, ReplicationSettings, AuthorizerSettings
):
    listeners: ListenerMap
    """The address that each listener is bound to, by name; written `NAME://host:port` or `NAME://unix:/path`."""
    advertised_listeners: ListenerMap = Field({}, validate_default=True)
    """The addresses that others use for the listeners, where they differ from those that are bound."""
    inter_broker_listener_name: str = Field("", validate_default=True)
    """The internal listener: of other brokers, the controller and the broker's own fetcher. Empty: the only one."""
    ssl_client_auth: str = Field(NO_CERTIFICATES, validate_default=True)
    """Whether clients have to show a certificate: `none`, `required`, or by listener, `NAME:none,NAME:required`."""
    listener_security_protocol_map: ListenerMap = Field({}, validate_default=True)
    """The protocol of each listener: `NAME:PLAINTEXT` or `NAME:SSL`. One that it does not name is PLAINTEXT, but for
    one that is called SSL."""
    host_address: OptionalAddress = ""
    """The internal listener by the host's own address, where the advertised one may be somebody else's; empty: it is
    not."""
    rack: str = ""
    broker_session_timeout_ms: int = Field(4_000, ge=1_000)
    """Of this, half a second of etcd's and the elections is made what a lost node costs (RULES 8.9)."""
    replica_lag_time_max_ms: int = Field(10_000, ge=1)
    queued_max_requests: int = Field(500, ge=1)
    queued_max_request_bytes: int = Field(256 << 20, ge=1 << 20)
    socket_request_max_bytes: int = Field(MAX_MESSAGE_BYTES, ge=1 << 20, le=MAX_MESSAGE_BYTES)
    max_open_calls: int = Field(10_000, ge=1)
    max_connections: int = Field(2**31 - 2, ge=1, le=2**31 - 2)
    connections_max_idle_ms: int = Field(600_000, ge=1, le=2**31 - 2)
    connections_max_calls_per_second: float = Field(500, gt=0, le=1e9)
    """Unary calls of one connection."""
    connections_busy_calls_per_second: float = Field(50, gt=0, le=1e9)
    """Down to so many while the event loop has less than three fifths of its time to spare."""
    principals_max_calls_per_second: float = Field(2_000, gt=0, le=1e9)
    """Unary calls of one principal, by all of its connections; of who is anonymous, of one host."""
    principals_max_open_calls: int | None = Field(None, ge=1)
    """Likewise, calls and streams that are open. None: a third of `max_open_calls`. These eight of each listener that
    clients use."""
    tail_cache_bytes: int = Field(64 << 20, ge=0)
    fetch_max_bytes: int = Field(55 << 20, ge=1024)
    fetch_responses_max_bytes: int = Field(256 << 20, ge=1 << 20)
    fetch_response_timeout_ms: int = Field(30_000, ge=100)
    """For a response to be taken; a large one has longer."""
    auto_create_topics_enable: bool = False
    offsets_topic_num_partitions: int = Field(50, ge=1, le=10_000)
    """What the topic has, where it is there already."""
    offsets_topic_replication_factor: int = Field(3, ge=1)
    """Where the cluster has fewer brokers, as many as it has."""
    offsets_topic_segment_bytes: int = Field(100 << 20, ge=1 << 20)
    offsets_retention_minutes: int = Field(10_080, ge=1)
    offsets_retention_check_interval_ms: int = Field(600_000, ge=1)
    offset_metadata_max_bytes: int = Field(4096, ge=0)
    group_consumer_session_timeout_ms: int = Field(45_000, ge=500)
    group_consumer_heartbeat_interval_ms: int = Field(5_000, ge=100, validate_default=True)
    group_consumer_max_size: int = Field(10_000, ge=1)
    controlled_shutdown_max_wait_ms: int = Field(20_000, ge=0)
    ready_max_wait_ms: int = Field(600_000, ge=0)

    @field_validator("listeners", "advertised_listeners", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return parse_listeners(value) if isinstance(value, str) else value

    @field_validator("listeners")
    @classmethod
    def _some(cls, value: dict[str, str]) -> dict[str, str]:
        if not value:
            raise ValueError("there is none: write NAME://host:port or NAME://unix:/path")
        return value

    @field_validator("advertised_listeners")
    @classmethod
    def _reachable(cls, value: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        if "listeners" in info.data:  # else that is what is wrong
            check_advertised(info.data["listeners"], value)
        return value

    @field_validator("inter_broker_listener_name")
    @classmethod
    def _known(cls, value: str, info: ValidationInfo) -> str:
        if "listeners" in info.data:
            check_inter_broker_name(info.data["listeners"], value)
        return value

    @field_validator("listener_security_protocol_map", mode="before")
    @classmethod
    def _by_listener(cls, value: Any) -> Any:
        return parse_by_listener(value) if isinstance(value, str) else value

    @field_validator("ssl_client_auth")
    @classmethod
    def _says_who_shows_one(cls, value: str, info: ValidationInfo) -> str:
        for name, auth in _by_name(value).items():
            check_client_auth(auth)
            check_listener_name(name, info.data.get("listeners", {name: ""}))
        return value

    @field_validator("listener_security_protocol_map")
    @classmethod
    def _certified(cls, value: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        listeners = info.data.get("listeners")
        if listeners is None or "ssl_client_auth" not in info.data or "ssl_key_file" not in info.data:
            return value  # else that is what is wrong
        for name in value:
            check_listener_name(name, listeners)
        check_protocols(listeners, value)
        secured = tls_listeners(listeners, value)
        auth = info.data["ssl_client_auth"]
        for name in listeners:
            if name in secured:
                check_tls_listener(f"listener {name}", _auth_of(auth, name), info.data)
            elif _by_name(auth).get(name) == CERTIFICATES_REQUIRED:
                raise ValueError(
                    f"clients of listener {name} have to show a certificate (ssl.client.auth), and it speaks no TLS: "
                    f"write {name}:SSL"
                )
        if auth == CERTIFICATES_REQUIRED and not secured:
            raise ValueError("ssl.client.auth is required, and no listener speaks TLS: write NAME:SSL for one")
        return value

    @field_validator("socket_request_max_bytes")
    @classmethod
    def _holds_a_batch(cls, value: int, info: ValidationInfo) -> int:
        largest = info.data.get("message_max_bytes", 0)
        if value <= largest:
            raise ValueError(f"a batch may have {largest} bytes (message.max.bytes), and its request more than that")
        return value

    @field_validator("group_consumer_heartbeat_interval_ms")
    @classmethod
    def _keeps_members(cls, value: int, info: ValidationInfo) -> int:
        session_ms = info.data.get("group_consumer_session_timeout_ms")  # None: that is what is wrong
        if session_ms is not None and session_ms < SIGNS_IN_A_SESSION * value:
            raise ValueError(
                f"members that say a word each {value} ms would be removed for one that is late, with a "
                f"group.consumer.session.timeout.ms of {session_ms}: let that be {SIGNS_IN_A_SESSION} intervals or more"
            )
        return value

    @property
    def internal_listener(self) -> str:
        """The name of the listener that brokers and the controller use."""
        return inter_broker_name(self.listeners, self.inter_broker_listener_name)

    @property
    def tls_listeners(self) -> frozenset[str]:
        """The names of the listeners that speak TLS."""
        return tls_listeners(self.listeners, self.listener_security_protocol_map)

    def requires_certificates(self, listener: str) -> bool:
        """Tells whether clients have to show a certificate there, where it speaks TLS."""
        return _auth_of(self.ssl_client_auth, listener) == CERTIFICATES_REQUIRED


def _by_name(client_auth: str) -> dict[str, str]:
    """The listeners that `ssl.client.auth` names, and what it says of each; empty: it says the same of all."""
    if ":" not in client_auth:
        check_client_auth(client_auth)
        return {}
    return {name: auth.lower() for name, auth in parse_by_listener(client_auth).items()}


def _auth_of(client_auth: str, listener: str) -> str:
    by_name = _by_name(client_auth)
    return by_name.get(listener, NO_CERTIFICATES) if by_name else client_auth.lower()

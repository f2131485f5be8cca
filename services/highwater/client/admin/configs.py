"""Configurations of topics, brokers, clients, users and the cluster: what they belong to, and what they say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Self

from highwater.client.exceptions import error_for
from highwater.client.notebook import ShownAsTable
from highwater.errors import ErrorCode
from highwater.rpc.errors import from_proto
from highwater.v1 import controller_pb2


class ConfigResourceType(Enum):
    """The kinds of what may have a configuration."""

    TOPIC = controller_pb2.CONFIG_RESOURCE_TYPE_TOPIC
    BROKER = controller_pb2.CONFIG_RESOURCE_TYPE_BROKER
    CLIENT = controller_pb2.CONFIG_RESOURCE_TYPE_CLIENT
    USER = controller_pb2.CONFIG_RESOURCE_TYPE_USER
    CLUSTER = controller_pb2.CONFIG_RESOURCE_TYPE_CLUSTER
    USER_CLIENT = controller_pb2.CONFIG_RESOURCE_TYPE_USER_CLIENT_PAIR


class ConfigSource(Enum):
    """The places that a value is from, in falling order of what goes before what; `CLUSTER` goes before `STATIC`."""

    DYNAMIC_TOPIC = controller_pb2.CONFIG_SOURCE_DYNAMIC_TOPIC
    DYNAMIC_BROKER = controller_pb2.CONFIG_SOURCE_DYNAMIC_BROKER
    DYNAMIC_DEFAULT_BROKER = controller_pb2.CONFIG_SOURCE_DYNAMIC_DEFAULT_BROKER
    CLUSTER = controller_pb2.CONFIG_SOURCE_CLUSTER
    STATIC = controller_pb2.CONFIG_SOURCE_STATIC
    DEFAULT = controller_pb2.CONFIG_SOURCE_DEFAULT
    DYNAMIC_CLIENT = controller_pb2.CONFIG_SOURCE_DYNAMIC_CLIENT
    DYNAMIC_USER = controller_pb2.CONFIG_SOURCE_DYNAMIC_USER
    UNSPECIFIED = controller_pb2.CONFIG_SOURCE_UNSPECIFIED


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """Something that has a configuration. Made by its class methods."""

    type: ConfigResourceType
    name: str = ""  # "": the default of its kind
    client_id: str = ""  # of USER_CLIENT; "": the default of this user's clients

    @classmethod
    def topic(cls, name: str) -> Self:
        return cls(ConfigResourceType.TOPIC, name)

    @classmethod
    def broker(cls, broker_id: int | None = None) -> Self:
        """Without an id: the default of all brokers."""
        return cls(ConfigResourceType.BROKER, "" if broker_id is None else str(broker_id))

    @classmethod
    def client(cls, client_id: str | None = None) -> Self:
        """Clients of one client id; without one the default of all."""
        return cls(ConfigResourceType.CLIENT, client_id or "")

    @classmethod
    def user(cls, name: str | None = None) -> Self:
        """A user; without a name the default of all."""
        return cls(ConfigResourceType.USER, name or "")

    @classmethod
    def user_client(cls, user: str | None = None, client_id: str | None = None) -> Self:
        """Clients of one client id, as one user; what is missing is the default of all."""
        return cls(ConfigResourceType.USER_CLIENT, user or "", client_id or "")

    @classmethod
    def cluster(cls) -> Self:
        """All that the services of the cluster agree on."""
        return cls(ConfigResourceType.CLUSTER)


@dataclass(frozen=True, slots=True)
class ConfigEntry(ShownAsTable):
    """One key of a configuration as it counts now."""

    key: str
    value: str | None  # None: each broker has its own
    source: ConfigSource
    read_only: bool = False  # only read at a start
    service: str = ""  # of a broker's key: the service that has the value, where others have another


def to_resource(resource: ConfigResource) -> controller_pb2.ConfigResource:
    return controller_pb2.ConfigResource(type=resource.type.value, name=resource.name, client_id=resource.client_id)


def alteration(
    resource: ConfigResource, changed: Mapping[str, str], unset: Iterable[str], *, validate_only: bool
) -> controller_pb2.AlterConfigsRequest:
    return controller_pb2.AlterConfigsRequest(
        resource=to_resource(resource), set=dict(changed), unset=list(unset), validate_only=validate_only
    )


def entries(config: controller_pb2.ResourceConfig) -> list[ConfigEntry]:
    """The entries of one resource. Raises the error that it has in their place."""
    code = from_proto(config.error)
    if code is not ErrorCode.NONE:
        raise error_for(code, config.error.message)
    return [_entry(each) for each in config.entries]


def described_kinds(configs: Sequence[controller_pb2.ResourceConfig]) -> dict[ConfigResource, list[ConfigEntry]]:
    return {
        ConfigResource(ConfigResourceType(each.resource.type), each.resource.name, each.resource.client_id): entries(
            each
        )
        for each in configs
    }


def _entry(entry: controller_pb2.ConfigEntry) -> ConfigEntry:
    source = ConfigSource(entry.config_source)
    everywhere_else = source is ConfigSource.STATIC and not entry.value and not entry.service
    return ConfigEntry(
        entry.key,
        None if everywhere_else or entry.source == "brokers" else entry.value,
        source,
        entry.read_only,
        entry.service,
    )

"""The owners of dynamic configurations, beside topics: the cluster, brokers, clients, users. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

MAX_NAME = 255
"""Characters of a client id, or of a user's name."""


class EntityKind(Enum):
    """The kinds, under Kafka's names (entity types)."""

    BROKERS = "brokers"
    CLIENTS = "clients"
    CLUSTER = "cluster"
    USERS = "users"  # and users' clients


@dataclass(frozen=True, slots=True)
class ClusterEntity:
    """All that the services of the cluster must agree on."""

    @property
    def kind(self) -> EntityKind:
        return EntityKind.CLUSTER

    def __str__(self) -> str:
        return "the cluster"


@dataclass(frozen=True, slots=True)
class BrokerEntity:
    broker_id: int | None  # None: of brokers that set nothing else

    @property
    def kind(self) -> EntityKind:
        return EntityKind.BROKERS

    def __str__(self) -> str:
        return "the default of brokers" if self.broker_id is None else f"broker {self.broker_id}"


@dataclass(frozen=True, slots=True)
class ClientEntity:
    client_id: str | None  # None: of clients that have nothing else

    @property
    def kind(self) -> EntityKind:
        return EntityKind.CLIENTS

    def __str__(self) -> str:
        return "the default of clients" if self.client_id is None else f"client {self.client_id!r}"


@dataclass(frozen=True, slots=True)
class UserEntity:
    user: str | None  # None: of users who have nothing else

    @property
    def kind(self) -> EntityKind:
        return EntityKind.USERS

    def __str__(self) -> str:
        return "the default of users" if self.user is None else f"user {self.user!r}"


@dataclass(frozen=True, slots=True)
class UserClientEntity:
    """Clients of one client id, as one user."""

    user: str | None
    client_id: str | None

    @property
    def kind(self) -> EntityKind:
        return EntityKind.USERS

    def __str__(self) -> str:
        return f"{ClientEntity(self.client_id)} of {UserEntity(self.user)}"


ConfigEntity = ClusterEntity | BrokerEntity | ClientEntity | UserEntity | UserClientEntity

CLUSTER = ClusterEntity()
DEFAULT_BROKER = BrokerEntity(None)


def problem_with_name(name: str) -> str | None:
    """Says what is wrong with a client id or a user's name, as the end of a sentence; None where it is good."""
    if not 0 < len(name) <= MAX_NAME:
        return f"has {len(name)} characters: 1 to {MAX_NAME} are allowed"
    return None if name.isprintable() else "has a character that is not printable"

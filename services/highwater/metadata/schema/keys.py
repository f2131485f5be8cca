"""The names of everything in etcd, made and parsed in this one place. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote, unquote

from highwater.configuration.entities import (
    CLUSTER,
    BrokerEntity,
    ClientEntity,
    ConfigEntity,
    EntityKind,
    UserClientEntity,
    UserEntity,
    problem_with_name,
)
from highwater.model.topic_name import is_legal_topic_name
from highwater.security.acls import Acl, parse_acl, unreadable_acls

ROOT = "/highwater"
DEFAULT_ENTITY = "__default"
"""Stands for the name of those that have no configuration by their own."""

ACL_WORDS = 6  # of its key
_NUMBER = "[0-9]{1,18}"  # of int64, in which it is passed on
_CLUSTER = re.compile(r"[a-zA-Z0-9._-]{1,100}")


@dataclass(frozen=True, slots=True)
class BrokerIdKey:
    broker_id: int


@dataclass(frozen=True, slots=True)
class BrokerTailKey:
    broker_id: int


@dataclass(frozen=True, slots=True)
class TopicKey:
    topic: str


@dataclass(frozen=True, slots=True)
class StateKey:
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class TopicConfigKey:
    topic: str


@dataclass(frozen=True, slots=True)
class DeleteTopicKey:
    topic: str


@dataclass(frozen=True, slots=True)
class IsrChangeKey:
    broker_id: int
    broker_epoch: int
    sequence: int


@dataclass(frozen=True, slots=True)
class ControllerKey:
    pass


@dataclass(frozen=True, slots=True)
class ControllerEpochKey:
    pass


ParsedKey = (
    BrokerIdKey
    | BrokerTailKey
    | TopicKey
    | StateKey
    | TopicConfigKey
    | DeleteTopicKey
    | IsrChangeKey
    | ControllerKey
    | ControllerEpochKey
)

_SHAPES: tuple[tuple[re.Pattern[str], Callable[[tuple[str, ...]], ParsedKey]], ...] = (
    (re.compile(rf"/brokers/ids/({_NUMBER})"), lambda g: BrokerIdKey(int(g[0]))),
    (re.compile(rf"/brokers/tail/({_NUMBER})"), lambda g: BrokerTailKey(int(g[0]))),
    (re.compile(r"/brokers/topics/([^/]+)"), lambda g: TopicKey(g[0])),
    (re.compile(rf"/brokers/topics/([^/]+)/partitions/({_NUMBER})/state"), lambda g: StateKey(g[0], int(g[1]))),
    (re.compile(r"/config/topics/([^/]+)"), lambda g: TopicConfigKey(g[0])),
    (re.compile(r"/admin/delete_topics/([^/]+)"), lambda g: DeleteTopicKey(g[0])),
    (
        re.compile(rf"/isr_change_notification/isr_change_({_NUMBER})_({_NUMBER})_({_NUMBER})"),
        lambda g: IsrChangeKey(int(g[0]), int(g[1]), int(g[2])),
    ),
    (re.compile(r"/controller"), lambda g: ControllerKey()),
    (re.compile(r"/controller_epoch"), lambda g: ControllerEpochKey()),
)


class Keys:
    """The keys of one cluster. Raises `ValueError` for a cluster or topic name that could not stand in a key."""

    def __init__(self, cluster: str) -> None:
        if _CLUSTER.fullmatch(cluster) is None:
            raise ValueError(f"illegal cluster name {cluster!r}: use 1 to 100 letters, digits, '.', '_' and '-'")
        self.cluster = cluster
        self.prefix = f"{ROOT}/{cluster}"
        self.everything = f"{self.prefix}/"
        self.cluster_id = f"{self.prefix}/cluster_id"
        self.controller = f"{self.prefix}/controller"
        self.controller_epoch = f"{self.prefix}/controller_epoch"
        self.producer_ids = f"{self.prefix}/producer_ids"
        self.broker_ids = f"{self.prefix}/brokers/ids/"
        self.broker_tails = f"{self.prefix}/brokers/tail/"
        self.doubted_dirs = f"{self.prefix}/brokers/doubted_dirs/"
        self.topics = f"{self.prefix}/brokers/topics/"
        self.topic_configs = f"{self.prefix}/config/topics/"
        self.entity_configs = {
            EntityKind.BROKERS: f"{self.prefix}/config/brokers/",
            EntityKind.CLIENTS: f"{self.prefix}/config/clients/",
            EntityKind.CLUSTER: f"{self.prefix}/config/cluster",
            EntityKind.USERS: f"{self.prefix}/config/users/",
        }
        """The prefixes under which the configurations of each kind stand."""
        self.delete_topics = f"{self.prefix}/admin/delete_topics/"
        self.isr_changes = f"{self.prefix}/isr_change_notification/"
        self.acls = f"{self.prefix}/acls/"

    def broker(self, broker_id: int) -> str:
        return f"{self.broker_ids}{broker_id}"

    def broker_tail(self, broker_id: int) -> str:
        return f"{self.broker_tails}{broker_id}"

    def doubted_dir(self, directory_id: str) -> str:
        """`directory_id`: of `meta.properties`."""
        return f"{self.doubted_dirs}{directory_id}"

    def topic(self, topic: str) -> str:
        return f"{self.topics}{_checked(topic)}"

    def partitions(self, topic: str) -> str:
        """The prefix of all states of a topic."""
        return f"{self.topics}{_checked(topic)}/partitions/"

    def state(self, topic: str, partition: int) -> str:
        return f"{self.topics}{_checked(topic)}/partitions/{partition}/state"

    def topic_config(self, topic: str) -> str:
        return f"{self.topic_configs}{_checked(topic)}"

    def entity_config(self, entity: ConfigEntity) -> str:
        """Raises `ValueError` for a name that nobody may have."""
        prefix = self.entity_configs[entity.kind]
        match entity:
            case BrokerEntity(broker_id):
                return f"{prefix}{DEFAULT_ENTITY if broker_id is None else broker_id}"
            case ClientEntity(client_id):
                return f"{prefix}{_escaped(client_id)}"
            case UserEntity(user):
                return f"{prefix}{_escaped(user)}"
            case UserClientEntity(user, client_id):
                return f"{prefix}{_escaped(user)}/clients/{_escaped(client_id)}"
            case _:
                return prefix

    def parse_entity_config(self, key: str) -> ConfigEntity | None:
        """Tells what a key below one of `entity_configs` is the configuration of; None where it is not one that
        `entity_config` makes."""
        path = key.removeprefix(f"{self.prefix}/config/")
        match path.split("/"):
            case ["cluster"]:
                entity: ConfigEntity = CLUSTER
            case ["brokers", name] if name == DEFAULT_ENTITY:
                entity = BrokerEntity(None)
            case ["brokers", name] if re.fullmatch(_NUMBER, name):
                entity = BrokerEntity(int(name))
            case ["clients", name]:
                entity = ClientEntity(_unescaped(name))
            case ["users", user]:
                entity = UserEntity(_unescaped(user))
            case ["users", user, "clients", name]:
                entity = UserClientEntity(_unescaped(user), _unescaped(name))
            case _:
                return None
        try:
            return entity if self.entity_config(entity) == key else None
        except ValueError:
            return None

    def delete_topic(self, topic: str) -> str:
        return f"{self.delete_topics}{_checked(topic)}"

    def isr_change(self, broker_id: int, broker_epoch: int, sequence: int) -> str:
        return f"{self.isr_changes}isr_change_{broker_id}_{broker_epoch}_{sequence}"

    def acl(self, acl: Acl) -> str:
        """All of an ACL stands in its key: it is there or it is not."""
        kind, pattern = acl.resource_type.name.lower(), acl.pattern_type.name.lower()
        decision = f"{acl.operation.name.lower()}/{acl.permission.name.lower()}"
        return f"{self.acls}{kind}/{pattern}/{_quoted(acl.name)}/{_quoted(str(acl.principal))}/{decision}"

    def parse_acl(self, key: str) -> Acl:
        """Raises `ValueError` where it is no ACL's."""
        words = key.removeprefix(self.acls).split("/")
        if not key.startswith(self.acls) or len(words) != ACL_WORDS:
            raise ValueError(f"{key!r} is not the key of an ACL")
        return parse_acl(*map(_unquoted, words))

    def unreadable_acls(self, key: str) -> tuple[Acl, ...]:
        """The ACLs that one which cannot be read is taken for, by its key."""
        words = key.removeprefix(self.acls).split("/")
        try:
            return unreadable_acls(key, [*map(_unquoted, words[:3]), *words[3:]])
        except ValueError:  # of its pattern no more is known than what is before
            return unreadable_acls(key, words[:1])

    def parse(self, key: str) -> ParsedKey | None:
        """Parses a key of this cluster; None for keys that these classes do not speak of."""
        if not key.startswith(self.everything):
            return None
        path = key[len(self.prefix) :]
        for shape, make in _SHAPES:
            match = shape.fullmatch(path)
            if match is not None:
                return make(match.groups())
        return None


def _checked(topic: str) -> str:
    if not is_legal_topic_name(topic):
        raise ValueError(f"illegal topic name {topic!r}: use 1 to 249 letters, digits, '.', '_' and '-'")
    return topic


def _quoted(name: str) -> str:
    return quote(name, safe="*:")


def _unquoted(word: str) -> str:
    """Raises `ValueError` for what stood there as bytes that are no text: what is left of it is another name."""
    if "\\" in word:  # as they are read from etcd; `_quoted` leaves none
        raise ValueError(f"{word!r} is no text")
    return unquote(word, errors="strict")


def _escaped(name: str | None) -> str:
    """As one part of a key. A name that is that of the default has its first sign escaped too."""
    if name is None:
        return DEFAULT_ENTITY
    problem = problem_with_name(name)
    if problem is not None:
        raise ValueError(f"the name {name[:100]!r} {problem}")
    escaped = quote(name, safe="")
    return f"%5F{escaped[1:]}" if escaped == DEFAULT_ENTITY else escaped


def _unescaped(part: str) -> str | None:
    return None if part == DEFAULT_ENTITY else unquote(part, errors="surrogateescape")

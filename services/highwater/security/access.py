"""The permissions of callers: the authorizer, asked once for each stream and resource until the ACLs change."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from highwater.errors import ErrorCode
from highwater.security.acls import CLUSTER_NAME, MAX_RESOURCE_NAME, Operation, ResourceType
from highwater.security.authorizer import Authorizer
from highwater.security.principal import Principal, principal_of

MAX_KEPT = 10_000  # decisions of one principal, by name and by id
MAX_PRINCIPALS = 64  # whose decisions outlive their calls
Told = Callable[[], Iterable[None] | None]
"""Called after a change of the ACLs. Between two steps of its answer others may have their turn."""
_ERRORS = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


class Access:
    """The permissions of one principal. A stream keeps it for as long as it is open, and asks at each message: what was
    decided is found by one look-up until the ACLs change."""

    def __init__(self, authorizer: Authorizer, principal: Principal, topic_of: Callable[[bytes], str | None]) -> None:
        self.principal = principal
        self._authorizer = authorizer
        self._topic_of = topic_of
        self._generation = -1
        self._kept: dict[tuple[ResourceType, str], int] = {}
        self._kept_ids: dict[bytes, int] = {}

    def may(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        if self._generation != self._authorizer.generation or len(self._kept) > MAX_KEPT:
            self._forget()
        key = (resource_type, name)
        permitted = self._kept.get(key)
        if permitted is None:
            permitted = self._authorizer.permitted(self.principal, resource_type, name)
            if len(name) <= MAX_RESOURCE_NAME:  # what is longer is nobody's, and would be kept for its sender's sake
                self._kept[key] = permitted
        return bool(permitted >> operation & 1)

    def may_topic(self, operation: Operation, topic: str) -> bool:
        return self.may(operation, ResourceType.TOPIC, topic)

    def may_group(self, operation: Operation, group: str) -> bool:
        return self.may(operation, ResourceType.GROUP, group)

    def may_cluster(self, operation: Operation) -> bool:
        return self.may(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def may_on_any(self, operation: Operation, resource_type: ResourceType) -> bool:
        return self._authorizer.allows_on_any(self.principal, operation, resource_type)

    def topic_error(self, operation: Operation, topic_id: bytes) -> ErrorCode:
        """NONE where the principal may do this with the topic of the id. UNKNOWN_TOPIC_ID where nobody here knows what
        topic that is: it may become one that the principal may not touch before the request is through."""
        if self._generation != self._authorizer.generation or len(self._kept_ids) > MAX_KEPT:
            self._forget()
        permitted = self._kept_ids.get(topic_id)
        if permitted is None:
            topic = self._topic_of(topic_id)
            if topic is None:
                return ErrorCode.UNKNOWN_TOPIC_ID
            permitted = self._authorizer.permitted(self.principal, ResourceType.TOPIC, topic)
            self._kept_ids[topic_id] = permitted
        return ErrorCode.NONE if permitted >> operation & 1 else ErrorCode.TOPIC_AUTHORIZATION_FAILED

    def refusal(self, operation: Operation, resource_type: ResourceType, name: str) -> str:
        """The sentence that refuses."""
        what = "the cluster" if resource_type is ResourceType.CLUSTER else f"{resource_type.name.lower()} {name!r}"
        return self._sentence(operation, what)

    def topic_refusal(self, operation: Operation, topic_id: bytes) -> str:
        """The sentence for an error of `topic_error`; empty: the code's own. It has the name for those alone who may
        DESCRIBE the topic: an id does not tell it."""
        topic = self._topic_of(topic_id)
        if topic is None:
            return ""
        if not self.may_topic(Operation.DESCRIBE, topic):
            return self._sentence(operation, f"the topic of id {topic_id.hex()}")
        return self.refusal(operation, ResourceType.TOPIC, topic)

    def _sentence(self, operation: Operation, what: str) -> str:
        return f"{self.principal} may not {operation.name} {what}: ask who runs the cluster for an ACL"

    def _forget(self) -> None:
        self._generation = self._authorizer.generation
        self._kept.clear()
        self._kept_ids.clear()


def error_of(resource_type: ResourceType) -> ErrorCode:
    """The error of whoever may not do something with a resource."""
    return _ERRORS[resource_type]


class Authorization:
    """The switch: a server that has one asks it about every call; one that has none asks nobody.

    `topic_of` tells a topic's name by its id; None: it is not known here."""

    def __init__(self, authorizer: Authorizer, topic_of: Callable[[bytes], str | None]) -> None:
        self.authorizer = authorizer
        self._topic_of = topic_of
        self._told: set[Told] = set()
        self._accesses: dict[Principal, Access] = {}

    def access(self, context: Any) -> Access:
        """That of a call's principal."""
        principal = principal_of(context)
        found = self._accesses.get(principal)
        if found is None:
            if len(self._accesses) >= MAX_PRINCIPALS:
                self._accesses.clear()
            found = self._accesses[principal] = Access(self.authorizer, principal, self._topic_of)
        return found

    def on_change(self, tell: Told) -> Callable[[], None]:
        """Has `tell` called, and its steps taken, after each change of the ACLs; the answer ends that."""
        self._told.add(tell)
        return lambda: self._told.discard(tell)

    def listening(self) -> list[Told]:
        """Those who are to be told of a change now."""
        return list(self._told)

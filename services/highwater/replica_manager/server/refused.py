"""The parts of a request that its caller may not ask for, answered beside those that it may."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from highwater.errors import ErrorCode
from highwater.model.partition import PartitionKey
from highwater.replica_manager.server.partition_errors import partition_error
from highwater.rpc.errors import to_proto
from highwater.rpc.process.loop_turn import by_turns
from highwater.security.access import Access, error_of
from highwater.security.acls import CLUSTER_NAME, Operation, ResourceType
from highwater.v1 import common_pb2

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
Refusal = tuple[ErrorCode, str]


class Divided(Generic[_Item]):
    """A request's items, some of which are refused. `merged` puts the results together in the items' order."""

    def __init__(self, items: Sequence[_Item], refusal: Callable[[_Item], Refusal | None] | None) -> None:
        """`refusal` None: nobody is asked, and nothing is refused."""
        self._items = items
        self._refused: dict[int, Refusal] = {}
        if refusal is not None:
            found = ((index, refusal(item)) for index, item in enumerate(items))
            self._refused = {index: refused for index, refused in found if refused is not None}

    @classmethod
    async def of_many(cls, items: Sequence[_Item], refusal: Callable[[_Item], Refusal | None] | None) -> Divided[_Item]:
        """Of thousands: others have their turn in between."""
        divided = cls(items, None)
        if refusal is not None:
            async for index, item in by_turns(enumerate(items)):
                if (refused := refusal(item)) is not None:
                    divided._refused[index] = refused
        return divided

    def __bool__(self) -> bool:
        """Tells whether anything is refused."""
        return bool(self._refused)

    @property
    def nothing_left(self) -> bool:
        return bool(self._refused) and len(self._refused) == len(self._items)

    @property
    def allowed(self) -> list[_Item]:
        if not self._refused:
            return list(self._items)
        return [item for index, item in enumerate(self._items) if index not in self._refused]

    def merged(self, results: Iterable[_Result], refused: Callable[[_Item, Refusal], _Result]) -> list[_Result]:
        """`results`: one for each that is allowed, in order."""
        rest: Iterator[_Result] = iter(results)
        return [
            refused(item, self._refused[index]) if index in self._refused else next(rest)
            for index, item in enumerate(self._items)
        ]

    async def merging(
        self, results: Iterable[_Result], refused: Callable[[_Item, Refusal], _Result]
    ) -> AsyncIterator[_Result]:
        """As `merged`, of thousands: others have their turn in between, also where `results` are made as they are
        taken."""
        rest = iter(results)
        async for index, item in by_turns(enumerate(self._items)):
            yield refused(item, self._refused[index]) if index in self._refused else next(rest)


def key_refusal(access: Access | None, operation: Operation) -> Callable[[PartitionKey], Refusal | None] | None:
    """Says of a partition, by its key, why the caller may not do that."""
    if access is None:
        return None
    asked = access

    def refusal(key: PartitionKey) -> Refusal | None:
        error = asked.topic_error(operation, key.topic_id)
        return None if error is ErrorCode.NONE else (error, asked.topic_refusal(operation, key.topic_id))

    return refusal


def name_refusal(
    access: Access | None, operation: Operation, resource_type: ResourceType, name_of: Callable[[Any], str]
) -> Callable[[Any], Refusal | None] | None:
    """Says of an item that names a resource why the caller may not do that."""
    if access is None:
        return None
    asked = access

    def refusal(item: Any) -> Refusal | None:
        return may_not(asked, operation, resource_type, name_of(item))

    return refusal


def may_not(access: Access | None, operation: Operation, resource_type: ResourceType, name: str) -> Refusal | None:
    """None: it may, or nobody is asked."""
    if access is None or access.may(operation, resource_type, name):
        return None
    return error_of(resource_type), access.refusal(operation, resource_type, name)


def cluster_error(access: Access | None, operation: Operation) -> common_pb2.Error | None:
    """The error of a request that is about the cluster."""
    refusal = may_not(access, operation, ResourceType.CLUSTER, CLUSTER_NAME)
    return None if refusal is None else to_proto(*refusal)


def error_of_key(key: PartitionKey, refusal: Refusal) -> common_pb2.Error:
    return partition_error(key, *refusal)

"""Topics that a client asks for and nobody has made: `auto.create.topics.enable` (RULES 9.1)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from highwater.errors import ErrorCode
from highwater.metadata.schema.keys import Keys
from highwater.metadata.store.store import Store
from highwater.replica_manager.membership.controller_client import ask_controller
from highwater.rpc.connections.tls import Certificates
from highwater.rpc.errors import from_proto
from highwater.telemetry.log import get_logger, pairs
from highwater.v1 import controller_pb2

logger = get_logger("replica_manager.topic_creation")

MAX_CREATIONS = 64  # under way at once; a client asks again for what is above
WAIT_S = 1.0  # of a metadata request for the topics that it makes; clients give up on one after two seconds
CREATE_TIMEOUT_S = 10.0
_DEFAULT = -1  # num.partitions, default.replication.factor
# Asked again, the client finds the topic, or it is tried once more. Any other error is told with its own sentence, even
# one that goes away by itself: a client that gives up says why.
_PENDING = frozenset(
    {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_CONTROLLER}
)


class CreationOutcome(NamedTuple):
    error: ErrorCode
    message: str = ""


NOT_YET = CreationOutcome(ErrorCode.LEADER_NOT_AVAILABLE, "the topic is being created: ask again")


class TopicCreation:
    """Asks the controller for one topic at a time once, however many clients ask for it."""

    def __init__(self, store: Store, keys: Keys, *, enabled: bool, certificates: Certificates | None = None) -> None:
        self.enabled = enabled
        self._certificates = certificates
        self._store = store
        self._keys = keys
        self._creating: dict[str, asyncio.Task[CreationOutcome]] = {}

    async def create(self, topics: Sequence[str]) -> dict[str, CreationOutcome]:
        """Returns the outcome for each of these names that nobody knows, within `WAIT_S`."""
        outcomes = {}
        creating = {}
        for topic in topics:
            if topic in self._creating or len(self._creating) < MAX_CREATIONS:
                creating[topic] = self._begin(topic)
            else:
                outcomes[topic] = NOT_YET
        if creating:
            await asyncio.wait(creating.values(), timeout=WAIT_S)
        return outcomes | {topic: task.result() if task.done() else NOT_YET for topic, task in creating.items()}

    async def stop(self) -> None:
        tasks = list(self._creating.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, topic: str) -> asyncio.Task[CreationOutcome]:
        task = self._creating.get(topic)
        if task is None:
            task = self._creating[topic] = asyncio.create_task(self._create(topic), name=f"create-{topic}")
            task.add_done_callback(lambda _: self._creating.pop(topic))
        return task

    async def _create(self, topic: str) -> CreationOutcome:
        request = controller_pb2.CreateTopicsRequest(timeout_ms=int(CREATE_TIMEOUT_S * 1000))
        request.topics.add(topic=topic, partitions=_DEFAULT, replication_factor=_DEFAULT)
        response = await ask_controller(
            self._store,
            self._keys,
            lambda stub: stub.CreateTopics(request, timeout=CREATE_TIMEOUT_S),
            certificates=self._certificates,
        )
        if response is None or from_proto(response.error) is not ErrorCode.NONE:
            return NOT_YET  # no controller now
        (result,) = response.results
        error = from_proto(result.error)
        logger.info("a client asked for a topic %s", pairs(topic=topic, outcome=error.name))
        return NOT_YET if error in _PENDING else CreationOutcome(error, result.error.message)

"""Requests of clients and brokers to the active controller: topics made, grown and deleted, leaderships moved. Without
protobuf.

Each request is carried out by `ActiveController`; here it is checked, started and waited for.
"""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TypeVar

from highwater.controller.administration.absent_topics import AbsentTopics
from highwater.controller.administration.acl_administration import AclAdministration
from highwater.controller.administration.configuration import Configuration
from highwater.controller.administration.entity_configuration import EntityConfiguration, StaticValue
from highwater.controller.settings import ControllerSettings
from highwater.controller.state_machines.partition_state_machine import PartitionStateMachine
from highwater.controller.state_machines.pieces import AT_ONCE
from highwater.controller.term.active_controller import ActiveController, Standing
from highwater.controller.topics.topic_admin import (
    NewTopic,
    Refusal,
    Surroundings,
    plan_topic,
    refuse_internal,
    refuse_size,
)
from highwater.controller.topics.topic_growth import NewPartitions, plan_growth
from highwater.errors import ErrorCode
from highwater.metadata.schema.controller_term import ControllerTerm
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import NO_LEADER, TopicAssignment, VersionedTopic
from highwater.metadata.state.dynamic_configs import WatchedConfigs
from highwater.metadata.state.topics import (
    TopicExistsError,
    TopicMarkedForDeletionError,
    change_assignment,
    create_topic,
    mark_for_deletion,
)
from highwater.metadata.store.etcd_errors import OutcomeUnknown, Refused, Unavailable
from highwater.metadata.store.store import Store
from highwater.model.partition import PartitionKey
from highwater.rpc.process.loop_turn import by_turns

RETRY_PAUSE_S = 0.1
METADATA_PATIENCE_S = 1.0  # a broker that is slow to hear of a topic does not hold up its creation for longer
MOVE_PATIENCE_S = 2.0  # for new leaders to take up what a leaving broker gave up
LOT_PATIENCE_S = 0.5  # for some of an election's states to be written: one may wait for days, if nobody can read it
MARK_PATIENCE_S = 0.5  # for the watch to tell what the broker had written before it asked
HELD_SAMPLE = 10  # partitions that are named, of perhaps thousands

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class TopicOutcome:
    topic: str
    error: ErrorCode = ErrorCode.NONE
    message: str = ""
    topic_id: bytes = b""
    partitions: int = 0
    replication_factor: int = 0


@dataclass(frozen=True, slots=True)
class PartitionOutcome:
    topic: str
    partition: int
    error: ErrorCode = ErrorCode.NONE
    message: str = ""


@dataclass(frozen=True, slots=True)
class HeldBack:
    """The partitions that a broker which wants to stop has to wait for; nothing: it may stop now."""

    leads: int  # partitions that it leads, and another replica may lead later
    needed_by: int  # partitions whose ISR would be below its minimum without it, and need not be later
    sample: tuple[PartitionKey, ...]


class Administration:
    """Bound to one term. Raises `ControllerDeposed` where that ended meanwhile."""

    def __init__(
        self,
        active_controller: ActiveController,
        store: Store,
        keys: Keys,
        settings: ControllerSettings,
        absent_topics: AbsentTopics,
        acls: AclAdministration,
        configs: WatchedConfigs,
        static: Sequence[StaticValue],
    ) -> None:
        """`settings` are those that count now, `static` those of the start."""
        self.acls = acls
        self._active_controller = active_controller
        self._cluster = active_controller.cluster
        self._store = store
        self._keys = keys
        self._settings = settings
        self.entity_configuration = EntityConfiguration(active_controller, store, keys, configs, static)
        self.configuration = Configuration(
            active_controller, store, keys, self.entity_configuration.of_everyone, absent_topics
        )

    @property
    def term(self) -> ControllerTerm:
        return self._active_controller.term

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool, timeout_s: float
    ) -> list[TopicOutcome]:
        """Answers when every partition has a leader that has taken up its leadership, so that a produce works."""
        deadline = time.monotonic() + timeout_s
        leaders = [p.replicas[0] for p in self._cluster.topics.partitions()]
        outcomes = []
        seen: set[str] = set()
        for new in topics:
            await asyncio.sleep(0)  # each is compared with all there are, and others are served meanwhile
            if new.topic in seen:
                outcomes.append(
                    TopicOutcome(new.topic, ErrorCode.INVALID_REQUEST, f"topic {new.topic!r} is named twice")
                )
                continue
            seen.add(new.topic)
            planned = plan_topic(new, self._surroundings(leaders), shift=len(self._cluster.topics) + len(outcomes))
            if isinstance(planned, Refusal):
                outcomes.append(TopicOutcome(new.topic, planned.error, planned.message))
                continue
            leaders += [replicas[0] for replicas in planned]
            assignment = TopicAssignment(new.topic, uuid.uuid4().bytes, planned)
            too_large = refuse_size(assignment)
            if too_large is not None:
                outcomes.append(TopicOutcome(new.topic, too_large.error, too_large.message))
                continue
            outcomes.append(
                TopicOutcome(new.topic, partitions=len(planned), replication_factor=len(planned[0]))
                if validate_only
                else await self._create(new, assignment, deadline)
            )
        return await self._served(outcomes, "was created", deadline)

    async def _served(self, outcomes: list[TopicOutcome], what: str, deadline: float) -> list[TopicOutcome]:
        """Waits for what succeeded: until every partition there should be has a leader that serves, and all know it."""
        done = {each.topic: each.partitions for each in outcomes if each.topic_id}

        def serves(topic: str) -> bool:
            return self._cluster.is_served(topic, done[topic])

        served = await self._active_controller.until(
            lambda: all(map(serves, done)), max(deadline - time.monotonic(), 0)
        )
        if served and done:
            patience_s = min(METADATA_PATIENCE_S, max(deadline - time.monotonic(), 0))
            await self._active_controller.until(self._active_controller.everyone_knows, patience_s)
        message = f"{what}, but not all of its partitions have a serving leader yet"
        return [
            replace(each, error=ErrorCode.REQUEST_TIMED_OUT, message=f"topic {each.topic!r} {message}")
            if each.topic_id and not serves(each.topic)
            else each
            for each in outcomes
        ]

    def _brokers(self) -> list[int]:
        """Those that may get new replicas, ascending."""
        cluster = self._cluster
        return sorted(each for each in cluster.brokers if not cluster.is_shutting_down(each))

    def _surroundings(self, leaders: Sequence[int]) -> Surroundings:
        cluster = self._cluster
        return Surroundings(
            brokers=self._brokers(),
            topics=[topic.name for topic in cluster.topics if topic.deletion is None],
            preferred_leaders=leaders,
            num_partitions=self._settings.num_partitions,
            default_replication_factor=self._settings.default_replication_factor,
            away=len(cluster.known_brokers.difference(self._brokers())),
        )

    async def _create(self, new: NewTopic, assignment: TopicAssignment, deadline: float) -> TopicOutcome:
        """RULES 9.1. The watch brings the topic to the cluster, which writes its states."""
        try:
            await self._until_answered(
                lambda: create_topic(self._store, self._keys, self._active_controller.term, assignment, new.config),
                deadline,
            )
        except (TopicExistsError, TopicMarkedForDeletionError) as error:
            return TopicOutcome(new.topic, ErrorCode.TOPIC_ALREADY_EXISTS, str(error))
        except (Unavailable, OutcomeUnknown, Refused) as error:
            message = f"topic {new.topic!r} may or may not have been created: {error}"
            return TopicOutcome(new.topic, ErrorCode.REQUEST_TIMED_OUT, message)
        return _planned(assignment)

    async def create_partitions(
        self, topics: Sequence[NewPartitions], *, validate_only: bool, timeout_s: float
    ) -> list[TopicOutcome]:
        """Answers when every partition has a leader that has taken up its leadership, as `create_topics` does."""
        deadline = time.monotonic() + timeout_s
        outcomes: list[TopicOutcome] = []
        seen: set[str] = set()
        for new in topics:
            await asyncio.sleep(0)
            if new.topic in seen:
                message = f"topic {new.topic!r} is named twice"
                outcomes.append(TopicOutcome(new.topic, ErrorCode.INVALID_REQUEST, message))
                continue
            seen.add(new.topic)
            outcomes.append(await self._grow(new, deadline, validate_only=validate_only))
        return await self._served(outcomes, "got its partitions", deadline)

    async def _grow(self, new: NewPartitions, deadline: float, *, validate_only: bool) -> TopicOutcome:
        """The longer assignment is one guarded write (RULES 2.2); as with a new topic, the watch brings it to the
        cluster, this one or a successor's, which writes the missing states (RULES 9.1)."""
        unsettled: list[TopicAssignment] = []  # written, perhaps
        while True:
            internal = refuse_internal(new.topic)
            if internal is not None:
                return TopicOutcome(new.topic, internal.error, internal.message)
            topic = self._cluster.topics.named(new.topic)
            if topic is None or topic.deletion is not None:
                message = f"there is no topic {new.topic!r}"
                return TopicOutcome(new.topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
            current = topic.versioned
            if current.assignment in unsettled:
                return _planned(current.assignment)
            planned = plan_growth(new, current.assignment, self._brokers())
            if isinstance(planned, Refusal):
                return TopicOutcome(new.topic, planned.error, planned.message)
            too_large = refuse_size(planned)
            if too_large is not None:
                return TopicOutcome(new.topic, too_large.error, too_large.message)
            if validate_only:
                return replace(_planned(planned), topic_id=b"")
            try:
                written = await change_assignment(
                    self._store, self._keys, self._active_controller.term, current, planned
                )
            except (Unavailable, OutcomeUnknown, Refused) as error:
                unsettled.append(planned)
                trouble = f": {error}"
            else:
                if written is not None:
                    return _planned(planned)
                trouble = ""
            # Somebody wrote first, perhaps ourselves: what the watch shows next decides.
            await self._active_controller.until(partial(self._written_since, current), RETRY_PAUSE_S)
            if time.monotonic() >= deadline or self._active_controller.ended:
                message = f"topic {new.topic!r} may or may not have got its partitions{trouble}"
                return TopicOutcome(new.topic, ErrorCode.REQUEST_TIMED_OUT, message)

    def _written_since(self, seen: VersionedTopic) -> bool:
        topic = self._cluster.topics.identified(seen.assignment.topic_id)
        return topic is None or topic.deletion is not None or topic.versioned.revision != seen.revision

    async def delete_topics(self, names: Sequence[str], *, timeout_s: float) -> list[TopicOutcome]:
        """Answers when the topics are gone from etcd and from the live brokers (RULES 9.2)."""
        deadline = time.monotonic() + timeout_s
        outcomes = [await self._mark(name, deadline) for name in dict.fromkeys(names)]
        marked = {each.topic: each.topic_id for each in outcomes if each.topic_id and each.error is ErrorCode.NONE}
        await self._active_controller.until(
            lambda: not any(map(self._exists, marked.values())), max(deadline - time.monotonic(), 0)
        )
        return [
            TopicOutcome(
                each.topic,
                ErrorCode.REQUEST_TIMED_OUT,
                f"topic {each.topic!r} is being deleted, but that is not done yet",
                each.topic_id,
            )
            if each.topic in marked and self._exists(each.topic_id)
            else each
            for each in outcomes
        ]

    async def _mark(self, name: str, deadline: float) -> TopicOutcome:
        internal = refuse_internal(name)
        if internal is not None:
            return TopicOutcome(name, internal.error, internal.message)
        topic = self._cluster.topics.named(name)
        unknown = TopicOutcome(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        if topic is None:
            return unknown
        try:
            marked = await self._until_answered(
                lambda: mark_for_deletion(self._store, self._keys, self._active_controller.term, topic.versioned),
                deadline,
            )
        except (Unavailable, OutcomeUnknown, Refused) as error:
            message = f"topic {name!r} may or may not be being deleted: {error}"
            return TopicOutcome(name, ErrorCode.REQUEST_TIMED_OUT, message)
        return TopicOutcome(name, topic_id=topic.topic_id) if marked else unknown

    def _exists(self, topic_id: bytes) -> bool:
        return self._cluster.topics.identified(topic_id) is not None

    async def shut_down(self, broker_id: int, broker_epoch: int) -> HeldBack | None:
        """Moves the leaderships of a broker that is about to stop, takes it out of the ISRs that can spare it, and says
        what it still has to wait for (RULES 7.8). None: it is not registered under this broker epoch, or its mark has
        not been heard of."""
        cluster = self._cluster
        if not cluster.is_registered(broker_id, broker_epoch):
            return None
        # Its question may come before what etcd tells: that it is back in an ISR, say, which another has left, or that
        # another began first. What was before its mark is known once the mark is.
        if not await self._active_controller.until(
            partial(cluster.has_heard_of_leaving, broker_id, broker_epoch), MARK_PATIENCE_S
        ):
            return None
        actions = cluster.shut_down(broker_id, broker_epoch)
        if actions:  # its first question: the only one that costs more, the more it hosts
            held = cluster.topics.partitions(cluster.held(broker_id))
            self._active_controller.perform(actions)
            await self._active_controller.until(
                _each(held, lambda partition: partition.pending is None), MOVE_PATIENCE_S
            )
            # The process may stop when its successors are at work. Leaderships may have moved since its mark.
            hosted = cluster.topics.hosted(broker_id).values()
            moved = [partition for partition in hosted if partition.leader not in (broker_id, NO_LEADER)]
            await self._active_controller.until(_each(moved, lambda partition: partition.served), MOVE_PATIENCE_S)
        if cluster.release(broker_id, broker_epoch):
            return HeldBack(0, 0, ())
        if not cluster.has_heard_of_leaving(broker_id, broker_epoch):
            return None
        keys, leads = cluster.held(broker_id), cluster.held_as_leader(broker_id)
        return HeldBack(leads, len(keys) - leads, tuple(islice(keys, HELD_SAMPLE)))

    def standing(self, broker_id: int, broker_epoch: int) -> Standing | None:
        """As `ActiveController.standing`."""
        return self._active_controller.standing(broker_id, broker_epoch)

    async def elect_preferred(self, wanted: Iterable[tuple[str, int]], *, timeout_s: float) -> list[PartitionOutcome]:
        """Gives partitions (none: all) back to their preferred leaders, where those are live and in the ISR."""
        deadline = time.monotonic() + timeout_s
        await self._active_controller.until(lambda: self._cluster.listed, timeout_s)
        names = list(wanted) or [(p.topic, p.key.partition) for p in self._cluster.topics.partitions()]
        found = {}
        needless = set()
        async for name, number in by_turns(names):
            topic = self._cluster.topics.named(name)
            if topic is not None and 0 <= number < len(topic.partitions):
                found[name, number] = partition = topic.partitions[number]
                if partition.leader == partition.replicas[0]:
                    needless.add((name, number))
        await self._prefer(list(found.values()), deadline)

        def outcome(place: tuple[str, int]) -> PartitionOutcome:
            name = f"{place[0]}-{place[1]}"
            if place not in found:
                return PartitionOutcome(*place, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}")
            preferred = found[place].replicas[0]
            if place in needless:
                return PartitionOutcome(*place, ErrorCode.ELECTION_NOT_NEEDED, f"broker {preferred} leads {name}")
            if found[place].leader == preferred:
                return PartitionOutcome(*place)
            if found[place].pending is not None:
                message = f"{name} has not gone back to broker {preferred} in time; it may yet"
                return PartitionOutcome(*place, ErrorCode.REQUEST_TIMED_OUT, message)
            message = f"broker {preferred}, the preferred leader of {name}, is not live or not in the ISR: try later"
            return PartitionOutcome(*place, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, message)

        return [outcome(place) async for place in by_turns(names)]

    async def _prefer(self, partitions: Sequence[PartitionStateMachine], deadline: float) -> None:
        """Decides some of them at a time, and has that written before the next, as a rule: one that is not written, or
        is gone, holds up no others. What is decided is handed out in the same turn of the event loop. All are decided,
        though those that were written last may be so after the deadline.
        """

        async def written(some: Sequence[PartitionStateMachine], within_s: float) -> None:
            left_s = max(deadline - time.monotonic(), 0)
            await self._active_controller.until(
                _each(some, lambda partition: partition.pending is None), min(within_s, left_s)
            )

        for first in range(0, len(partitions), AT_ONCE):
            some = partitions[first : first + AT_ONCE]
            self._active_controller.perform(self._cluster.prefer(each.key for each in some))
            await written(some, LOT_PATIENCE_S)
            await asyncio.sleep(0)  # nothing was to be waited for where none of them had to go back
        await written(partitions, math.inf)

    async def _until_answered(self, ask: Callable[[], Awaitable[_Answer]], deadline: float) -> _Answer:
        """For what may be repeated; raises the last trouble with etcd at the deadline."""
        while True:
            try:
                return await ask()
            except (Unavailable, OutcomeUnknown, Refused):
                if time.monotonic() + RETRY_PAUSE_S >= deadline or self._active_controller.ended:
                    raise
                await asyncio.sleep(RETRY_PAUSE_S)


def _each(
    partitions: Iterable[PartitionStateMachine], holds: Callable[[PartitionStateMachine], bool]
) -> Callable[[], bool]:
    """Tells whether it has held for each of them. One for which it held is not looked at again, so that asking often,
    of thousands, costs little."""
    left = list(partitions)

    def all_held() -> bool:
        while left and holds(left[-1]):
            left.pop()
        return not left

    return all_held


def _planned(assignment: TopicAssignment) -> TopicOutcome:
    return TopicOutcome(
        assignment.topic,
        topic_id=assignment.topic_id,
        partitions=len(assignment.replicas),
        replication_factor=len(assignment.replicas[0]),
    )

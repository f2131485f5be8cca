"""One term of the elected controller, from its first listing until it is deposed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from highwater.controller.sending import wire
from highwater.controller.sending.metadata_messages import MetadataMessages
from highwater.controller.sending.sender import BrokerSender
from highwater.controller.state_machines.actions import (
    Action,
    InstructionAnswer,
    RecordTail,
    RemoveStates,
    RemoveTopic,
    Write,
    WriteState,
)
from highwater.controller.state_machines.cluster import Cluster
from highwater.controller.state_machines.election import ElectionPolicy
from highwater.controller.state_machines.pieces import AT_ONCE, in_turns
from highwater.controller.state_machines.topic_table import Topic
from highwater.controller.term.broker_liveness import BrokerProbe, FastPath
from highwater.controller.term.election_metrics import ElectionMetrics
from highwater.controller.term.etcd_writer import EtcdWriter
from highwater.controller.topics.topic_admin import Refusal
from highwater.errors import ErrorCode
from highwater.metadata.schema.cluster_view import (
    BrokerChange,
    BrokerTailChange,
    Change,
    ClusterChanges,
    ClusterSnapshot,
    ControllerChange,
    DeletionChange,
    IsrNotificationChange,
    StateChange,
    TopicChange,
    TopicConfigChange,
)
from highwater.metadata.schema.controller_term import ControllerTerm
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import LiveBroker
from highwater.metadata.state.brokers import expel_broker
from highwater.metadata.state.cluster_watch import watch_cluster
from highwater.metadata.state.isr_notifications import QUIET_MS, IsrNotificationCollector, remove_notifications
from highwater.metadata.state.unreadable_entries import UnreadableEntries
from highwater.metadata.store.etcd_errors import ControllerDeposed, StoreError, may_pass
from highwater.metadata.store.store import Store
from highwater.model.partition import PartitionKey
from highwater.rpc.connections.tls import Certificates
from highwater.supervision import TaskGroup
from highwater.telemetry.log import get_logger, pairs

_log = get_logger(__name__)

TICK_S = 0.25
RETRY_PAUSE_S = 0.1
STANDING_SAMPLE = 10  # partitions that are named, of perhaps thousands


@dataclass(frozen=True, slots=True)
class Standing:
    """Of a registered broker: whether it has been told of everything that it hosts, and which of its replicas are not
    in their ISRs."""

    told: bool
    out_of_sync: int
    sample: tuple[tuple[str, int], ...]  # (topic, partition), some of what it has not been told or is out of sync


@dataclass(frozen=True, slots=True)
class Rebalancing:
    interval_s: float
    allowed_percent: int


class ActiveController:
    """Everything that the active controller does by itself: it watches etcd, lets the state machines decide, writes,
    instructs brokers and probes them. `run` ends by raising, `ControllerDeposed` as a rule; nothing of it is left
    then."""

    def __init__(
        self,
        store: Store,
        keys: Keys,
        term: ControllerTerm,
        defaults: ElectionPolicy,
        *,
        address: str,
        clock_ms: Callable[[], int],
        rebalancing: Rebalancing | None,
        unreadable: UnreadableEntries,
        isr_quiet_ms: int = QUIET_MS,
        certificates: Certificates | None = None,
        elections: ElectionMetrics | None = None,
    ) -> None:
        """`rebalancing` None: leaderships go back to their preferred leaders only on demand. `unreadable` is told what
        of etcd cannot be taken: the rest is served."""
        self.term = term
        self.cluster = Cluster(term.controller_id, term.controller_epoch, defaults)
        self.loaded = False
        """Tells whether the first listing has been taken: before, nothing can be said about the cluster."""
        self._store = store
        self._keys = keys
        self._address = address
        self._clock_ms = clock_ms
        self._rebalancing = rebalancing
        self._rebalancing_changed = asyncio.Event()
        self._unreadable = unreadable
        self._writer = EtcdWriter(store, keys, term, self.cluster, self.perform, elections)
        self._tasks: TaskGroup | None = None
        self._senders: dict[int, tuple[BrokerSender, list[asyncio.Task[None]]]] = {}
        self._certificates = certificates
        self._endpoints = wire.Endpoints()
        self._messages = MetadataMessages()
        self._fast_paths: dict[int, FastPath] = {}
        self._configs: dict[str, dict[str, str]] = {}
        self._notifications = IsrNotificationCollector(isr_quiet_ms)
        self._progress = asyncio.Event()
        self._deposed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        try:
            async with TaskGroup() as tasks:
                self._tasks = tasks
                tasks.create_task(self._follow_etcd())
                tasks.create_task(self._tick())
                tasks.create_task(self._until_deposed())
                tasks.create_task(self._rebalance())
        except ExceptionGroup as group:
            if group.split(ControllerDeposed)[1] is not None:
                raise
            raise ControllerDeposed(_first(group)) from group
        finally:
            self._tasks = None
            self._moved()

    async def until(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """Waits until it holds, at most that long or until the term ends; returns whether it does."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._tasks is not None and not holds():
                    await self._progress.wait()
        return holds()

    def defaults_changed(self, defaults: ElectionPolicy, rebalancing: Rebalancing | None) -> None:
        """Takes what counts from now on in place of what the term began with."""
        if rebalancing != self._rebalancing:
            self._rebalancing = rebalancing
            self._rebalancing_changed.set()
        self.perform(self.cluster.defaults_changed(defaults))

    async def describe_broker(self, broker_id: int) -> Sequence[tuple[str, str, bool, str]] | Refusal:
        """The settings that a broker's services were started with: key, value, whether it is the default, service."""
        sender, _ = self._senders.get(broker_id, (None, None))
        if sender is None:
            return Refusal(ErrorCode.NETWORK_EXCEPTION, f"broker {broker_id} is not registered")
        return await sender.describe_config()

    @property
    def ended(self) -> bool:
        return self._tasks is None

    def depose(self, reason: str) -> None:
        """Ends the term: there is another controller, or this one is to stop."""
        if self._tasks is not None and not self._deposed.done():
            self._deposed.set_exception(ControllerDeposed(reason))

    async def _until_deposed(self) -> None:
        await self._deposed

    def perform(self, actions: Sequence[Action]) -> None:
        """Hands out what the cluster decided: writes that were decided together are written together."""
        writes: list[Write] = []
        for action in actions:
            match action:
                case WriteState() | RecordTail() | RemoveStates() | RemoveTopic():
                    writes.append(action)
                case _:
                    sender = self._sender(action.broker_id, action.broker_epoch)
                    if sender is not None:
                        sender.outbox.add(action, self._clock_ms())
                        sender.wake()
        if writes:
            self._start(self._writer.carry_out(writes))
        self._moved()

    def _moved(self) -> None:
        self._progress.set()
        self._progress = asyncio.Event()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
        if self._tasks is None:
            work.close()
            return None
        try:
            return self._tasks.create_task(work)
        except RuntimeError:
            return None  # the term is ending, its tasks are being cancelled

    # etcd

    async def _follow_etcd(self) -> None:
        async with contextlib.aclosing(watch_cluster(self._store, self._keys, self._unreadable)) as updates:
            async for update in updates:
                if isinstance(update, ClusterSnapshot):
                    await self._load(update)
                else:
                    await self._apply(update)

    async def _load(self, snapshot: ClusterSnapshot) -> None:
        acting = snapshot.controller
        if acting is None or acting.controller_epoch != self.term.controller_epoch:
            self.depose("the controller key is gone or another's")  # it may have changed while the watch was lost
            return
        self._configs = dict(snapshot.topic_configs)
        actions = await in_turns(self.cluster.loading(snapshot, self._clock_ms()), _give_way)
        for notification in snapshot.isr_notifications:
            self._notifications.add(notification, self._clock_ms())
        self._follow_brokers()
        self.loaded = True
        _log.info(
            "everything listed %s",
            pairs(revision=snapshot.revision, brokers=len(snapshot.brokers), topics=len(snapshot.topics)),
        )
        self._warn_of_missing_states(snapshot)
        self.perform(actions)
        self._writer.all_told(snapshot.states)

    def _warn_of_missing_states(self, snapshot: ClusterSnapshot) -> None:
        """Tells of those of a topic that was only half made, as a rule (RULES 9.1): where a state was removed, the new
        one begins at leader epoch 0, and log-storage refuses it."""
        missing = [
            self._keys.state(name, number)
            for name, topic in snapshot.topics.items()
            if name not in snapshot.deletions
            for number in range(len(topic.assignment.replicas))
            if (name, number) not in snapshot.states
        ]
        if missing:
            _log.warning(
                "partition states are missing or cannot be read; those missing are made, unless replicas refuse them "
                "with STALE_FENCE put the keys back (docs/operations.md, etcd's entries) %s",
                pairs(states=len(missing), first=missing[0]),
            )

    async def _apply(self, update: ClusterChanges) -> None:
        # A topic and its configuration come in one revision: the configuration is there when the topic is seen.
        for change in update.changes:
            if isinstance(change, TopicConfigChange):
                self._configs[change.topic] = change.config or {}
        for number, change in enumerate(update.changes, 1):
            if isinstance(change, BrokerChange):
                await self._broker_changed(change)
            else:
                self.perform(self._decide(change))
            if isinstance(change, StateChange):
                self._writer.state_told(change.topic, change.partition, change.value)
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _broker_changed(self, change: BrokerChange) -> None:
        broker = change.broker
        if broker is None:
            pieces = self.cluster.losing_broker(change.broker_id, change.revision)
        else:
            pieces = self.cluster.seeing_broker(broker)
        _log.info("broker %s", pairs(id=change.broker_id, epoch=broker.broker_epoch if broker else "gone"))
        actions = await in_turns(pieces, _give_way)
        self._follow_brokers()
        self.perform(actions)

    def _decide(self, change: Change) -> list[Action]:
        cluster = self.cluster
        match change:
            case BrokerTailChange(broker_id, int(broker_epoch)):
                cluster.tail_recorded(broker_id, broker_epoch)
            case TopicChange(topic, None):
                self._configs.pop(topic, None)
                return cluster.topic_gone(topic)
            case TopicChange(topic, versioned) if versioned is not None:
                return cluster.topic_seen(versioned, self._configs.get(topic, {}))
            case TopicConfigChange(topic, config):
                return cluster.config_seen(topic, config or {})
            case DeletionChange(topic, bytes(topic_id)):
                return cluster.deletion_marked(topic, topic_id, self._clock_ms())
            case StateChange(topic, partition, value) if value is not None:
                return cluster.state_seen(topic, partition, value)
            case IsrNotificationChange(notification) if notification is not None:
                self._notifications.add(notification, self._clock_ms())
            case ControllerChange(_, create_revision) if create_revision != self.term.create_revision:
                self.depose("the controller key is gone or another's")
        return []

    # Brokers

    def _sender(self, broker_id: int, broker_epoch: int) -> BrokerSender | None:
        found = self._senders.get(broker_id)
        return found[0] if found is not None and found[0].broker.broker_epoch == broker_epoch else None

    def _follow_brokers(self) -> None:
        """One sender and one probe for each registration there is."""
        for broker_id, (sender, tasks) in list(self._senders.items()):
            broker = self.cluster.brokers.get(broker_id)
            if broker is None or broker.broker_epoch != sender.broker.broker_epoch:
                del self._senders[broker_id]
                for task in tasks:
                    task.cancel()
        for broker_id, broker in self.cluster.brokers.items():
            if broker_id not in self._senders:
                sender = BrokerSender(
                    broker,
                    self.cluster,
                    self,
                    self._endpoints,
                    self._messages,
                    self._address,
                    self._clock_ms,
                    self._certificates,
                )
                probe = self._probe(broker)
                started = [self._start(sender.run()), self._start(probe.run())]
                self._senders[broker_id] = (sender, [task for task in started if task is not None])

    def _probe(self, broker: LiveBroker) -> BrokerProbe:
        broker_id = broker.registration.broker_id
        fast_path = self._fast_paths.setdefault(broker_id, FastPath())
        fast_path.registered(broker.broker_epoch)

        async def expel() -> None:
            _log.warning("broker refuses connections, its registration ends %s", pairs(id=broker_id))
            while True:
                try:
                    await expel_broker(self._store, self._keys, self.term, broker_id, broker.broker_epoch)
                    return
                except StoreError as error:
                    if not may_pass(error):
                        raise
                    await asyncio.sleep(RETRY_PAUSE_S)

        return BrokerProbe(broker.registration.probed_address, fast_path, expel, self._clock_ms)

    # What brokers answer (sender.Answers)

    def instructed(self, broker: LiveBroker, answers: Sequence[InstructionAnswer]) -> None:
        self.perform(self.cluster.instruction_answered(broker.registration.broker_id, broker.broker_epoch, answers))

    def stopped(self, broker: LiveBroker, topic_ids: Sequence[bytes]) -> None:
        broker_id = broker.registration.broker_id
        self.perform(self.cluster.stop_answered(broker_id, broker.broker_epoch, topic_ids, self._clock_ms()))

    def metadata_told(self) -> None:
        self._moved()

    def deposed(self, reason: str) -> None:
        self.depose(reason)

    def everyone_knows(self) -> bool:
        """Tells whether every live broker has answered for all metadata there is."""
        return all(sender.outbox.metadata.told for sender, _ in self._senders.values())

    def everyone_follows(self, topic: Topic) -> bool:
        """Tells whether every live broker has answered for all metadata there is, and for the topic's instructions."""
        keys = [partition.key for partition in topic.partitions]
        return all(sender.outbox.metadata.told and sender.outbox.told(keys) for sender, _ in self._senders.values())

    def standing(self, broker_id: int, broker_epoch: int) -> Standing | None:
        """The distance between a registration and being ready (RULES 8.6); None: this controller does not know it."""
        sender = self._sender(broker_id, broker_epoch)
        if sender is None:
            return None
        told = sender.has_told_everything()
        out_of_sync = self.cluster.out_of_sync(broker_id)
        keys = itertools.chain(() if told else sender.outbox.untold, out_of_sync)
        sample = self.cluster.topics.partitions(itertools.islice(keys, STANDING_SAMPLE))
        places = dict.fromkeys((partition.topic, partition.key.partition) for partition in sample)
        return Standing(told, len(out_of_sync), tuple(places))

    # Time

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now_ms = self._clock_ms()
            self.perform(self.cluster.tick(now_ms))
            for broker_id, (sender, _) in list(self._senders.items()):
                silent = sender.outbox.unanswered(now_ms)
                if silent:
                    _log.warning("no answer for 5 s %s", pairs(broker=broker_id, partitions=len(silent)))
                    epoch = sender.broker.broker_epoch
                    self.perform(self.cluster.instruction_unanswered(broker_id, epoch, silent))
            await self._announce_isr_changes(now_ms)

    async def _rebalance(self) -> None:
        while True:
            rebalancing = self._rebalancing
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if rebalancing is None else rebalancing.interval_s):
                    await self._rebalancing_changed.wait()
                self._rebalancing_changed.clear()
                continue
            assert rebalancing is not None  # without an interval nothing runs out
            actions = self.cluster.rebalance(rebalancing.allowed_percent)
            if actions:
                _log.info("leaderships go back to their preferred leaders %s", pairs(partitions=len(actions)))
                self.perform(actions)

    async def _announce_isr_changes(self, now_ms: int) -> None:
        """RULES 2.5. The states came with the notifications; a successor tells everybody everything anyway."""
        due = self._notifications.take(now_ms)
        if not due:
            return
        keys = [
            PartitionKey(topic.topic_id, partition)
            for each in due
            for name, partition in each.partitions
            if (topic := self.cluster.topics.named(name)) is not None
        ]
        self.perform(self.cluster.isr_changed(keys))
        try:
            await remove_notifications(self._store, self._keys, self.term, due)
        except StoreError as error:
            if not may_pass(error):
                raise
            for notification in due:  # announced and removed again later
                self._notifications.add(notification, now_ms)


async def _give_way() -> None:
    await asyncio.sleep(0)


def _first(group: BaseExceptionGroup[BaseException]) -> str:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)

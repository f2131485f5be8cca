"""A controller's process: it campaigns, and while it is elected drives the production `Cluster` and `FastPath` as
`active_controller.py` and `etcd_writer.py` do."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from highwater.controller.state_machines.actions import (
    Action,
    RecordTail,
    RemoveStates,
    RemoveTopic,
    Write,
    WriteState,
)
from highwater.controller.state_machines.cluster import Cluster
from highwater.controller.state_machines.election import ElectionPolicy
from highwater.controller.state_machines.pieces import in_turns
from highwater.controller.term.broker_liveness import FastPath
from highwater.metadata.schema.cluster_view import ClusterSnapshot
from highwater.metadata.schema.models import (
    ControllerRegistration,
    LiveBroker,
    VersionedState,
    VersionedTopic,
)
from highwater.metadata.store import etcd_errors
from highwater.metadata.store.etcd_errors import Refused

from .control_sender import Sender
from .etcd import Compare, Delete, Entry, Event, Key, Put, Watch
from .history import InvariantError
from .scheduler import Future, Process

if TYPE_CHECKING:
    from .world import World

ETCD_TIMEOUT_MS = 600
REFUSED_PAUSE_MS = 200
PIECE_PARTITIONS = 1  # of a decision about many
PIECE_PAUSE_MS = 3  # before the next one, less than this: others have their turn
CHANGE_PAUSE = 0.1  # the chance that they have it between two changes of one batch
CONTROLLER = ("controller",)
EPOCH = ("controller_epoch",)


class Controller(Process):
    def __init__(self, world: World, controller_id: int, incarnation: str) -> None:
        super().__init__(world.scheduler, controller_id, f"controller {controller_id}")
        self.world = world
        self.incarnation = incarnation
        self.active_controller: ActiveController | None = None
        self.spawn(self._serve_terms())

    async def etcd(self, what: Callable[..., Any], *args: Any) -> Any:
        """The answer; None where there is none, or a refusal that is waited out as none is."""
        answer = await self.world.etcd.ask(self, ETCD_TIMEOUT_MS, what, *args)
        if not isinstance(answer, Refused):
            return answer
        await self.sleep(REFUSED_PAUSE_MS)
        return None

    async def _ask(self, what: Callable[..., Any], *args: Any) -> Any:
        """The same, of a candidate. Raises what does not pass by itself, as `metadata.leases.controller_election`
        does."""
        answer = await self.world.etcd.ask(self, ETCD_TIMEOUT_MS, what, *args)
        if isinstance(answer, Refused):
            if not etcd_errors.may_pass(answer):
                raise answer
            await self.sleep(REFUSED_PAUSE_MS)
            return None
        return answer

    async def _serve_terms(self) -> None:
        try:
            await self._campaign()
        except Refused as error:
            self.world.note("controller", self.place, "stands for election no more", error)

    async def _campaign(self) -> None:
        etcd, session_ms = self.world.etcd, self.world.settings.controller_session_ms
        while True:
            answer = await self._ask(etcd.get, (CONTROLLER, EPOCH))
            if answer is None:
                await self.sleep(100)
                continue
            (acting, counter), _ = answer
            if acting is not None:
                await self.sleep(150)
                continue
            lease = await self._ask(etcd.grant, session_ms)
            if lease is None:
                continue
            epoch = 1 if counter is None else counter.value + 1
            registration = ControllerRegistration(self.place, f"c{self.place}", epoch, self.incarnation)
            compares = (
                Compare(CONTROLLER, "create", 0),
                Compare(EPOCH, "mod", 0 if counter is None else counter.mod_revision),
            )
            while True:
                puts = (Put(CONTROLLER, registration, lease), Put(EPOCH, epoch))
                result = await self._ask(etcd.txn, compares, puts)
                if result is not None:
                    break
                await self.sleep(100)
            created = result.revision
            if not result.succeeded:
                there = result.entries[CONTROLLER]
                if there is None or there.lease != lease:
                    self.world.etcd.ask(self, ETCD_TIMEOUT_MS, etcd.revoke, lease)
                    continue
                created = there.create_revision
            self.active_controller = ActiveController(self, epoch, created)
            self.world.note("controller", self.place, "elected", epoch)
            self.spawn(self._hold(self.active_controller, lease, session_ms))
            await self.active_controller.ended
            self.world.note("controller", self.place, "deposed", epoch)
            self.active_controller = None

    async def _hold(self, active_controller: ActiveController, lease: int, session_ms: int) -> None:
        while not active_controller.ended.is_done:
            await self.sleep(session_ms // 3)
            kept = await self.etcd(self.world.etcd.keep_alive, lease)
            if kept is False:
                active_controller.depose()

    def on_shut_down(self, reply: Callable[[Any], None], broker_id: int, broker_epoch: int) -> None:
        """How many partitions the broker still has to wait for; None: not the controller, or it has not heard of it."""
        active_controller = self.active_controller
        if active_controller is None or not active_controller.cluster.has_heard_of_leaving(broker_id, broker_epoch):
            reply(None)
            return
        active_controller.perform(active_controller.cluster.shut_down(broker_id, broker_epoch))
        reply(
            0
            if active_controller.cluster.release(broker_id, broker_epoch)
            else len(active_controller.cluster.held(broker_id))
        )


class ActiveController:
    """One term."""

    def __init__(self, owner: Controller, epoch: int, create_revision: int) -> None:
        self.owner = owner
        self.world = owner.world
        self.epoch = epoch
        self.ended = Future()
        settings = self.world.settings
        policy = ElectionPolicy(settings.partition.min_insync_replicas, settings.unclean)
        self.cluster = Cluster(owner.place, epoch, policy, at_once=PIECE_PARTITIONS)
        self._guard = Compare(CONTROLLER, "create", create_revision)
        self._senders: dict[int, Sender] = {}
        self._fast_paths: dict[int, FastPath] = {}
        self._watch: Watch | None = None
        self._random = self.world.scheduler.random.random
        self._updates: deque[ClusterSnapshot | Sequence[Event]] = deque()  # one is taken after the other
        self._taking = False
        self._configs: dict[str, Mapping[str, str]] = {}
        self.metadata_requests = 0  # as `MetadataMessages` counts them
        owner.spawn(self._follow_etcd())
        owner.after(250, self._tick)

    def depose(self) -> None:
        if not self.ended.is_done:
            self.ended.set()
            if self._watch is not None:
                self._watch.closed = True
            self._senders.clear()

    # etcd: a listing, then what changes; a watch may be lost, then everything is listed again (RULES 8.4)

    async def _follow_etcd(self) -> None:
        etcd = self.world.etcd
        while not self.ended.is_done:
            answer = await self.owner.etcd(etcd.list)
            if self.ended.is_done:
                return
            if answer is None:
                await self.owner.sleep(100)
                continue
            entries, revision = answer
            self._update(_snapshot(entries, revision))
            if self._watch is not None:
                self._watch.closed = True
            self._watch = etcd.watch(self.owner, _of_the_cluster, self._update, revision)
            return

    def lose_watch(self, blind_ms: int) -> None:
        """Hears of nothing until it has listed everything, `blind_ms` later."""
        if not self.ended.is_done and self._watch is not None and not self._watch.closed:
            self._watch.closed = True
            self.owner.after(blind_ms, lambda: self.owner.spawn(self._follow_etcd()))

    def _update(self, update: ClusterSnapshot | Sequence[Event]) -> None:
        self._updates.append(update)
        if not self._taking:
            self._taking = True
            self.owner.spawn(self._take())

    async def _take(self) -> None:
        while self._updates:
            update = self._updates.popleft()
            await (self._load(update) if isinstance(update, ClusterSnapshot) else self._apply(update))
        self._taking = False

    async def _load(self, snapshot: ClusterSnapshot) -> None:
        self._configs = dict(snapshot.topic_configs)
        actions = await in_turns(self.cluster.loading(snapshot, self.owner.now_ms), self._give_way)
        if not self.ended.is_done:
            self._follow_brokers()
            self.perform(actions)

    async def _apply(self, events: Sequence[Event]) -> None:
        for event in events:  # a topic and its configuration come in one revision
            if event.key[0] == "config":
                self._configs[event.key[1]] = {} if event.entry is None else event.entry.value
        for event in events:
            if self._random() < CHANGE_PAUSE:
                await self.owner.sleep(int(self._random() * PIECE_PAUSE_MS))
            if self.ended.is_done:
                return
            if event.key[0] == "broker":
                await self._broker_changed(event)
            else:
                self.perform(self._decide(event))

    async def _broker_changed(self, event: Event) -> None:
        entry = event.entry
        if entry is None:
            pieces = self.cluster.losing_broker(event.key[1], event.revision)
        else:
            pieces = self.cluster.seeing_broker(LiveBroker(entry.value, entry.create_revision, entry.mod_revision))
        actions = await in_turns(pieces, self._give_way)
        if not self.ended.is_done:
            self._follow_brokers()
            self.perform(actions)

    async def _give_way(self) -> None:
        await self.owner.sleep(int(self._random() * PIECE_PAUSE_MS))

    def _decide(self, event: Event) -> Sequence[Action]:
        cluster, key, entry = self.cluster, event.key, event.entry
        match key[0]:
            case "tail" if entry is not None:
                cluster.tail_recorded(key[1], entry.value)
            case "topic" if entry is None:
                return cluster.topic_gone(key[1])
            case "topic" if entry is not None:
                return cluster.topic_seen(_topic(entry), self._configs.get(key[1], {}))
            case "config":
                return cluster.config_seen(key[1], {} if entry is None else entry.value)
            case "marker" if entry is not None:
                return cluster.deletion_marked(key[1], entry.value, self.owner.now_ms)
            case "state" if entry is not None:
                return cluster.state_seen(key[1], key[2], VersionedState(entry.value, entry.mod_revision))
            case "controller" if entry is None or entry.create_revision != self._guard.expected:
                self.depose()
        return ()

    # Carrying out

    def perform(self, actions: Sequence[Action]) -> None:
        if self.ended.is_done:
            return
        writes: list[Write] = []
        for action in actions:
            match action:
                case WriteState() | RecordTail() | RemoveStates() | RemoveTopic():
                    if isinstance(action, WriteState):
                        self._check_leaving(action)
                    writes.append(action)
                case _:
                    sender = self._senders.get(action.broker_id)
                    if sender is not None and sender.broker.broker_epoch == action.broker_epoch:
                        sender.outbox.add(action, self.owner.now_ms)
                        sender.wake()
        if writes:
            self._carry_out(writes)

    def _check_leaving(self, write: WriteState) -> None:
        """Nobody who merely shuts down is taken out of an ISR that needs it, as far as this controller knows (RULES
        7.8). An election in `elr` begins with its leader alone."""
        cluster = self.cluster
        partition = cluster.topics.partition(write.key)
        if partition is None or partition.versioned is None or partition.versioned.revision != write.compare_revision:
            return
        before = partition.versioned.state
        left = set(before.isr) - set(write.state.isr)
        left -= set(write.state.lost)  # its tail is (7.2), whatever needs it
        leaving = {each for each in left if cluster.is_shutting_down(each) and partition.replica_states[each].live}
        topic = cluster.topics.identified(write.key.topic_id)
        assert topic is not None
        minimum = topic.policy(cluster._defaults).minimum(partition.replicas)
        if leaving and write.state.leader in before.isr and len(write.state.isr) < minimum <= len(before.isr):
            raise InvariantError(
                "shutdown (minimum)", f"{self.owner.name} takes {leaving} out: {before}, {write.state}"
            )

    def _carry_out(self, writes: Sequence[Write]) -> None:
        states = [write for write in writes if isinstance(write, WriteState)]
        elections = [write for write in states if write.compare_revision]
        creations: dict[str, list[WriteState]] = defaultdict(list)
        for write in states:
            if not write.compare_revision:
                creations[write.topic].append(write)
        if elections:
            self.owner.spawn(self._write_states(elections, ()))
        for name, created in creations.items():
            topic = self.cluster.topics.named(name)
            if topic is not None and topic.topic_id == created[0].key.topic_id:
                created_at = Compare(("topic", name), "create", topic.versioned.create_revision)
                unmarked = Compare(("marker", name), "create", 0)
                self.owner.spawn(self._write_states(created, (created_at, unmarked)))
        for other in writes:
            match other:
                case RecordTail():
                    self.owner.spawn(self._record_tail(other))
                case RemoveStates():
                    self.owner.spawn(self._remove_states(other))
                case RemoveTopic():
                    self.owner.spawn(self._remove_topic(other))
                case WriteState():
                    pass

    async def _write_states(self, writes: Sequence[WriteState], guards: Sequence[Compare]) -> None:
        """All in one transaction; on a failed compare without the culprits (RULES 2.6)."""
        while writes:
            compares = [_compared(write) for write in writes]
            puts = [Put(compare.key, write.state) for compare, write in zip(compares, writes, strict=True)]
            result = await self._guarded([*guards, *compares], puts)
            if self.ended.is_done:
                return
            if result is None:
                await self._settle(writes)
                return
            if result.succeeded:
                self.perform(self.cluster.written(writes, result.revision))
                return
            found = {write: result.entries[compare.key] for write, compare in zip(writes, compares, strict=True)}
            lost = [write for write, entry in found.items() if _revision(entry) != write.compare_revision]
            if not lost:
                self.perform(self.cluster.refused([(write, None) for write in writes]))  # the topic is gone
                return
            self.perform(self.cluster.refused([(write, _versioned(found[write])) for write in lost]))
            writes = [write for write in writes if write not in lost]

    async def _settle(self, writes: Sequence[WriteState]) -> None:
        """RULES 2.4, as `read_own_states`."""
        keys = [key for write in writes for key in (_compared(write).key, ("topic", write.topic))]
        answer = None
        while answer is None and not self.ended.is_done:
            await self.owner.sleep(100)
            answer = await self.owner.etcd(self.world.etcd.get, keys)
        if answer is not None:
            states, topics = answer[0][::2], answer[0][1::2]
            own = [
                _versioned(state) if topic is not None and topic.value.topic_id == write.key.topic_id else None
                for write, state, topic in zip(writes, states, topics, strict=True)
            ]
            self.perform(self.cluster.refused(list(zip(writes, own, strict=True))))

    async def _guarded(self, compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> Any:
        """The result, or None where nobody knows; ends the term where the guard does not hold."""
        result = await self.owner.etcd(self.world.etcd.txn, (self._guard, *compares), operations)
        if result is not None and not result.succeeded:
            controller = result.entries[CONTROLLER]
            if controller is None or controller.create_revision != self._guard.expected:
                self.depose()
        return result

    async def _until_answered(self, compares: Sequence[Compare], operations: Sequence[Put | Delete]) -> None:
        while not self.ended.is_done and await self._guarded(compares, operations) is None:
            await self.owner.sleep(100)

    async def _record_tail(self, record: RecordTail) -> None:
        registered = Compare(("broker", record.broker_id), "create", record.broker_epoch)
        await self._until_answered((registered,), (Put(("tail", record.broker_id), record.broker_epoch),))
        self.cluster.tail_recorded(record.broker_id, record.broker_epoch)

    async def _remove_states(self, removal: RemoveStates) -> None:
        topic = self.cluster.topics.identified(removal.topic_id)
        count = 0 if topic is None else len(topic.partitions)
        marker = Compare(("marker", removal.topic), "value", removal.topic_id)
        await self._until_answered((marker,), [Delete(("state", removal.topic, number)) for number in range(count)])
        self.perform(self.cluster.states_removed(removal.topic_id))

    async def _remove_topic(self, removal: RemoveTopic) -> None:
        marker = Compare(("marker", removal.topic), "value", removal.topic_id)
        operations = (Delete(("topic", removal.topic)), Delete(("marker", removal.topic)))
        await self._until_answered((marker,), operations)

    # Brokers

    def _follow_brokers(self) -> None:
        for broker_id, sender in list(self._senders.items()):
            broker = self.cluster.brokers.get(broker_id)
            if broker is None or broker.broker_epoch != sender.broker.broker_epoch:
                del self._senders[broker_id]
        for broker_id, broker in self.cluster.brokers.items():
            if broker_id not in self._senders:
                self._senders[broker_id] = Sender(self, broker)
                fast_path = self._fast_paths.setdefault(broker_id, FastPath())
                fast_path.registered(broker.broker_epoch)
                self.owner.spawn(self._probe(broker, fast_path))

    def holds(self, sender: Sender) -> bool:
        return not self.ended.is_done and self._senders.get(sender.outbox.broker_id) is sender

    async def _probe(self, broker: LiveBroker, fast_path: FastPath) -> None:
        """RULES 8.3: a connection that breaks with its process, and new ones that are refused."""
        broker_id = broker.registration.broker_id
        node = self.world.nodes[broker_id]
        reaches = self.world.network.reaches
        while not self.ended.is_done and self.cluster.is_registered(broker_id, broker.broker_epoch):
            manager = node.manager
            if not reaches(self.owner.place, broker_id) or not reaches(broker_id, self.owner.place) or node.is_dark:
                fast_path.unreachable()
            elif manager is not None and manager.alive and node.serving:
                fast_path.connected()
                await manager.ended
                await self.owner.sleep(2)
                continue
            elif fast_path.refused(self.owner.now_ms):
                registered = Compare(("broker", broker_id), "create", broker.broker_epoch)
                self.world.note("controller", self.owner.place, "expels", broker_id, broker.broker_epoch)
                await self._until_answered((registered,), (Delete(("broker", broker_id)),))
                return
            await self.owner.sleep(100)

    def _tick(self) -> None:
        if self.ended.is_done:
            return
        now_ms = self.owner.now_ms
        self.cluster.topics.check_invariants()
        self.perform(self.cluster.tick(now_ms))
        for broker_id, sender in list(self._senders.items()):
            silent = sender.outbox.unanswered(now_ms)
            if silent:
                epoch = sender.broker.broker_epoch
                self.perform(self.cluster.instruction_unanswered(broker_id, epoch, silent))
        self.owner.after(250, self._tick)


def _of_the_cluster(key: Key) -> bool:
    return key[0] not in ("isr_change", "controller_epoch")


def _compared(write: WriteState) -> Compare:
    return Compare(("state", write.topic, write.key.partition), "mod", write.compare_revision)


def _revision(entry: Entry | None) -> int:
    return 0 if entry is None else entry.mod_revision


def _versioned(entry: Entry | None) -> VersionedState | None:
    return None if entry is None else VersionedState(entry.value, entry.mod_revision)


def _topic(entry: Entry) -> VersionedTopic:
    return VersionedTopic(entry.value, entry.create_revision, entry.mod_revision)


def _snapshot(entries: Sequence[Entry], revision: int) -> ClusterSnapshot:
    snapshot = ClusterSnapshot(revision, {}, {}, {}, {}, {}, {}, (), None, 0)
    for entry in entries:
        key = entry.key
        match key[0]:
            case "broker":
                snapshot.brokers[key[1]] = LiveBroker(entry.value, entry.create_revision, entry.mod_revision)
            case "tail":
                snapshot.broker_tails[key[1]] = entry.value
            case "topic":
                snapshot.topics[key[1]] = _topic(entry)
            case "config":
                snapshot.topic_configs[key[1]] = entry.value
            case "state":
                snapshot.states[key[1], key[2]] = VersionedState(entry.value, entry.mod_revision)
            case "marker":
                snapshot.deletions[key[1]] = entry.value
    return snapshot

"""One cluster, put together: brokers, controllers, etcd, clients, and what happens to them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from highwater.controller.topics.assignment import assign_replicas
from highwater.groups.group_partition import OFFSETS_TOPIC
from highwater.metadata.schema.models import TopicAssignment
from highwater.model.partition import PartitionKey

from .clients import CLIENT, Consumer, Producer
from .controllers import Controller
from .etcd import Compare, Etcd, Put
from .faults import Faults
from .fetcher import Fetcher
from .groups.coordinator import simulated
from .groups.population import QUIET_TOPIC, Groups
from .history import History, InvariantError
from .network import Network
from .replica_manager import ReplicaManagerProcess
from .scheduler import Future, Process, Scheduler
from .settings import Settings, draw
from .storage import Disk, LogStorage
from .throttles import Throttles

CONTROLLERS = (101, 102)
LAST_EVENTS = 60
HEALING_MS = 40_000
STEPS = 5000  # of a run's faults; healing and the final checks come on top


class Node:
    """A broker's machine: its disk, and which of its three processes run."""

    def __init__(self, world: World, broker_id: int) -> None:
        self.world = world
        self.broker_id = broker_id
        self.disk = Disk(broker_id, world.settings.flush_messages)
        self.storage: LogStorage | None = None
        self.manager: ReplicaManagerProcess | None = None
        self.fetcher: Fetcher | None = None
        self.serving = False  # the replica-manager's port is open
        self.held = False  # somebody is about to start it again

    @property
    def is_dark(self) -> bool:
        return self.broker_id in self.world.network.dark

    @property
    def processes(self) -> list[Process]:
        return [process for process in (self.storage, self.manager, self.fetcher) if process is not None]

    def server(self) -> ReplicaManagerProcess | None:
        return self.manager if self.manager is not None and self.manager.alive and self.serving else None

    def serve(self, manager: ReplicaManagerProcess) -> None:
        self.serving = self.manager is manager

    def start_storage(self) -> None:
        if self.storage is None or not self.storage.alive:
            self.world.history.storage_started(self.broker_id)
            if self.disk.failed:
                etcd = self.world.etcd
                told = self.disk.record is None or self.disk.record.tail_lost
                # One of an earlier failure may be deleted yet, by a write that is late.
                doubt = etcd.entries.get(("doubted", self.broker_id))
                remembered = told or (doubt is not None and doubt.mod_revision > self.disk.failed_at)
                self.world.history.losing_tail(self.broker_id, etcd.revision)
                self.disk.drop_pages(self.world.scheduler.random.random, remembered=remembered)
            self.storage = LogStorage(
                self.world.scheduler, self.disk, self.world.history, f"s{self.broker_id}.{self.world.count()}"
            )

    def start_manager(self) -> None:
        if self.manager is None or not self.manager.alive:
            self.serving = False
            self.manager = ReplicaManagerProcess(self.world, self, f"m{self.broker_id}.{self.world.count()}")

    def start_fetcher(self) -> None:
        if self.fetcher is None or not self.fetcher.alive:
            self.fetcher = Fetcher(self.world, self)

    def start(self) -> None:
        self.world.network.dark.discard(self.broker_id)
        self.start_storage()
        self.start_manager()
        self.start_fetcher()

    def kill(self) -> None:
        for process in self.processes:
            process.kill()


class World:
    def __init__(self, seed: int, settings: Settings | None = None, verbose: bool = False) -> None:
        self.seed = seed
        self.scheduler = Scheduler(seed)
        self.settings = settings or draw(Random(seed * 7919 + 1))
        self.events: deque[tuple[Any, ...]] = deque(maxlen=LAST_EVENTS)
        self._verbose = verbose
        self._counted = 0
        self.network = Network(self.scheduler, self.settings)
        self.nodes = {broker_id: Node(self, broker_id) for broker_id in range(1, self.settings.brokers + 1)}
        self.history = History({node.broker_id: node.disk for node in self.nodes.values()}, self.note)
        self.history.unclean_allowed = self.settings.unclean
        self.history.kept_minimum = self.settings.min_insync_replicas if self.settings.keeps_minimum else 0
        self.etcd = Etcd(self.scheduler, self.network, self._written)
        self.etcd.late = self.settings.late
        self.etcd.lag_ms = self.settings.watch_lag_ms
        self.controllers = {each: Controller(self, each, f"c{each}.0") for each in CONTROLLERS}
        self.topic_config = {
            "min.insync.replicas": str(self.settings.min_insync_replicas),
            "unclean.leader.election.enable": "true" if self.settings.unclean else "false",
        }
        self.topics: dict[str, TopicAssignment] = {}
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []
        self.admin = Process(self.scheduler, CLIENT, "admin")
        self.producing = True
        self.groups = None if self.settings.groups is None else Groups(self)
        self.faults = Faults(self)
        self.throttles = Throttles(self)
        for node in self.nodes.values():
            node.start()
        for number in range(self.settings.topics):
            self.scheduler.after(300, self.create_topic, f"t{number}")
        if self.groups is not None:
            self.scheduler.after(300, self.create_topic, OFFSETS_TOPIC)
            self.scheduler.after(300, self.create_topic, QUIET_TOPIC)
            self.groups.begin()

    def count(self) -> int:
        """A number that nothing else has."""
        self._counted += 1
        return self._counted

    def note(self, *what: Any) -> None:
        self.events.append((self.scheduler.steps, self.scheduler.now_ms, *what))
        if self._verbose:
            print(describe(self.events[-1]))

    def maybe_flush(self, storage: LogStorage, key: PartitionKey) -> None:
        if self.scheduler.random.random() < self.settings.flush:
            storage.flush(key)

    # etcd

    def _written(self, key: Any, old: Any, new: Any, compares: Sequence[Compare], writer: str) -> None:
        if key[0] == "state" and new is not None:
            assert self.topics[key[1]] is not None
            partition = self.history.names[key[1], key[2]]
            compared = Compare(key, "mod", 0 if old is None else old.mod_revision) in compares
            self.note("state", writer, partition, new.value, new.mod_revision)
            self.history.state_written(partition, None if old is None else old.value, new.value, compared, writer)
        elif key[0] == "tail":
            self.history.tail_recorded(key[1], new.value)
        elif key[0] == "broker":
            self.note("broker", key[1], None if new is None else new.create_revision, writer)
            if new is not None:
                self._registered(new)

    def _registered(self, entry: Any) -> None:
        node = self.nodes[entry.key[1]]
        storage = node.storage
        if entry.value.tail_lost or storage is None or not storage.alive or node.disk.failed:
            return
        if storage.incarnation == entry.value.log_storage_incarnation:
            self.history.registered_whole(node.broker_id, entry.create_revision)

    def ask_controller(self, asker: Process, method: str, *args: Any) -> Future:
        entry = self.etcd.entries.get(("controller",))
        place = CONTROLLERS[0] if entry is None else entry.value.controller_id
        return self.network.call(asker, place, lambda: self.controllers[place], method, *args, timeout_ms=1000)

    def acting(self) -> Controller | None:
        entry = self.etcd.entries.get(("controller",))
        found = None if entry is None else self.controllers[entry.value.controller_id]
        return found if found is not None and found.alive and found.active_controller is not None else None

    # Topics and clients

    def create_topic(self, name: str) -> None:
        if ("topic", name) in self.etcd.entries or ("marker", name) in self.etcd.entries:
            self.scheduler.after(100, self.create_topic, name)
            return
        settings, random = self.settings, self.scheduler.random.random
        partitions = self._partitions_of(name)
        replicas = assign_replicas(
            sorted(self.nodes),
            partitions,
            min(settings.replication_factor, len(self.nodes)),
            start_index=int(random() * len(self.nodes)),
            shift=int(random() * len(self.nodes)),
        )
        assignment = TopicAssignment(name, self.count().to_bytes(16), replicas)
        self.topics[name] = assignment
        for number in range(partitions):
            self.history.topic_created(PartitionKey(assignment.topic_id, number), name)
        if self.groups is not None:
            self.groups.checks.names[assignment.topic_id] = name
        config = {**self.topic_config, **self.throttles.begin(name)}
        if name == OFFSETS_TOPIC:
            config = {**config, "max.message.bytes": str(8 << 20)}
        put = (Put(("topic", name), assignment), Put(("config", name), config))
        self.etcd.txn(self.admin, (), put)
        self.note("topic", name, assignment)
        for number in range(partitions):
            self._start_clients(name, PartitionKey(assignment.topic_id, number))

    def _partitions_of(self, name: str) -> int:
        groups = self.settings.groups
        if groups is None or name not in (OFFSETS_TOPIC, QUIET_TOPIC):
            return self.settings.partitions
        return groups.offsets_partitions if name == OFFSETS_TOPIC else groups.partitions

    def _start_clients(self, name: str, key: PartitionKey) -> None:
        if name != QUIET_TOPIC:
            self.consumers.append(Consumer(self, key))
        if name in (OFFSETS_TOPIC, QUIET_TOPIC):
            return
        kinds = [-1, -1] if self.scheduler.random.random() < 0.5 else [-1]
        for acks in [*kinds, 1] if self.settings.acks_one else kinds:
            producer = Producer(self, key, self.count(), acks)
            self.producers.append(producer)
            producer.after(200, self._produce, producer)

    def _produce(self, producer: Producer) -> None:
        if self.producing:
            if len(producer.sent) - len(producer.acknowledged) < 12:
                producer.send_one()
            burst = self.scheduler.random.random()
            producer.after(1 if burst < 0.3 else int(2 * burst * self.settings.produce_gap_ms), self._produce, producer)
        else:
            producer.drive()
            if not producer.idle:
                producer.after(200, self._produce, producer)

    def delete_topic(self, name: str) -> None:
        entry = self.etcd.entries.get(("topic", name))
        if entry is None or ("marker", name) in self.etcd.entries:
            return
        assignment = entry.value
        keys = [PartitionKey(assignment.topic_id, number) for number in range(len(assignment.replicas))]
        self.history.topic_marked(keys)
        self.note("delete", name)
        for client in [*self.producers, *self.consumers]:
            if client.key in keys:
                client.kill()
        self.producers = [each for each in self.producers if each.alive]
        self.consumers = [each for each in self.consumers if each.alive]
        self.etcd.txn(self.admin, (), (Put(("marker", name), assignment.topic_id),))
        self.scheduler.after(300, self.create_topic, name)

    @property
    def keys(self) -> list[PartitionKey]:
        return [PartitionKey(t.topic_id, n) for t in self.topics.values() for n in range(len(t.replicas))]

    # A run

    def run(self, steps: int = STEPS) -> None:
        """Raises `InvariantError`, or whatever production code raises."""
        scheduler = self.scheduler
        with simulated(self.settings.groups):
            try:
                self.faults.begin()
                while scheduler.steps < steps:
                    scheduler.step()
                self.heal()
            finally:
                for node in self.nodes.values():
                    if node.manager is not None:
                        node.manager.kill()  # or its tasks end whenever memory is looked through

    def heal(self) -> None:
        """Everything works again: the cluster must mend itself, finish what was asked of it, and agree."""
        scheduler = self.scheduler
        self.note("healing")
        self.history.kept_minimum = 0  # whoever is about to stop is killed
        self.settings.calm()
        self.etcd.late = 0.0
        self.etcd.full = False
        self.etcd.not_permitted.clear()
        self.faults.end()
        if self.groups is not None:
            self.groups.rest()
        self.network.mend_all()
        throttled_ms = self.throttles.rest()
        self.producing = not throttled_ms  # more might be written than the throttle lets through
        deadline_ms = scheduler.now_ms + HEALING_MS + throttled_ms
        for process in [
            self.etcd,
            *self.controllers.values(),
            *(p for node in self.nodes.values() for p in node.processes),
        ]:
            if process.paused:
                process.resume()
        for controller_id, controller in self.controllers.items():
            if not controller.alive:
                self.controllers[controller_id] = Controller(self, controller_id, f"c{controller_id}.{self.count()}")
        for node in self.nodes.values():
            if node.held:
                node.kill()  # it was about to stop, or to start
                node.held = False
            if node.storage is not None and (node.disk.failed or any(log.offline for log in node.disk.logs.values())):
                node.storage.kill()
            node.start()
        self._run_until(lambda: self._all_in_sync() == "", deadline_ms, self._all_in_sync)
        self.producing = False
        self._run_until(lambda: self._unfinished() == "", deadline_ms, self._unfinished)
        if self.groups is not None:
            unrest = self.groups.unrest
            self._run_until(lambda: unrest() == "", deadline_ms, unrest, "liveness (groups)")
            self.groups.finishing = True
            self._run_until(lambda: unrest() == "", deadline_ms, unrest, "liveness (groups)")
        self._run_until(lambda: self._standing() == "", deadline_ms, self._standing, "rest")
        quiet = (OFFSETS_TOPIC, QUIET_TOPIC)
        produced = [topic.topic_id for name, topic in self.topics.items() if name not in quiet]
        last = [Producer(self, key, self.count(), -1) for key in self.keys if key.topic_id in produced]
        for producer in last:
            producer.send_one()
            producer.after(300, self._produce, producer)
        self.producers += last
        self._run_until(lambda: self._unfinished() == "", deadline_ms, self._unfinished)
        self._run_until(lambda: self._different() == "", deadline_ms, self._different)
        self._run_until(lambda: self._unread() == "", deadline_ms, self._unread)
        self._run_until(lambda: self._standing() == "", deadline_ms, self._standing, "rest")
        self._run_until(lambda: self._untold() == "", deadline_ms, self._untold)
        if self.groups is not None:
            self._run_until(lambda: unrest() == "", deadline_ms, unrest, "liveness (groups)")
        self._check_producers()

    def _run_until(
        self, holds: Callable[[], bool], deadline_ms: int, problem: Callable[[], str], invariant: str = "liveness"
    ) -> None:
        scheduler = self.scheduler
        while not holds():
            until_ms = scheduler.now_ms + 200
            while scheduler.now_ms < until_ms:
                scheduler.step()
            if scheduler.now_ms > deadline_ms:
                raise InvariantError(invariant, problem())

    def _all_in_sync(self) -> str:
        for name, assignment in self.topics.items():
            for number, replicas in enumerate(assignment.replicas):
                entry = self.etcd.entries.get(("state", name, number))
                if entry is None or ("marker", name) in self.etcd.entries:
                    return f"{name} is not there"
                if entry.value.leader < 0 or entry.value.isr != tuple(sorted(replicas)):
                    return f"{name}-{number}, replicas {replicas}, is not in sync: {entry.value}"
        return ""

    def _unfinished(self) -> str:
        for producer in self.producers:
            if not producer.idle:
                return f"{producer.name} of {producer.key} waits for an acknowledgement"
        return self._all_in_sync()

    def _standing(self) -> str:
        for node in self.nodes.values():
            for process in (node.manager, node.fetcher):
                found = "no process" if process is None else process.standing()
                if found:
                    return found
        return ""

    def _different(self) -> str:
        for name, assignment in self.topics.items():
            for number, replicas in enumerate(assignment.replicas):
                key = PartitionKey(assignment.topic_id, number)
                found = [self.nodes[broker_id].disk.logs.get(key) for broker_id in replicas]
                logs = [log for log in found if log is not None]
                if len(logs) < len(found):
                    return f"{name}-{number} is not made yet at each of {replicas}"
                for broker_id, log in zip(replicas, logs, strict=True):
                    if log.chain != logs[0].chain:
                        return f"{name}-{number}: {replicas[0]} has {logs[0].batches}, {broker_id} {log.batches}"
        return ""

    def _unread(self) -> str:
        for consumer in self.consumers:
            state = self.history.states[consumer.key]
            end = self.nodes[state.leader].disk.logs[consumer.key].log_end_offset
            if consumer.offset != end:
                return f"{consumer.name} is at {consumer.offset}, the log ends at {end}"
        return ""

    def _untold(self) -> str:
        """Whom the configuration in etcd has not reached (RULES 8.4), who still hosts a topic that is gone (9.2), or
        knows other topics and leaders than there are (8.10)."""
        for node in self.nodes.values():
            assert node.manager is not None
            for key, hosted in node.manager.replica_manager.hosted.items():
                entry = self.etcd.entries.get(("config", hosted.topic))
                if key not in self.keys or entry is None:
                    return f"broker {node.broker_id} hosts {hosted.topic}, {key}, which is gone"
                if hosted.topic_config != entry.value:
                    return f"broker {node.broker_id} takes {hosted.topic_config} for {entry.value}, of {key}"
        return self._misinformed()

    def _misinformed(self) -> str:
        there = {assignment.topic_id: name for name, assignment in self.topics.items()}
        for node in self.nodes.values():
            assert node.manager is not None
            metadata = node.manager.replica_manager.metadata
            known = {topic.topic_id: topic.topic for topic in metadata.topics()}
            if not metadata.complete:
                return f"broker {node.broker_id} has not been told of everything"
            if known != there:
                return f"broker {node.broker_id} knows the topics {known}, there are {there}"
            for key in self.keys:
                state = self.history.states[key]
                if metadata.leader(key) != (state.leader, state.leader_epoch):
                    return f"broker {node.broker_id} knows the leader {metadata.leader(key)} of {key}, it is {state}"
        return ""

    def _check_producers(self) -> None:
        """Everything acknowledged is there once, in the order in which it was sent, at its offset."""
        for producer in self.producers:
            if producer.acks != -1 or producer.key in self.history.unclean:
                continue
            state = self.history.states[producer.key]
            log = self.nodes[state.leader].disk.logs[producer.key]
            mine = set(producer.sent)
            found = [batch.payload for batch in log.batches if batch.payload in mine]
            if found != producer.sent:
                raise InvariantError(
                    "1 (once, in order)", f"{producer.name} sent {producer.sent}, {producer.key} has {found}"
                )
            for payload, base_offset in producer.acknowledged.items():
                batch = log.by_offset.get(base_offset)
                if batch is None or batch.payload != payload:
                    raise InvariantError("1 (its offset)", f"#{payload} was acknowledged at {base_offset}: {batch}")


def describe(event: tuple[Any, ...]) -> str:
    steps, now_ms, *what = event
    return f"{steps:6d} {now_ms:7d} ms  " + " ".join(map(str, what))

"""Runs `elections-*.txt`: a cluster's controller in text, one command a line, what it writes and sends under each.

Commands (`T-0` is a partition, brokers are numbers):

    policy min=2 unclean=true            of topics that set nothing; comes first
    broker 1 [tail-lost] [leaving]       registers anew (restarts), or says under the same epoch that it is leaving
    gone 1                               its registration ends
    topic T 1,2,3 2,3,1                  created with these replicas, a list for each partition
    grow T 3,1                           gets these partitions besides those it has
    delete T                             marked for deletion
    stopped T 1                          the broker answered StopReplica
    five-seconds-pass
    shut-down 1                          asks whether it may stop (controlled shutdown)
    answer T-0 1 [tail=EPOCH,LEO]        answers LeaderAndIsr for the present leader epoch
    error T-0 1                          answers it with a storage error
    log-offline T-0 1                    answers it with the error that its log is offline
    log-damaged T-0 1                    answers it with the error that its log is damaged and waits to be cut
    kept-damaged T-0 1                   answers it without an error: its log is damaged, and it serves as it is
    reports-offline-logs 1               its registration says that more of its logs are offline
    silent T-0 1                         has not answered it for 5 s
    leader-writes T-0 isr=1,2 [elr=3]    the leader changes the ISR, and the controller sees it
    unseen-write T-0 isr=1,2             the same, but the watch is late
    prefer T-0                           the preferred leader's election
    rebalance 10                         leaderships go back where more than so many percent of a broker's own are away
    hold / release                       keeps the controller's writes from etcd until `release`
    new-controller                       another one is elected and lists everything
    remade T 1,2 epoch=0                 another one was elected, unheard of here, and deleted T and made it again
    unknown                              what is held has no known outcome: the states are read (RULES 2.4)
    late-write                           what is held and of unknown outcome is written after all, and seen by the watch
    configure T min.insync.replicas=1    the topic's configuration is changed
    lose-watch                           what happens in etcd from now on is not seen
    relist                               the watch was lost, the same one lists everything
    state T-0                            prints the state
    out-of-sync 1                        prints what the broker hosts outside the ISR

Lines that begin with `=` start a new cluster. Output: `write` (a state, as etcd took it), `refused`, `record-tail`,
`remove-states`, `remove-topic`, `tell` (LeaderAndIsr) and `stop` (StopReplica); UpdateMetadata goes to everyone all the
time and is not shown. With HIGHWATER_REWRITE_SCENARIOS set, the files are rewritten with what is printed now.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from highwater.controller.state_machines.actions import (
    Action,
    InstructionAnswer,
    RecordTail,
    RemoveStates,
    RemoveTopic,
    SendLeaderAndIsr,
    SendStopReplica,
    WriteState,
)
from highwater.controller.state_machines.cluster import Cluster
from highwater.controller.state_machines.election import ElectionPolicy, LogTail
from highwater.errors import ErrorCode
from highwater.metadata.schema.cluster_view import ClusterSnapshot
from highwater.metadata.schema.models import (
    BrokerRegistration,
    LiveBroker,
    PartitionState,
    TopicAssignment,
    VersionedState,
    VersionedTopic,
)
from highwater.model.partition import PartitionKey

SCENARIOS = sorted(Path(__file__).parent.glob("elections-*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_elections(path: Path) -> None:
    played = []
    world = World()
    for line in path.read_text().splitlines():
        if line.startswith(("#", "=")) or not line.strip():
            played.append(line)
            if line.startswith("="):
                world = World()
        elif not line.startswith(" "):
            played.append(line)
            played += [f"    {output}" for output in world.command(line)]
    if os.environ.get("HIGHWATER_REWRITE_SCENARIOS"):
        path.write_text("\n".join(played) + "\n")
    assert played == path.read_text().splitlines()


class World:
    """etcd in a dictionary, and the controller that acts on it."""

    def __init__(self) -> None:
        self.revision = 0
        self.brokers: dict[int, LiveBroker] = {}
        self.tails: dict[int, int] = {}
        self.topics: dict[str, VersionedTopic] = {}
        self.states: dict[tuple[str, int], VersionedState] = {}
        self.deletions: dict[str, bytes] = {}
        self.defaults = ElectionPolicy()
        self.controller_epoch = 1
        self.configs: dict[str, dict[str, str]] = {}
        self.watching = True
        self.held: list[Action] | None = None
        self.deposed = False
        self.late: list[WriteState] = []
        self.output: list[str] = []
        self.cluster = Cluster(0, 1, self.defaults)

    def command(self, line: str) -> list[str]:
        name, *words = line.split()
        self.output = []
        options = dict(word.split("=", 1) for word in words if "=" in word)
        self.perform(getattr(self, name.replace("-", "_"))(*(word for word in words if "=" not in word), **options))
        self.cluster.topics.check_invariants()
        return self.output

    def perform(self, actions: list[Action]) -> None:
        """Writes first, as the server does; then what is sent, once a broker."""
        tell: dict[int, list[str]] = {}
        queue = list(actions)
        while queue:
            action = queue.pop(0)
            if isinstance(action, WriteState | RecordTail | RemoveStates | RemoveTopic):
                if self.held is None:
                    queue += self.write(action)
                else:
                    self.held.append(action)
            elif isinstance(action, SendLeaderAndIsr):
                for key in action.keys:
                    instruction = self.cluster.instruction(key)
                    assert instruction is not None
                    assert instruction.versioned == self.states[instruction.topic, key.partition]  # invariant 5
                    names = tell.setdefault(action.broker_id, [])
                    if (shown := f"{instruction.topic}-{key.partition}") not in names:
                        names.append(shown)
            elif isinstance(action, SendStopReplica):
                self.output.append(f"stop {action.broker_id}: {len(action.partitions)} partitions")
        self.output += [f"tell {broker}: {' '.join(names)}" for broker, names in sorted(tell.items())]

    def write(self, action: Action) -> list[Action]:
        self.revision += 1
        match action:
            case WriteState() if self.deposed:
                self.output.append(f"deposed {action.topic}-{action.key.partition}")
            case WriteState(topic, key, state, compare_revision):
                found = self.states.get((topic, key.partition))
                if (found.revision if found else 0) != compare_revision:
                    self.output.append(f"refused {topic}-{key.partition}")
                    return self.cluster.refused([(action, found)])
                self.states[topic, key.partition] = VersionedState(state, self.revision)
                self.output.append(f"write {topic}-{key.partition} {shown(state)}")
                return self.cluster.written([action], self.revision)
            case RecordTail(broker_id, broker_epoch):
                self.tails[broker_id] = broker_epoch
                self.output.append(f"record-tail {broker_id}@{broker_epoch}")
                self.cluster.tail_recorded(broker_id, broker_epoch)
            case RemoveStates(topic, topic_id):
                for found_key in [each for each in self.states if each[0] == topic]:
                    del self.states[found_key]
                self.output.append(f"remove-states {topic}")
                return self.cluster.states_removed(topic_id)
            case RemoveTopic(topic):
                self.topics.pop(topic, None)
                del self.deletions[topic]
                self.output.append(f"remove-topic {topic}")
                return self.cluster.topic_gone(topic)
        return []

    # Commands

    def policy(self, **options: str) -> list[Action]:
        self.defaults = ElectionPolicy(int(options.get("min", "1")), options.get("unclean") == "true")
        self.cluster = Cluster(0, self.controller_epoch, self.defaults)
        return []

    def broker(self, broker: str, *flags: str) -> list[Action]:
        broker_id = int(broker)
        self.revision += 1
        epoch = self.brokers[broker_id].broker_epoch if "leaving" in flags else self.revision
        registration = BrokerRegistration(
            broker_id, f"b{broker}:1", "x", "y", tail_lost="tail-lost" in flags, shutting_down="leaving" in flags
        )
        self.brokers[broker_id] = LiveBroker(registration, epoch, self.revision)
        return self.cluster.broker_seen(self.brokers[broker_id])

    def gone(self, broker: str) -> list[Action]:
        self.revision += 1
        del self.brokers[int(broker)]
        return self.cluster.broker_gone(int(broker), self.revision)

    def topic(self, name: str, *replicas: str) -> list[Action]:
        self.revision += 1
        assigned = tuple(ids(each) for each in replicas)
        assignment = TopicAssignment(name, UUID(int=self.revision).bytes, assigned)
        self.topics[name] = VersionedTopic(assignment, self.revision, self.revision)
        return self.cluster.topic_seen(self.topics[name], {})

    def grow(self, name: str, *replicas: str) -> list[Action]:
        self.revision += 1
        before = self.topics[name]
        assignment = replace(
            before.assignment, replicas=before.assignment.replicas + tuple(ids(each) for each in replicas)
        )
        self.topics[name] = replace(before, assignment=assignment, revision=self.revision)
        return self.cluster.topic_seen(self.topics[name], {})

    def delete(self, name: str) -> list[Action]:
        self.deletions[name] = self.topics[name].assignment.topic_id
        return self.cluster.deletion_marked(name, self.deletions[name], 0)

    def stopped(self, name: str, broker: str) -> list[Action]:
        topic_id = self.topics[name].assignment.topic_id
        epoch = self.brokers[int(broker)].broker_epoch
        return self.cluster.stop_answered(int(broker), epoch, [topic_id], 0)

    def five_seconds_pass(self) -> list[Action]:
        return self.cluster.tick(5_000)

    def shut_down(self, broker: str) -> list[Action]:
        actions = self.cluster.shut_down(int(broker), self.brokers[int(broker)].broker_epoch)
        self.perform(actions)
        if self.cluster.release(int(broker), self.brokers[int(broker)].broker_epoch):
            self.output.append("may stop")
        else:
            held = self.cluster.topics.partitions(self.cluster.held(int(broker)))
            assert self.cluster.held_as_leader(int(broker)) == sum(each.leader == int(broker) for each in held)
            self.output.append("waits for " + " ".join(sorted(f"{each.topic}-{each.key.partition}" for each in held)))
        return []

    def answer(self, partition: str, broker: str, tail: str = "") -> list[Action]:
        log_tail = LogTail(*map(int, tail.split(","))) if tail else None
        return self._answered(partition, broker, ErrorCode.NONE, log_tail)

    def error(self, partition: str, broker: str) -> list[Action]:
        return self._answered(partition, broker, ErrorCode.LOG_STORAGE_ERROR, None)

    def log_offline(self, partition: str, broker: str) -> list[Action]:
        return self._answered(partition, broker, ErrorCode.LOG_STORAGE_ERROR, None, log_offline=True)

    def log_damaged(self, partition: str, broker: str) -> list[Action]:
        return self._answered(partition, broker, ErrorCode.LOG_STORAGE_ERROR, None, log_damaged=True)

    def kept_damaged(self, partition: str, broker: str) -> list[Action]:
        return self._answered(partition, broker, ErrorCode.NONE, None, log_damaged=True)

    def reports_offline_logs(self, broker: str) -> list[Action]:
        broker_id = int(broker)
        known = self.brokers[broker_id]
        changed = replace(known.registration, offline_log_reports=known.registration.offline_log_reports + 1)
        self.brokers[broker_id] = replace(known, registration=changed)
        return self.cluster.broker_seen(self.brokers[broker_id]) if self.watching else []

    def _answered(
        self, partition: str, broker: str, error: ErrorCode, tail: LogTail | None, **flags: bool
    ) -> list[Action]:
        epoch = self.stored(partition).state.leader_epoch
        answer = InstructionAnswer(self.key(partition), epoch, error, tail, **flags)
        return self.cluster.instruction_answered(int(broker), self.brokers[int(broker)].broker_epoch, [answer])

    def silent(self, partition: str, broker: str) -> list[Action]:
        epoch = self.brokers[int(broker)].broker_epoch
        return self.cluster.instruction_unanswered(int(broker), epoch, [self.key(partition)])

    def leader_writes(self, partition: str, isr: str, elr: str = "") -> list[Action]:
        self.unseen_write(partition, isr, elr)
        name, _, number = partition.rpartition("-")
        return self.cluster.state_seen(name, int(number), self.states[name, int(number)])

    def unseen_write(self, partition: str, isr: str, elr: str = "") -> list[Action]:
        self.revision += 1
        name, _, number = partition.rpartition("-")
        state = self.stored(partition).state.with_(isr=ids(isr), elr=ids(elr))
        self.states[name, int(number)] = VersionedState(state, self.revision)
        return []

    def prefer(self, partition: str) -> list[Action]:
        return self.cluster.prefer([self.key(partition)])

    def rebalance(self, allowed_percent: str) -> list[Action]:
        return self.cluster.rebalance(int(allowed_percent))

    def hold(self) -> list[Action]:
        self.held = []
        return []

    def release(self) -> list[Action]:
        held, self.held = self.held or [], None
        return held

    def unknown(self) -> list[Action]:
        held, self.held = self.held or [], None
        writes = [action for action in held if isinstance(action, WriteState)]
        self.late += writes
        return self.cluster.refused([(write, self.own_state(write)) for write in writes])

    def late_write(self) -> list[Action]:
        (write,), self.late = self.late, []
        number = write.key.partition
        found = self.states[write.topic, number]
        if found.revision != write.compare_revision:
            self.output.append(f"compare failed {write.topic}-{number}")
            return []
        self.revision += 1
        self.states[write.topic, number] = VersionedState(write.state, self.revision)
        self.output.append(f"write {write.topic}-{number} {shown(write.state)}")
        return self.cluster.state_seen(write.topic, number, self.states[write.topic, number])

    def own_state(self, write: WriteState) -> VersionedState | None:
        """As `read_own_states`."""
        if self.topics[write.topic].assignment.topic_id != write.key.topic_id:
            self.output.append(f"read {write.topic}-{write.key.partition}: another topic's")
            return None
        return self.states.get((write.topic, write.key.partition))

    def remade(self, name: str, replicas: str, epoch: str) -> list[Action]:
        self.deposed = True
        self.revision += 1
        assignment = TopicAssignment(name, UUID(int=self.revision).bytes, (ids(replicas),))
        self.topics[name] = VersionedTopic(assignment, self.revision, self.revision)
        self.revision += 1
        self.states[name, 0] = VersionedState(PartitionState(-1, int(epoch), 0, ids(replicas)), self.revision)
        return []

    def new_controller(self) -> list[Action]:
        self.controller_epoch += 1
        self.held = None
        self.cluster = Cluster(0, self.controller_epoch, self.defaults)
        return self.cluster.load(self.snapshot(), 0)

    def configure(self, name: str, **config: str) -> list[Action]:
        self.configs[name] = config
        return self.cluster.config_seen(name, config) if self.watching else []

    def lose_watch(self) -> list[Action]:
        self.watching = False
        return []

    def relist(self) -> list[Action]:
        self.watching = True
        return self.cluster.load(self.snapshot(), 0)

    def state(self, partition: str) -> list[Action]:
        self.output.append(shown(self.stored(partition).state))
        return []

    def out_of_sync(self, broker: str) -> list[Action]:
        partitions = self.cluster.topics.partitions(self.cluster.out_of_sync(int(broker)))
        self.output.append(" ".join(sorted(f"{each.topic}-{each.key.partition}" for each in partitions)) or "nothing")
        return []

    def snapshot(self) -> ClusterSnapshot:
        return ClusterSnapshot(
            self.revision,
            dict(self.brokers),
            dict(self.tails),
            dict(self.topics),
            dict(self.states),
            dict(self.configs),
            dict(self.deletions),
            (),
            None,
            self.controller_epoch,
        )

    def stored(self, partition: str) -> VersionedState:
        name, _, number = partition.rpartition("-")
        return self.states[name, int(number)]

    def key(self, partition: str) -> PartitionKey:
        name, _, number = partition.rpartition("-")
        return PartitionKey(self.topics[name].assignment.topic_id, int(number))


def ids(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(",") if each)


def shown(state: PartitionState) -> str:
    leader = "none" if state.leader < 0 else f"{state.leader}@{state.leader_broker_epoch}"
    parts = [f"leader={leader}", f"epoch={state.leader_epoch}", f"isr={_list(state.isr)}"]
    parts += [f"{name}={_list(value)}" for name, value in (("elr", state.elr), ("lost", state.lost)) if value]
    parts += [f"unclean={state.unclean_epoch}"] if state.unclean_epoch >= 0 else []
    return " ".join(parts)


def _list(brokers: tuple[int, ...]) -> str:
    return ",".join(map(str, brokers)) or "nobody"

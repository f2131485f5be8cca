"""The cluster as the controller knows it: one event in, a list of actions out. Pure.

Events may come twice, late or not at all; a new listing (`load`) mends whatever was missed (RULES 8.4), and everything
here looks at what is, never at what happened (level-triggered). Instructions name only states that were read from etcd
or written to it (invariant 5).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence

from highwater.controller.state_machines.actions import (
    Action,
    InstructionAnswer,
    PartitionInstruction,
    RemoveStates,
    RemoveTopic,
    SendLeaderAndIsr,
    SendMetadata,
    SendStopReplica,
    StopPartition,
    WriteState,
)
from highwater.controller.state_machines.controlled_shutdown import ControlledShutdowns
from highwater.controller.state_machines.election import ElectionPolicy
from highwater.controller.state_machines.leader_balance import led_by_others
from highwater.controller.state_machines.lost_tails import LostTails
from highwater.controller.state_machines.partition_state_machine import BrokerView, PartitionStateMachine
from highwater.controller.state_machines.pieces import AT_ONCE, Pieces, whole
from highwater.controller.state_machines.topic_deletion import TopicDeletion
from highwater.controller.state_machines.topic_table import Topic, TopicTable
from highwater.metadata.schema.cluster_view import ClusterSnapshot
from highwater.metadata.schema.models import LiveBroker, VersionedState, VersionedTopic
from highwater.model.partition import PartitionKey


class Cluster:
    """The state machines of all partitions, under one controller epoch. `defaults` is the policy of topics that set
    nothing themselves. `at_once`: partitions that are looked at in one piece of a decision about many."""

    def __init__(
        self, controller_id: int, controller_epoch: int, defaults: ElectionPolicy, *, at_once: int = AT_ONCE
    ) -> None:
        self.controller_id = controller_id
        self.controller_epoch = controller_epoch
        self.brokers: dict[int, LiveBroker] = {}
        self.topics = TopicTable()
        self._defaults = defaults
        self._seen: set[int] = set()  # brokers that were registered in this term
        self._shutdowns = ControlledShutdowns()
        self._lost_tails = LostTails()
        self._at_once = at_once
        self._listing = False  # a part of a listing has been taken: some states, say, and no brokers

    # Queries

    @property
    def listed(self) -> bool:
        """Tells whether all of the latest listing has been taken."""
        return not self._listing

    def instruction(self, key: PartitionKey) -> PartitionInstruction | None:
        """Returns what brokers are to be told of a partition now; None where it is gone, or has no state yet."""
        topic = self.topics.identified(key.topic_id)
        partition = self.topics.partition(key)
        if topic is None or topic.deletion is not None or partition is None or partition.versioned is None:
            return None
        return PartitionInstruction(
            partition.topic,
            key,
            partition.versioned,
            partition.replicas,
            topic.config,
            partition.offline_replicas,
            topic.versioned.create_revision,
        )

    def is_served(self, name: str, partitions: int = 0) -> bool:
        """Tells whether there are so many partitions at least, and every one's leader has taken up its leadership: a
        produce works from now on."""
        topic = self.topics.named(name)
        if topic is None or topic.deletion is not None or len(topic.partitions) < partitions:
            return False
        return all(p.served for p in topic.partitions)

    @property
    def known_brokers(self) -> frozenset[int]:
        """Those that are or were registered, as far as this controller has seen or assignments tell."""
        hosts = (broker_id for partition in self.topics.partitions() for broker_id in partition.replicas)
        return frozenset(self._seen) | frozenset(hosts)

    def is_registered(self, broker_id: int, broker_epoch: int) -> bool:
        broker = self.brokers.get(broker_id)
        return broker is not None and broker.broker_epoch == broker_epoch

    def is_shutting_down(self, broker_id: int) -> bool:
        return broker_id in self._shutdowns.leaving

    def led_by(self, broker_id: int) -> list[PartitionKey]:
        return [key for key, partition in self.topics.hosted(broker_id).items() if partition.leader == broker_id]

    def is_settled(self, broker_id: int) -> bool:
        """Tells whether no write is under way for any partition that the broker hosts."""
        return all(partition.pending is None for partition in self.topics.hosted(broker_id).values())

    def out_of_sync(self, broker_id: int) -> Collection[PartitionKey]:
        """Partitions that are assigned to the broker, and whose ISR does not hold it (RULES 8.6)."""
        return self.topics.isrs.outside(broker_id)

    # Everything at once (RULES 8.4)

    def load(self, snapshot: ClusterSnapshot, now_ms: int) -> list[Action]:
        """Takes a new listing of everything: the first one after the election, or one after a lost watch."""
        return whole(self.loading(snapshot, now_ms))

    def loading(self, snapshot: ClusterSnapshot, now_ms: int) -> Pieces:
        """The same a piece at a time. No election is decided on, and nobody may leave, before all of the listing has
        been taken: a state may name a registration that comes later in it."""
        self._listing = True
        actions: list[Action] = []
        for topic in self.topics:
            found = snapshot.topics.get(topic.name)
            if found is None or found.assignment.topic_id != topic.topic_id:
                actions += self.topic_gone(topic.name)
                yield
        news = yield from self._load_topics(snapshot)
        self._lost_tails.load(snapshot.broker_tails)
        with_more_offline = [
            broker for broker in snapshot.brokers.values() if self._has_more_logs_offline(broker)
        ]  # under the broker epoch that is known; those that are renewed are told everything
        renewed = self._load_brokers(snapshot.brokers)
        for name, topic_id in snapshot.deletions.items():
            actions += self.deletion_marked(name, topic_id, now_ms)
            yield
        self._listing = False
        actions += yield from self._advancing(self.topics.partitions())
        others = self.brokers.keys() - {broker.registration.broker_id for broker in renewed}
        actions += yield from self._announcing(news, others)
        for broker in with_more_offline:
            actions.append(self._ask_again(broker))
        for broker in renewed:
            actions += self._tell_everything(broker)
        return actions + self._send_metadata()

    def _load_topics(self, snapshot: ClusterSnapshot) -> Generator[None, None, list[PartitionStateMachine]]:
        """Returns the partitions of which brokers have to be told."""
        news: list[PartitionStateMachine] = []
        taken = 0
        for name, versioned_topic in snapshot.topics.items():
            config = snapshot.topic_configs.get(name, {})
            known = self.topics.named(name)
            reconfigured = known is not None and known.config != config
            for partition in self.topics.add(versioned_topic, config).partitions:
                versioned = snapshot.states.get((name, partition.key.partition))
                if (versioned is not None and self.topics.seen(partition, versioned)) or reconfigured:
                    news.append(partition)
                taken += 1
                if taken % self._at_once == 0:
                    yield
        return news

    def _load_brokers(self, brokers: Mapping[int, LiveBroker]) -> list[LiveBroker]:
        """Compared by (id, create revision), not by id (RULES 1.5). Returns those that are new."""
        for broker_id in set(self.brokers) - set(brokers):
            self._forget_broker(broker_id)
        renewed = [
            broker for broker_id, broker in brokers.items() if not self.is_registered(broker_id, broker.broker_epoch)
        ]
        for broker in renewed:
            self._register(broker)
        self.brokers |= brokers
        for broker_id, broker in brokers.items():
            if broker.registration.shutting_down:
                self._shutdowns.began(broker_id, broker.broker_epoch, broker.leaving_since)
        return renewed

    # Brokers

    def broker_seen(self, broker: LiveBroker) -> list[Action]:
        """A registration was put: a new one, or the present one with other contents. Where it has more logs offline, it
        is told everything again, and its answers say which (RULES 7.7)."""
        return whole(self.seeing_broker(broker))

    def seeing_broker(self, broker: LiveBroker) -> Pieces:
        """The same a piece at a time. The value has all that a new registration is to be told: until then it need not
        be sent anything, and before it must not be."""
        broker_id = broker.registration.broker_id
        known = self.brokers.get(broker_id)
        if known is not None and (known.broker_epoch > broker.broker_epoch or known == broker):
            return []
        renewed = known is None or known.broker_epoch != broker.broker_epoch
        more_offline = self._has_more_logs_offline(broker)
        if renewed:
            self._register(broker)
        self.brokers[broker_id] = broker
        if broker.registration.shutting_down:
            self._shutdowns.began(broker_id, broker.broker_epoch, broker.leaving_since)
        actions = yield from self._advancing(self.topics.hosted(broker_id).values())
        if renewed:
            actions += self._tell_everything(broker)
        elif more_offline:
            actions.append(self._ask_again(broker))
        return actions + self._send_metadata()

    def broker_gone(self, broker_id: int, revision: int) -> list[Action]:
        """The registration was deleted at `revision`, by its owner, its lease or the fast path (RULES 8.3)."""
        return whole(self.losing_broker(broker_id, revision))

    def losing_broker(self, broker_id: int, revision: int) -> Pieces:
        """The same a piece at a time; the broker is gone with the first."""
        known = self.brokers.get(broker_id)
        if known is None or known.broker_epoch > revision:
            return []
        self._forget_broker(broker_id)
        actions = yield from self._advancing(self.topics.hosted(broker_id).values())
        return actions + self._send_metadata()

    def _register(self, broker: LiveBroker) -> None:
        broker_id = broker.registration.broker_id
        self._forget_broker(broker_id)
        self._seen.add(broker_id)
        self.brokers[broker_id] = broker
        self._lost_tails.registered(broker, self.topics.hosted(broker_id))

    def _forget_broker(self, broker_id: int) -> None:
        self.brokers.pop(broker_id, None)
        self._shutdowns.gone(broker_id)
        self._lost_tails.gone(broker_id)
        for topic in self.topics.deleting:
            if topic.deletion is not None:
                topic.deletion.stopped(broker_id)

    def _tell_everything(self, broker: LiveBroker) -> list[Action]:
        """The whole of LeaderAndIsr and of the metadata, for a broker that registered anew, even if that is nothing.
        Partitions with a write under way follow when it ended."""
        broker_id = broker.registration.broker_id
        return [
            self._instruct(broker, self._tellable(broker_id)),
            SendMetadata(broker_id, broker.broker_epoch, full=True),
        ]

    def _has_more_logs_offline(self, broker: LiveBroker) -> bool:
        """Tells whether it says so under the broker epoch that is known."""
        known = self.brokers.get(broker.registration.broker_id)
        return (
            known is not None
            and known.broker_epoch == broker.broker_epoch
            and known.registration.offline_log_reports != broker.registration.offline_log_reports
        )

    def _ask_again(self, broker: LiveBroker) -> SendLeaderAndIsr:
        """Everything that it hosts: its answers say which logs are offline (RULES 7.7)."""
        return self._instruct(broker, self._tellable(broker.registration.broker_id))

    def _instruct(self, broker: LiveBroker, keys: Sequence[PartitionKey]) -> SendLeaderAndIsr:
        broker_id = broker.registration.broker_id
        leading = (partition.key for partition in self.topics.partitions(keys) if partition.leader == broker_id)
        return SendLeaderAndIsr(broker_id, broker.broker_epoch, tuple(keys), frozenset(leading))

    def _tellable(self, broker_id: int) -> tuple[PartitionKey, ...]:
        return tuple(
            key
            for key, partition in self.topics.hosted(broker_id).items()
            if partition.pending is None and self._is_told_of(partition)
        )

    def _is_told_of(self, partition: PartitionStateMachine) -> bool:
        """Tells whether there is an `instruction`."""
        topic = self.topics.identified(partition.key.topic_id)
        return topic is not None and topic.deletion is None and partition.versioned is not None

    def has_heard_of_leaving(self, broker_id: int, broker_epoch: int) -> bool:
        """Tells whether the registration is marked, as far as is known here: then so is every state that was before
        it. Nothing is known of what is half listed."""
        if self._listing or not self.is_registered(broker_id, broker_epoch):
            return False
        return self.brokers[broker_id].registration.shutting_down

    def shut_down(self, broker_id: int, broker_epoch: int) -> list[Action]:
        """A registered broker asks whether it may stop: from its first question on leaderships move, and it leaves the
        ISRs that can spare it, now or as soon as they can (RULES 7.8). To be answered by `release`."""
        if not self.is_registered(broker_id, broker_epoch) or not self._shutdowns.asked(broker_id, broker_epoch):
            return []  # what it waits for is looked at whenever it changes
        return self._advance(self.topics.hosted(broker_id).values()) + self._send_metadata()

    def held(self, broker_id: int) -> Collection[PartitionKey]:
        """The partitions that a broker which asked to be shut down leads, or is needed for, and may be free of
        later."""
        return self._shutdowns.held(broker_id)

    def held_as_leader(self, broker_id: int) -> int:
        """The number of them that it leads."""
        return self._shutdowns.leads(broker_id)

    def release(self, broker_id: int, broker_epoch: int) -> bool:
        """Tells whether a broker that asked may stop now; then it counts as gone, whatever it does. Nobody may by what
        is half listed."""
        if self._listing or not self.is_registered(broker_id, broker_epoch):
            return False
        return self._shutdowns.release(broker_id)

    def tail_recorded(self, broker_id: int, broker_epoch: int) -> None:
        """`/brokers/tail/<id>` holds this broker epoch: the registration is ordinary from now on (RULES 7.2)."""
        self._lost_tails.recorded(broker_id, broker_epoch)

    # Topics

    def topic_seen(self, versioned: VersionedTopic, config: Mapping[str, str]) -> list[Action]:
        """A topic was created or got more partitions, by this controller or one before; its missing states are written
        (RULES 9.1)."""
        assignment = versioned.assignment
        known = self.topics.named(assignment.topic)
        actions = []
        if known is not None and known.topic_id != assignment.topic_id:
            actions += self.topic_gone(assignment.topic)
        return actions + self._advance(self.topics.add(versioned, config).partitions)

    def topic_gone(self, name: str) -> list[Action]:
        """The topic's key was deleted."""
        topic = self.topics.remove(name)
        if topic is None:
            return []
        self._shutdowns.removed(partition.key for partition in topic.partitions)
        for partition in topic.partitions:
            self._lost_tails.noted(partition.key, partition.replicas)
        return [*self._send_metadata(deleted=frozenset({topic.topic_id})), *self._lost_tails.take_done()]

    def config_seen(self, name: str, config: Mapping[str, str]) -> list[Action]:
        topic = self.topics.named(name)
        if topic is None or topic.config == config:
            return []
        topic.config = config
        return self._advance(topic.partitions) + self._announce(topic.partitions)

    def defaults_changed(self, defaults: ElectionPolicy) -> list[Action]:
        """Topics that set nothing themselves have this policy from now on."""
        if defaults == self._defaults:
            return []
        self._defaults = defaults
        return self._advance(self.topics.partitions())

    # Deletion (RULES 9.2)

    def deletion_marked(self, name: str, topic_id: bytes, now_ms: int) -> list[Action]:
        """The marker was put: live replicas are told to stop, offline ones block nothing."""
        topic = self.topics.named(name)
        if topic is None:
            return [RemoveTopic(name, topic_id)]  # a marker without its topic would keep the name from being used
        if topic.topic_id != topic_id or topic.deletion is not None:
            return []
        stops: dict[int, list[StopPartition]] = defaultdict(list)
        for partition in topic.partitions:
            self._lost_tails.noted(partition.key, partition.replicas)
            for broker_id in partition.replicas:
                if broker_id in self.brokers:
                    stops[broker_id].append(StopPartition(partition.key, -1, delete_log=True))
        self.topics.begin_deletion(topic, TopicDeletion(stops, now_ms))
        self._shutdowns.removed(partition.key for partition in topic.partitions)
        return [
            *(
                SendStopReplica(broker_id, self.brokers[broker_id].broker_epoch, tuple(partitions))
                for broker_id, partitions in stops.items()
            ),
            *self._send_metadata(deleted=frozenset({topic_id})),
            *self._advance_deletion(topic, now_ms),
            *self._lost_tails.take_done(),
        ]

    def stop_answered(self, broker_id: int, broker_epoch: int, topic_ids: Iterable[bytes], now_ms: int) -> list[Action]:
        """The broker has stopped every replica of these topics that it hosts."""
        actions: list[Action] = []
        if self.is_registered(broker_id, broker_epoch):
            for topic_id in topic_ids:
                topic = self.topics.identified(topic_id)
                if topic is not None and topic.deletion is not None:
                    topic.deletion.stopped(broker_id)
                    actions += self._advance_deletion(topic, now_ms)
        return actions

    def tick(self, now_ms: int) -> list[Action]:
        """Lets deletions go on without brokers that went or do not answer. To be called every second or so."""
        return [action for topic in self.topics.deleting for action in self._advance_deletion(topic, now_ms)]

    def states_removed(self, topic_id: bytes) -> list[Action]:
        topic = self.topics.identified(topic_id)
        if topic is None or topic.deletion is None or not topic.deletion.states_removed():
            return []
        return [RemoveTopic(topic.name, topic_id)]

    def _advance_deletion(self, topic: Topic, now_ms: int) -> list[Action]:
        if topic.deletion is None or not topic.deletion.advance(now_ms):
            return []
        return [RemoveStates(topic.name, topic.topic_id)]

    # States

    def state_seen(self, name: str, partition_number: int, versioned: VersionedState) -> list[Action]:
        """A state was watched or read. An ISR change by a leader is announced by its notification (RULES 2.5), a new
        leader epoch, and what a late write of this controller may have changed, at once."""
        topic = self.topics.named(name)
        if topic is None or topic.deletion is not None or partition_number >= len(topic.partitions):
            return []
        partition = topic.partitions[partition_number]
        news = self.topics.seen(partition, versioned)
        return self._advance([partition]) + self._announce([partition] if news else [])

    def written(self, writes: Sequence[WriteState], revision: int) -> list[Action]:
        """A transaction was done: brokers are told, and what happened meanwhile is looked at."""
        return self._write_ended((write, VersionedState(write.state, revision)) for write in writes)

    def refused(self, writes: Iterable[tuple[WriteState, VersionedState | None]]) -> list[Action]:
        """A transaction was not done, or its outcome is unknown; each write comes with the state that was read after
        it. What the re-read shows counts; where it still shows the state that was compared, another write of the same
        revision settles it (RULES 2.4), or that it is seen to be done after all."""
        return self._write_ended(writes)

    def _write_ended(self, writes: Iterable[tuple[WriteState, VersionedState | None]]) -> list[Action]:
        partitions = []
        for write, found in writes:
            partition = self.topics.partition(write.key)
            if partition is not None:
                if found is not None:
                    self.topics.seen(partition, found)
                partition.write_ended(write)
                partitions.append(partition)
        return self._advance(partitions) + self._announce(partitions)

    def isr_changed(self, keys: Iterable[PartitionKey]) -> list[Action]:
        """Notifications of leaders were collected (RULES 2.5)."""
        changed = tuple(key for key in keys if self.topics.partition(key) is not None)
        return self._send_metadata(changed) if changed else []

    def prefer(self, keys: Iterable[PartitionKey]) -> list[Action]:
        """Moves the leadership of these partitions to their preferred leaders, where those are in the ISR; none before
        all is `listed`."""
        if self._listing:
            return []
        view = self._view()
        writes = []
        for partition in self.topics.partitions(keys):
            topic = self.topics.identified(partition.key.topic_id)
            if topic is not None and topic.deletion is None:
                writes.append(partition.prefer(view, topic.policy(self._defaults), self.controller_epoch))
        return [write for write in writes if write is not None]

    def rebalance(self, allowed_percent: int) -> list[Action]:
        """Moves leaderships back to the brokers of whose own partitions others lead more than `allowed_percent`, where
        they are live and in the ISR."""
        return self.prefer(led_by_others(self.topics.partitions(), allowed_percent))

    # Answers (RULES 7.7)

    def instruction_answered(
        self, broker_id: int, broker_epoch: int, answers: Iterable[InstructionAnswer]
    ) -> list[Action]:
        """A broker answered LeaderAndIsr."""
        if not self.is_registered(broker_id, broker_epoch):
            return []
        changed = []
        other_logs_offline = []
        for answer in answers:
            partition = self.topics.hosted(broker_id).get(answer.key)
            if partition is None:
                continue
            offline = partition.offline_replicas
            if partition.replica_states[broker_id].answered(broker_epoch, answer):
                changed.append(partition)
            if partition.offline_replicas != offline:
                self.topics.offline_changed(partition)
                other_logs_offline.append(answer.key)
        return self._advance(changed) + (self._send_metadata(tuple(other_logs_offline)) if other_logs_offline else [])

    def instruction_unanswered(self, broker_id: int, broker_epoch: int, keys: Iterable[PartitionKey]) -> list[Action]:
        """A broker has not answered LeaderAndIsr for these partitions without error for 5 s."""
        if not self.is_registered(broker_id, broker_epoch):
            return []
        hosted = self.topics.hosted(broker_id)
        return self._advance(
            [hosted[key] for key in keys if key in hosted and hosted[key].replica_states[broker_id].unanswered()]
        )

    # How decisions are reached

    def _advancing(self, partitions: Iterable[PartitionStateMachine]) -> Pieces:
        actions: list[Action] = []
        looked_at = list(partitions)
        for first in range(0, len(looked_at), self._at_once):
            if first:
                yield
            actions += self._advance(looked_at[first : first + self._at_once])
        return actions

    def _advance(self, partitions: Iterable[PartitionStateMachine]) -> list[Action]:
        """The writes that these partitions want now."""
        if self._listing:
            return []  # all are looked at when it has been taken
        view = self._view()
        writes: list[Action] = []
        for partition in partitions:
            topic = self.topics.identified(partition.key.topic_id)
            if topic is None or topic.deletion is not None:
                continue
            tail_lost = self._lost_tails.of(partition.key, partition.replicas)
            policy = topic.policy(self._defaults)
            write = partition.advance(view, tail_lost, policy, self.controller_epoch)
            state = None if partition.versioned is None else partition.versioned.state
            self._shutdowns.looked_at(partition.key, partition.replicas, state, policy.minimum(partition.replicas))
            if write is not None:
                writes.append(write)
            elif partition.pending is None:
                self._lost_tails.noted(partition.key, partition.replicas)
        return [*writes, *self._lost_tails.take_done()]

    def _announce(self, partitions: Iterable[PartitionStateMachine]) -> list[Action]:
        """Tells the assigned live replicas what to be, and everyone where the leader is. A partition that wants another
        write is announced after it."""
        return whole(self._announcing(partitions, self.brokers))

    def _announcing(self, partitions: Iterable[PartitionStateMachine], to: Collection[int]) -> Pieces:
        """As `_announce`, a piece at a time; `to`: brokers that are registered."""
        told: dict[int, list[PartitionKey]] = defaultdict(list)
        announced = []
        for number, partition in enumerate(partitions, 1):
            if number % self._at_once == 0:
                yield
            if partition.pending is not None or not self._is_told_of(partition):
                continue
            announced.append(partition.key)
            for broker_id in partition.replicas:
                if broker_id in to:
                    told[broker_id].append(partition.key)
        actions: list[Action] = [self._instruct(self.brokers[broker_id], keys) for broker_id, keys in told.items()]
        return actions + (self._send_metadata(tuple(announced)) if announced else [])

    def _send_metadata(
        self, keys: tuple[PartitionKey, ...] = (), deleted: frozenset[bytes] = frozenset()
    ) -> list[Action]:
        return [
            SendMetadata(broker_id, broker.broker_epoch, keys=keys, deleted_topic_ids=deleted)
            for broker_id, broker in self.brokers.items()
        ]

    def _view(self) -> BrokerView:
        leaving = self._shutdowns.leaving
        return BrokerView(
            {broker_id: broker.broker_epoch for broker_id, broker in self.brokers.items()},
            leaving,
            frozenset(broker_id for broker_id in leaving if not self._shutdowns.waits(broker_id)),
        )

"""The replicas that this broker hosts, and the carrying out of what their partitions decide."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import replace
from logging import INFO
from typing import NamedTuple

from highwater.errors import ErrorCode
from highwater.log_storage_client.client import LogStorageClient
from highwater.metadata.schema.models import LiveBroker, VersionedState
from highwater.metadata.state.partition_states import Outcome, StateWriteResult
from highwater.model.partition import PartitionKey
from highwater.quotas.replication_quota import Rates, ReplicationQuota
from highwater.replica_manager.partition import actions as act
from highwater.replica_manager.partition.fetch_sessions import FetchSessions
from highwater.replica_manager.partition.partition import Partition
from highwater.replica_manager.partition.tail_cache import TailCache, TailCacheBudget
from highwater.replica_manager.partition.topic_config import TopicConfig, parse
from highwater.replica_manager.replicas.damaged_logs import DamagedLogs
from highwater.replica_manager.replicas.data_wait import DataWait
from highwater.replica_manager.replicas.due_partitions import DuePartitions
from highwater.replica_manager.replicas.followed_partitions import FollowedPartitions
from highwater.replica_manager.replicas.following_watch import FollowingWatch
from highwater.replica_manager.replicas.hosted_partition import HostedPartition
from highwater.replica_manager.replicas.isr_writer import IsrChanges
from highwater.replica_manager.replicas.metadata_cache import Endpoint, MetadataCache
from highwater.replica_manager.replicas.purgatory import Purgatory
from highwater.replica_manager.replicas.topic_traffic import TopicTraffic
from highwater.replica_manager.storage.append_pipeline import AppendPipeline
from highwater.replica_manager.storage.fencer import Fencer
from highwater.replica_manager.storage.leader_appends import LeaderAppends
from highwater.replica_manager.storage.offline_logs import OfflineLogs
from highwater.supervision import TaskSupervisor
from highwater.telemetry.by_topic import partitions_by_topic
from highwater.telemetry.log import get_logger, pairs
from highwater.telemetry.summed_log import SummedLog

leaderships = SummedLog(get_logger("replica_manager.replicas"))


class LogCondition(NamedTuple):
    """The condition of a log as the answer to an instruction tells it (RULES 7.6, 7.7)."""

    error: ErrorCode
    offline: bool
    damaged: bool


class ReplicaManager:
    """Everything of one broker that is touched by more than one kind of request. Used from one event loop only.

    `incarnation` names this start of the replica-manager. `lease_confirmed` tells whether the lease was confirmed
    within its TTL (RULES 8.1), `register_anew` ends the registration and makes another (RULES 7.6),
    `report_offline_logs` tells the controller to ask for them, and for damaged ones (RULES 7.7). `now_ms` is any
    monotonic clock.
    """

    def __init__(
        self,
        broker_id: int,
        settings: act.PartitionSettings,
        storage: LogStorageClient,
        appends: LeaderAppends,
        fencer: Fencer,
        isr_changes: IsrChanges,
        *,
        incarnation: str,
        tail_cache_bytes: int,
        purgatory: Purgatory,
        message_max_bytes: int,
        lease_confirmed: Callable[[], bool],
        register_anew: Callable[[], None],
        report_offline_logs: Callable[[], None],
        now_ms: Callable[[], int],
        cleanup_policy: str = "delete",
        traffic: TopicTraffic | None = None,
        supervisor: TaskSupervisor | None = None,
    ) -> None:
        self.broker_id = broker_id
        self.incarnation = incarnation
        self.settings = settings
        self.storage = storage
        self.appends = appends
        self._fencer = fencer
        self._isr_changes = isr_changes
        self.lease_confirmed = lease_confirmed
        self.now_ms = now_ms
        self.hosted: dict[PartitionKey, HostedPartition] = {}
        self._traffic = traffic or TopicTraffic()
        self.metadata = MetadataCache()
        self.following = FollowingWatch()
        self.sessions = FetchSessions()
        self.due = DuePartitions()
        self.leadership_waits: set[DataWait] = set()  # woken when this broker begins to lead something
        self.leadership_listeners: list[Callable[[HostedPartition], None]] = []  # told when it begins to lead, or ends
        self.broker_epoch: int | None = None  # None: not registered
        self.moved: set[PartitionKey] = set()  # led ones whose high watermark or leader epoch log-storage does not have
        self.purgatory = purgatory
        self._tail_budget = TailCacheBudget(tail_cache_bytes)
        self.message_max_bytes = message_max_bytes
        self._cleanup_policy = cleanup_policy
        self.offline_logs = OfflineLogs(storage, self._log_failed, supervisor)
        self.damaged_logs = DamagedLogs(
            broker_id,
            storage,
            self.hosted,
            self.metadata,
            leave=self._leave_damaged,
            register_anew=register_anew,
            read_state=isr_changes.committed,
            broker_epoch=lambda: self.broker_epoch,
            dropped=self._damage_dropped,
            report=report_offline_logs,
            now_ms=now_ms,
            supervisor=supervisor,
        )
        self._report_offline_logs = report_offline_logs
        self._log_storage_incarnation = ""
        self._live = act.LiveBrokers()
        self._followed = FollowedPartitions()
        self._publishing = False
        self.leader_quota = ReplicationQuota()

    # What the requests ask

    def absent(self, key: PartitionKey) -> ErrorCode:
        """The error for a partition that is not hosted here."""
        known = self.metadata.by_id(key.topic_id)
        return ErrorCode.UNKNOWN_TOPIC_ID if known is None else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def leader_of(self, key: PartitionKey) -> tuple[int, int]:
        """(leader, leader epoch): the newest of what instructions and metadata say."""
        cached = self.metadata.leader(key)
        hosted = self.hosted.get(key)
        if hosted is None:
            return cached
        instructed = (hosted.partition.leader, hosted.partition.leader_epoch)
        return instructed if instructed[1] >= cached[1] else cached

    @property
    def log_storage_incarnation(self) -> str:
        return self._log_storage_incarnation

    def topic_config(self, config: Mapping[str, str]) -> TopicConfig:
        return parse(
            config,
            min_insync_replicas=self.settings.min_insync_replicas,
            message_max_bytes=self.message_max_bytes,
            cleanup_policy=self._cleanup_policy,
        )

    def held_back_by_topic(self) -> Iterator[tuple[Sequence[str], float]]:
        """The partitions led here of which a follower gets nothing for the throttle, by topic. For another thread."""
        if self.leader_quota.rate is None:
            return iter(())
        found = (self.hosted.get(key) for key in self.purgatory.sessions.held_back())
        return partitions_by_topic(hosted.topic for hosted in found if hosted is not None)

    def replication_rates_changed(self, rates: Rates) -> None:
        """The rates at which this broker replicates what is throttled (RULES 4.14)."""
        self.leader_quota.set_rate(rates.leader, self.now_ms() / 1000)
        self.following.set_throttle_rate(rates.follower)

    # Hosting

    def host(self, key: PartitionKey, topic: str, config: Mapping[str, str]) -> HostedPartition:
        """The hosted replica, taken in if it is new; its log exists in log-storage already."""
        hosted = self.hosted.get(key)
        if hosted is None:
            partition = Partition(key, topic, self.broker_id, self.settings)
            hosted = HostedPartition(
                key,
                topic,
                partition,
                self.topic_config(config),
                TailCache(self._tail_budget),
                self.purgatory,
                now_ms=self.now_ms,
                perform=self.perform,
                traffic=self._traffic.hosted(topic),
            )
            self.hosted[key] = hosted
            self.perform(hosted, partition.brokers_changed(self._live, self.now_ms()))
        hosted.topic_config = config
        hosted.config = self.topic_config(config)
        throttled = (key.partition, self.broker_id) in hosted.config.follower_throttled
        if self._followed.set_throttled(key, throttled):
            self._publish_soon()
        return hosted

    def settings_changed(
        self, settings: act.PartitionSettings, *, message_max_bytes: int, cleanup_policy: str, tail_cache_bytes: int
    ) -> None:
        """Other settings of the broker count from now on, where topics set nothing themselves."""
        self._tail_budget.resize(tail_cache_bytes)
        before = (self.settings, self.message_max_bytes, self._cleanup_policy)
        if before == (settings, message_max_bytes, cleanup_policy):
            return
        self.settings, self.message_max_bytes, self._cleanup_policy = settings, message_max_bytes, cleanup_policy
        now_ms = self.now_ms()
        for hosted in self.hosted.values():
            hosted.config = self.topic_config(hosted.topic_config)
            self.perform(hosted, hosted.partition.settings_changed(settings, now_ms))

    def evict(self, key: PartitionKey) -> None:
        """Stops a replica: it leads no more, is followed no more, and is not hosted."""
        hosted = self.hosted.pop(key, None)
        if hosted is not None:
            self.perform(hosted, hosted.partition.stop())
            hosted.wake_all()
            self._traffic.evicted(hosted.topic, hosted.traffic)
            self.sessions.evicted(key)

    def evict_up_to(self, key: PartitionKey, leader_epoch: int) -> bool:
        """As `evict`, by a decision that knows this leader epoch; -1: of a dead topic id, it goes in any case. False:
        the replica was instructed under a higher one since, and stays."""
        hosted = self.hosted.get(key)
        if hosted is not None and 0 <= leader_epoch < hosted.partition.leader_epoch:
            return False
        self.evict(key)
        return True

    # Carrying out

    def gathering_fences(self) -> AbstractContextManager[None]:
        """As `Fencer.gathering`: of instructions that are taken in several turns of the event loop."""
        return self._fencer.gathering()

    def perform(self, hosted: HostedPartition, actions: Sequence[act.Action]) -> None:
        """After each event of a partition, with what it answers, be it nothing."""
        for action in actions:
            match action:
                case act.HighWatermarkAdvanced(offset):
                    self.moved.add(hosted.key)
                    hosted.high_watermark_advanced(offset)
                case act.WriteIsr():
                    settled = functools.partial(self._isr_settled, hosted)
                    self._isr_changes.write(hosted.key, hosted.topic, action, settled)
                case act.ReadState():
                    self._isr_changes.read(hosted.key, hosted.topic, self.state_read)
                case act.Fence():
                    answered = functools.partial(self._fence_answered, hosted.key in self.offline_logs)
                    hosted.fencing = self._fencer.submit(hosted.key, action, answered)
                case act.LeadershipStarted(leader_epoch, incarnation, log_end_offset):
                    self._leadership_started(hosted, leader_epoch, incarnation, log_end_offset)
                case act.LeadershipInterrupted(leader_epoch):
                    leaderships.note(INFO, "leadership over", self._named(hosted, leader_epoch))
                    hosted.interrupted()
                    self._tell_leadership(hosted)
                case act.Follow():
                    self._followed.follow(hosted.key, hosted.topic, action)
                    self._publish_soon()
                case act.StopFollowing():
                    if self._followed.stop(hosted.key):
                        self._publish_soon()
                case act.LogStartRaised():
                    hosted.log_start_raised()
        self.due.note(hosted)

    def _leadership_started(
        self, hosted: HostedPartition, leader_epoch: int, incarnation: str, log_end_offset: int
    ) -> None:
        leaderships.note(INFO, "leading", self._named(hosted, leader_epoch))
        pipeline = AppendPipeline(
            hosted.key,
            leader_epoch,
            log_end_offset,
            send=self.appends.send,
            log_ended=functools.partial(hosted.log_ended, leader_epoch),
            interrupted=functools.partial(self._append_unknown, hosted, leader_epoch),
            log_failed=lambda: self.offline_logs.seen([hosted.key]),
        )
        hosted.started(pipeline, incarnation, log_end_offset)
        hosted.tell_sessions()
        self.moved.add(hosted.key)
        for wait in self.leadership_waits:
            wait.wake()
        self._tell_leadership(hosted)

    def _tell_leadership(self, hosted: HostedPartition) -> None:
        for listener in self.leadership_listeners:
            listener(hosted)

    def _append_unknown(self, hosted: HostedPartition, leader_epoch: int) -> None:
        self.perform(hosted, hosted.partition.append_unknown(leader_epoch, self.now_ms()))

    def heard_offline(self, key: PartitionKey, incarnation: str) -> None:
        """This incarnation of log-storage has answered that the log is offline: where it is gone by now, that says
        nothing of the present one's logs."""
        if incarnation == self._log_storage_incarnation:
            self.offline_logs.seen([key])

    def _log_failed(self, key: PartitionKey) -> None:
        """RULES 7.7: this partition alone; the others are served as before."""
        hosted = self.hosted.get(key)
        if hosted is not None:
            self.perform(hosted, hosted.partition.log_failed())
            self._report_offline_logs()

    def condition(self, key: PartitionKey, error: ErrorCode) -> LogCondition:
        """The answer to an instruction that has come to this."""
        offline, leaving = key in self.offline_logs, key in self.damaged_logs
        if error is ErrorCode.NONE and (offline or leaving):
            error = ErrorCode.LOG_STORAGE_ERROR  # it was fenced before that was heard
        if error is ErrorCode.NONE:
            return LogCondition(error, False, self.damaged_logs.is_damaged(key))
        failed = error is ErrorCode.LOG_STORAGE_ERROR
        return LogCondition(error, failed and offline, failed and leaving)

    def _leave_damaged(self, hosted: HostedPartition) -> None:
        self.perform(hosted, hosted.partition.log_failed())

    def _damage_dropped(self) -> None:
        self.appends.damage_dropped()

    def _fence_answered(self, was_offline: bool, key: PartitionKey, answer: act.FenceAnswer) -> None:
        """`was_offline`: the log was held to be so when the fence was asked for, and what is fenced was made since.
        Where it went offline since, it may have been fenced before that: another fence tells. What is on its way out of
        the ISR is taken up when it is mended, or given up (RULES 7.6)."""
        present = answer.incarnation == self._log_storage_incarnation
        if answer.error is ErrorCode.NONE and present:
            if not was_offline and key in self.offline_logs:
                answer = replace(answer, error=ErrorCode.LOG_STORAGE_ERROR, offline=True)
            elif key in self.damaged_logs:
                answer = replace(answer, error=ErrorCode.LOG_STORAGE_ERROR)
        self.fenced(key, answer)

    def fenced(self, key: PartitionKey, answer: act.FenceAnswer) -> None:
        if answer.offline:
            self.heard_offline(key, answer.incarnation)
        elif answer.error is ErrorCode.NONE and answer.incarnation == self._log_storage_incarnation:
            self.offline_logs.serves(key)
        hosted = self.hosted.get(key)
        if hosted is not None:
            self.perform(hosted, hosted.partition.fenced(answer, self.now_ms()))

    def _isr_settled(
        self, hosted: HostedPartition, key: PartitionKey, proposal_id: int, result: StateWriteResult
    ) -> None:
        if self.hosted.get(key) is not hosted:
            return  # evicted, and perhaps assigned here again: its proposals are others
        now_ms = self.now_ms()
        match result.outcome:
            case Outcome.WRITTEN:
                self.perform(hosted, hosted.partition.isr_written(proposal_id, result.revision, now_ms))
            case Outcome.UNKNOWN:
                self.perform(hosted, hosted.partition.isr_unknown(proposal_id, now_ms))
            case Outcome.REFUSED | Outcome.UNAVAILABLE:
                self.perform(hosted, hosted.partition.isr_refused(proposal_id, now_ms))

    def state_read(self, key: PartitionKey, state: VersionedState) -> None:
        hosted = self.hosted.get(key)
        if hosted is not None:
            self.perform(hosted, hosted.partition.state_seen(state, self.now_ms()))

    @staticmethod
    def _named(hosted: HostedPartition, leader_epoch: int) -> str:
        return pairs(topic=hosted.topic, partition=hosted.key.partition, leader_epoch=leader_epoch)

    # What concerns all of them

    @property
    def live_brokers(self) -> Set[int]:
        """The brokers that this one sees registered."""
        return self._live.epochs.keys()

    def others_may_lead(self) -> bool:
        """Tells whether another broker is registered that is not shutting down."""
        return any(
            broker_id != self.broker_id and broker_id not in self._live.shutting_down for broker_id in self._live.epochs
        )

    async def checkpoint_high_watermarks(self) -> None:
        """Leaders' high watermarks that have moved, for log-storage's checkpoint; followers' go with their appends
        (RULES 4.6). Raises `StorageUnavailableError`; they are sent again with the next."""
        moved, self.moved = self.moved, set()
        led = (hosted for key in moved if (hosted := self.hosted.get(key)) is not None)
        marks = [
            (hosted.key, hosted.partition.leader_epoch, hosted.partition.high_watermark)
            for hosted in led
            if hosted.partition.leadership is not None
        ]
        if not marks:
            return
        try:
            await self.storage.checkpoint_high_watermarks(marks)
        except BaseException:
            self.moved |= moved
            raise

    def tick(self) -> None:
        now_ms = self.now_ms()
        for produce in self.purgatory.produces.expired(now_ms):
            produce.done(ErrorCode.REQUEST_TIMED_OUT)
        for session in self.sessions.fallen_silent(now_ms, self.settings.session_silent_ms):
            self.session_liveness_changed(session)
        for hosted in self.due.take(now_ms):
            self.perform(hosted, hosted.partition.tick(now_ms))

    def session_opened(self, session: act.FetchSession) -> None:
        now_ms = self.now_ms()
        for key in list(session.partitions):
            hosted = self.hosted.get(key)
            if hosted is not None:
                self.perform(hosted, hosted.partition.session_opened(session, now_ms))

    def session_liveness_changed(self, session: act.FetchSession) -> None:
        """A session that names what has changed alone has fallen silent, or speaks again: once each (RULES 4.11)."""
        now_ms = self.now_ms()
        for key in list(session.partitions):
            hosted = self.hosted.get(key)
            if hosted is not None:
                self.perform(hosted, hosted.partition.session_liveness_changed(session, now_ms))

    def session_closed(self, session: act.FetchSession) -> None:
        if not self.sessions.is_newest(session):
            return
        self.sessions.close(session)
        now_ms = self.now_ms()
        for key in list(session.partitions):
            hosted = self.hosted.get(key)
            if hosted is not None:
                self.perform(hosted, hosted.partition.session_closed(session, now_ms))

    def brokers_changed(self, brokers: Mapping[int, LiveBroker]) -> None:
        """Takes the registered brokers, from etcd."""
        self.metadata.set_brokers(
            Endpoint(
                broker_id,
                live.broker_epoch,
                live.registration.address,
                live.registration.rack,
                live.registration.listeners,
            )
            for broker_id, live in brokers.items()
        )
        self._live = act.LiveBrokers(
            {broker_id: live.broker_epoch for broker_id, live in brokers.items()},
            frozenset(broker_id for broker_id, live in brokers.items() if live.registration.shutting_down),
        )
        now_ms = self.now_ms()
        for hosted in self.hosted.values():
            self.perform(hosted, hosted.partition.brokers_changed(self._live, now_ms))
            for wait in hosted.log_start_waits:
                wait.wake()
        self._publish_soon()

    def learn_brokers(self, endpoints: Iterable[Endpoint]) -> None:
        """Addresses that came with an instruction."""
        self.metadata.add_brokers(endpoints)
        self._publish_soon()

    def registered(self, broker_epoch: int) -> None:
        self.broker_epoch = broker_epoch
        self._publish_soon()

    def registration_lost(self) -> None:
        """RULES 1.4: not registered, so stop leading."""
        self.broker_epoch = None
        for hosted in self.hosted.values():
            self.perform(hosted, hosted.partition.registration_lost())

    def log_storage_restarted(self, incarnation: str) -> None:
        """Another incarnation answers: the registration names one that is gone (RULES 1.4), and what was led under it
        is led no more (RULES 3.5)."""
        self.broker_epoch = None
        self._log_storage_incarnation = incarnation
        self.offline_logs.restarted()
        self.damaged_logs.restarted()
        for hosted in self.hosted.values():
            self.perform(hosted, hosted.partition.log_storage_restarted(incarnation))
        self._publish_soon()

    # WatchFollowing

    def publish_following(self) -> None:
        """RULES 3.3: what is in it is fenced already. A leader that is not registered is left out until it is."""
        self._publishing = False
        if self.broker_epoch is None:
            return  # the fetcher's sessions would be refused: what it had stands until there is a new broker epoch
        changes = self._followed.take_changes(self.metadata.brokers)
        self.following.publish(self.broker_epoch, self._log_storage_incarnation, changes)

    def _publish_soon(self) -> None:
        if not self._publishing:
            self._publishing = True
            asyncio.get_running_loop().call_soon(self.publish_following)

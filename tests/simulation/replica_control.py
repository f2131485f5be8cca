"""What instructs a replica-manager and what it hangs on: registration and lease (RULES 1.4, 7.2, 8), LeaderAndIsr and
StopReplica (1.2, 1.3, 9.3). As `liveness.py`, `control.py` and `purge.py` do it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from highwater.errors import ErrorCode
from highwater.log_storage_client.values import StorageUnavailableError
from highwater.metadata.schema.models import BrokerRegistration, LiveBroker
from highwater.model.damaged_replicas import fewest_sound
from highwater.model.partition import PartitionKey
from highwater.replica_manager.membership.strays import FIRST_PAUSE_MS
from highwater.replica_manager.partition.actions import Instruction
from highwater.replica_manager.replicas.metadata_cache import CachedPartition, CachedTopic, Endpoint, Term

from .etcd import Compare, Delete, Entry, Event, Put, Watch
from .scheduler import Future

if TYPE_CHECKING:
    from .replica_manager import ReplicaManagerProcess

Reply = Callable[[Any], None]
EPOCH_WAIT_MS = 2000
PIECE_PAUSE_MS = 3  # between two pieces of a request, less than this


class Control:
    def __init__(self, owner: ReplicaManagerProcess) -> None:
        self.owner = owner
        self.controller_epoch = 0
        self.shutting_down = False
        self.leaving_since = 0
        self.registration: BrokerRegistration | None = None
        self._registering = False
        self._due = True
        self.offline_log_reports = 0
        self._lease = 0
        self._epoch_changed = Future()
        self._requests: deque[Callable[[], Any]] = deque()  # instructions are taken one after the other
        self._busy = False
        self._live: dict[int, LiveBroker] = {}
        self._own_watch: Watch | None = None

    # Starting, registering, staying registered

    async def start(self) -> None:
        owner = self.owner
        etcd = owner.world.etcd
        while True:
            answer = await owner.etcd(etcd.get, (("controller_epoch",),))  # RULES 1.2
            if answer is not None:
                break
            await owner.sleep(200)
        (entry,), _ = answer
        self.controller_epoch = 0 if entry is None else entry.value
        owner.after(owner.world.settings.tick_ms, owner.tick)
        owner.after(owner.world.settings.checkpoint_ms, owner.checkpoint)
        owner.node.serve(owner)
        owner.spawn(self._watch_brokers())
        await self._register()

    async def _watch_brokers(self) -> None:
        owner = self.owner
        etcd = owner.world.etcd
        while (answer := await owner.etcd(etcd.list)) is None:
            await owner.sleep(200)
        entries, revision = answer
        self._live = {each.key[1]: _live(each) for each in entries if each.key[0] == "broker"}
        owner.replica_manager.brokers_changed(dict(self._live))
        etcd.watch(owner, lambda key: key[0] == "broker", self._brokers_seen, revision)

    def _brokers_seen(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.entry is None:
                self._live.pop(event.key[1], None)
            else:
                self._live[event.key[1]] = _live(event.entry)
        self.owner.replica_manager.brokers_changed(dict(self._live))

    def storage_seen(self, incarnation: str) -> None:
        replica_manager = self.owner.replica_manager
        if incarnation == replica_manager.log_storage_incarnation:
            return
        replica_manager.log_storage_restarted(incarnation)
        self.register_anew()

    def report_offline_logs(self) -> None:
        self.offline_log_reports += 1
        epoch, registration = self.owner.replica_manager.broker_epoch, self.registration
        if epoch is not None and registration is not None:
            self.owner.spawn(self._report(epoch, registration))

    async def _report(self, epoch: int, registration: BrokerRegistration) -> None:
        owner, etcd = self.owner, self.owner.world.etcd
        described = await owner.storage_client.call("on_describe")
        if described is not None and described[3]:  # RULES 7.2: etcd remembers it where the disk cannot
            put = (Put(("doubted", owner.replica_manager.broker_id), described[0]),)
            while await owner.etcd(etcd.txn, (), put) is None:
                await owner.sleep(100)
        await self._update(epoch, tail_lost=registration.tail_lost)

    def register_anew(self) -> None:
        self._due = True
        if not self._registering:
            self.owner.spawn(self._register())

    def lost(self) -> None:
        self.owner.world.note("registration lost", self.owner.replica_manager.broker_id)
        self.owner.replica_manager.registration_lost()
        self.register_anew()

    async def _register(self) -> None:
        self._registering = True
        while self._due:
            if not await self._register_once():
                self._due = True
                await self.owner.sleep(100)
        self._registering = False

    async def _register_once(self) -> bool:
        owner = self.owner
        replica_manager, storage, etcd = owner.replica_manager, owner.storage_client, owner.world.etcd
        key = ("broker", replica_manager.broker_id)
        described = await storage.call("on_describe")
        probed = await storage.call("on_probe")
        if described is None or probed is None:
            return False
        incarnation, tail_lost, _, _ = described
        self.storage_seen(incarnation)
        self.storage_seen(probed)
        self._due = False
        if probed != incarnation:
            return False
        replica_manager.registration_lost()
        self._let_go()
        found = await owner.etcd(etcd.get, (key, ("doubted", replica_manager.broker_id)))
        if found is None:
            return False
        doubt = self._doubt(found[0][1], incarnation)
        registration = BrokerRegistration(
            replica_manager.broker_id,
            f"b{replica_manager.broker_id}",
            owner.incarnation,
            incarnation,
            tail_lost=tail_lost or doubt is not None,
            shutting_down=self.shutting_down,
            leaving_since=self.leaving_since,
            offline_log_reports=self.offline_log_reports,
        )
        self._doubt_revision = 0 if doubt is None else doubt.mod_revision
        if found[0][0] is not None:
            # RULES 1.4: two transactions, or the create revision would stay.
            gone = await owner.etcd(etcd.txn, (Compare(key, "create", found[0][0].create_revision),), (Delete(key),))
            if gone is None:
                return False
        sent_ms = owner.now_ms
        lease = await owner.etcd(etcd.grant, owner.world.settings.session_ms)
        if lease is None:
            return False
        while True:
            result = await owner.etcd(etcd.txn, (Compare(key, "create", 0),), (Put(key, registration, lease),))
            if result is not None:
                break
            await owner.sleep(100)
        if result.succeeded:
            epoch = result.revision
        else:
            there = result.entries[key]
            if there is None or there.lease != lease:
                return False
            epoch = there.create_revision
        if self._due:
            return True  # log-storage restarted meanwhile; registered again at once
        self._hold(lease, epoch, registration, sent_ms)
        return True

    @staticmethod
    def _doubt(remembered: Any, incarnation: str) -> Any:
        """What etcd remembers of a disk that an earlier log-storage used (RULES 7.2)."""
        return None if remembered is None or remembered.value == incarnation else remembered

    def _hold(self, lease: int, epoch: int, registration: BrokerRegistration, sent_ms: int) -> None:
        owner = self.owner
        owner.world.note("registered", owner.replica_manager.broker_id, epoch, registration.tail_lost)
        self._lease = lease
        self.registration = registration
        owner.confirmed_until_ms = sent_ms + owner.world.settings.session_ms
        key = ("broker", owner.replica_manager.broker_id)

        def seen(events: Sequence[Event]) -> None:
            if any(event.entry is None or event.entry.create_revision != epoch for event in events):
                self._let_go()
                self.lost()

        self._own_watch = owner.world.etcd.watch(owner, lambda each: each == key, seen, epoch)
        owner.spawn(self._keep_alive(lease))
        owner.replica_manager.registered(epoch)
        changed, self._epoch_changed = self._epoch_changed, Future()
        changed.set()
        owner.spawn(self._after_registration(registration, epoch))

    def _let_go(self) -> None:
        self._lease = 0
        if self._own_watch is not None:
            self._own_watch.closed = True
            self._own_watch = None

    async def _keep_alive(self, lease: int) -> None:
        owner = self.owner
        session_ms = owner.world.settings.session_ms
        await owner.sleep(session_ms // 3)
        while self._lease == lease:
            pause_ms = session_ms // 12
            incarnation = await owner.storage_client.call("on_probe")
            if incarnation is not None:  # RULES 8.2
                self.storage_seen(incarnation)
                sent_ms = owner.now_ms
                kept = await owner.etcd(owner.world.etcd.keep_alive, lease)
                if self._lease != lease:
                    return
                if kept is False:
                    self._let_go()
                    self.lost()
                    return
                if kept:
                    owner.confirmed_until_ms = sent_ms + session_ms
                    pause_ms = session_ms // 3
            await owner.sleep(pause_ms)

    async def _after_registration(self, registration: BrokerRegistration, epoch: int) -> None:
        """RULES 7.2, 9.2: what is lost is noted by the controller before the boot is recorded; strays go."""
        owner = self.owner
        etcd, broker_id = owner.world.etcd, owner.replica_manager.broker_id
        await self._delete_strays()
        while registration.tail_lost:
            answer = await owner.etcd(etcd.get, (("tail", broker_id),))
            if owner.replica_manager.broker_epoch != epoch:
                return
            if answer is not None and answer[0][0] is not None and answer[0][0].value == epoch:
                break
            await owner.sleep(300)
        if registration.tail_lost and not await self._update(epoch, tail_lost=False):
            return
        doubt_revision = self._doubt_revision
        if owner.replica_manager.broker_epoch == epoch:
            recorded = await owner.storage_client.call("on_record_boot", registration.log_storage_incarnation)
            if recorded == registration.log_storage_incarnation and doubt_revision:
                key = ("doubted", broker_id)
                await owner.etcd(etcd.txn, (Compare(key, "mod", doubt_revision),), (Delete(key),))

    async def _update(self, epoch: int, *, tail_lost: bool) -> bool:
        """Writes the registration anew under the same broker epoch and lease."""
        owner = self.owner
        key = ("broker", owner.replica_manager.broker_id)
        while self._lease and self.registration is not None:
            changed = BrokerRegistration(
                self.registration.broker_id,
                self.registration.address,
                self.registration.incarnation,
                self.registration.log_storage_incarnation,
                tail_lost=tail_lost,
                shutting_down=self.shutting_down,
                leaving_since=self.leaving_since,
                offline_log_reports=self.offline_log_reports,
            )
            result = await owner.etcd(
                owner.world.etcd.txn, (Compare(key, "create", epoch),), (Put(key, changed, self._lease),)
            )
            if result is not None:
                if result.succeeded:
                    self.registration = changed
                    if changed.shutting_down and not self.leaving_since:
                        self.leaving_since = result.revision
                return bool(result.succeeded)
            await owner.sleep(100)
        return False

    async def shut_down(self) -> bool:
        """As `controlled_shutdown.py`. Tells whether the controller has let it go; else the time is up, or it is not
        registered."""
        owner = self.owner
        self.shutting_down = True
        deadline_ms = owner.now_ms + owner.world.settings.shutdown_wait_ms
        epoch = owner.replica_manager.broker_epoch
        if epoch is not None and self.registration is not None:
            await self._update(epoch, tail_lost=self.registration.tail_lost)
        while owner.now_ms < deadline_ms and owner.replica_manager.broker_epoch is not None:
            request = (owner.replica_manager.broker_id, owner.replica_manager.broker_epoch)
            remaining = await owner.world.ask_controller(owner, "on_shut_down", *request)
            if remaining == 0:
                return True
            await owner.sleep(100)
        return False

    async def deregister(self) -> None:
        lease = self._lease
        self._let_go()
        self.owner.replica_manager.registration_lost()
        if lease:
            await self.owner.etcd(self.owner.world.etcd.revoke, lease)

    # Instructions

    def on_leader_and_isr(
        self,
        reply: Reply,
        controller_epoch: int,
        broker_epoch: int,
        instructions: Sequence[Any],
        brokers: Sequence[Any],
    ) -> None:
        self._take(lambda: self._leader_and_isr(reply, controller_epoch, broker_epoch, instructions, brokers))

    def on_stop_replica(self, reply: Reply, controller_epoch: int, broker_epoch: int, stops: Sequence[Any]) -> None:
        self._take(lambda: self._stop_replica(reply, controller_epoch, broker_epoch, stops))

    def on_update_metadata(self, *request: Any) -> None:
        self.owner.spawn(self._update_metadata(*request))

    async def _update_metadata(
        self,
        reply: Reply,
        controller_epoch: int,
        sequence: int,
        brokers: Sequence[Any],
        topics: Sequence[CachedTopic],
        full: bool,
        deleted: Sequence[Any],
    ) -> None:
        await self._pause()  # it is read in pieces; others may overtake it
        groups = self.owner.world.settings.groups
        if groups is not None and groups.metadata_lag_ms:
            await self.owner.sleep(int(self.owner.random() * groups.metadata_lag_ms))
        if self._is_deposed(controller_epoch):
            reply(ErrorCode.STALE_CONTROLLER_EPOCH)
            return
        if not self.owner.replica_manager.metadata.in_order(controller_epoch, sequence):
            reply(ErrorCode.REQUEST_TIMED_OUT)
            return
        self.owner.replica_manager.learn_brokers(_endpoints(brokers))
        replica_manager = self.owner.replica_manager
        replica_manager.metadata.update(topics, full=full, deleted=deleted, term=self._term)
        if full and any(replica_manager.metadata.by_id(key.topic_id) is None for key in replica_manager.hosted):
            self.owner.spawn(self._delete_strays())
        reply(ErrorCode.NONE)

    def _take(self, request: Callable[[], Any]) -> None:
        self._requests.append(request)
        if not self._busy:
            self._busy = True
            self.owner.spawn(self._work())

    async def _work(self) -> None:
        while self._requests:
            await self._requests.popleft()()
        self._busy = False

    async def _pause(self) -> None:
        """Between two pieces of a request: others have their turn."""
        await self.owner.sleep(int(self.owner.random() * PIECE_PAUSE_MS))

    def _stale(self, controller_epoch: int, broker_epoch: int) -> ErrorCode:
        if self._is_deposed(controller_epoch):
            return ErrorCode.STALE_CONTROLLER_EPOCH
        registered = self.owner.replica_manager.broker_epoch == broker_epoch
        return ErrorCode.NONE if registered else ErrorCode.STALE_BROKER_EPOCH

    def _is_deposed(self, controller_epoch: int) -> bool:
        if controller_epoch < self.controller_epoch:
            return True
        self.controller_epoch = controller_epoch
        return False

    async def _refusal(self, controller_epoch: int, broker_epoch: int) -> ErrorCode:
        if self._is_deposed(controller_epoch):
            return ErrorCode.STALE_CONTROLLER_EPOCH
        replica_manager = self.owner.replica_manager
        deadline_ms = self.owner.now_ms + EPOCH_WAIT_MS
        while replica_manager.broker_epoch is None or replica_manager.broker_epoch < broker_epoch:
            changed = self._epoch_changed
            self.owner.after(max(deadline_ms - self.owner.now_ms, 0), changed.set)
            await changed
            if changed is self._epoch_changed:
                self._epoch_changed = Future()
                if self.owner.now_ms >= deadline_ms:
                    return ErrorCode.STALE_BROKER_EPOCH
        return self._stale(controller_epoch, broker_epoch)

    async def _leader_and_isr(
        self,
        reply: Reply,
        controller_epoch: int,
        broker_epoch: int,
        instructions: Sequence[Any],
        brokers: Sequence[Any],
    ) -> None:
        owner, replica_manager = self.owner, self.owner.replica_manager
        error = await self._refusal(controller_epoch, broker_epoch)
        if error is not ErrorCode.NONE:
            reply((error, {}))
            return
        replica_manager.learn_brokers(_endpoints(brokers))
        created = [await self._create_log(each) for each in instructions]
        errors: list[ErrorCode] = []
        for instruction, made in zip(instructions, created, strict=True):
            if errors:
                await self._pause()
            error = self._stale(controller_epoch, broker_epoch)
            if error is not ErrorCode.NONE:
                reply((error, {}))
                return
            owner.world.history.instructed(owner.incarnation, controller_epoch)
            errors.append(self._instruct(instruction, made))
        owner.spawn(self._answer(reply, instructions, errors))

    async def _create_log(self, instruction: Any) -> ErrorCode:
        replica_manager = self.owner.replica_manager
        key, name = instruction.key, instruction.topic
        if key in replica_manager.damaged_logs:
            try:
                minimum = replica_manager.topic_config(instruction.config).min_insync_replicas
                fewest = fewest_sound(minimum, instruction.replicas)
                trouble = await replica_manager.damaged_logs.mend(name, key, instruction.versioned.state, fewest)
            except StorageUnavailableError:
                return ErrorCode.LOG_STORAGE_ERROR
            if trouble is not None:
                return trouble.code
        if replica_manager.broker_id not in instruction.replicas or key in replica_manager.hosted:
            return ErrorCode.NONE
        error = await self._create(name, key)
        if error is not ErrorCode.INCONSISTENT_TOPIC_ID:
            return error
        described = await self.owner.storage_client.call("on_describe")
        if described is None:
            return ErrorCode.LOG_STORAGE_ERROR
        earlier = [k for k, topic in described[2] if topic == name and k.partition == key.partition and k != key]
        for old in earlier:
            replica_manager.evict(old)
        await self.purge(earlier)
        return await self._create(name, key)

    async def _create(self, name: str, key: PartitionKey) -> ErrorCode:
        answer = await self.owner.storage_client.call(
            "on_create", name, key, self.owner.world.settings.topic_flush_messages
        )
        if answer is None:
            return ErrorCode.LOG_STORAGE_ERROR
        self.storage_seen(answer[1])
        return answer[0]  # type: ignore[no-any-return]

    @property
    def _term(self) -> Term:
        assert self.controller_epoch is not None
        return Term(self.controller_epoch, self.owner.replica_manager.broker_epoch)

    def _instruct(self, instruction: Any, created: ErrorCode) -> ErrorCode:
        owner, replica_manager = self.owner, self.owner.replica_manager
        key, state = instruction.key, instruction.versioned
        partition = CachedPartition(state.state, state.revision, instruction.replicas)
        topic = CachedTopic(instruction.topic, key.topic_id, instruction.config, {key.partition: partition})
        replica_manager.metadata.learn([topic], self._term)
        if created is not ErrorCode.NONE:
            return created
        if key not in replica_manager.hosted and replica_manager.broker_id not in instruction.replicas:
            return ErrorCode.REPLICA_NOT_ASSIGNED
        hosted = replica_manager.host(key, instruction.topic, instruction.config)
        minimum = instruction.config.get("min.insync.replicas")
        error, actions = hosted.partition.instruct(
            Instruction(state, instruction.replicas, None if minimum is None else hosted.config.min_insync_replicas),
            owner.now_ms,
        )
        replica_manager.perform(hosted, actions)
        return error

    async def _answer(self, reply: Reply, instructions: Sequence[Any], errors: Sequence[ErrorCode]) -> None:
        outcomes = {}
        for instruction, error in zip(instructions, errors, strict=True):
            hosted = self.owner.replica_manager.hosted.get(instruction.key)
            tail = (-1, -1)
            outcome = error
            if error is ErrorCode.NONE and hosted is not None:
                if hosted.fencing is not None:
                    outcome = (await hosted.fencing).error  # type: ignore[misc]
                tail = hosted.log_tail
            condition = self.owner.replica_manager.condition(instruction.key, outcome)
            outcomes[instruction.key] = (condition.error, tail, condition.offline, condition.damaged)
        reply((ErrorCode.NONE, outcomes))

    async def _stop_replica(self, reply: Reply, controller_epoch: int, broker_epoch: int, stops: Sequence[Any]) -> None:
        error = await self._refusal(controller_epoch, broker_epoch)
        if error is not ErrorCode.NONE:
            reply((error, {}))
            return
        replica_manager = self.owner.replica_manager
        outcomes: dict[PartitionKey, ErrorCode] = {}
        for stop in stops:
            hosted = replica_manager.hosted.get(stop.key)
            if hosted is not None and 0 <= stop.leader_epoch < hosted.partition.leader_epoch:
                outcomes[stop.key] = ErrorCode.FENCED_LEADER_EPOCH
            else:
                replica_manager.evict(stop.key)
        doomed = [stop.key for stop in stops if stop.delete_log and stop.key not in outcomes]
        purged = await self.purge(doomed)
        if ErrorCode.LOG_STORAGE_ERROR in purged.values():
            self.owner.spawn(self._delete_strays())
        reply((ErrorCode.NONE, {**outcomes, **purged}))

    # Deleting logs (RULES 9.3)

    async def purge(self, wanted: Sequence[PartitionKey]) -> Mapping[PartitionKey, ErrorCode]:
        owner = self.owner
        answer = await owner.etcd(owner.world.etcd.list) if wanted else None
        if answer is None:
            return dict.fromkeys(wanted, ErrorCode.LOG_STORAGE_ERROR)
        entries = answer[0]
        topics = {each.value.topic_id: each.value for each in entries if each.key[0] == "topic"}
        marked = {each.value for each in entries if each.key[0] == "marker"}
        outcomes = {}
        for key in wanted:
            if key.topic_id in topics and key.topic_id not in marked:
                outcomes[key] = ErrorCode.INVALID_REQUEST  # assignments do not change here: it is ours
                continue
            owner.replica_manager.evict(key)
            deleted = await owner.storage_client.call("on_delete", key, -1)
            outcomes[key] = ErrorCode.LOG_STORAGE_ERROR if deleted is None else deleted[0]
        return outcomes

    async def _delete_strays(self) -> None:
        """Where some remain it is tried again, as `Strays` does (RULES 9.2)."""
        described = await self.owner.storage_client.call("on_describe")
        remain = described is None
        if described is not None:
            hosted = list(self.owner.replica_manager.hosted)
            outcomes = await self.purge([*(key for key, _ in described[2] if key not in hosted), *hosted])
            remain = ErrorCode.LOG_STORAGE_ERROR in outcomes.values()
        if remain:
            self.owner.after(FIRST_PAUSE_MS, lambda: self.owner.spawn(self._delete_strays()))


def _live(entry: Entry) -> LiveBroker:
    return LiveBroker(entry.value, entry.create_revision)


def _endpoints(brokers: Sequence[LiveBroker]) -> list[Endpoint]:
    return [
        Endpoint(live.registration.broker_id, live.broker_epoch, live.registration.address, live.registration.rack)
        for live in brokers
    ]

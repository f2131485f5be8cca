"""This broker's registration, and what it hangs on: log-storage's incarnation, lease, tail (RULES 1.4, 7.2, 8)."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from highwater.errors import UserError
from highwater.log_storage_client.values import Description, StorageUnavailableError
from highwater.metadata.leases.leased_key import boottime_ms
from highwater.metadata.leases.registration import BrokerRegistrar
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import BrokerRegistration
from highwater.metadata.schema.reading import CorruptMetadataError, counter, readable
from highwater.metadata.state.brokers import read_addresses
from highwater.metadata.state.cluster_id import ensure_cluster_id
from highwater.metadata.state.doubted_dirs import doubted_dirs, forget_doubted, remember_doubted
from highwater.metadata.store.etcd_errors import StoreError
from highwater.metadata.store.store import Store
from highwater.replica_manager.replicas.replica_manager import ReplicaManager
from highwater.rpc.listeners import with_tls
from highwater.supervision import TaskSupervisor
from highwater.telemetry.log import get_logger, pairs

logger = get_logger("replica_manager.liveness")

RETRY_S = 0.1
LONGEST_RETRY_S = 10.0
TAIL_POLL_S = 0.5
# How long an instruction waits for a registration that the controller saw before this broker heard of it itself.
EPOCH_WAIT_S = 2.0
LEASES_WAITED_FOR = 2  # session timeouts: etcd may have given a lease its whole time once more


class _AddressTakenError(Exception):
    """Another broker is registered with one of this broker's addresses."""


class Liveness:
    """Registers, and registers anew whenever the registration is lost or log-storage restarts; until then nothing is
    led.

    `listeners` tells the advertised addresses by name, which are known once the ports are bound. `registered` is called
    after each registration, `failed` where it cannot go on: another process has taken this broker id
    (`DuplicateBrokerIdError`), another broker has one of the addresses, the logs are another cluster's (`UserError`).
    """

    def __init__(
        self,
        replica_manager: ReplicaManager,
        store: Store,
        keys: Keys,
        *,
        listeners: Callable[[], Mapping[str, str]],
        internal_listener: str,
        internal_speaks_tls: bool = False,
        host_address: str = "",
        rack: str,
        session_timeout_ms: int,
        registered: Callable[[], None],
        failed: Callable[[Exception], None],
        supervisor: TaskSupervisor | None = None,
    ) -> None:
        self._replica_manager = replica_manager
        self._store = store
        self._keys = keys
        self._listeners = listeners
        self._internal_listener = internal_listener
        self._internal_speaks_tls = internal_speaks_tls
        self._host_address = host_address
        self._rack = rack
        self._session_timeout_ms = session_timeout_ms
        self._registered = registered
        self._failed = failed
        self._supervisor = supervisor or TaskSupervisor()
        self._registrar = BrokerRegistrar(
            store, keys, session_timeout_ms=session_timeout_ms, probe=self._probe, on_lost=self._lost
        )
        self.cluster_id = ""  # the one that the logs belong to; empty before the first registration
        self.logs_opening = False  # log-storage says so; while this broker is not registered
        self._asking: asyncio.Task[None] | None = None  # whether it is so
        self.has_registered = False  # at some time: others know of this start of the broker
        self._due = asyncio.Event()
        self._due.set()
        self._epoch_changed = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._tail: asyncio.Task[None] | None = None
        self._shutting_down = False
        self._leaving_since = 0  # when the registration was marked; every later one says so, too
        self._updating = asyncio.Lock()  # each update is made from what the one before it wrote
        self._offline_log_reports = 0
        self._reports_due = asyncio.Event()
        self._reporting: asyncio.Task[None] | None = None
        self._doubted: set[str] = set()  # log directories of which etcd may not know it yet
        self._writing_doubted = asyncio.Lock()

    def lease_confirmed(self) -> bool:
        """RULES 8.1: whether the lease was confirmed within its TTL."""
        return boottime_ms() < self._registrar.confirmed_until_ms

    async def await_registration(self, broker_epoch: int) -> None:
        """Returns once this broker knows itself registered under `broker_epoch` or a higher one, or after
        `EPOCH_WAIT_S`: the controller may see a registration before the answer to it arrives here."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + EPOCH_WAIT_S
        while self._replica_manager.broker_epoch is None or self._replica_manager.broker_epoch < broker_epoch:
            try:
                async with asyncio.timeout_at(deadline):
                    await self._epoch_changed.wait()
            except TimeoutError:
                return

    def start(self) -> None:
        # Who does not know whether it is registered cannot go on: where this ends by an error, the process does.
        self._running = self._supervisor.run_once("liveness", self._run, self._failed)
        self._reporting = self._supervisor.run_forever("offline-log-reports", self._report)

    async def announce_shutdown(self) -> None:
        """Marks the registration: no election will choose this broker, no ISR will take it in (RULES 5.6, 7.1)."""
        self._shutting_down = True
        await self._mark()

    async def _mark(self) -> None:
        if await self._update(shutting_down=True):
            self._leaving_since = self._registrar.updated_at

    def register_anew(self) -> None:
        """Under a new broker epoch, so that nothing that was sent under the present one can bring a replica back into
        an ISR (RULES 2.3, 7.6). What is led is led no more."""
        self._lost()

    def report_offline_logs(self) -> None:
        """More logs are offline: the controller asks for them when it sees the registration change (RULES 7.7)."""
        self._offline_log_reports += 1
        self._reports_due.set()

    async def _report(self) -> None:
        heard = 0  # reports that log-storage was asked for: it tells of all its logs, which is not repeated for etcd
        while True:
            await self._reports_due.wait()
            self._reports_due.clear()
            try:
                reports = self._offline_log_reports
                if heard != reports:
                    await self._hear_doubted()
                    heard = reports
                await self._write_doubted()
                await self._update(offline_log_reports=reports)
            except (StoreError, StorageUnavailableError) as error:
                logger.warning("offline logs are not reported yet: %s", error)
                self._reports_due.set()
                await asyncio.sleep(RETRY_S)

    async def _hear_doubted(self) -> None:
        """Before the controller acts on what is offline: a directory whose disk has lost what was written remembers it
        where it can, and etcd where it cannot (RULES 7.2). Raises `StorageUnavailableError` where log-storage does not
        say which."""
        described = await self._replica_manager.storage.describe()
        told = described.doubted_dirs - {""}
        self._doubted |= told
        # Before etcd is asked, which may fail: a registration waits for it, and the present log-storage does not know.
        if told and described.incarnation != self._replica_manager.log_storage_incarnation:
            self.register_anew()  # the present one may have registered before this could be known

    async def _write_doubted(self) -> None:
        """Kept until etcd has it: the incarnation of log-storage that said so may be gone by then, and the next one
        does not know. Raises `StoreError`."""
        async with self._writing_doubted:
            written = frozenset(self._doubted)
            await remember_doubted(self._store, self._keys, written)
            self._doubted -= written

    async def _update(self, **changes: Any) -> bool:
        """Tells whether the registration, if there is one, has these fields now."""
        async with self._updating:
            registration = self._registrar.registration
            if registration is None:
                return False
            return await self._registrar.update(replace(registration, leaving_since=self._leaving_since, **changes))

    async def _ordinary(self, broker_epoch: int) -> bool:
        """Tells whether the registration under this broker epoch says no more that a tail is lost."""
        async with self._updating:
            registration = self._registrar.registration
            if registration is None or self._registrar.broker_epoch != broker_epoch:
                return False
            return await self._registrar.update(
                replace(registration, leaving_since=self._leaving_since, tail_lost=False)
            )

    async def stop(self, *, deregister: bool) -> None:
        for task in (self._running, self._tail, self._reporting, self._asking):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if deregister:
            await self._registrar.deregister()
        else:
            await self._registrar.close()

    def log_storage_seen(self, incarnation: str) -> None:
        """Some answer of log-storage came from this incarnation."""
        known = self._replica_manager.log_storage_incarnation
        if incarnation == known:
            return
        if known:
            logger.warning("log-storage restarted: registering anew %s", pairs(incarnation=incarnation))
        # RULES 1.4, 3.5: what was led under the old incarnation is led no more.
        self._replica_manager.log_storage_restarted(incarnation)
        if self._tail is not None:
            self._tail.cancel()  # what a start has found is not settled by what was settled before it
        self._due.set()

    def _lost(self) -> None:
        self._due.set()  # first: were there a mistake in what follows, the broker would stay unregistered
        self._replica_manager.registration_lost()

    async def _probe(self) -> None:
        await self._replica_manager.appends.probe(self._session_timeout_ms / 2000)

    async def _run(self) -> None:
        taken_since_ms: int | None = None
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                await self._register()
                taken_since_ms = None
            except _AddressTakenError as error:
                # What a process that was killed has left behind ends with its lease: that long it is waited for.
                now_ms = boottime_ms()
                if taken_since_ms is None:
                    logger.warning("cannot register yet: %s", error)
                    taken_since_ms = now_ms
                if now_ms - taken_since_ms > LEASES_WAITED_FOR * self._session_timeout_ms:
                    self._replica_manager.registration_lost()
                    raise UserError(str(error)) from None
                self._due.set()
                await asyncio.sleep(RETRY_S)
            except (StorageUnavailableError, StoreError) as error:
                logger.warning("cannot register yet: %s", error)
                if self._asking is None or self._asking.done():
                    self._asking = self._supervisor.run_once("log-storage-opening", self._ask_whether_logs_open)
                self._due.set()
                await asyncio.sleep(RETRY_S)
            except Exception:  # `DuplicateBrokerIdError`, `UserError`, or a mistake of ours
                self._replica_manager.registration_lost()
                raise

    async def _ask_whether_logs_open(self) -> None:
        with contextlib.suppress(StorageUnavailableError):
            self.logs_opening = await self._replica_manager.storage.is_opening()

    async def _register(self) -> None:
        # Through the append loop, not only beside it: what is registered can be written to (RULES 8.2). And first:
        # while log-storage opens its logs it does not know yet whether their tails are lost.
        incarnation = await self._replica_manager.appends.probe(self._session_timeout_ms / 2000)
        self._due.clear()  # the answer was shown to `log_storage_seen`; what is set from now on is heeded
        # In this order: etcd has what an earlier incarnation has said; what a present disk is told to have lost stands
        # in the description, and is not settled by this.
        await self._write_doubted()
        doubted = await doubted_dirs(self._store, self._keys)
        described = await self._replica_manager.storage.describe()
        doubted = {directory_id: doubted[directory_id] for directory_id in described.sound_dirs & doubted.keys()}
        # Those who had been told of the others may have stopped before etcd was: offline logs are reported once.
        self._doubted |= described.doubted_dirs - {""}
        await self._write_doubted()
        await self._settle_cluster(described)
        # A later one may have been shown to it, too, while thousands of logs were read, or etcd was asked.
        if not incarnation == described.incarnation == self._replica_manager.log_storage_incarnation:
            raise StorageUnavailableError("log-storage restarted between two answers")
        if self._due.is_set():
            return  # what an earlier incarnation has said of a directory was heard after etcd was asked for it, say
        self._replica_manager.registration_lost()
        listeners = dict(self._listeners())
        await self._check_addresses(listeners, before=None)
        registration = BrokerRegistration(
            broker_id=self._replica_manager.broker_id,
            address=with_tls(listeners[self._internal_listener])
            if self._internal_speaks_tls
            else listeners[self._internal_listener],
            host_address=self._host_address,
            incarnation=self._replica_manager.incarnation,
            log_storage_incarnation=incarnation,
            rack=self._rack,
            tail_lost=described.tail_lost or bool(doubted),
            shutting_down=self._shutting_down,
            leaving_since=self._leaving_since,
            offline_log_reports=self._offline_log_reports,
            listeners=listeners,
        )
        broker_epoch = await self._registrar.register(registration)
        try:
            # Of two that register at once each sees itself alone before, and the later one not after it has.
            await self._check_addresses(listeners, before=broker_epoch)
        except (_AddressTakenError, StoreError):
            await self._registrar.deregister()
            raise
        self.has_registered = True
        if self._shutting_down and not registration.shutting_down:
            await self._mark()  # it was announced while this was on its way
        if self._due.is_set():
            return  # log-storage restarted meanwhile: this registration speaks of an incarnation that is gone
        self._replica_manager.registered(broker_epoch)
        self._epoch_changed.set()
        self._epoch_changed = asyncio.Event()
        self._registered()
        if self._tail is not None:
            self._tail.cancel()
        self._tail = self._supervisor.run_once("tail", lambda: self._settle_tail(registration, broker_epoch, doubted))

    async def _check_addresses(self, listeners: Mapping[str, str], *, before: int | None) -> None:
        """Raises `_AddressTakenError` where another broker, registered before that broker epoch (None: at all), has one
        of these addresses."""
        for other_id, (broker_epoch, others) in (await read_addresses(self._store, self._keys)).items():
            if other_id == self._replica_manager.broker_id or (before is not None and broker_epoch > before):
                continue
            for name, address in listeners.items():
                if address in others:
                    raise _AddressTakenError(
                        f"broker {other_id} is registered at {address} already, which is this broker's address of "
                        f"listener {name}: give every broker addresses of its own in advertised.listeners"
                    )

    async def _settle_cluster(self, described: Description) -> None:
        """The logs belong to one cluster, for good: etcd's present one where they belong to none yet (RULES 9.3)."""
        try:
            cluster_id = await ensure_cluster_id(self._store, self._keys, str(uuid.uuid4()))
        except CorruptMetadataError as error:
            # The logs say whose they are, where they agree; those that do not yet are told at a later start.
            logger.error("%s; everything else is served", error)
            known = described.cluster_ids - {""}
            self.cluster_id = min(known) if len(known) == 1 else ""
            return
        strange = described.cluster_ids - {"", cluster_id}
        if strange:
            raise UserError(
                f"the log directories belong to cluster {min(strange)} and etcd holds cluster {cluster_id}: "
                "point the broker at its own etcd, or make its metadata again (docs/operations.md, Restoring etcd)"
            )
        if "" in described.cluster_ids:
            await self._replica_manager.storage.record_cluster(cluster_id)
        self.cluster_id = cluster_id

    async def _settle_tail(
        self, registration: BrokerRegistration, broker_epoch: int, doubted: Mapping[str, int]
    ) -> None:
        """RULES 7.2: once the registration is ordinary, and only then, the present boot is recorded as the last one
        that used the log directories, and etcd forgets which had been in doubt. Tries until it is, or until this
        registration has ended."""
        pause_s = RETRY_S
        while True:
            try:
                if registration.tail_lost:
                    await self._tail_settled(broker_epoch)
                if registration.tail_lost and not await self._ordinary(broker_epoch):
                    return
                await self._replica_manager.storage.record_boot(registration.log_storage_incarnation)
                await forget_doubted(self._store, self._keys, doubted)
                return
            except (StorageUnavailableError, StoreError) as error:
                logger.warning(
                    "the boot is not recorded yet, a start before it is may count as a lost tail %s",
                    pairs(error=error, retry_in_s=pause_s),
                )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_RETRY_S)

    async def _tail_settled(self, broker_epoch: int) -> None:
        """Returns once the controller has taken this broker out of what its lost tail touches."""
        while True:
            with contextlib.suppress(StoreError):
                entry = await self._store.get(self._keys.broker_tail(self._replica_manager.broker_id))
                if entry is not None and readable(entry, counter) == broker_epoch:
                    return
            await asyncio.sleep(TAIL_POLL_S)

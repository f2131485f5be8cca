"""What goes wrong, one fault after the other, as often as the seed's settings say. Each ends by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from highwater.groups.group_partition import OFFSETS_TOPIC
from highwater.metadata.schema.models import PartitionState
from highwater.model.partition import PartitionKey

from .controllers import Controller
from .etcd import ETCD, Put
from .scheduler import Process

if TYPE_CHECKING:
    from .world import Node, World


class Faults:
    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.scheduler.random
        self._over = False
        self._stranded: Node | None = None
        self.drained = 0  # brokers that were shut down and stopped because they might

    def begin(self) -> None:
        self._world.scheduler.after(800, self._next)

    def end(self) -> None:
        self._over = True

    def _next(self) -> None:
        settings = self._world.settings
        if self._over or not settings.weights:
            return
        names = list(settings.weights)
        fault = self._random.choices(names, list(settings.weights.values()))[0]
        self.inflict(fault)
        self._later(int(self._random.expovariate(1 / settings.fault_gap_ms)) + 1, self._next)

    def inflict(self, fault: str) -> None:
        getattr(self, "_" + fault.replace(" ", "_"))()

    def _later(self, delay_ms: int, run: Callable[..., Any], *args: Any) -> None:
        self._world.scheduler.after(delay_ms, self._unless_over, run, args)

    def _unless_over(self, run: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if not self._over:
            run(*args)

    def _outage_ms(self) -> int:
        return 1 + int(self._random.expovariate(1 / self._world.settings.outage_ms))

    def _node(self) -> Node:
        return self._random.choice(list(self._world.nodes.values()))

    def _say(self, *what: Any) -> None:
        self._world.note("FAULT", *what)

    # Processes

    def _kill_manager(self) -> None:
        self.kill_manager(self._node())

    def kill_manager(self, node: Node) -> None:
        if self._over:
            return
        if node.manager is not None and not node.held:
            self._say("kill manager", node.broker_id)
            node.manager.kill()
            self._later(self._outage_ms(), self._start, node, node.start_manager)

    def _kill_storage(self) -> None:
        node = self._node()
        if node.storage is not None and not node.held:
            self._say("kill storage", node.broker_id)
            node.storage.kill()
            self._later(self._outage_ms() // 2, self._start, node, node.start_storage)

    def _kill_fetcher(self) -> None:
        node = self._node()
        if node.fetcher is not None and not node.held:
            self._say("kill fetcher", node.broker_id)
            node.fetcher.kill()
            self._later(self._outage_ms() // 2, self._start, node, node.start_fetcher)

    def _start(self, node: Node, start: Callable[[], None]) -> None:
        if not node.held:
            start()

    def _kill_broker(self) -> None:
        node = self._node()
        if not node.held:
            self._say("kill broker", node.broker_id)
            node.kill()
            node.held = True
            self._later(self._outage_ms(), self._bring_back, node)

    def _bring_back(self, node: Node) -> None:
        node.held = False
        self._say("start broker", node.broker_id)
        node.start()

    def _lose_tail(self) -> None:
        """RULES 7.5: fewer than `min.insync.replicas`, 2 here, at a time."""
        world = self._world
        node = self._node()
        others = [each for each in world.nodes.values() if each is not node]
        if node.held or node.disk.tail_lost or not all(map(self._is_whole, others)):
            return
        self._say("lose tail", node.broker_id)
        world.network.dark.add(node.broker_id)
        node.kill()
        world.history.losing_tail(node.broker_id, world.etcd.revision)
        node.disk.lose_tail(self._random.random)
        node.held = True
        self._later(self._outage_ms() + 200, self._bring_back, node)

    def _fail_disk(self) -> None:
        """RULES 7.2: an operation ends with EIO, and what was not flushed is gone when log-storage is started again,
        under the same boot. As `lose tail` one at a time."""
        world = self._world
        node = self._node()
        storage = node.storage
        others = [each for each in world.nodes.values() if each is not node]
        if node.held or node.disk.tail_lost or storage is None or not storage.alive:
            return
        if not all(map(self._is_whole, others)):
            return
        remembers = self._random.random() < 0.3
        self._say("fail disk", node.broker_id, "remembers" if remembers else "forgets")
        node.disk.fail(remembers, self._world.etcd.revision)
        if self._random.random() < 0.7:
            for key in list(node.disk.logs):
                self._later(int(self._random.expovariate(1 / 300)), self._tell_offline, node, key)
        self._later(self._outage_ms(), self._start_storage_again, node, storage)

    def _strand(self) -> None:
        """A broker stands still while the others go on, and then is the only one there is: an unclean election across
        a large gap. The others follow it; once one of them is ahead of another it goes as well."""
        if self._stranded is not None or any(node.held for node in self._world.nodes.values()):
            return
        behind = self._stranded = self._node()
        self._say("strand", behind.broker_id)
        self._hold(behind)
        self._later(2000 + self._outage_ms(), self._strand_others, behind)

    def _hold(self, node: Node) -> None:
        if not node.held:
            node.kill()
            node.held = True

    def _strand_others(self, behind: Node) -> None:
        session_ms = self._world.settings.session_ms
        others = [node for node in self._world.nodes.values() if node is not behind and not node.held]
        self._say("strand others", [node.broker_id for node in others])
        for node in others:
            if self._random.random() < 0.7 and node.manager is not None and node.fetcher is not None:
                node.held = True  # but for its log-storage, which goes on knowing its high watermarks
                node.manager.kill()
                node.fetcher.kill()
            else:
                self._hold(node)
        self._bring_back(behind)
        self._when(partial(self._leads_unclean, behind), 4 * session_ms, self._follow_stranded, behind, others)

    def _follow_stranded(self, behind: Node, others: list[Node]) -> None:
        for node in others:
            self._later(int(self._random.random() * 100), self._bring_back, node)
        limit_ms = 1000 + self._world.settings.session_ms + 2 * self._outage_ms()
        self._when(partial(self._followed_unevenly, behind), limit_ms, self._end_stranded, behind)

    def _end_stranded(self, behind: Node) -> None:
        self._stranded = None
        self._kill_for_good(behind)

    def _when(self, holds: Callable[[], bool], limit_ms: int, run: Callable[..., Any], *args: Any) -> None:
        """At once where it holds, or as soon as it does; at the latest when the limit is over."""
        if limit_ms <= 0 or holds():
            run(*args)
        else:
            self._later(10, self._when, holds, limit_ms - 10, run, *args)

    def _led_unclean(self, node: Node) -> Iterator[tuple[PartitionKey, tuple[int, ...], PartitionState]]:
        """What it leads since the last unclean election, with the replicas in order of preference."""
        world = self._world
        for name, assignment in world.topics.items():
            for number, replicas in enumerate(assignment.replicas):
                entry = world.etcd.entries.get(("state", name, number))
                if entry is None or entry.value.leader != node.broker_id:
                    continue
                if entry.value.leader_epoch == entry.value.unclean_epoch:
                    yield PartitionKey(assignment.topic_id, number), replicas, entry.value

    def _leads_unclean(self, node: Node) -> bool:
        return any(self._led_unclean(node))

    def _followed_unevenly(self, leader: Node) -> bool:
        """Whether the member of the ISR that is elected next is ahead of another, as far as the disks go."""
        for key, replicas, state in self._led_unclean(leader):
            members = [self._world.nodes[each] for each in replicas if each in state.isr and each != leader.broker_id]
            ends = [node.disk.logs[key].log_end_offset for node in members if key in node.disk.logs and not node.held]
            if ends and ends[0] > min(ends):
                return True
        return False

    def _kill_for_good(self, node: Node) -> None:
        if not node.held:
            self._say("kill broker", node.broker_id)
            self._hold(node)
            self._later(2 * self._world.settings.session_ms, self._bring_back, node)

    def _damage_log(self) -> None:
        """RULES 7.6: a batch of a log is not what was written, as scrubbing finds. Where another member of the ISR has
        it, and is to go on having it, it cannot be read either, and may be met by that. (Nobody promises anything of
        what is damaged everywhere, nor where another one's tail is lost: RULES 7.5.)"""
        node = self._node()
        manager = node.server()
        if manager is None or node.storage is None or not node.storage.alive:
            return
        logs = [log for key, log in node.disk.logs.items() if log.batches and key in manager.replica_manager.hosted]
        if logs:
            log = self._random.choice(logs)
            offset = self._random.choice(log.batches).base_offset
            if self._has_sound_copy(node, log.key, offset):
                log.unreadable = offset
            elif any(
                each.disk.tail_lost or each.disk.logs[log.key].unreadable is not None for each in self._hosting(log.key)
            ):
                return
            self._say("damage", node.broker_id, log.key, offset, "" if log.unreadable is None else "unreadable")
            if log.unreadable is None or self._random.random() < 0.7:
                log.damaged_from = offset

    def _hosting(self, key: PartitionKey) -> list[Node]:
        return [node for node in self._world.nodes.values() if key in node.disk.logs]

    def _has_sound_copy(self, node: Node, key: PartitionKey, offset: int) -> bool:
        """Whether a member of the ISR has the batch there, as a committed one, and nothing that is damaged. It loses
        nothing as long as others are not whole."""
        state = self._world.history.states.get(key)
        if state is None or self._world.settings.unclean or key not in self._world.keys:
            return False
        others = [each for each in self._hosting(key) if each is not node and each.broker_id in state.isr]
        logs = [each.disk.logs[key] for each in others if not each.disk.tail_lost]
        return any(not log.is_damaged and log.high_watermark > offset for log in logs)

    def _late_appends(self) -> None:
        """RULES 3.4: an append stream lags and then breaks; what was on it lands after the fence that settles it."""
        node = self._node()
        stream = None
        if self._random.random() < 0.8:
            stream = None if node.manager is None else node.manager.storage_client.stream
        elif node.fetcher is not None:
            stream = node.fetcher.stream
        if stream is not None and not stream.broken:
            stream.lag_ms = 20 + int(self._random.expovariate(1 / 200))
            self._say("late appends", node.broker_id, stream.lag_ms)
            # Also when the faults are over: what is healed does not lag for ever.
            self._world.scheduler.after(int(self._random.random() * 2 * stream.lag_ms), stream.break_under_way)

    def _fail_log(self) -> None:
        """RULES 7.7: a log is offline, others of the broker are not, until log-storage is started again."""
        node = self._node()
        storage = node.storage
        if storage is None or not storage.alive or node.held or not node.disk.logs:
            return
        log = self._random.choice(list(node.disk.logs.values()))
        log.offline = True
        self._say("fail log", node.broker_id, log.key)
        if self._random.random() < 0.7:  # the broker hears of it before anybody asks for the log
            self._later(int(self._random.expovariate(1 / 300)), self._tell_offline, node, log.key)
        self._later(self._outage_ms(), self._start_storage_again, node, storage)

    def _tell_offline(self, node: Node, key: PartitionKey) -> None:
        manager, log = node.server(), node.disk.logs.get(key)
        if manager is not None and log is not None and log.offline:
            manager.replica_manager.offline_logs.seen([key])

    def _start_storage_again(self, node: Node, storage: Process) -> None:
        if node.storage is storage and storage.alive and not node.held:
            self._say("start storage again", node.broker_id)
            storage.kill()
            node.start_storage()

    def _is_whole(self, node: Node) -> bool:
        """Whether it has again all that it may have lost."""
        world = self._world
        if node.disk.tail_lost or any(log.is_damaged for log in node.disk.logs.values()):
            return False
        for name, assignment in world.topics.items():
            for number, replicas in enumerate(assignment.replicas):
                entry = world.etcd.entries.get(("state", name, number))
                if node.broker_id in replicas and (entry is None or node.broker_id in entry.value.lost):
                    return False
                if node.broker_id in replicas and entry is not None and node.broker_id not in entry.value.isr:
                    return False
        return True

    def _pause(self, what: str, processes: list[Process]) -> None:
        running = [process for process in processes if process.alive and not process.paused]
        if running:
            self._say(what, [process.name for process in running])
            for process in running:
                process.pause()
            self._later(self._outage_ms(), self._resume, running)

    def _resume(self, processes: list[Process]) -> None:
        for process in processes:
            if process.paused:
                process.resume()
        self._say("resumed", [process.name for process in processes])

    def _pause_broker(self) -> None:
        self._pause("pause", self._node().processes)

    def _pause_manager(self) -> None:
        manager = self._node().manager
        self._pause("pause", [] if manager is None else [manager])

    def _pause_storage(self) -> None:
        storage = self._node().storage
        self._pause("pause", [] if storage is None else [storage])

    def _pause_fetcher(self) -> None:
        fetcher = self._node().fetcher
        self._pause("pause", [] if fetcher is None else [fetcher])

    def _shut_down(self) -> None:
        """SIGTERM: leadership moves, then the processes stop in good order."""
        self._terminate(self._node())

    def _drain(self) -> None:
        """SIGTERM to two brokers at once (RULES 7.8)."""
        nodes = list(self._world.nodes.values())
        self._random.shuffle(nodes)
        for node in nodes[:2]:
            self._later(int(self._random.random() * 20), self._terminate, node)

    def _terminate(self, node: Node) -> None:
        if node.held or node.server() is None or node.storage is None or not node.storage.alive:
            return
        self._say("shut down", node.broker_id)
        node.held = True
        assert node.manager is not None
        node.manager.spawn(self._shutting_down(node))
        self._later(self._world.settings.shutdown_wait_ms + 5000, self._end_shutdown, node, node.manager)

    async def _shutting_down(self, node: Node) -> None:
        manager, storage = node.manager, node.storage
        assert manager is not None
        assert storage is not None
        self.drained += await manager.control.shut_down()
        await manager.control.deregister()
        self._say("stopped", node.broker_id)
        self._world.scheduler.after(0, self._end_shutdown, node, manager)

    def _end_shutdown(self, node: Node, manager: Process) -> None:
        if node.manager is not manager or not manager.alive or not node.held:
            return
        storage = node.storage
        if storage is not None and storage.alive and not storage.paused:
            storage.stop_cleanly()
        node.kill()
        self._later(self._outage_ms(), self._bring_back, node)

    # Network and etcd

    def _cut(self, what: str, pairs: list[tuple[int, int]]) -> None:
        if self._random.random() < 0.25:  # one way only
            side = int(self._random.random() * 2)
            pairs = pairs[side::2]
        self._say(what, pairs)
        network = self._world.network
        for pair in pairs:
            network.cut(*pair)
        self._later(self._outage_ms(), self._mend, pairs)

    def _mend(self, pairs: list[tuple[int, int]]) -> None:
        for pair in pairs:
            self._world.network.mend(*pair)
        self._say("mended", pairs)

    def _part_brokers(self) -> None:
        one, other = self._random.sample(list(self._world.nodes), 2)
        self._cut("part", [(one, other), (other, one)])

    def _part_from_etcd(self) -> None:
        place = self._random.choice([*self._world.nodes, *self._world.controllers])
        self._cut("part from etcd", [(place, ETCD), (ETCD, place)])

    def _part_from_controllers(self) -> None:
        broker_id = self._node().broker_id
        pairs = [pair for each in self._world.controllers for pair in ((broker_id, each), (each, broker_id))]
        self._cut("part from controllers", pairs)

    def _break_streams(self) -> None:
        """Within a machine, and without a process dying: what is under way may arrive after all."""
        node = self._node()
        client = None if node.manager is None else node.manager.storage_client
        for owner in (client, node.fetcher):
            stream = None if owner is None else owner.stream
            if stream is not None and self._random.random() < 0.7:
                self._say("break a stream to log-storage", node.broker_id, type(owner).__name__)
                stream.break_(10)

    def _isolate(self) -> None:
        broker_id = self._node().broker_id
        others = [*self._world.nodes, *self._world.controllers, ETCD]
        pairs = [pair for each in others if each != broker_id for pair in ((broker_id, each), (each, broker_id))]
        self._cut("isolate", pairs)

    def _stall_etcd(self) -> None:
        self._pause("stall", [self._world.etcd])

    def _fill_etcd(self) -> None:
        etcd = self._world.etcd
        if not etcd.full:
            self._say("etcd is full")
            etcd.full = True
            self._later(self._outage_ms(), self._free_etcd)

    def _free_etcd(self) -> None:
        self._world.etcd.full = False
        self._say("etcd has space")

    def _expire_token(self) -> None:
        place = self._random.choice([*self._world.nodes, *self._world.controllers])
        self._say("token expired", place)
        self._world.etcd.not_permitted.add(place)
        self._later(self._outage_ms(), self._renew_token, place)

    def _renew_token(self, place: int) -> None:
        self._world.etcd.not_permitted.discard(place)
        self._say("token renewed", place)

    def _change_configuration(self) -> None:
        """Between two minima that promise as much as the seed's does (RULES 7.5)."""
        world = self._world
        entry = world.etcd.entries.get(("config", self._random.choice(list(world.topics) or ["t0"])))
        if entry is not None:
            least = world.settings.min_insync_replicas
            minimum = self._random.choice([each for each in (least, least + 1) if each <= 3])
            changed = {**entry.value, "min.insync.replicas": str(minimum)}
            self._say("configuration", entry.key[1], changed)
            world.etcd.txn(world.admin, (), (Put(entry.key, changed),))

    def _throttle(self) -> None:
        self._world.throttles.change()

    def _late_writes(self) -> None:
        etcd, before = self._world.etcd, self._world.settings.late
        self._say("late writes")
        etcd.late = 0.5
        self._later(self._outage_ms(), setattr, etcd, "late", before)

    def _expire_lease(self) -> None:
        entry = self._world.etcd.entries.get(("broker", self._node().broker_id))
        if entry is not None:
            self._say("expire lease", entry.key[1])
            self._world.etcd.revoke(self._world.etcd, entry.lease)

    # Controllers and topics

    def _controller(self) -> Controller:
        return self._world.acting() or self._random.choice(list(self._world.controllers.values()))

    def _kill_controller(self) -> None:
        controller = self._controller()
        if controller.alive:
            self._say("kill controller", controller.place)
            controller.kill()
            self._later(self._outage_ms(), self._start_controller, controller.place)

    def _start_controller(self, place: int) -> None:
        self._world.controllers[place] = Controller(self._world, place, f"c{place}.{self._world.count()}")

    def _pause_controller(self) -> None:
        self._pause("pause", [self._controller()])

    def _lose_watch(self) -> None:
        controller = self._world.acting()
        if controller is not None and controller.active_controller is not None and not controller.paused:
            blind_ms = int(self._random.expovariate(1 / 300))
            self._say("lose watch", controller.place, blind_ms)
            controller.active_controller.lose_watch(blind_ms)

    def _prefer_leaders(self) -> None:
        controller = self._world.acting()
        if controller is not None and controller.active_controller is not None and not controller.paused:
            active_controller = controller.active_controller
            controller.after(0, partial(self._prefer, active_controller))

    def _prefer(self, active_controller: Any) -> None:
        if not active_controller.ended.is_done:
            active_controller.perform(active_controller.cluster.rebalance(0))

    def _recreate_topic(self) -> None:
        names = [name for name in self._world.topics if name != OFFSETS_TOPIC]
        self._world.delete_topic(self._random.choice(names or ["t0"]))

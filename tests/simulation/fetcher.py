"""The fetcher's process: the production `FetcherManager` and `Follower` of each partition, and the streams of
`replica_fetcher.py` with leaders and with the own log-storage."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from highwater.errors import ErrorCode
from highwater.fetcher.fetcher_manager import ChangesOfAnotherError, FetcherManager
from highwater.fetcher.follower import actions as act
from highwater.fetcher.follower.fetch_order import FetchOrder
from highwater.fetcher.follower.follower import Follower
from highwater.fetcher.follower.following import FetcherId, LeaderEndpoint
from highwater.fetcher.wire import from_following
from highwater.model.fence_role import Role
from highwater.model.named_places import NamedPlaces, NamedRequest
from highwater.model.partition import PartitionKey
from highwater.replica_manager.replicas.following import Followed
from highwater.replica_manager.responses.fetch_parts import FetchedPart
from highwater.v1 import replica_control_pb2

from .fetch_stream import FetchStreamServer
from .following_stream import FollowingStream
from .history import InvariantError
from .network import Stream
from .scheduler import Future, Process
from .storage import LogStorage
from .throttles import Account

if TYPE_CHECKING:
    from .world import Node, World

APPENDS_IN_FLIGHT = 2
REQUESTS_IN_FLIGHT = 2
LONGEST_HOLD_MS, SHORTEST_HOLD_MS = 500, 5
LET_GO_AT_ONCE = 1  # that the others have their turn as well
CALL_TIMEOUT_MS = 3000
FIRST_RECONNECT_MS = 100

Step = tuple[Follower, act.Action]


class Asked(NamedTuple):
    number: int
    answered_at_once: bool


class Fetcher(Process):
    """All of one broker. A fetcher per leader is a `LeaderStream`."""

    def __init__(self, world: World, node: Node) -> None:
        super().__init__(world.scheduler, node.broker_id, f"fetcher {node.broker_id}")
        self.world = world
        self.node = node
        # As follower (RULES 4.10), and as the one who watches what to follow (RULES 4.12).
        self.incremental = node.broker_id not in world.settings.previous_version
        self.manager: FetcherManager[LeaderStream] = FetcherManager(
            partial(LeaderStream, self), 1, world.settings.fetch_backoff_ms, lambda: self.now_ms
        )
        self.throttled = Account(
            self.name, world.settings.brokers * (REQUESTS_IN_FLIGHT + 1) * (world.settings.fetch_batches + 3)
        )
        self.stream: Stream | None = None
        self._sent: deque[tuple[LeaderStream, Sequence[tuple[Follower, act.Append]]]] = deque()
        self._watched: FollowingStream | None = None
        self.storage_reachable = False
        self.after(1, self._watch)
        self.spawn(self._follow_storage())

    async def _follow_storage(self) -> None:
        """A broker that cannot append leaves its leaders, until it can again (RULES 5.6)."""
        while True:
            storage = self.node.storage
            self.storage_reachable = storage is not None and storage.alive
            if storage is not None and storage.alive:
                await storage.ended
                await self.sleep(1)
                self.storage_reachable = False
                self.manager.reopen_sessions()
            await self.sleep(100)

    def standing(self) -> str:
        """What stands here although nothing is asked for any more."""
        if self._sent:
            return f"{self.name} waits for {len(self._sent)} appends"
        for leader_stream in self.manager.fetchers.values():
            if leader_stream.appends_in_flight:
                return f"{self.name} holds {leader_stream.appends_in_flight} appends"
        for key, follower in self.manager.followers.items():
            if follower.lag:
                return f"{self.name} is behind by {follower.lag} in {key}"
        return ""

    # WatchFollowing, while the replica-manager lives.

    def _watch(self) -> None:
        manager = self.node.manager
        if manager is None or not manager.alive or not self.node.serving:
            self.after(100, self._watch)
            return
        stream = Stream(self.world.network, self, manager, lambda: self.after(100, self._watch), lambda: None)
        self._watched = manager.watch_following(stream, self._take, takes_changes=self.incremental)

    def _take(
        self, stream: Stream, message: replica_control_pb2.Following, whole: Mapping[PartitionKey, Followed]
    ) -> None:
        try:
            stopped = self.manager.take(from_following(message))
        except ChangesOfAnotherError as error:
            raise InvariantError("following", f"{self.name}: {error}") from error
        self.throttle_changed()
        for leader_stream in stopped:
            leader_stream.end()
        self._check_followed(message.log_storage_incarnation, whole)
        assert self._watched is not None
        stream.to_server(self._watched.taken)

    def throttle_changed(self) -> None:
        self.throttled.set_rate(self.manager.throttle._quota.rate, self.now_ms)

    def copied(self, follower: Follower, size: int, *, awaited: bool) -> None:
        throttle = self.manager.throttle
        if not awaited and follower.key in throttle._replicas:
            self.throttled.moved(size, self.now_ms)
        throttle.copied(follower.key, size, awaited=awaited)

    def held_back_ms(self, follower: Follower) -> int:
        """No member of the ISR holds itself back (RULES 4.14)."""
        held_ms = self.manager.throttle.held_back_ms(follower)
        self.world.throttles.held += held_ms > 0
        state, followed = self.world.history.states[follower.key], follower.followed
        if held_ms and followed is not None and followed.leader_epoch == state.leader_epoch and self.place in state.isr:
            raise InvariantError("throttle (in sync)", f"{self.name} holds {follower.key} back, of {state}")
        return held_ms

    def _check_followed(self, incarnation: str, whole: Mapping[PartitionKey, Followed]) -> None:
        """However it was told, what is followed is what the replica-manager says (RULES 4.12)."""
        wanted = {
            key: (
                LeaderEndpoint(each.leader_address, each.leader_broker_epoch),
                act.Followed(each.leader, each.leader_epoch, each.unclean_epoch, incarnation),
            )
            for key, each in whole.items()
        }
        followed = {
            key: (leader_stream.leader, follower.followed)
            for leader_stream in self.manager.fetchers.values()
            for key, follower in leader_stream.followers.items()
        }
        if followed != wanted or followed.keys() != self.manager.followers.keys():
            raise InvariantError("following", f"{self.name} follows {followed}, and should follow {wanted}")

    # log-storage

    def append(self, leader_stream: LeaderStream, appends: Sequence[tuple[Follower, act.Append]]) -> None:
        server = self.node.storage
        if self.stream is None:
            if server is None or not server.alive:
                self.after(100, leader_stream.appended, appends, None)
                return
            self.stream = Stream(self.world.network, self, server, self._append_broke, lambda: None)
        self._sent.append((leader_stream, appends))
        self.stream.to_server(self._append_arrived, self.stream, server, appends)

    def _append_arrived(
        self, stream: Stream, server: LogStorage, appends: Sequence[tuple[Follower, act.Append]]
    ) -> None:
        answers = []
        for follower, append in appends:
            answers.append(
                server.append_as_follower(
                    follower.key,
                    append.leader_epoch,
                    append.expected_offset,
                    append.records or (),
                    append.leader_high_watermark,
                )
            )
            self.world.maybe_flush(server, follower.key)
        stream.to_client(self._append_answered, answers)

    def _append_answered(self, answers: Sequence[tuple[ErrorCode, Any, str]]) -> None:
        leader_stream, appends = self._sent.popleft()
        leader_stream.appended(appends, answers)

    def _append_broke(self) -> None:
        self.stream = None
        sent, self._sent = self._sent, deque()
        for leader_stream, appends in sent:
            leader_stream.appended(appends, None)
        self.manager.reopen_sessions()

    def call(self, method: str, *args: Any) -> Future:
        node = self.node
        return self.world.network.call(
            self, node.broker_id, lambda: node.storage, method, *args, timeout_ms=CALL_TIMEOUT_MS
        )


class LeaderStream:
    """What `ReplicaFetcher` is: the partitions of one leader, over one stream at a time."""

    def __init__(self, owner: Fetcher, identity: FetcherId, leader: LeaderEndpoint) -> None:
        self._owner = owner
        self._leader = identity.leader
        self.leader = leader
        self.followers: dict[PartitionKey, Follower] = {}
        self._rotation = FetchOrder()
        self._places: NamedPlaces[act.FetchPosition] = NamedPlaces()
        self._incremental = self._left_some = False  # as the leader's latest answer says
        self._has_more: set[PartitionKey] = set()
        self._marks_behind: dict[PartitionKey, None] = {}
        self._throttled: dict[PartitionKey, None] = {}
        self._lets_go = False
        self._leader_pauses_until_ms = 0
        self._asked: deque[Asked] = deque()
        self._acked_since_asked = False
        self.appends_in_flight = 0
        self._last_number = 0
        self._stream: Stream | None = None
        self._server: FetchStreamServer | None = None
        self._stopped = False
        self._sessions = 0
        self._broker_epoch = -1

    def open_session(self, broker_epoch: int) -> None:
        self._sessions += 1
        self._broker_epoch = broker_epoch
        if self._stream is not None:
            self._stream.close(0)
        self._asked.clear()
        self._stream = None
        self._owner.after(1, self._connect, self._sessions)

    def _connect(self, session: int) -> None:
        owner = self._owner
        if self._stopped or session != self._sessions:
            return
        node = owner.world.nodes[self._leader]
        manager = node.manager
        reaches = owner.world.network.reaches
        reachable = reaches(owner.place, self._leader) and reaches(self._leader, owner.place)
        if manager is None or not manager.alive or not node.serving or not reachable or not owner.storage_reachable:
            owner.after(FIRST_RECONNECT_MS, self._connect, session)
            return
        self._asked.clear()
        self._places.open(self._rotation)
        self._incremental = self._left_some = False
        self._server = FetchStreamServer(manager, partial(self._received, session))
        self._stream = Stream(owner.world.network, owner, manager, partial(self._broke, session), self._server.closed)
        self._server.stream = self._stream
        self.send()

    def _broke(self, session: int) -> None:
        if session == self._sessions and not self._stopped:
            self._stream = None
            self._asked.clear()
            self._owner.after(FIRST_RECONNECT_MS, self._connect, session)

    async def stop(self) -> None:
        self.end()

    def end(self) -> None:
        self._stopped = True
        self.followers.clear()
        if self._stream is not None:
            self._stream.close(0)

    def add(self, follower: Follower) -> None:
        self.followers[follower.key] = follower
        self._rotation.add(follower.key)
        self.changed(follower)

    def changed(self, follower: Follower) -> None:
        key = follower.key
        self._places.changed(key)
        self._has_more.discard(key)
        if follower.leader_has_more:
            self._has_more.add(key)
        self._marks_behind.pop(key, None)
        if follower.marks_are_behind:
            self._marks_behind[key] = None
        self._set_timer(follower)

    def remove(self, key: PartitionKey) -> None:
        self.followers.pop(key, None)
        self._rotation.remove(key)
        self._places.removed(key)
        self._has_more.discard(key)
        self._marks_behind.pop(key, None)
        self._throttled.pop(key, None)

    # Requests and answers

    def send(self) -> None:
        while self._stream is not None and not self._stream.broken and self._server is not None:
            said = self._next_request()
            if said is None:
                return
            self._last_number += 1
            answered_at_once = self._is_answered_at_once() and not (self._throttled and said.forgotten)
            self._asked.append(Asked(self._last_number, answered_at_once))
            self._stream.to_server(
                self._server.request,
                self._owner.place,
                self._broker_epoch,
                self._last_number,
                dict(said.named),
                list(said.forgotten),
                self._owner.incremental,
            )

    def _next_request(self) -> NamedRequest[act.FetchPosition] | None:
        if self._asked:
            if len(self._asked) >= REQUESTS_IN_FLIGHT or not (
                self._acked_since_asked or self._places.joined(self._position)
            ):
                return None
        elif self.appends_in_flight >= (APPENDS_IN_FLIGHT if self._is_answered_at_once() else 1):
            return None
        said = self._places.next_request(self._position, whole=None if self._incremental else self._rotation)
        self._acked_since_asked = False
        return said

    def _position(self, key: PartitionKey) -> act.FetchPosition | None:
        follower = self.followers.get(key)
        if follower is None:
            return None
        if held_ms := self._owner.held_back_ms(follower):
            self._throttled[key] = None
            if not self._lets_go:
                self._let_go_in(held_ms)
            return None
        return follower.position()

    def _let_go_in(self, held_ms: int) -> None:
        self._lets_go = True
        self._owner.after(min(max(held_ms, SHORTEST_HOLD_MS), LONGEST_HOLD_MS), self._let_go)

    def _let_go(self) -> None:
        self._lets_go = False
        for key in list(islice(self._throttled, LET_GO_AT_ONCE)):
            del self._throttled[key]
            self._places.changed(key)
        if self._throttled:
            self._let_go_in(self._owner.manager.throttle.owed_ms())
        if not self._stopped:
            self.send()

    def _is_answered_at_once(self) -> bool:
        pausing = self._owner.now_ms < self._leader_pauses_until_ms
        return (self._left_some or (bool(self._has_more) and not self._throttled)) and not pausing

    def _received(
        self,
        session: int,
        number: int,
        results: Sequence[FetchedPart],
        incremental: bool,
        left_some: bool,
        pause_ms: int,
    ) -> None:
        if session != self._sessions or not self._asked or self._asked[0].number != number:
            return
        self._asked.popleft()
        self._places.answered()
        self._incremental, self._left_some = incremental, left_some
        now_ms = self._owner.now_ms
        self._leader_pauses_until_ms = now_ms + pause_ms
        steps: list[Step] = []
        for part in results:
            key = part.key
            follower, position = self.followers.get(key), self._places.asked(key)
            if follower is None or position is None:
                continue  # RULES 4.7
            fetched = None
            if part.pieces:
                batches: Any = tuple(part.pieces)
                first, last = batches[0], batches[-1]
                fetched = act.FetchedRecords(first.base_offset, last.next_offset, last.leader_epoch, batches)
                self._rotation.returned_data(key)
                awaited = part.awaited or position.fetch_offset >= part.high_watermark
                self._owner.copied(follower, len(batches), awaited=awaited)
            diverging = None
            if part.diverging is not None:
                diverging = act.DivergingEpoch(part.diverging.leader_epoch, part.diverging.end_offset)
            answer = act.FetchAnswer(
                position,
                part.high_watermark,
                part.log_start_offset,
                part.log_end_offset,
                fetched,
                diverging,
                part.error,
            )
            if answer.error is not ErrorCode.NONE or answer.diverging is not None:
                self._places.refused(key)
            elif fetched is not None:
                self._places.returned_data(key)
            steps += [(follower, action) for action in follower.fetched(answer, now_ms)]
            self.changed(follower)
        for key in list(self._marks_behind):
            follower = self.followers[key]
            steps += [(follower, action) for action in follower.take_marks()]
        self.perform(steps)

    # What followers ask of log-storage

    def perform(self, steps: Sequence[Step]) -> None:
        appends: list[tuple[Follower, act.Append]] = []
        for follower, action in steps:
            match action:
                case act.Fence():
                    self._owner.spawn(self._fence(follower, action))
                case act.Append():
                    appends.append((follower, action))
                case act.TruncateTo() | act.TruncateFullyAndStartAt():
                    self._owner.spawn(self._truncate(follower, action))
            if not isinstance(action, act.Append):
                self._owner.world.note("follower", self._owner.place, follower.key, action)
        if appends:
            self.appends_in_flight += any(append.records is not None for _, append in appends)
            self._owner.append(self, appends)
        self.send()

    def appended(
        self, appends: Sequence[tuple[Follower, act.Append]], answers: Sequence[tuple[ErrorCode, Any, str]] | None
    ) -> None:
        self.appends_in_flight -= any(append.records is not None for _, append in appends)
        now_ms = self._owner.now_ms
        steps: list[Step] = []
        for index, (follower, append) in enumerate(appends):
            if self.followers.get(follower.key) is not follower:
                continue
            if answers is None:
                actions = follower.outcome_unknown(append.generation, "broken", now_ms)
            else:
                actions = follower.appended(_log_answer(append.generation, answers[index]), now_ms)
            self.changed(follower)
            steps += [(follower, action) for action in actions]
        if self._asked and not self._asked[-1].answered_at_once and self._tells_more(appends):
            self._acked_since_asked = True
        self.perform(steps)

    def _tells_more(self, appends: Sequence[tuple[Follower, act.Append]]) -> bool:
        return any(follower.position() not in (None, self._places.latest(follower.key)) for follower, _ in appends)

    async def _fence(self, follower: Follower, fence: act.Fence) -> None:
        answered = await self._owner.call("on_fence", Role.FOLLOWER, "", follower.key, fence.leader_epoch)
        if self.followers.get(follower.key) is not follower:
            return
        now_ms = self._owner.now_ms
        if answered is None:
            actions = follower.outcome_unknown(fence.generation, "no answer", now_ms)
        else:
            error, log, epochs, incarnation = answered
            entries = tuple(act.EpochEntry(entry.leader_epoch, entry.start_offset) for entry in epochs)
            state = None if log is None else act.LogState(*log)
            actions = follower.fenced(act.FenceAnswer(fence.generation, incarnation, state, entries, error), now_ms)
        self.changed(follower)
        self.perform([(follower, action) for action in actions])

    async def _truncate(self, follower: Follower, cut: act.TruncateTo | act.TruncateFullyAndStartAt) -> None:
        answered = await self._owner.call(
            "on_truncate",
            follower.key,
            cut.leader_epoch,
            cut.offset,
            cut.unclean_epoch,
            (cut.expected_log_end_offset, cut.expected_last_epoch),
            isinstance(cut, act.TruncateFullyAndStartAt),
        )
        if self.followers.get(follower.key) is not follower:
            return
        now_ms = self._owner.now_ms
        if answered is None:
            actions = follower.outcome_unknown(cut.generation, "no answer", now_ms)
        else:
            actions = follower.truncated(_log_answer(cut.generation, answered), now_ms)
        self.changed(follower)
        self.perform([(follower, action) for action in actions])

    def _set_timer(self, follower: Follower) -> None:
        if follower.retry_at_ms is not None:
            self._owner.after(max(1, follower.retry_at_ms - self._owner.now_ms), self._tick, follower)

    def _tick(self, follower: Follower) -> None:
        if self.followers.get(follower.key) is follower and follower.retry_at_ms is not None:
            actions = follower.tick(self._owner.now_ms)
            self.changed(follower)
            self.perform([(follower, action) for action in actions])


def _log_answer(generation: int, answered: tuple[ErrorCode, Any, str]) -> act.LogAnswer:
    error, log, incarnation = answered
    state = None if log is None or error is not ErrorCode.NONE else act.LogState(*log)
    return act.LogAnswer(generation, incarnation, state, error)

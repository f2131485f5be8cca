"""A member of a group that keeps a client's duties (docs/groups.md) and nothing else.

It counts a partition as its own from when it is told so until it has given it up, was fenced, or `until_ms` is over:
the session timeout after the sending of the last word that it knows to have got through.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from highwater.errors import ErrorCode
from highwater.groups.requests import (
    JOINING,
    LEAVING,
    LEAVING_STATIC,
    CommitAnswer,
    CommitOffsets,
    FetchAnswer,
    FetchOffsets,
    Heartbeat,
    NamedPartition,
    OffsetToCommit,
    SessionAnswer,
    Subscription,
)
from highwater.model.partition import PartitionKey

from ..history import InvariantError
from ..network import Stream
from ..scheduler import Future, Process
from .commits import Commit
from .coordinator import ServedStream

if TYPE_CHECKING:
    from ..world import World

CLIENT = 300  # where clients are
CALL_TIMEOUT_MS = 1000
PAUSE_MS = 100
LOST = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH})
PAUSES = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.OVERLOADED,
        ErrorCode.UNRELEASED_INSTANCE_ID,
        ErrorCode.FETCH_SESSION_STALE,  # its own last stream: an earlier one has arrived behind it
    }
)
DEFINITE = frozenset(
    {
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


class Member(Process):
    def __init__(self, world: World, group: str, member_id: str, topics: frozenset[str], instance_id: str = "") -> None:
        super().__init__(world.scheduler, CLIENT, f"member {member_id} of {group}")
        assert world.settings.groups is not None
        assert world.groups is not None
        self.world = world
        self.group = group
        self.member_id = member_id
        self.topics = topics
        self.instance_id = instance_id
        self.epoch = 0
        self.through_ms = 0  # when the last word was sent of which it knows that it has got through
        self.owned: set[PartitionKey] = set()
        self.giving_up: set[PartitionKey] = set()  # of those that it has
        self.positions: dict[PartitionKey, int] = {}
        self.left = False
        self.broker = -1  # the last coordinator
        self.finished = False  # it has committed where it is, at the end
        self._settings = world.settings.groups
        self._checks = world.groups.checks
        self._random = world.scheduler.random.random
        self._seen = 0
        self._said_topics = topics
        self._stream: Stream | None = None
        self._served: ServedStream | None = None
        self._answered = False  # on this stream
        self._first_sent_ms = 0
        self._stream_ended = Future()
        self._committing = False
        self._checks.members.append(self)
        self.spawn(self._run())
        self.spawn(self._work())
        self.after(self._interval_ms, self._beat)

    # What it takes for its own

    @property
    def until_ms(self) -> int:
        return self.through_ms + self._settings.session_timeout_ms

    @property
    def believes(self) -> bool:
        """It takes itself for a member."""
        return self.alive and self.epoch > 0 and self.now_ms < self.until_ms

    def owns(self, key: PartitionKey) -> bool:
        return self.believes and key in self.owned

    def _mind_the_time(self) -> None:
        if self.epoch > 0 and self.now_ms >= self.until_ms:
            self._note("stops: nothing has got through")
            self._lose()
            self._end_stream(None)

    def _lose(self) -> None:
        self._checks.overstayed.discard(self.member_id)
        self.epoch = JOINING
        self.finished = False
        self.owned.clear()
        self.giving_up.clear()
        self.positions.clear()

    def _note(self, *what: Any) -> None:
        self.world.note("member", self.member_id, *what)

    def kill(self) -> None:
        if self in self._checks.members:
            self._checks.members.remove(self)
        super().kill()

    # The session

    @property
    def _interval_ms(self) -> int:
        return self._settings.session_timeout_ms // 5

    async def _run(self) -> None:
        while not self.left:
            self._mind_the_time()
            broker = await self._find()
            if broker is None or not self._open(broker):
                await self.sleep(PAUSE_MS)
                continue
            code = await self._stream_ended
            self._note("stream over", code)
            if code in LOST:
                self._lose()
            elif code in PAUSES:
                await self.sleep(PAUSE_MS)
            elif code not in (None, ErrorCode.NOT_COORDINATOR):
                raise InvariantError("11 (refused)", f"{self.name} was refused with {code}")
            await self.sleep(1 + int(self._random() * 20))

    async def _find(self) -> int | None:
        world = self.world
        node = world.nodes[1 + int(self._random() * len(world.nodes))]
        answer = await world.network.call(
            self, node.broker_id, node.server, "on_find_coordinator", self.group, timeout_ms=CALL_TIMEOUT_MS
        )
        return answer if isinstance(answer, int) and not isinstance(answer, ErrorCode) else None

    def _open(self, broker: int) -> bool:
        manager = self.world.nodes[broker].server()
        if manager is None:
            return False
        self._mind_the_time()
        ended = self._stream_ended = Future()
        served = self._served = ServedStream(manager, lambda answer: self._told(served, answer))
        self._stream = served.network = Stream(
            self.world.network, self, manager, lambda: self._closed(ended), served.closed
        )
        self.broker, self._answered, self._seen, self._first_sent_ms = broker, False, 0, self.now_ms
        self._say(owned=True, subscribed=True)
        return True

    def _say(self, epoch: int | None = None, *, owned: bool = False, subscribed: bool = False) -> None:
        if self._stream is None or self._served is None:
            return
        subscription = None
        if subscribed:
            self._said_topics = self.topics
            subscription = Subscription(self.topics, rebalance_timeout_ms=self._settings.rebalance_timeout_ms)
        word = Heartbeat(
            self.group,
            self.member_id,
            self.epoch if epoch is None else epoch,
            self.instance_id,
            subscription,
            frozenset(self.owned) if owned else None,
            self._seen,
        )
        through = partial(self._through, self._served, self.now_ms)
        self._stream.to_server(self._served.heard, word, through)

    def _through(self, served: ServedStream, sent_ms: int) -> None:
        if served is self._served and self._answered:
            self._mind_the_time()
            self.through_ms = max(self.through_ms, sent_ms)

    def _beat(self) -> None:
        self._mind_the_time()
        if self._answered and self.epoch > 0:
            self._say()
        self.after(self._interval_ms, self._beat)

    def _closed(self, ended: Future) -> None:
        if ended is self._stream_ended:
            self._end_stream(None)

    def _end_stream(self, code: ErrorCode | None) -> None:
        stream, self._stream, self._served = self._stream, None, None
        if stream is not None:
            stream.close(0)
        self._answered = False
        self._stream_ended.set(code)

    def _told(self, served: ServedStream, answer: SessionAnswer) -> None:
        if served is not self._served:
            return
        self._mind_the_time()
        if served is not self._served:
            return
        if self.left and answer.error is None and answer.member_epoch >= 0:
            return
        if answer.error is not None:
            if answer.error.code in LOST:
                self._note("fenced", answer.error.message)
                self._lose()
            self._end_stream(answer.error.code)
        elif answer.member_epoch in (LEAVING, LEAVING_STATIC):
            self._end_stream(None)
        else:
            first = not self._answered
            if first:
                self._answered = True
                self.through_ms = max(self.through_ms, self._first_sent_ms)
            if self.now_ms < self.until_ms:
                self._take(answer)
                if first and self.topics != self._said_topics:
                    self._say(subscribed=True)
            else:
                self._end_stream(None)  # it has joined, and been silent since

    def _take(self, answer: SessionAnswer) -> None:
        assert answer.assignment is not None
        self.epoch, self._seen = answer.member_epoch, answer.assignment_number
        gained = sorted(answer.assignment - self.owned)
        self._note("has", self.epoch, sorted(answer.assignment), "gives up", sorted(self.owned - answer.assignment))
        self._checks.took(self, gained)
        self.finished = self.finished and not gained
        self.owned.update(gained)
        self.giving_up = self.owned - answer.assignment
        if self.giving_up and self._settings.give_up_ms:
            self._say(owned=True)
            self.after(int(self._random() * self._settings.give_up_ms), self._give_up, self._random() < 0.5)
        else:
            self._give_up(False)

    def _give_up(self, waits_for_commit: bool) -> None:
        """All that it was told to, by whichever assignment."""
        self._mind_the_time()
        if waits_for_commit and self._committing:
            self.after(20, self._give_up, True)
            return
        self.owned -= self.giving_up
        for key in self.giving_up:
            self.positions.pop(key, None)
        self.giving_up.clear()
        if self.epoch > 0:
            self._say(owned=True)

    # What befalls it

    def leave(self, *, static: bool = False) -> None:
        """Says so if it can; it is gone in any case."""
        self.left = True
        self._note("leaves")
        self._lose()
        self._say(LEAVING_STATIC if static and self.instance_id else LEAVING)
        self.after(500, self.kill)

    def subscribe(self, topics: frozenset[str]) -> None:
        self._mind_the_time()
        self.topics = topics
        if self._answered and self.epoch > 0:
            self._say(subscribed=True)

    def lose_stream(self) -> None:
        if self._stream is not None:
            self._stream.break_(200)

    # Reading and committing

    async def _work(self) -> None:
        while True:
            await self.sleep(1 + int(self._random() * 2 * self._settings.work_gap_ms))
            self._mind_the_time()
            if self.epoch > 0 and not self.left and not self.finished:  # with a stream or without
                unknown = sorted(self.owned - self.positions.keys() - self.giving_up)
                if unknown:
                    await self._fetch(unknown)
                elif self._finishing:
                    self.finished = await self._commit()
                elif self._random() >= self._settings.idle:
                    await self._commit()

    @property
    def _finishing(self) -> bool:
        assert self.world.groups is not None
        return self.world.groups.finishing

    def _ask(self, request: Any) -> Future:
        node = self.world.nodes[self.broker]
        return self.world.network.call(self, node.broker_id, node.server, "on_ask", request, timeout_ms=CALL_TIMEOUT_MS)

    def _named(self, key: PartitionKey) -> NamedPartition:
        return NamedPartition(self._checks.names[key.topic_id], key.partition)

    async def _fetch(self, keys: list[PartitionKey]) -> None:
        sent_ms, epoch = self.now_ms, self.epoch
        request = FetchOffsets(self.group, self.member_id, epoch, tuple(map(self._named, keys)))
        answer = await self._ask(request)
        self._mind_the_time()
        if not isinstance(answer, FetchAnswer) or answer.error is not None:
            return
        for key, found in zip(keys, answer.offsets, strict=True):
            if not self.owns(key) or key in self.giving_up or key in self.positions or self.epoch < epoch:
                continue
            value = found.committed
            if value is not None and value.topic_id and value.topic_id != key.topic_id:
                value = None  # of another topic that had the name, or has it
            number = None if value is None else int(value.metadata)
            self._checks.commits.read(self.group, key, number, sent_ms, self.now_ms, self)
            self.positions[key] = 0 if value is None else value.offset

    async def _commit(self) -> bool:
        """What it has read, of all that it has; whether all of it is kept."""
        keys = sorted(key for key in self.owned if key in self.positions)
        if not keys:
            return True
        self._committing = True
        sent: list[tuple[PartitionKey, Commit]] = []
        offsets = []
        for key in keys:
            self.positions[key] += 1 + int(self._random() * 3)
            commit = self._checks.commits.sent(self.group, key, self.member_id, self.positions[key], self.now_ms)
            sent.append((key, commit))
            name, number = self._named(key)
            offsets.append(OffsetToCommit(name, number, commit.offset, -1, str(commit.number), key.topic_id))
        answer = await self._ask(CommitOffsets(self.group, self.member_id, self.epoch, tuple(offsets)))
        self._committing = False
        self._mind_the_time()
        if not isinstance(answer, CommitAnswer):
            return False  # it may have been kept, or may be yet
        errors = answer.errors if answer.error is None else (answer.error,) * len(sent)
        for (key, commit), error in zip(sent, errors, strict=True):
            if error is None:
                self._checks.commits.acked(self.group, key, commit, self.now_ms)
            elif error.code in DEFINITE:
                self._checks.commits.refused(self.group, key, commit)
                if error.code is ErrorCode.STALE_MEMBER_EPOCH and answer.error is None:
                    self._checks.refused_its_own(self, key)
        return not any(errors)

"""A coordinator over a log, twenty clients that keep the rules of the protocol, and a network that does not."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from random import Random

from highwater.errors import ErrorCode
from highwater.groups.config import GroupConfig
from highwater.groups.records import Record
from highwater.groups.requests import (
    Answer,
    CommitAnswer,
    CommitOffsets,
    Heartbeat,
    OffsetToCommit,
    Outcome,
    Partitions,
    SessionAnswer,
    Subscription,
)
from highwater.groups.shard import GroupShard
from highwater.groups.topics import Topic, TopicImage

GROUP = "g"
NOTHING: Partitions = frozenset()


def topic(name: str, partitions: int, generation: int = 1, racks: tuple[frozenset[str], ...] = ()) -> Topic:
    return Topic(f"{name}/{generation}".encode().ljust(16, b"\0"), name, partitions, racks)


def subscription(*topics: str, pattern: str = "", rebalance_timeout_ms: int = 30_000, **more: str) -> Subscription:
    return Subscription(frozenset(topics), pattern, rebalance_timeout_ms=rebalance_timeout_ms, **more)


def load(records: Iterable[Record], image: TopicImage, now_ms: int, config: GroupConfig | None = None) -> GroupShard:
    shard = GroupShard(image, config)
    for record in records:
        shard.replay(record.key, record.value, record.timestamp_ms)
    for _ in shard.start(now_ms):
        pass
    return shard


def drain(outcomes: Iterator[Outcome]) -> list[Outcome]:
    return list(outcomes)


@dataclass
class Client:
    """A consumer. `reading` is what it reads from, including what it was told to give up and has not yet."""

    member_id: str
    instance_id: str = ""
    subscription: Subscription = field(default_factory=lambda: subscription("a", "b"))
    running: bool = True
    epoch: int = 0
    seen: int = 0
    reading: Partitions = NOTHING
    giving_up: Partitions = NOTHING
    connected: bool = False
    stream: int = 0  # counts its streams
    outbox: deque[Heartbeat] = field(default_factory=deque)
    inbox: deque[SessionAnswer] = field(default_factory=deque)

    def connect(self) -> None:
        self.connected, self.seen = True, 0
        self.stream += 1
        self.outbox.clear()
        self.inbox.clear()
        joins = self.epoch == 0
        self.say(owned=NOTHING if joins else self.reading, subscription=self.subscription if joins else None)

    def disconnect(self) -> None:
        self.connected = False
        self.outbox.clear()
        self.inbox.clear()

    def say(self, owned: Partitions | None = None, subscription: Subscription | None = None) -> None:
        self.outbox.append(
            Heartbeat(GROUP, self.member_id, self.epoch, self.instance_id, subscription, owned, self.seen)
        )

    def lose_all(self) -> None:
        self.epoch, self.reading, self.giving_up = 0, NOTHING, NOTHING
        self.disconnect()

    def take(self, answer: SessionAnswer) -> None:
        if answer.error is not None:
            self.lose_all()
            return
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.seen = answer.assignment_number
            self.giving_up = self.reading - answer.assignment
            self.reading |= answer.assignment
            self.say(owned=self.reading)

    def give_up(self) -> None:
        """Its callback is done: it has committed, and reads no more of them."""
        self.reading -= self.giving_up
        self.giving_up = NOTHING
        self.say(owned=self.reading)


class World:
    def __init__(self, seed: int, clients: int = 20, config: GroupConfig | None = None) -> None:
        self.random = Random(seed)
        self.now_ms = 1_000_000
        self.slow_answers = seed % 2 == 1  # then much is said while an assignment is on its way
        self.config = config or GroupConfig(session_timeout_ms=10_000, max_size=40)
        self.topics = {"a": topic("a", 12), "b": topic("b", 5)}
        self.image = TopicImage(self.topics.values())
        self.generation = 1
        self.log: list[Record] = []
        self.base = 0  # records of the log that the shard has replayed
        self.committed = 0  # of the log
        # Until the high watermark has passed a record of the log: what is told, on the stream that was open then.
        self.waiting: list[tuple[int, Client, int, Answer]] = []
        self.shard = load((), self.image, self.now_ms, self.config)
        self.clients = [
            Client(f"m{number:02}", f"i{number:02}" if number % 4 == 0 else "") for number in range(clients)
        ]
        self.made = clients
        self.commits: dict[tuple[str, int], int] = {}  # acknowledged, and the highest of each partition

    def client(self, member_id: str) -> Client | None:
        return next((client for client in self.clients if client.member_id == member_id), None)

    # What the server around a shard does

    def take(self, outcome: Outcome, client: Client | None = None) -> None:
        self.log += outcome.records
        after = self.base + outcome.after if outcome.after else 0
        if client is not None and outcome.answer is not None:
            self.waiting.append((after, client, client.stream, outcome.answer))
        for push in outcome.pushes:
            told = self.client(push.member_id)
            if told is not None:
                self.waiting.append((after, told, told.stream, push.answer))

    def commit_log(self, upto: int) -> None:
        self.committed = max(self.committed, min(upto, len(self.log)))
        ready = [each for each in self.waiting if each[0] <= self.committed]
        self.waiting = [each for each in self.waiting if each[0] > self.committed]
        for _, client, stream, answer in ready:
            if client.connected and client.stream == stream and isinstance(answer, SessionAnswer):
                client.inbox.append(answer)

    def fail_over(self) -> None:
        """Another coordinator takes over, with at least what was committed."""
        kept = self.random.randint(self.committed, len(self.log))
        del self.log[kept:]
        self.base = self.committed = kept
        self.waiting.clear()
        for client in self.clients:
            client.disconnect()
        self.shard = load(self.log, self.image, self.now_ms, self.config)

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        for outcome in self.shard.tick(self.now_ms):
            self.take(outcome)

    def change_topic(self, name: str, changed: Topic | None) -> None:
        self.image.update({name: changed})
        for outcome in self.shard.topics_changed([name], self.now_ms):
            self.take(outcome)

    # Steps

    def deliver(self, client: Client) -> None:
        """The oldest word of a client arrives."""
        request = client.outbox.popleft()
        if client.connected or request.member_epoch < 0:
            self.take(self.shard.handle(request, self.now_ms), client)

    def step(self) -> None:
        random = self.random
        client = random.choice(self.clients)
        choice = random.random() if not self.slow_answers else random.choice([random.random(), 0, 0.65, 0.75])
        if choice < 0.25:
            if client.outbox:
                self.deliver(client)
            elif client.running and not client.connected:
                client.connect()
        elif choice < 0.5:
            if client.inbox:
                client.take(client.inbox.popleft())
        elif choice < 0.62:
            if client.giving_up and client.connected:
                client.give_up()
        elif choice < 0.72:
            self.commit_log(random.randint(self.committed, len(self.log)))
        elif choice < 0.8:
            if client.running and client.connected and client.epoch > 0:
                client.say(owned=random.choice([None, client.reading]))
        elif choice < 0.84:
            if client.running:
                client.disconnect()
        elif choice < 0.87:
            self.pass_time(random.choice([10, 1_000, 4_000]))
        elif choice < 0.9:
            self.stop_or_start(client)
        elif choice < 0.92:
            self.fail_over()
        elif choice < 0.94:
            self.change_some_topic()
        elif choice < 0.96 and client.running and client.connected and client.epoch > 0:
            client.subscription = random.choice(
                [subscription("a", "b"), subscription("a"), subscription(pattern="[a-c].*"), subscription("b", "c")]
            )
            client.say(subscription=client.subscription)
        else:
            self.commit_offset(client)

    def stop_or_start(self, client: Client) -> None:
        if not client.running:
            client.running = True
            if client.instance_id:  # a new process, which makes itself a new member id
                self.made += 1
                client.member_id = f"m{self.made:02}"
            return
        client.running = False
        kind = self.random.random()
        if kind < 0.3 or not client.epoch or not client.connected:
            client.lose_all()  # killed
            return
        leaving = -2 if client.instance_id else -1
        request = Heartbeat(GROUP, client.member_id, leaving, client.instance_id)
        client.lose_all()
        self.take(self.shard.handle(request, self.now_ms))

    def change_some_topic(self) -> None:
        name = self.random.choice("abc")
        known = self.image.named(name)
        self.generation += 1
        if known is None:
            self.change_topic(name, topic(name, self.random.randint(1, 8), self.generation))
        elif self.random.random() < 0.3:
            self.change_topic(name, None)
        elif known.partitions < 24:
            self.change_topic(name, Topic(known.topic_id, name, known.partitions + self.random.randint(1, 4)))

    def commit_offset(self, client: Client) -> None:
        """A client commits one more than was ever committed of a partition that it reads."""
        keys = sorted(client.reading)
        if not keys or client.epoch <= 0:
            return
        key = self.random.choice(keys)
        known = self.image.of_id(key.topic_id)
        if known is None:
            return
        offset = OffsetToCommit(known.name, key.partition, self.random.randint(0, 1 << 40))
        request = CommitOffsets(GROUP, client.member_id, client.epoch, (offset,))
        outcome = self.shard.handle(request, self.now_ms)
        self.take(outcome, client)
        answer = outcome.answer
        assert isinstance(answer, CommitAnswer)
        refusals = [refusal for refusal in (answer.error, *answer.errors) if refusal]
        codes = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert {refusal.code for refusal in refusals} <= codes, refusals

    # What has to hold

    def check(self) -> None:
        group = self.shard.state.groups.get(GROUP)
        if group is None:
            return
        held: dict[object, str] = {}
        for member in group.members.values():
            assert not member.current.assigned & member.current.revoking
            for key in member.held:
                assert key not in held, f"{key} is both {held[key]}'s and {member.member_id}'s"
                held[key] = member.member_id
        assert held == group.owners
        for client in self.clients:
            member = group.members.get(client.member_id)
            if member is not None and client.epoch > 0:
                assert client.reading <= member.held, f"{client.member_id} reads what is not its own"

    def heal(self) -> None:
        """Nothing fails any more; everybody does what is due, until nothing is."""
        healed_ms = self.now_ms + 2 * max(self.config.session_timeout_ms, 30_000)  # who is away is out by then
        for _ in range(400):
            busy = False
            for client in self.clients:
                if client.running and not client.connected:
                    client.connect()
                while client.outbox:
                    self.deliver(client)
                    busy = True
                self.commit_log(len(self.log))
                while client.inbox:
                    client.take(client.inbox.popleft())
                    busy = True
                if client.giving_up and client.connected:
                    client.give_up()
                    busy = True
            self.check()
            if not busy and self.now_ms > healed_ms:
                return
            self.pass_time(1_000)
            for client in self.clients:
                if client.running and client.connected and client.epoch > 0:
                    client.say()
                    self.deliver(client)
        raise AssertionError("it does not come to rest")

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
            self.check()
        self.heal()

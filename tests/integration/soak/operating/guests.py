"""Those whose permission is taken away and given back all the time, and what they notice of it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from math import inf
from time import monotonic

from secured_broker import acl

from highwater.client import Admin, AuthorizationError, Consumer, HighwaterError, Producer, TopicPartition
from highwater.security.acls import AclFilter
from soak.operating.permission import HEARD_S, Change, Permission
from soak.operating.principals import ALICE, BOB, CAROL, DAVE, GROUP, User
from soak.operating.state import Operating
from soak.state import DELIVERY_TIMEOUT_S, NUMBERED, NUMBERED_REPLICAS

TOPICS = {ALICE.name: "alices", BOB.name: "bobs"}
_UNNOTICED_S = 20.0  # beyond when a change must count: whoever asks all the time has asked


class Guest:
    """One of them. `run` asks all the time, `be_managed` is what the operator does."""

    def __init__(self, operating: Operating, user: User) -> None:
        self.user = user
        self._operating = operating
        self._soak = operating.soak
        self._permission = Permission(user.name, operating.disturbances, since=monotonic())

    async def run(self) -> None:
        raise NotImplementedError

    def _tried(self, begun: float, allowed: bool) -> None:
        problem = self._permission.tried(begun, monotonic(), allowed)
        if problem:
            self._soak.problem(problem)
        elif not allowed:
            self._operating.refusals[f"{self.user.name} while denied"] += 1

    async def be_managed(self) -> None:
        """Denied by the ACL that allows being removed, or by one that denies being added."""
        random = self._soak.random(f"acls of {self.user.name}")
        async with Admin(self._soak.bootstrap) as admin:
            while not self._soak.stopped.is_set():
                await self._soak.pause(random.uniform(1, 6))
                by_denying = random.random() < 0.5
                words = random.choice(self.user.acls)
                await self._change(admin, words, by_denying, allowed=False)
                await self._soak.pause(random.uniform(0.5, 4))
                await self._change(admin, words, by_denying, allowed=True)

    async def _change(self, admin: Admin, words: str, by_denying: bool, *, allowed: bool) -> None:
        which = acl(f"{'deny' if by_denying else 'allow'} {self.user.user} {words}")
        verb = "remove" if allowed == by_denying else "add"

        async def attempt() -> None:
            if verb == "add":
                await admin.create_acls([which])
            else:
                await admin.delete_acls([AclFilter(*which[: len(AclFilter._fields)])])

        self._operating.act("acl", f"{verb} {which}")
        change = self._permission.change(allowed, monotonic())
        await self._operating.insist(f"{verb} {which}", attempt)
        change.done = monotonic()
        await self._noticed(change)

    async def _noticed(self, change: Change) -> None:
        while change.seen == inf:
            if self._soak.stopped.is_set():
                return
            if monotonic() > self._permission.due(change) + _UNNOTICED_S:
                what = "allowed" if change.allowed else "denied"
                self._soak.problem(f"{self.user.name} has not noticed that they are {what}")
                return
            await asyncio.sleep(0.05)
        kind = "allowed again" if change.allowed else "denied"
        if self._permission.due(change) == change.done + HEARD_S:  # nothing was broken meanwhile
            self._operating.note(f"{kind} and still treated as before, s", change.late_s)
            self._operating.note(f"{kind} and noticed, s", change.seen - change.done)
        self._operating.refusals[f"{self.user.name} {kind}: noticed"] += 1


class Writer(Guest):
    """Sends 0, 1, 2, ... to a topic of its own."""

    def __init__(self, operating: Operating, user: User) -> None:
        super().__init__(operating, user)
        self.topic = TOPICS[user.name]
        self.acked: set[int] = set()
        self.refused: set[int] = set()
        self._number = 0

    async def run(self) -> None:
        random = self._soak.random(f"records of {self.user.name}")
        async with Producer(
            self._soak.bootstrap,
            delivery_timeout_ms=DELIVERY_TIMEOUT_S * 1000,
            **self._operating.identities.options(self.user),
        ) as producer:
            while not self._soak.stopped.is_set():
                await asyncio.gather(*[self._send(producer) for _ in range(random.choice((1, 1, 5, 20)))])
                await asyncio.sleep(0.03)

    async def _send(self, producer: Producer) -> None:
        number, self._number = self._number, self._number + 1
        begun = monotonic()
        try:
            await producer.send_and_wait(self.topic, b"%d" % number, partition=0)
        except AuthorizationError:
            self.refused.add(number)
            self._tried(begun, allowed=False)
        except HighwaterError as error:
            self._soak.problem(f"{self.user.name}'s record {number} was not taken: {error}")
        else:
            self.acked.add(number)
            self._tried(begun, allowed=True)

    def check(self, found: Sequence[int]) -> None:
        for problem in check_records(found, self.acked, self.refused):
            self._soak.problem(f"{self.topic}: {problem}")


def check_records(found: Sequence[int], acked: AbstractSet[int], refused: AbstractSet[int]) -> Iterator[str]:
    """Every acknowledged record is there once, in order. One that was refused may be there: it was sent before its
    sender was denied, and once more as no answer came."""
    if list(found) != sorted(set(found)):
        yield "records are doubled, or out of order"
    if lost := acked - set(found):
        yield f"{len(lost)} acknowledged records are lost, {min(lost)} first"
    if more := set(found) - acked - refused:
        yield f"{len(more)} records that nobody sent, {min(more)} first"


class Reader(Guest):
    """Reads the numbered records; `group`: as the only member of a group."""

    def __init__(self, operating: Operating, user: User, group: str | None) -> None:
        super().__init__(operating, user)
        self._group = group
        self.read = 0
        self._next: dict[int, int] = {}

    async def run(self) -> None:
        while not self._soak.stopped.is_set():
            try:
                await self._read()
            except AuthorizationError:
                self._tried(self._begun, allowed=False)
                await asyncio.sleep(0.1)
            except HighwaterError as error:
                self._soak.say(f"{self.user.name} begins anew: {error}")
                await asyncio.sleep(0.5)

    async def _read(self) -> None:
        self._begun = monotonic()
        polls = deque([self._begun], maxlen=len(NUMBERED_REPLICAS) + 1)
        options = self._operating.identities.options(self.user)
        async with Consumer(
            bootstrap=self._soak.bootstrap, auto_offset_reset="earliest", group=self._group, **options
        ) as consumer:
            if self._group is None:
                partitions = [TopicPartition(NUMBERED, number) for number in range(len(NUMBERED_REPLICAS))]
                consumer.assign(partitions)
                for partition in partitions:
                    consumer.seek(partition, self._next.get(partition.partition, 0))
            else:
                await consumer.subscribe([NUMBERED])
            while not self._soak.stopped.is_set():
                self._begun = monotonic()
                polls.append(self._begun)
                try:
                    records = await consumer.poll(300, max_records=2000)
                except AuthorizationError:  # a member, too, asks again
                    self._tried(polls[0], allowed=False)  # each partition is told of by a poll of its own
                    await asyncio.sleep(0.05)
                    continue
                if records:
                    self._tried(self._begun, allowed=True)
                for record in records:
                    self._check(record.partition, record.offset, record.value or b"")

    def _check(self, partition: int, offset: int, value: bytes) -> None:
        """None is skipped. A group's are read again that were not committed."""
        expected = self._next.get(partition, 0)
        if (partition, offset) != tuple(map(int, value.split(b":")[:2])):
            self._soak.problem(f"{self.user.name} reads {value[:20]!r} at offset {offset} of partition {partition}")
        if offset > expected or (offset < expected and self._group is None):
            self._soak.problem(f"{self.user.name} reads offset {offset} of partition {partition}, not {expected}")
        self._next[partition] = max(expected, offset + 1)
        self.read += 1


def guests(operating: Operating) -> tuple[Writer, Writer, Reader, Reader]:
    return (
        Writer(operating, ALICE),
        Writer(operating, BOB),
        Reader(operating, CAROL, None),
        Reader(operating, DAVE, GROUP),
    )

"""The other clients: a producer whose records are to be acknowledged all the while, and a member of a group that reads
them. Records go on as long as the fuzzing does."""

from __future__ import annotations

import asyncio
from time import monotonic

from highwater.client import Consumer, HighwaterError, Producer

from .live import STEADY

PACE_S = 0.02
SILENCE_S = 5.0
"""How long a record may be without an acknowledgement, or not be read. A follower that is shot down by a request to the
internal listener connects anew within it."""
PARTITIONS = 2


class Steady:
    """`run` goes on until it is cancelled; `problems` are those since they were asked for last."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.acked = 0
        self.read = 0
        self._sent_s: dict[int, float] = {}  # of what is not acknowledged
        self._acked_s: dict[int, float] = {}  # of what is not read
        self._found: list[str] = []
        self.longest_s = 0.0
        self.longest = 0
        """The record that was acknowledged after that time."""
        self.started = asyncio.Event()

    async def run(self) -> None:
        async with (
            Producer(self._bootstrap, acks="all") as producer,
            Consumer(STEADY, bootstrap=self._bootstrap, group=STEADY, auto_offset_reset="earliest") as consumer,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(self._consume(consumer))
            group.create_task(self._produce(producer, group))

    async def _produce(self, producer: Producer, group: asyncio.TaskGroup) -> None:
        number = 0
        while True:
            delivery = await producer.send(STEADY, b"%d" % number, partition=number % PARTITIONS)
            self._sent_s[number] = monotonic()
            group.create_task(self._confirm(number, delivery))  # type: ignore[arg-type]
            number += 1
            await asyncio.sleep(PACE_S)

    async def _confirm(self, number: int, delivery: asyncio.Future[object]) -> None:
        try:
            await delivery
        except HighwaterError as error:
            self._found.append(f"record {number} of another producer was refused: {type(error).__name__}: {error}")
        now = monotonic()
        took_s = now - self._sent_s.pop(number)
        if took_s > self.longest_s:
            self.longest_s, self.longest = took_s, number
        self.acked += 1
        self._acked_s.setdefault(number, now)
        if self._acked_s[number] < 0:  # it was read before it was known to be acknowledged
            del self._acked_s[number]

    async def _consume(self, consumer: Consumer) -> None:
        while True:
            for record in await consumer.poll():
                number = int(record.value or b"")
                self.read += 1
                self.started.set()
                if self._acked_s.pop(number, None) is None:
                    self._acked_s[number] = -1.0

    def problems(self) -> list[str]:
        now = monotonic()
        found, self._found = self._found, []
        for what, times in (("acknowledged", self._sent_s), ("read", self._acked_s)):
            late = [number for number, since in times.items() if since > 0 and now - since > SILENCE_S]
            if late:
                found.append(f"{len(late)} records of other clients are not {what} after {SILENCE_S:.0f} s")
                for number in late:
                    times[number] = now
        return found

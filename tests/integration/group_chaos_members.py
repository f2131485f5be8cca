"""Members of one group in a process of their own, for tests that kill and stop them. Commands come by standard input
(`join NAME`, `leave NAME`; its end is the end); all that happens is appended to a file, a line at a time, with the
machine's monotonic clock: whatever a killed process has said is kept.

    <time> held <member> <share> <partition>...         an assignment; its number makes the share
    <time> lost <member> <share> <partition>...
    <time> handed <member> <share> <partition> <first> <last>
    <time> done <member> <share> <partition> <first> <last>
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from itertools import groupby
from time import monotonic

from highwater.client import CommitFailedError, Consumer, HighwaterError, TopicPartition


class Member:
    """Reads until it is stopped. `commits_first`: commits before it processes, and processes what was committed."""

    def __init__(
        self, name: str, number: int, bootstrap: str, topic: str, group: str, commits_first: bool, history: int
    ) -> None:
        self._name = name
        self._history = history
        self._commits_first = commits_first
        self._by_itself = not commits_first and number % 2 == 0  # the others say when
        self._shares: dict[int, str] = {}
        self._assignments = 0
        self._consumer = Consumer(
            topic,
            bootstrap=bootstrap,
            group=group,
            instance_id=name if number % 5 == 0 else None,
            auto_offset_reset="earliest",
            max_poll_records=40,
            fetch_max_wait_ms=200,
            request_timeout_ms=5_000,
            enable_auto_commit=self._by_itself,
            auto_commit_interval_ms=300,
            on_assigned=self._assigned,
            on_revoked=self._gone,
            on_lost=self._gone,
        )
        self._stopping = asyncio.Event()
        self.running = asyncio.create_task(self._run())

    def stop(self) -> None:
        self._stopping.set()

    def _say(self, what: str, *words: object, at: float | None = None) -> None:
        line = " ".join(map(str, (f"{monotonic() if at is None else at:.6f}", what, self._name, *words)))
        os.write(self._history, line.encode() + b"\n")

    def _assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self._assignments += 1
        share = f"{os.getpid()}.{id(self):x}.{self._assignments}"
        numbers = [partition for _, partition in partitions]
        self._shares |= dict.fromkeys(numbers, share)
        self._say("held", share, *numbers)

    async def _gone(self, partitions: Sequence[TopicPartition]) -> None:
        if self._shares and not self._by_itself:
            await self._commit()
        for _, partition in partitions:
            self._say("lost", self._shares.pop(partition, "?"), partition)

    async def _run(self) -> None:
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await self._consumer.start()
            unkept = False
            while not stopping.done():
                try:
                    records = await self._consumer.poll(200)
                except HighwaterError as error:
                    self._say("error", repr(error).replace("\n", " "))
                    continue
                handed = monotonic()
                runs = []
                for partition, found in groupby(records, lambda record: record.partition):
                    offsets = [record.offset for record in found]
                    assert offsets == list(range(offsets[0], offsets[-1] + 1)), offsets
                    runs.append((self._shares[partition], partition, offsets[0], offsets[-1]))
                for run in runs:
                    self._say("handed", *run, at=handed)
                if not self._commits_first:
                    for run in runs:
                        self._say("done", *run)
                    await asyncio.sleep(0.001)
                if not self._by_itself and (runs or unkept):
                    refused = await self._commit()
                    unkept = refused is None
                    if self._commits_first and refused is not None:
                        for run in runs:
                            if run[1] not in refused:
                                self._say("done", *run)
        finally:
            stopping.cancel()
            await self._consumer.stop()

    async def _commit(self) -> set[int] | None:
        """The partitions of which it was refused; None: nobody knows what was kept."""
        try:
            await self._consumer.commit()
        except CommitFailedError as error:
            return {partition for _, partition in error.partitions}
        except HighwaterError:
            return None
        return set()


async def main(history: str, bootstrap: str, topic: str, group: str, commits_first: str) -> None:
    descriptor = os.open(history, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    members: dict[str, Member] = {}
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := (await commands.readline()).decode().split():
        command, name = line
        number = int(name.rsplit("-", 1)[1])
        if command == "join":
            if name in members:
                await members[name].running
            members[name] = Member(name, number, bootstrap, topic, group, commits_first == "True", descriptor)
        else:
            members[name].stop()
    for member in members.values():
        member.stop()
    await asyncio.gather(*(member.running for member in members.values()))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

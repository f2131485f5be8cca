"""Somebody who empties a group, sets its offsets, and deletes it, while members come back and its coordinator is lost
(RULES 11.11)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from highwater.errors import ErrorCode
from highwater.groups.group_partition import OFFSETS_TOPIC
from highwater.groups.requests import AlterOffsets, CommitAnswer, DeleteAnswer, DeleteGroup, OffsetToCommit
from highwater.model.partition import PartitionKey

from ..scheduler import Process
from .member import CALL_TIMEOUT_MS, CLIENT, DEFINITE

if TYPE_CHECKING:
    from ..world import World

NOBODY = ""
ATTEMPTS = 15  # of one deletion
REFUSED = DEFINITE | {ErrorCode.NON_EMPTY_GROUP}


class Administrator(Process):
    def __init__(self, world: World, group: str) -> None:
        super().__init__(world.scheduler, CLIENT, f"administrator of {group}")
        assert world.groups is not None
        assert world.settings.groups is not None
        self._world = world
        self._groups = world.groups
        self._group = group
        self._settings = world.settings.groups
        self._commits = world.groups.checks.commits
        self._random = world.scheduler.random
        self.spawn(self._run())

    async def _run(self) -> None:
        while not self._groups.calm:
            await self.sleep(1 + int(self._random.expovariate(1 / self._settings.deletion_gap_ms)))
            if not self._groups.calm:
                await self._clear()

    async def _clear(self) -> None:
        """Members stay away until it is deleted, or come back whenever they like."""
        self._groups.vacate(self._group)
        apart = self._random.random() < 0.5
        for _ in range(ATTEMPTS):
            await self.sleep(1 + int(self._random.random() * 400))
            if self._random.random() < 0.5:
                await self._alter()
            if not apart:
                self._groups.come_back(self._group)
                if self._random.random() < 0.3:
                    self.after(int(self._random.random() * 60), self.spawn, self._alter())
            if await self._delete():
                break
        self._groups.vacant.discard(self._group)

    async def _alter(self) -> None:
        commits, now_ms = self._commits, self.now_ms
        sent, offsets = [], []
        for name, topic in sorted(self._world.topics.items()):
            for number in range(0 if name == OFFSETS_TOPIC else len(topic.replicas)):
                key = PartitionKey(topic.topic_id, number)
                commit = commits.sent(self._group, key, NOBODY, int(self._random.random() * 1000), now_ms)
                sent.append((key, commit))
                offsets.append(OffsetToCommit(name, number, commit.offset, -1, str(commit.number), topic.topic_id))
        answer = await self._ask(AlterOffsets(self._group, tuple(offsets)))
        if not isinstance(answer, CommitAnswer):
            return  # they may have been kept, or may be yet
        errors = answer.errors if answer.error is None else (answer.error,) * len(sent)
        for (key, commit), error in zip(sent, errors, strict=True):
            if error is None:
                commits.acked(self._group, key, commit, self.now_ms)
            elif error.code in REFUSED:
                commits.refused(self._group, key, commit)

    async def _delete(self) -> bool:
        """Tells whether it is gone."""
        sent_ms = self.now_ms
        self._world.note("delete group", self._group)
        answer = await self._ask(DeleteGroup(self._group), loses=self._random.random() < self._settings.lost_deletions)
        self._world.note("group deleted?", self._group, answer)
        if not isinstance(answer, DeleteAnswer):
            return False
        if answer.error is not None and answer.error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            self._commits.not_found(self._group, sent_ms)
        elif answer.error is not None:
            return False
        self._commits.deleted(self._group, sent_ms, self.now_ms)
        return True

    async def _ask(self, request: Any, *, loses: bool = False) -> Any:
        world, nodes = self._world, self._world.nodes
        place = 1 + int(self._random.random() * len(nodes))
        broker = await world.network.call(
            self, place, nodes[place].server, "on_find_coordinator", self._group, timeout_ms=CALL_TIMEOUT_MS
        )
        if not isinstance(broker, int) or isinstance(broker, ErrorCode):
            return None
        if loses:
            self.after(int(self._random.random() * 30), world.faults.kill_manager, nodes[broker])
        return await world.network.call(
            self, broker, nodes[broker].server, "on_ask", request, timeout_ms=CALL_TIMEOUT_MS
        )

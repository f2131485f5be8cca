"""Somebody who is no member, and looks at the committed offsets of groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from highwater.errors import ErrorCode
from highwater.groups.requests import FetchAnswer, FetchOffsets, NamedPartition

from ..scheduler import Process
from .member import CALL_TIMEOUT_MS, CLIENT

if TYPE_CHECKING:
    from ..world import World

PAUSE_MS = 300


class Watcher(Process):
    def __init__(self, world: World, group: str) -> None:
        super().__init__(world.scheduler, CLIENT, f"watcher of {group}")
        assert world.groups is not None
        self._world = world
        self._group = group
        self._checks = world.groups.checks
        self.spawn(self._run())

    async def _run(self) -> None:
        while True:
            await self.sleep(1 + int(self._world.scheduler.random.random() * 2 * PAUSE_MS))
            await self._look()

    async def _look(self) -> None:
        nodes = self._world.nodes
        broker = await self._ask(1 + int(self._world.scheduler.random.random() * len(nodes)), "on_find_coordinator")
        keys = self._checks.commits.known(self._group)
        if not isinstance(broker, int) or isinstance(broker, ErrorCode) or not keys:
            return
        sent_ms = self.now_ms
        wanted = tuple(NamedPartition(self._checks.names[key.topic_id], key.partition) for key in keys)
        answer = await self._ask(broker, "on_ask", FetchOffsets(self._group, partitions=wanted))
        if not isinstance(answer, FetchAnswer) or answer.error is not None:
            return
        for key, found in zip(keys, answer.offsets, strict=True):
            value = found.committed
            number = None if value is None or value.topic_id != key.topic_id else int(value.metadata)
            self._checks.commits.read(self._group, key, number, sent_ms, self.now_ms, None)

    def _ask(self, broker: int, method: str, request: Any = None) -> Any:
        node = self._world.nodes[broker]
        what = self._group if request is None else request
        return self._world.network.call(self, broker, node.server, method, what, timeout_ms=CALL_TIMEOUT_MS)

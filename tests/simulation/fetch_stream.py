"""One FetchStream of a replica fetcher: the session, its requests in order, and the leader's answers (RULES 4.1, 4.2).

The server's end is `replica_manager.fetch_stream.FetchStream`; what to answer the production `Fetching` says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from highwater.errors import ErrorCode
from highwater.fetcher.follower.actions import FetchPosition
from highwater.metadata.models import PartitionKey
from highwater.replica_manager.partition.actions import FetchSession
from highwater.replica_manager.requests.fetch import FetchAsk, FetchedPart, FetchPart, FetchRole

from .scheduler import Future, Process

if TYPE_CHECKING:
    from .network import Stream
    from .replica_manager import ReplicaManagerProcess


class Wait:
    """Woken by partitions, as `waits.DataWait`. Hashed by its number, so that a set of them has one order."""

    def __init__(self, owner: Process, number: int) -> None:
        self.ended = False
        self._owner = owner
        self._number = number
        self._is_woken = False
        self._woken: Future | None = None

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other

    def wake(self) -> None:
        self._is_woken = True
        if self._woken is not None:
            self._owner.after(0, self._woken.set)

    def end(self) -> None:
        self.ended = True
        self.wake()

    async def wait(self) -> None:
        if not (self._is_woken or self.ended):
            self._woken = Future()
            await self._woken
            self._woken = None
        self._is_woken = False


class FetchStreamServer:
    def __init__(self, owner: ReplicaManagerProcess, answer: Callable[..., None]) -> None:
        self.owner = owner
        self.stream: Stream | None = None
        self._answer = answer  # the client's, by the stream
        self._session: FetchSession | None = None
        self._asks: deque[tuple[int, FetchAsk]] = deque()
        self._answering: FetchAsk | None = None
        self._ended = False

    def request(
        self, broker_id: int, broker_epoch: int, number: int, positions: Mapping[PartitionKey, FetchPosition]
    ) -> None:
        if self._ended:
            return
        replica_manager = self.owner.replica_manager
        if self._session is None:
            self._session = replica_manager.sessions.open(broker_id, broker_epoch, 0)
            replica_manager.session_opened(self._session)
        if not replica_manager.sessions.is_newest(self._session):
            self._end()
            return
        ask = self._ask(positions)
        self.owner.fetching.note_follower(ask)
        for key in positions:
            hosted = replica_manager.hosted.get(key)
            if hosted is not None:
                hosted.partition.check_invariants()
        self._asks.append((number, ask))
        if self._answering is not None:
            self._answering.wait.end()
        else:
            self.owner.spawn(self._work())

    def _ask(self, positions: Mapping[PartitionKey, FetchPosition]) -> FetchAsk:
        parts = [
            FetchPart(
                key,
                position.leader_epoch,
                position.fetch_offset,
                0,
                position.acked_offset,
                position.last_epoch,
                position.log_start_offset,
            )
            for key, position in positions.items()
        ]
        settings = self.owner.world.settings
        wait: Any = Wait(self.owner, self.owner.world.count())
        return FetchAsk(FetchRole.REPLICA, parts, settings.fetch_wait_ms, 1, 0, True, self._session, wait=wait)

    async def _work(self) -> None:
        while self._asks and not self._ended:
            number, ask = self._asks.popleft()
            self._answering = ask
            if self._asks:
                ask.wait.end()
            results = await self._results(ask)
            self._answering = None
            if self.stream is not None:
                self.stream.to_client(self._answer, number, results)

    async def _results(self, ask: FetchAsk) -> list[FetchedPart]:
        """As `Fetching.answer`."""
        owner, fetching = self.owner, self.owner.fetching
        deadline_ms = owner.now_ms + ask.max_wait_ms
        owner.after(ask.max_wait_ms, ask.wait.wake)
        while True:
            results, final, awaited = await self._read(ask)
            if final or ask.wait.ended or self._ended or owner.now_ms >= deadline_ms:
                return results
            waiting = fetching._enter(ask, results, deadline_ms / 1000)
            assert waiting is not None
            if awaited:
                results, final, _ = await self._read(ask)  # what moved during the reading was not waited for yet
                if final:
                    fetching._leave(ask, waiting)
                    return results
            await ask.wait.wait()  # type: ignore[call-arg]
            fetching._leave(ask, waiting)

    async def _read(self, ask: FetchAsk) -> tuple[list[FetchedPart], bool, bool]:
        """As `Fetching._read`."""
        owner, fetching = self.owner, self.owner.fetching
        results: list[FetchedPart] = []
        final, awaited, data = fetching._leads_by_now(ask), False, False
        for index, part in enumerate(ask.parts):
            result = FetchedPart(part.key)
            results.append(result)
            hosted = owner.replica_manager.hosted.get(part.key)
            if hosted is None:
                result.error = ask.verdicts[index].error
            else:
                bound = fetching._bound(ask, index, part, hosted, result)
                if bound > part.fetch_offset:
                    asked_storage, error, batches = await owner.read(hosted, part.fetch_offset, bound)
                    awaited |= asked_storage
                    result.error, result.pieces = error, batches
                    data = data or bool(batches)
            if result.error is ErrorCode.UNKNOWN_LEADER_EPOCH:
                continue
            final = final or result.error is not ErrorCode.NONE or result.diverging is not None
        return results, final or data, awaited

    def _end(self) -> None:
        self._ended = True
        if self.stream is not None:
            self.stream.close(1)
        self.closed()

    def closed(self) -> None:
        self._ended = True
        if self._answering is not None:
            self._answering.wait.end()
        if self._session is not None:
            session, self._session = self._session, None
            self.owner.replica_manager.session_closed(session)

"""One FetchStream of a replica fetcher: the session, its requests in order, and the leader's answers (RULES 4.1, 4.2).

The server's end is `replica_manager.server.fetch_stream.FetchStream`; what to answer the production `FetchHandler`
says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

from highwater.errors import ErrorCode
from highwater.fetcher.follower.actions import FetchPosition
from highwater.model.partition import PartitionKey
from highwater.replica_manager.partition.actions import FetchSession
from highwater.replica_manager.requests.fetch import FetchParams, FetchRead
from highwater.replica_manager.requests.session_fetch import SessionFetch
from highwater.replica_manager.responses.fetch_parts import FetchedPart, FetchPart, FetchRole
from highwater.replica_manager.responses.response_reads import PartRead

from .scheduler import Future, Process
from .throttles import CheckedRole

if TYPE_CHECKING:
    from .network import Stream
    from .replica_manager import ReplicaManagerProcess


BATCH_BYTES = 40  # of the 100 that a response has room for


class Wait:
    """Woken by partitions, as `DataWait`. Hashed by its number, so that a set of them has one order."""

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

    async def wait(self, timeout_s: float) -> None:
        if not (self._is_woken or self.ended):
            self._owner.after(max(1, int(timeout_s * 1000)), self.wake)
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
        self._incremental: SessionFetch | None = None
        self._role: CheckedRole | None = None
        self._waiting: deque[tuple[int, FetchParams]] = deque()
        self._answering: FetchParams | None = None
        self._ended = False

    def request(
        self,
        broker_id: int,
        broker_epoch: int,
        number: int,
        positions: Mapping[PartitionKey, FetchPosition],
        forgotten: Sequence[PartitionKey],
        incremental: bool,
    ) -> None:
        if self._ended:
            return
        replica_manager = self.owner.replica_manager
        if self._session is None:
            self._session = replica_manager.sessions.open(broker_id, broker_epoch, 0)
            replica_manager.session_opened(self._session)
            if incremental and self.owner.incremental:
                self._role = CheckedRole(self.owner, self._session, self.owner.fetch_handler.note_place)
                self._incremental = SessionFetch(replica_manager, self._role, self._read_places, max_bytes=100)
        if not replica_manager.sessions.is_newest(self._session):
            self._end()
            return
        params = self._params(positions)
        if self._incremental is not None:
            self._incremental.take(params, forgotten)
        else:
            self.owner.fetch_handler.note_follower(params)
        for key in positions:
            hosted = replica_manager.hosted.get(key)
            if hosted is not None:
                hosted.partition.check_invariants()
        self._waiting.append((number, params))
        if self._answering is not None:
            self._answering.wait.end()
        else:
            self.owner.spawn(self._work())

    def _params(self, positions: Mapping[PartitionKey, FetchPosition]) -> FetchParams:
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
        return FetchParams(FetchRole.REPLICA, parts, settings.fetch_wait_ms, 1, 0, True, self._session, wait=wait)

    async def _work(self) -> None:
        while self._waiting and not self._ended:
            number, params = self._waiting.popleft()
            self._answering = params
            if self._waiting:
                params.wait.end()
            more, throttle_s = False, 0.0
            if self._incremental is not None and self._role is not None:
                results, more, throttle_s = await self._incremental.answer(params)
                self._role.check(self._incremental)
            else:
                results = await self._results(params)
            self._answering = None
            if self.stream is not None:
                self.stream.to_client(
                    self._answer, number, results, self._incremental is not None, more, ceil(1000 * throttle_s)
                )

    async def _read_places(self, reads: Sequence[PartRead]) -> list[tuple[FetchedPart, int]]:
        """As `FetchHandler.read_places`, one after the other; a batch counts as so many bytes."""
        for hosted, part, found, _ in reads:
            _, found.error, found.pieces = await self.owner.read(hosted, part.fetch_offset, found.readable_end)
        return [(read.admitted, BATCH_BYTES * len(read.admitted.pieces)) for read in reads]

    async def _results(self, params: FetchParams) -> list[FetchedPart]:
        """As `FetchHandler.answer`."""
        owner, fetch_handler = self.owner, self.owner.fetch_handler
        deadline_ms = owner.now_ms + params.hold_ms(owner.replica_manager.settings)
        while True:
            read = await self._read(params)
            if read.complete or params.wait.ended or self._ended or owner.now_ms >= deadline_ms:
                return read.parts
            waiting = fetch_handler.enter(params, read, deadline_ms / 1000)
            assert waiting is not None
            if read.awaited:
                read = await self._read(params)  # what moved during the reading was not waited for yet
                if read.complete:
                    fetch_handler.leave(params, waiting)
                    return read.parts
            await params.wait.wait((deadline_ms - owner.now_ms) / 1000)
            fetch_handler.leave(params, waiting)

    async def _read(self, params: FetchParams) -> FetchRead:
        """As `FetchHandler._read`."""
        owner, fetch_handler = self.owner, self.owner.fetch_handler
        parts: list[FetchedPart] = []
        complete, awaited = fetch_handler.leads_by_now(params), False
        for index, part in enumerate(params.parts):
            hosted = owner.replica_manager.hosted.get(part.key)
            found = fetch_handler.admitted(params, index, hosted)
            parts.append(found)
            if hosted is not None and found.readable_end > part.fetch_offset:
                asked_storage, found.error, found.pieces = await owner.read(
                    hosted, part.fetch_offset, found.readable_end
                )
                awaited |= asked_storage
                complete = complete or bool(found.pieces)
            if found.error is ErrorCode.UNKNOWN_LEADER_EPOCH:
                continue
            complete = complete or found.error is not ErrorCode.NONE or found.diverging is not None
        return FetchRead(parts, complete, awaited)

    def _end(self) -> None:
        self._ended = True
        if self.stream is not None:
            self.stream.close(1)
        self.closed()

    def closed(self) -> None:
        self._ended = True
        if self._answering is not None:
            self._answering.wait.end()
        if self._incremental is not None:
            self._incremental.close()
        if self._session is not None:
            session, self._session = self._session, None
            self.owner.replica_manager.session_closed(session)

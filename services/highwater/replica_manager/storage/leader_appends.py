"""The appends of all partitions that this broker leads, on the one append stream to its log-storage.

Everything that is handed over between two turns of the event loop, whatever its partition and request, goes out as one
message, and so does what is handed over while the stream takes one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from highwater.log_storage_client.append_stream import AppendStream, Message
from highwater.log_storage_client.values import Append, AppendAnswer, StorageUnavailableError
from highwater.model.fence_role import Role
from highwater.rpc.connections.channel import open_channel
from highwater.rpc.connections.tls import Certificates
from highwater.supervision import TaskSupervisor
from highwater.telemetry.log import get_logger, pairs

logger = get_logger("replica_manager.leader_appends")

# Messages of about 250 KB moved most; a larger single batch is sent alone.
MESSAGE_BYTES = 512 << 10
# Both ends work off a message in one turn of their event loops.
MESSAGE_APPENDS = 250
RECONNECT_S = 0.05

# Called once, with None where the outcome is not known; where it raises, once more with None.
Answered = Callable[[AppendAnswer | None], None]
_Handed = tuple[Append, Answered]


class LeaderAppends:
    """Connects, and connects again, by itself. `incarnation` is called with the incarnation in each answer,
    `offline_logs` and `damaged_logs` with how many logs are that, where it is another number than in the answer
    before."""

    def __init__(
        self,
        address: str,
        incarnation: Callable[[str], None],
        offline_logs: Callable[[int], None] = lambda count: None,
        damaged_logs: Callable[[int], None] = lambda count: None,
        *,
        supervisor: TaskSupervisor | None = None,
        certificates: Certificates | None = None,
    ) -> None:
        # A connection of their own: a long read must not stand before an append in the transport's queue.
        self._channel = open_channel(address, certificates)
        self._stream = AppendStream(
            self._channel,
            address,
            Role.LEADER,
            self._next_message,
            self._unsent,
            greets=True,  # log-storage itself has answered before anything is appended
            reconnect_s=RECONNECT_S,
            seen=self._answer_seen,
            supervisor=supervisor,
        )
        self._seen_incarnation = incarnation
        self._incarnation = ""  # in the latest answer
        self._seen_offline_logs = offline_logs
        self._offline_logs = 0
        self._seen_damaged_logs = damaged_logs
        self._damaged_logs = 0
        self._pending: deque[_Handed] = deque()
        self._probes: deque[asyncio.Future[str]] = deque()

    def start(self) -> None:
        self._stream.start()

    async def stop(self) -> None:
        await self._stream.stop()
        await self._channel.close(None)

    def send(self, append: Append, answered: Answered) -> None:
        """Hands an append over; appends keep the order of these calls. Not connected: answered with None at once."""
        if not self._stream.connected.is_set():
            answered(None)
            return
        self._pending.append((append, answered))
        self._stream.wake()

    def damage_dropped(self) -> None:
        """Another log may be damaged by now in place of one that is not any more: that they are as many as before says
        nothing, and the next answer's number is told in any case."""
        self._damaged_logs = -1

    async def probe(self, timeout_s: float) -> str:
        """An empty append through the same loop (RULES 8.2): the incarnation that answered. Raises
        `StorageUnavailableError`."""
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._probes.append(future)
        self._stream.wake()
        try:
            # Not `wait_for`: up to Python 3.11 it swallows a cancellation that comes with the answer, and then a lease
            # is renewed for ever by a task that its owner waits to see end.
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            with contextlib.suppress(ValueError):
                self._probes.remove(future)  # where it was not sent: they would pile up while nothing is connected
            raise StorageUnavailableError(f"log-storage did not answer a probe within {timeout_s} s") from None

    def _next_message(self) -> Message | None:
        if self._probes:
            return self._probe_message()
        if not self._pending:
            return None
        taken = [self._pending.popleft()]
        size = len(taken[0][0].records)
        while (
            self._pending and len(taken) < MESSAGE_APPENDS and size + len(self._pending[0][0].records) <= MESSAGE_BYTES
        ):
            taken.append(self._pending.popleft())
            size += len(taken[-1][0].records)
        return _message(taken)

    def _unsent(self) -> Iterator[Message]:
        while self._probes:
            yield self._probe_message()
        pending, self._pending = self._pending, deque()
        yield _message(pending)

    def _probe_message(self) -> Message:
        return Message((), partial(self._probed, self._probes.popleft()))

    def _answer_seen(self, incarnation: str, offline_logs: int, damaged_logs: int) -> None:
        if incarnation != self._incarnation:
            self._offline_logs = self._damaged_logs = 0  # which they are is forgotten, be they as many as before
        self._incarnation = incarnation
        self._seen_incarnation(incarnation)
        if offline_logs != self._offline_logs:
            self._offline_logs = offline_logs
            self._seen_offline_logs(offline_logs)
        if damaged_logs != self._damaged_logs:
            self._damaged_logs = damaged_logs
            self._seen_damaged_logs(damaged_logs)

    def _probed(self, probe: asyncio.Future[str], answers: Sequence[AppendAnswer] | None, reason: str) -> None:
        if probe.done():
            return
        if answers is None:
            probe.set_exception(StorageUnavailableError("the append stream to log-storage broke"))
        else:
            probe.set_result(self._incarnation)


def _message(handed: Sequence[_Handed]) -> Message:
    return Message([append for append, _ in handed], partial(_settle_all, handed))


def _settle_all(handed: Sequence[_Handed], answers: Sequence[AppendAnswer] | None, reason: str) -> None:
    for index, (append, answered) in enumerate(handed):
        _settle(append, answered, None if answers is None else answers[index])


def _settle(append: Append, answered: Answered, answer: AppendAnswer | None) -> None:
    """A mistake of ours about one partition is its own: the others in the message are not to wait for it for ever."""
    try:
        answered(answer)
    except Exception:
        logger.exception("an append could not be settled %s", pairs(partition=append.key, known=answer is not None))
        if answer is not None:
            _settle(append, answered, None)  # its leadership begins anew, and who waits there is answered

"""Base of the blocking clients: starts the async client with the first call and runs its coroutines."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Coroutine
from inspect import signature
from time import monotonic
from typing import Any, Generic, Protocol, Self, TypeVar

from highwater.client.blocking.event_loop_thread import event_loop_thread
from highwater.client.exceptions import ClientClosedError, HighwaterError
from highwater.rpc.process import forking


class AsyncClient(Protocol):
    async def start(self) -> object: ...

    async def stop(self) -> None: ...


ClientT = TypeVar("ClientT", bound=AsyncClient)
ResultT = TypeVar("ResultT")
TwinT = TypeVar("TwinT")


def with_the_signature_of(client: type) -> Callable[[type[TwinT]], type[TwinT]]:
    """Gives the class the async client's options and defaults, for `help()` and for editors that ask it."""

    def decorated(twin: type[TwinT]) -> type[TwinT]:
        twin.__signature__ = signature(client)  # type: ignore[attr-defined]
        return twin

    return decorated


class BlockingClient(Generic[ClientT]):
    """Starts the async client with the first call and runs its coroutines."""

    def __init__(self, client: ClientT) -> None:
        self._client: ClientT = client
        self._process_id: int | None = None
        self._starting = threading.Lock()
        self._start_failure: tuple[float, HighwaterError] | None = None  # the last one, and when

    def start(self) -> Self:
        """Connects now instead of with the first call. Raises `NetworkError` where no bootstrap broker answers within
        `max_block_ms`; it may then be called again."""
        self._run(self._client.start)  # a second start does nothing, or says that it was stopped
        return self

    def stop(self) -> None:
        """Closes. Does nothing in a forked child: what the parent started is the parent's."""
        self._stop_client(self._client.stop)

    def _stop_client(self, stop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._process_id == os.getpid():
            event_loop_thread().run(stop())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _ensure_started(self) -> None:
        if self._process_id is not None:
            self._check_process()
            return
        if (refusal := forking.refusal()) is not None:
            raise ClientClosedError(refusal)  # before the lock: the thread that held it may be the parent's
        began = monotonic()
        with self._starting:
            if self._process_id is None:
                if self._start_failure is not None and self._start_failure[0] >= began:
                    raise self._start_failure[1]  # of the attempt that this thread has waited for
                try:
                    event_loop_thread().run(self._client.start())
                except HighwaterError as error:
                    self._start_failure = monotonic(), error
                    raise
                self._process_id = os.getpid()

    def _check_process(self) -> None:
        if self._process_id != os.getpid():
            raise ClientClosedError(
                forking.refusal() or "this client was used before the process forked; make another, after the fork"
            )

    def _run(self, work: Callable[[], Coroutine[Any, Any, ResultT]], timeout_s: float | None = None) -> ResultT:
        self._ensure_started()
        return event_loop_thread().run(work(), timeout_s)

    def _call(self, work: Callable[[], ResultT]) -> ResultT:
        """A plain call, on the event loop's thread."""

        async def called() -> ResultT:
            return work()

        return self._run(called)

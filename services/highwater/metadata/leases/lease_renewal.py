"""The renewals of one lease, from a thread: no event loop that is busy delays them, and none that is stuck goes on
being renewed (RULES 8.2)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

from highwater.metadata.store.blocking_leases import BlockingLeases
from highwater.metadata.store.etcd_errors import LeaseNotFound, StoreClosed, StoreError
from highwater.telemetry.log import get_logger

_log = get_logger(__name__)


def next_turn_ms(due_ms: int, earliest_ms: int, last_call_ms: int) -> int:
    """The time of a renewal: when it is due, or at the last call before that, but not so soon after the try before."""
    return min(due_ms, max(last_call_ms, earliest_ms))


class LeaseRenewal:
    """Renews a lease every third of its TTL, and tries again every twelfth, while the event loop that made this has
    shown within `patience_ms` that the process does its work; and once more at the end of that time. `close` it.

    `show_life`, `close` and `ended` belong to that event loop; `confirmed_until_ms` may be read anywhere.
    """

    def __init__(
        self,
        leases: BlockingLeases,
        lease: int,
        *,
        key: str,
        ttl_s: int,
        patience_ms: int,
        granted_ms: int,
        clock_ms: Callable[[], int],
    ) -> None:
        """`granted_ms`: when the grant was sent, by `clock_ms`, which counts on while the machine sleeps (RULES 8.1).
        The thread runs from now on; the grant, which was answered, was a sign of life."""
        self.confirmed_until_ms = granted_ms + ttl_s * 1000
        """When the lease may run out, as far as confirmed: the send time of the last answered renewal + TTL (RULES
        8.1); 0 once etcd has said that it is gone."""
        self._leases = leases
        self._lease = lease
        self._key = key
        self._ttl_s = ttl_s
        self._patience_ms = patience_ms
        self._clock_ms = clock_ms
        self._alive_ms = clock_ms()
        self._changed = threading.Condition()
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        # A daemon: a call that hangs must not keep the process from ending. A fork has none, and renews nothing.
        threading.Thread(target=self._run, name=f"lease-{lease:x}", daemon=True).start()

    def show_life(self, at_ms: int) -> None:
        """Says that this process did what it is there for at that time, by the clock given."""
        with self._changed:
            self._alive_ms = max(self._alive_ms, at_ms)
            self._changed.notify_all()

    async def ended(self) -> None:
        """Returns when etcd has said that the lease is gone, or `close` was called. Raises what ended the thread."""
        await asyncio.shield(self._ended)

    def close(self) -> None:
        """No renewal is begun after this; one under way is cancelled, and may yet be done."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._leases.close()

    # In the thread

    def _run(self) -> None:
        error: Exception | None = None
        try:
            self._renew_until_gone()
        except StoreClosed:
            pass
        except Exception as unexpected:  # told to who waits for the end: the key counts as lost
            error = unexpected
        finally:
            self._leases.close()
        with contextlib.suppress(RuntimeError):  # the event loop has ended before
            self._loop.call_soon_threadsafe(self._end, error)

    def _end(self, error: Exception | None) -> None:
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)
            self._ended.exception()  # where nobody waits any more, there is nobody to miss it

    def _renew_until_gone(self) -> None:
        ttl_ms = self._ttl_s * 1000
        tried_ms, due_ms = self._alive_ms, self._alive_ms + ttl_ms // 3
        while self._await_turn(due_ms, tried_ms + ttl_ms // 12):
            tried_ms = self._clock_ms()
            try:
                # What reaches etcd after the time that the last sign of life allows would keep a lease that is to end.
                left_ms = self._alive_ms + self._patience_ms - tried_ms
                self._leases.renew(self._lease, min(self._ttl_s / 3, max(left_ms / 1000, self._ttl_s / 12)))
            except LeaseNotFound:
                self.confirmed_until_ms = 0
                return
            except StoreClosed:
                raise
            except StoreError as error:
                _log.warning("cannot renew the lease of %s: %s", self._key, error)
                due_ms = self._clock_ms() + ttl_ms // 12
            else:
                self.confirmed_until_ms = tried_ms + ttl_ms
                due_ms = tried_ms + ttl_ms // 3

    def _await_turn(self, due_ms: int, earliest_ms: int) -> bool:
        """Waits until a renewal is due, or until the last moment (but not before `earliest_ms`) at which the last sign
        of life allows one: what is stuck from now on has as much time as it may have. False where this was closed."""
        margin_ms = self._ttl_s * 1000 // 12
        silent = False
        with self._changed:
            while not self._closed:
                now_ms = self._clock_ms()
                allowed_until_ms = self._alive_ms + self._patience_ms
                if now_ms > allowed_until_ms:
                    if not silent:
                        silent = True
                        silence_ms = now_ms - self._alive_ms
                        _log.warning("the lease of %s is not renewed: no sign of life for %d ms", self._key, silence_ms)
                    self._changed.wait()
                    continue
                turn_ms = next_turn_ms(due_ms, earliest_ms, allowed_until_ms - margin_ms)
                if now_ms >= turn_ms:
                    return True
                self._changed.wait((turn_ms - now_ms) / 1000)
            return False

"""Notifications of ISR changes, as the controller collects and removes them (RULES 2.5)."""

from __future__ import annotations

from collections.abc import Sequence

from highwater.metadata.schema.controller_term import ControllerTerm
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import IsrNotification
from highwater.metadata.store.batches import BATCH_WRITES
from highwater.metadata.store.etcd_errors import ControllerDeposed
from highwater.metadata.store.store import Store
from highwater.metadata.store.transactions import Delete, Get

QUIET_MS = 5_000
LONGEST_MS = 60_000


class IsrNotificationCollector:
    """Gathers notifications until none came for `quiet_ms`, or the oldest is `longest_ms` old. Pure."""

    def __init__(self, quiet_ms: int = QUIET_MS, longest_ms: int = LONGEST_MS) -> None:
        self._quiet_ms = quiet_ms
        self._longest_ms = longest_ms
        self._waiting: list[IsrNotification] = []
        self._first_ms = 0
        self._last_ms = 0

    def add(self, notification: IsrNotification, now_ms: int) -> None:
        if not self._waiting:
            self._first_ms = now_ms
        self._last_ms = now_ms
        self._waiting.append(notification)

    @property
    def due_ms(self) -> int | None:
        """The time at which `take` should be called; None while there is nothing."""
        if not self._waiting:
            return None
        return min(self._last_ms + self._quiet_ms, self._first_ms + self._longest_ms)

    def take(self, now_ms: int) -> tuple[IsrNotification, ...]:
        """The notifications that are due now, if any. To be announced by UpdateMetadata, then removed from etcd."""
        due_ms = self.due_ms
        if due_ms is None or now_ms < due_ms:
            return ()
        taken, self._waiting = tuple(self._waiting), []
        return taken


async def remove_notifications(
    store: Store, keys: Keys, term: ControllerTerm, notifications: Sequence[IsrNotification]
) -> None:
    """Deletes them. Repeating it is harmless. Raises `ControllerDeposed`, `Unavailable`, `OutcomeUnknown`."""
    guard = term.guard(keys)
    names = [keys.isr_change(each.broker_id, each.broker_epoch, each.sequence) for each in notifications]
    for start in range(0, len(names), BATCH_WRITES):
        deletes = [Delete(name) for name in names[start : start + BATCH_WRITES]]
        result = await store.txn((guard,), deletes, (Get(guard.key),))
        if not result.succeeded:
            raise ControllerDeposed(f"controller epoch {term.controller_epoch} has ended")

"""Brokers that shut down, in the order in which they began, and what each is still held by (RULES 7.8). Pure.

    LEAVING --asks--> WAITING --nothing holds it, and it is told so--> RELEASED (it may be gone at any moment)

The controller decides, one partition after the other, so two brokers are never both let out of an ISR that can spare
only one of them. Who began first goes first, from every ISR: so no two wait for each other to come back.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from highwater.metadata.schema.models import NO_LEADER, PartitionState
from highwater.model.partition import PartitionKey


@dataclass(slots=True)
class _Leaving:
    broker_epoch: int
    since: int
    asked: bool = False
    # Partitions that it leads (True), or whose ISR needs it, as far as waiting can change that.
    held: dict[PartitionKey, bool] = field(default_factory=dict)
    leads: int = 0  # how many of them it leads
    released: bool = False

    def hold(self, key: PartitionKey, leads: bool) -> None:
        self.let_go(key)
        self.held[key] = leads
        self.leads += leads

    def let_go(self, key: PartitionKey) -> None:
        self.leads -= self.held.pop(key, False)


class ControlledShutdowns:
    """Under one controller; one elected later begins anew, and the brokers ask it again."""

    def __init__(self) -> None:
        self._leaving: dict[int, _Leaving] = {}

    @property
    def leaving(self) -> tuple[int, ...]:
        """In the order in which they began."""
        return tuple(self._leaving)

    def began(self, broker_id: int, broker_epoch: int, since: int = sys.maxsize) -> None:
        """Its registration says that it shuts down, `since` this revision. So the order is the same under every
        controller, and after a broker registered anew: two that each have left some ISRs would wait for each other."""
        known = self._leaving.get(broker_id)
        if known is None or known.broker_epoch != broker_epoch:
            self.gone(broker_id)
            self._leaving[broker_id] = _Leaving(broker_epoch, since)
            self._leaving = dict(sorted(self._leaving.items(), key=lambda each: each[1].since))

    def asked(self, broker_id: int, broker_epoch: int) -> bool:
        """It asks whether it may stop. Whether it is the first time under this broker epoch."""
        self.began(broker_id, broker_epoch)
        leaving = self._leaving[broker_id]
        first, leaving.asked = not leaving.asked, True
        return first

    def gone(self, broker_id: int) -> None:
        """Its registration has ended."""
        self._leaving.pop(broker_id, None)

    def looked_at(
        self, key: PartitionKey, replicas: Collection[int], state: PartitionState | None, minimum: int
    ) -> None:
        """A partition as it stands now: after every change of its state, or of what its minimum is."""
        if not self._leaving:
            return
        for broker_id, leaving in self._leaving.items():
            if broker_id in replicas and state is not None and _holds(broker_id, replicas, state, minimum):
                leaving.hold(key, state.leader == broker_id)
            else:
                leaving.let_go(key)

    def removed(self, keys: Iterable[PartitionKey]) -> None:
        """Partitions that are being deleted need nobody."""
        if self._leaving:
            for key in keys:
                for leaving in self._leaving.values():
                    leaving.let_go(key)

    def held(self, broker_id: int) -> Collection[PartitionKey]:
        """The partitions that it still waits for."""
        leaving = self._leaving.get(broker_id)
        return leaving.held.keys() if leaving is not None else ()

    def leads(self, broker_id: int) -> int:
        """The number of these that it leads."""
        leaving = self._leaving.get(broker_id)
        return leaving.leads if leaving is not None else 0

    def release(self, broker_id: int) -> bool:
        """Tells whether nothing holds it any more. From then on it counts as gone: it may be, at any moment."""
        leaving = self._leaving.get(broker_id)
        if leaving is None or not leaving.asked or leaving.held:
            return False
        leaving.released = True
        return True

    def waits(self, broker_id: int) -> bool:
        """Tells whether it is sure to be there until it is released. One that merely says that it is shutting down may
        have been released by an earlier controller."""
        leaving = self._leaving.get(broker_id)
        return leaving is not None and leaving.asked and not leaving.released


def _holds(broker_id: int, replicas: Collection[int], state: PartitionState, minimum: int) -> bool:
    """A leadership can go to any other replica, sooner or later. An ISR can do without it, sooner or later, where the
    minimum leaves room for that: not where each replica is needed, always."""
    if state.leader == broker_id and state.leader != NO_LEADER:
        return len(replicas) > 1
    return broker_id in state.isr and len(replicas) > minimum

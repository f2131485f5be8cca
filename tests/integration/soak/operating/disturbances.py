"""When machines did not run as they should. Pure."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import inf

RECOVERY_S = 5.0  # from the end of a fault: etcd is watched again, a broker that was killed serves


def by_etcd_and_brokers(machine: str) -> bool:
    return machine.startswith(("broker", "etcd"))


@dataclass
class Disturbance:
    machines: frozenset[str]
    begun: float
    ended: float = inf


class Disturbances:
    def __init__(self) -> None:
        self.all: list[Disturbance] = []

    def begin(self, machines: Collection[str], now: float) -> Disturbance:
        made = Disturbance(frozenset(machines), now)
        insort(self.all, made, key=lambda each: each.begun)
        return made

    def now(self, machine: str) -> bool:
        return any(machine in each.machines and each.ended == inf for each in self.all)

    def between(self, begun: float, ended: float, machines: Collection[str]) -> bool:
        """Whether one of these machines did not run as it should then, or had just come back."""
        return any(
            not each.machines.isdisjoint(machines) and each.begun <= ended and begun <= each.ended + RECOVERY_S
            for each in self.all
        )

    def due(self, begun: float, within_s: float, matters: Callable[[str], bool] = by_etcd_and_brokers) -> float:
        """When something that takes so long undisturbed must have happened. `inf` while a fault of a machine lasts that
        matters to it."""
        due = begun + within_s
        for each in self.all:  # in the order of their beginnings
            if any(map(matters, each.machines)) and each.begun <= due and begun <= each.ended + RECOVERY_S:
                due = max(due, each.ended + RECOVERY_S + within_s)
        return due

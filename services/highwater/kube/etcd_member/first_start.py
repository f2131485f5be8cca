"""The decision of a member without a log: to start a new cluster, or not. Pure.

A new cluster is started only where every member has said that its volume has no log: then no volume holds anything that
a new cluster could lose. A member that does not answer is one that may hold it. It takes two steps, so that no member
leaves before the others know enough to follow:

- EMPTY becomes PREPARED when all the others say EMPTY, PREPARED or AGREED. Nobody starts yet: so whoever is still EMPTY
  finds no log anywhere, either.
- PREPARED becomes AGREED, and starts, when each of the others is PREPARED, AGREED, or an etcd already. Only what is
  AGREED becomes an etcd, which the first step of all the others came before.

A member whose volume was lost later is EMPTY again and finds at least one etcd, or one that is silent: it never starts
anew. It is replaced under another member id by those that have a majority (`start`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto

from highwater.kube.etcd_member.volume import Held


class Heard(Enum):
    """The answer of a member's peer port, other than what its volume holds."""

    ETCD = auto()
    """Something that is not a member in its init container."""
    ANOTHER = auto()
    """A member in its init container that would start another cluster: its settings are others."""
    SILENCE = auto()


Answer = Held | Heard

_RESTORE = 'restore the backup ("Restoring etcd from a backup" in docs/operations.md)'

_WITHOUT_LOG = frozenset({Held.EMPTY, Held.PREPARED, Held.AGREED})


class Step(Enum):
    PREPARE = auto()
    AGREE = auto()
    WAIT = auto()


def next_step(held: Held, others: Mapping[str, Answer]) -> Step:
    """For a volume that holds `held`, with what the other members answered just now."""
    answers = set(others.values())
    if held is Held.EMPTY and answers <= _WITHOUT_LOG:
        return Step.PREPARE
    if held is Held.AGREED or (held is Held.PREPARED and answers <= {Held.PREPARED, Held.AGREED, Heard.ETCD}):
        return Step.AGREE
    return Step.WAIT


def what_is_missing(held: Held, others: Mapping[str, Answer]) -> str:
    """Tells why the decision is still open, and what to do, in a sentence."""
    differing = sorted(name for name, answer in others.items() if answer is Heard.ANOTHER)
    silent = sorted(name for name, answer in others.items() if answer is Heard.SILENCE)
    working = sorted(name for name, answer in others.items() if answer is Heard.ETCD)
    lost = sorted(name for name, answer in others.items() if answer in (Held.JOINING, Held.REMAINS))
    empty = sorted(name for name, answer in others.items() if answer in _WITHOUT_LOG)
    if differing:
        return f"{_listed(differing)} would start another cluster than this member: they must have the same settings"
    count = len(others) + 1
    a_minority = len(working) + len(silent) < count // 2 + 1
    no_majority = f"a majority of the volumes is lost: bring one back, or {_RESTORE}. Nothing is started anew by itself"
    if silent:
        at_work = f", {_listed(working)} is at work" if working else ""
        return (
            f"{_listed(silent)} does not answer, and may hold the cluster's data{at_work}. This volume has no log, and "
            "nothing is started anew before every member has said the same: see why it does not run"
            + (f". If {count} members had been at work before, {no_majority}" if a_minority else "")
        )
    if working and a_minority:
        return (
            f"this volume has no log, only {_listed(working)} has a log, and no majority answers through it. If it was "
            f"a whole cluster that is to grow to {count} members, see its log. Else {no_majority}"
        )
    if working:
        return f"{_listed(working)} is at work, and no majority answers through it yet: see the logs of the etcds"
    if held in (Held.JOINING, Held.REMAINS) or lost:
        mine = ["this one"] if held in (Held.JOINING, Held.REMAINS) else []
        return (
            f"no volume has a log, and {_listed(mine + lost)} held a member once: the cluster's data is lost. "
            f"{_RESTORE[0].upper()}{_RESTORE[1:]}; or, to begin with nothing, delete those volumes"
        )
    return f"{_listed(empty)} is about to start with this one"


def _listed(names: list[str]) -> str:
    return ", ".join(names)

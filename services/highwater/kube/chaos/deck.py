"""Draws faults by a seed. Pure: the same seed, kinds and release give the same faults."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from highwater.errors import UserError
from highwater.kube.release import BROKER, CONTROLLER, ETCD, LOG_STORAGE, REPLICA_MANAGER, SERVICES

MAX_PAUSE_S = 5.0
"""Between two faults."""


class Kind(StrEnum):
    BROKER = "broker"
    """A broker's pod is deleted, at once or with its grace."""
    CONTROLLER = "controller"
    ETCD = "etcd"
    BROKER_AND_CONTROLLER = "broker+controller"
    """A broker's pod and the one of the controller that acts, together."""
    CONTAINER = "container"
    """A single container of a broker is killed."""
    PAUSE = "pause"
    """A single container of a broker is stopped for some seconds."""
    ETCD_PAUSE = "etcd-pause"
    NETWORK = "network"
    """A pod is cut off the network for some seconds."""
    DRAIN = "drain"
    """All pods on a node are evicted, as the PodDisruptionBudgets allow."""
    VOLUME = "volume"
    """A broker's pod is deleted together with its volumes."""
    ETCD_VOLUME = "etcd-volume"


DEFAULT = tuple(kind for kind in Kind if kind not in {Kind.DRAIN, Kind.VOLUME, Kind.ETCD_VOLUME})
_OFTEN = (Kind.BROKER, Kind.CONTROLLER, Kind.ETCD, Kind.CONTAINER)
_OF_ETCD = (Kind.ETCD, Kind.ETCD_PAUSE, Kind.ETCD_VOLUME)


@dataclass(frozen=True, slots=True)
class Victim:
    component: str
    ordinal: int


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, and whom it strikes. A field that its kind does not use is empty or 0."""

    kind: Kind
    victims: tuple[Victim, ...]
    container: str
    gracefully: bool
    seconds: float
    """How long it lasts, where it ends by itself."""
    node: float
    """Of a drain: the node's place among those that host pods, from 0 to below 1."""
    pause_s: float
    """Before it."""


def checked(names: Sequence[str], wanted: Mapping[str, int]) -> tuple[Kind, ...]:
    """The kinds of these names, each once. Raises `UserError` where one is none, or cannot be survived here.

    Args:
        wanted: how many pods each component of the release has.
    """
    known = ", ".join(Kind)
    for name in names:
        if name not in set(Kind):
            raise UserError(f"{name!r} is no kind of fault: there are {known}")
    kinds = tuple(dict.fromkeys(Kind(name) for name in names)) or tuple(
        kind for kind in DEFAULT if wanted.get(ETCD) or kind not in _OF_ETCD
    )
    for kind in kinds:
        if kind in _OF_ETCD and not wanted.get(ETCD):
            raise UserError(f"{kind}: this release has no etcd of its own, leave it out")
    if Kind.VOLUME in kinds and _brokers(wanted) < 2:
        raise UserError("volume: with one broker its volume is all there is, nothing would come back")
    if Kind.ETCD_VOLUME in kinds and wanted[ETCD] < 3:
        raise UserError("etcd-volume: with fewer than three members etcd does not survive the loss of a volume")
    return kinds


def draw(seed: int, kinds: Collection[Kind], wanted: Mapping[str, int]) -> Iterator[Fault]:
    """Without end: decks of all kinds, shuffled, the plain deletions and kills twice in each."""
    rng = random.Random(seed)
    ordered = [kind for kind in Kind if kind in kinds]
    while True:
        deck = ordered + [kind for kind in ordered if kind in _OFTEN]
        rng.shuffle(deck)
        for kind in deck:
            yield _fault(rng, kind, wanted)


def _fault(rng: random.Random, kind: Kind, wanted: Mapping[str, int]) -> Fault:
    # As many numbers for each kind: what one of them means does not depend on the others.
    pause_s, gracefully, seconds, node = rng.uniform(0, MAX_PAUSE_S), rng.random() < 0.5, rng.random(), rng.random()
    broker, controller, etcd = (
        rng.randrange(max(1, count)) for count in (_brokers(wanted), wanted.get(CONTROLLER, 0), wanted.get(ETCD, 0))
    )
    service, component = rng.choice(SERVICES), rng.choice([BROKER, CONTROLLER, ETCD])
    colocated = BROKER in wanted
    of_broker = Victim(BROKER if colocated else service, broker)
    container, lasts_s = "", 0.0
    victims: tuple[Victim, ...]
    match kind:
        case Kind.BROKER:
            victims = (of_broker,)
        case Kind.CONTROLLER:
            victims = (Victim(CONTROLLER, controller),)
        case Kind.BROKER_AND_CONTROLLER:
            victims = (of_broker, Victim(CONTROLLER, controller))
        case Kind.ETCD | Kind.ETCD_VOLUME:
            victims = (Victim(ETCD, etcd),)
        case Kind.CONTAINER:
            victims, container = (of_broker,), service
        case Kind.PAUSE:
            victims, container, lasts_s = (of_broker,), service, 0.5 + 7.5 * seconds
        case Kind.ETCD_PAUSE:
            victims, container, lasts_s = (Victim(ETCD, etcd),), ETCD, 0.5 + 9.5 * seconds
        case Kind.NETWORK:
            chosen = {CONTROLLER: Victim(CONTROLLER, controller), ETCD: Victim(ETCD, etcd)}.get(component, of_broker)
            victims, lasts_s = (chosen if chosen.component in wanted else of_broker,), 3 + 17 * seconds
        case Kind.VOLUME:
            victims = (Victim(BROKER if colocated else LOG_STORAGE, broker),)
        case Kind.DRAIN:
            victims = ()
    return Fault(kind, victims, container, gracefully, round(lasts_s, 1), node, round(pause_s, 2))


def _brokers(wanted: Mapping[str, int]) -> int:
    return wanted.get(BROKER) or wanted.get(REPLICA_MANAGER, 0)

"""The replica that a partition goes on with when nobody knows its ISR any more (RULES 7.9). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from highwater.kube.lost_etcd.inventory import Replica
from highwater.log_storage.epochs import NO_EPOCH


@dataclass(frozen=True)
class Choice:
    """`doubts` say why records that were acknowledged may not be in the chosen log; there are none where it is certain
    to have all of them."""

    broker_id: int
    replica: Replica
    doubts: tuple[str, ...]


def choose(
    replicas: Mapping[int, Replica],
    *,
    absent: AbstractSet[int],
    tail_lost: AbstractSet[int] = frozenset(),
    min_insync_replicas: int,
) -> Choice:
    """Of the logs that could be read, by broker, that of the last leader; or one that has all of it and more.

    `absent` are brokers that have, or may have, a replica which could not be read, `tail_lost` those whose last writes
    may be gone. `min_insync_replicas` is the least number of replicas that a record was acknowledged by.
    """
    assert replicas
    last_leader = max(replicas, key=lambda broker: (_led(replicas[broker]), *_end(replicas[broker]), -broker))
    leading = replicas[last_leader]
    holding_all = [broker for broker, replica in replicas.items() if begins_with(replica, leading)]
    chosen = max(
        holding_all,
        key=lambda broker: (*_end(replicas[broker]), broker not in tail_lost, broker == last_leader, -broker),
    )
    return Choice(
        chosen,
        replicas[chosen],
        tuple(_doubts(replicas, chosen, _led(leading), absent, tail_lost, min_insync_replicas)),
    )


def _led(replica: Replica) -> int:
    return NO_EPOCH if replica.led_epoch is None else replica.led_epoch


def _end(replica: Replica) -> tuple[int, int]:
    return replica.last_epoch, replica.log_end_offset


def _doubts(
    replicas: Mapping[int, Replica],
    chosen: int,
    last_led: int,
    absent: AbstractSet[int],
    tail_lost: AbstractSet[int],
    min_insync_replicas: int,
) -> Sequence[str]:
    found = []
    short = absent | (tail_lost & replicas.keys())
    if absent and len(short) >= min_insync_replicas:
        lost = f", and what {_brokers(tail_lost & replicas.keys())} wrote last may be gone" if short > absent else ""
        found.append(
            f"the replicas of {_brokers(absent)} are not known{lost}; records may have been acknowledged by "
            f"{min_insync_replicas} only"
        )
    for broker, replica in sorted(replicas.items()):
        agreed = agreed_end(replica, replicas[chosen])
        same = agreed == replica.log_end_offset  # as far as it goes
        held_to = replicas[chosen].log_end_offset if same else agreed
        if replica.fence_epoch > last_led and not same:
            found.append(
                f"broker {broker} may have followed a later leader (epoch {replica.fence_epoch}) than any that is "
                f"known (epoch {last_led}), and has other records from offset {agreed} on"
            )
        elif replica.high_watermark > max(held_to, replicas[chosen].log_start_offset):
            found.append(
                f"broker {broker} knows that everything below offset {replica.high_watermark} was committed, and of "
                f"that the log of broker {chosen} has what is below {held_to} only"
            )
    return found


def _brokers(brokers: AbstractSet[int]) -> str:
    named = ", ".join(map(str, sorted(brokers)))
    return f"broker {named}" if len(brokers) == 1 else f"brokers {named}"


def begins_with(replica: Replica, other: Replica) -> bool:
    """Whether all of the other log, but for what the replica's retention has let go of, is in the replica's."""
    return agreed_end(other, replica) == other.log_end_offset


def agreed_end(replica: Replica, other: Replica) -> int:
    """The offset below which the replica's log is the other one, by their leader epochs (RULES 4.3, invariant 4). What
    is below the other's log start was committed, and counts as the same."""
    end, epoch = replica.log_end_offset, replica.last_epoch
    least = min(end, other.log_start_offset)
    while end > least:
        found = other.cache.diverging(epoch, end, other.log_end_offset)
        if found is None:
            return end
        # Of the epoch that the other one knows, the shorter end; as many rounds as it takes.
        end = min(found.end_offset, replica.cache.end_offset_for(found.leader_epoch, end).end_offset, end - 1)
        epoch = replica.cache.last_epoch_below(end) if end > 0 else NO_EPOCH
    return max(end, least)

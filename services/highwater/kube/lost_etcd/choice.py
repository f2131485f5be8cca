"""The replica that a partition goes on with when nobody knows its ISR any more (RULES 7.9). Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from highwater.kube.lost_etcd.inventory import Replica
from highwater.model.leader_epochs import NO_EPOCH


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
    may be gone, be it the whole log. `min_insync_replicas` is the least number of replicas that a record was
    acknowledged by.
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
        (
            *_missing(absent, tail_lost, min_insync_replicas),
            *_disagreeing(replicas, chosen, _led(leading)),
            *_forked(replicas, holding_all, chosen, last_leader, tail_lost),
            *_outvoted(replicas, chosen, tail_lost),
        ),
    )


def _led(replica: Replica) -> int:
    return NO_EPOCH if replica.led_epoch is None else replica.led_epoch


def _end(replica: Replica) -> tuple[int, int]:
    return replica.last_epoch, replica.log_end_offset


def _missing(absent: AbstractSet[int], tail_lost: AbstractSet[int], min_insync_replicas: int) -> Iterator[str]:
    if absent and len(absent | tail_lost) >= min_insync_replicas:
        lost = f", and what {_brokers(tail_lost - absent)} wrote last may be gone" if tail_lost - absent else ""
        yield (
            f"the replicas of {_brokers(absent)} are not known{lost}; records may have been acknowledged by "
            f"{min_insync_replicas} only"
        )


def _disagreeing(replicas: Mapping[int, Replica], chosen: int, last_led: int) -> Iterator[str]:
    for broker, replica in sorted(replicas.items()):
        agreed = agreed_end(replica, replicas[chosen])
        same = agreed == replica.log_end_offset  # as far as it goes
        held_to = replicas[chosen].log_end_offset if same else agreed
        if replica.fence_epoch > last_led and not same:
            yield (
                f"broker {broker} may have followed a later leader (epoch {replica.fence_epoch}) than any that is "
                f"known (epoch {last_led}), and has other records from offset {agreed} on"
            )
        elif replica.high_watermark > max(held_to, replicas[chosen].log_start_offset):
            yield (
                f"broker {broker} knows that everything below offset {replica.high_watermark} was committed, and of "
                f"that the log of broker {chosen} has what is below {held_to} only"
            )


def _forked(
    replicas: Mapping[int, Replica],
    holding_all: Sequence[int],
    chosen: int,
    last_leader: int,
    tail_lost: AbstractSet[int],
) -> Iterator[str]:
    """Yields doubts where the last leader has lost what another one has; where two go on from its log differently, it
    is not known which."""
    if last_leader not in tail_lost:
        return
    for broker in sorted(holding_all):
        agreed = agreed_end(replicas[broker], replicas[chosen])
        if agreed < replicas[broker].log_end_offset:
            yield (
                f"broker {last_leader} led last and may have lost what it wrote last; brokers {chosen} and {broker} "
                f"have all that it has left, and differ from offset {agreed} on"
            )


def _outvoted(replicas: Mapping[int, Replica], chosen: int, tail_lost: AbstractSet[int]) -> Iterator[str]:
    """Whoever starts with its tail lost leaves the ISR, be it the only member; then the greatest log is elected."""
    if chosen not in tail_lost:
        return
    greatest = max(replicas, key=lambda broker: _end(replicas[broker]))
    if _end(replicas[greatest]) > _end(replicas[chosen]):
        agreed = agreed_end(replicas[greatest], replicas[chosen])
        yield (
            f"broker {chosen} starts with its tail lost, so that the election is by log (RULES 7.4): broker {greatest} "
            f"would win it by its last epoch ({replicas[greatest].last_epoch}), and has other records from offset "
            f"{agreed} on"
        )


def _brokers(brokers: AbstractSet[int]) -> str:
    named = ", ".join(map(str, sorted(brokers)))
    return f"broker {named}" if len(brokers) == 1 else f"brokers {named}"


def begins_with(replica: Replica, other: Replica) -> bool:
    """Tells whether all of the other log, but for what the replica's retention has let go of, is in the replica's."""
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

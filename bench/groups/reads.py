"""What members have read when, and what follows from it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

Owners = Mapping[int, int]
"""Members by partition."""


class Read(NamedTuple):
    """A member was handed records of a partition."""

    at_s: float  # of the system's monotonic clock, the same for all processes
    member: int
    partition: int


def owners_of(shares: Mapping[int, Iterable[int]]) -> dict[int, int]:
    """By partition, of the partitions by member; one that two members have for a moment is the later one's."""
    return {partition: member for member, share in shares.items() for partition in share}


def unsettled(shares: Mapping[int, frozenset[int]], partitions: int) -> str:
    """What is missing until each partition has one owner, and no member two more than another; empty: nothing."""
    had = sum(len(share) for share in shares.values())
    owners = owners_of(shares)
    sizes = [len(share) for share in shares.values()]
    if len(owners) == had == partitions and max(sizes) - min(sizes) <= 1:
        return ""
    return f"{len(owners)} of {partitions} partitions have owners, with {min(sizes)} to {max(sizes)} each, {had} in all"


def first_reads(reads: Iterable[Read], since_s: float, without: int) -> dict[int, Read]:
    """The first one of each partition after a moment, by any member but one."""
    found: dict[int, Read] = {}
    for read in sorted(reads):
        if read.at_s > since_s and read.member != without:
            found.setdefault(read.partition, read)
    return found


def longest_gap(reads: Sequence[Read], partitions: Iterable[int], begin_s: float, end_s: float) -> float:
    """Seconds of the longest time between two reads of one of these partitions, as far as it lies within the window."""
    watched = {partition: [begin_s] for partition in partitions}
    for read in sorted(reads):
        if read.partition in watched and begin_s < read.at_s < end_s:
            watched[read.partition].append(read.at_s)
    return max(
        later - earlier for times in watched.values() for earlier, later in zip(times, [*times[1:], end_s], strict=True)
    )

"""The figures of members that come, go and die, measured alike on both sides."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from time import monotonic, sleep
from typing import Protocol

from bench.groups.feed import Feed
from bench.groups.members import MakeMembers, MemberProcess, MemberProcesses, Plan, shares_of
from bench.groups.reads import Read, first_reads, longest_gap, owners_of, unsettled
from bench.groups.sizes import SETTLE_TIMEOUT_S, GroupSizes
from bench.scale.progress import say
from bench.scale.waiting import until

_ASK_S = 0.1
_READS_S = 0.05

Send = Callable[[int], None]


class Stand(Protocol):
    """A cluster, as these figures need it."""

    make_members: MakeMembers

    @property
    def bootstrap(self) -> str: ...
    def make_topic(self, topic: str, partitions: int) -> None: ...
    def sender(self, topic: str) -> AbstractContextManager[Send]:
        """A function that sends a record to a partition, and does not wait for it."""
        ...


class _Group:
    """Members in a process for each core, beside a guest that has one of its own; none has joined yet."""

    def __init__(self, processes: MemberProcesses, plan: Plan, partitions: int) -> None:
        self._partitions = partitions
        residents, guest = plan.numbers[:-1], plan.numbers[-1]
        count = min(os.cpu_count() or 1, len(residents))
        self.residents = [processes.start(_share(plan, residents[first::count])) for first in range(count)]
        self.guest = processes.start(_share(plan, [guest]))
        self.guest_number = guest
        self.reads: list[Read] = []

    def settle(self, processes: Sequence[MemberProcess]) -> dict[int, frozenset[int]]:
        """Waits until these share all partitions evenly."""
        shares: dict[int, frozenset[int]] = {}

        def missing() -> str:
            nonlocal shares
            shares = shares_of(processes)
            return unsettled(shares, self._partitions)

        until(missing, SETTLE_TIMEOUT_S, _ASK_S)
        return shares

    def take_reads(self, processes: Sequence[MemberProcess]) -> None:
        for process in processes:
            self.reads += process.ask("take_reads")


def _share(plan: Plan, numbers: Sequence[int]) -> Plan:
    return Plan(plan.bootstrap, plan.topic, plan.group, numbers, plan.session_timeout_ms, plan.heartbeat_interval_ms)


def group_rebalance(stand: Stand, sizes: GroupSizes, topic: str) -> float:
    """Seconds from the moment at which one member begins to leave until each partition that it had has been read by its
    new owner, with a record sent to it every 25 ms; median of three."""
    with MemberProcesses(stand.make_members) as processes, stand.sender(topic) as send:
        group = _joined(stand, sizes, topic, processes, Plan(stand.bootstrap, topic, topic, range(sizes.members)))
        took: list[float] = []
        over_s = monotonic() + sizes.round_time_s
        while len(took) < sizes.rounds and (not took or monotonic() < over_s):
            if took:
                group.guest.ask("join")
            took.append(_taken_over(group, sizes, send, lambda: float(group.guest.ask("leave"))))
    say(f"a leave took {', '.join(f'{seconds:.2f}' for seconds in took)} s")
    return statistics.median(took)


def group_failover(stand: Stand, sizes: GroupSizes, topic: str) -> float:
    """The same from the SIGKILL of the member's process, with a session timeout of six seconds."""
    times = (sizes.session_timeout_ms, sizes.heartbeat_interval_ms)
    plan = Plan(stand.bootstrap, topic, topic, range(sizes.members), *times)
    with MemberProcesses(stand.make_members) as processes, stand.sender(topic) as send:
        group = _joined(stand, sizes, topic, processes, plan)

        def kill() -> float:
            killed_s = monotonic()
            group.guest.kill()
            return killed_s

        return _taken_over(group, sizes, send, kill)


def group_join_gap(stand: Stand, sizes: GroupSizes, topic: str) -> float:
    """Milliseconds of the longest time between two reads of a partition that stays with its owner, while a member
    joins, with a record sent to each partition every 40 ms: they are in it; median of three."""
    stand.make_topic(topic, sizes.gap_partitions)
    plan = Plan(stand.bootstrap, topic, topic, range(sizes.gap_members + 1))
    gaps: list[float] = []
    before: list[float] = []
    with MemberProcesses(stand.make_members) as processes, stand.sender(topic) as send:
        group = _Group(processes, plan, sizes.gap_partitions)
        everybody = [*group.residents, group.guest]
        for process in group.residents:
            process.ask("join")
        with Feed(send, range(sizes.gap_partitions), sizes.gap_period_s):
            over_s = monotonic() + sizes.round_time_s
            while len(gaps) < sizes.rounds and (not gaps or monotonic() < over_s):
                owners = owners_of(group.settle(group.residents))
                _await_reads(group, group.residents, set(owners), monotonic(), -1)
                group.reads.clear()
                began_s = monotonic()
                sleep(sizes.watch_s)
                joined_s = monotonic()
                group.guest.ask("join")
                after = owners_of(group.settle(everybody))
                sleep(sizes.watch_s)
                ended_s = monotonic()
                group.take_reads(everybody)
                kept = [partition for partition, owner in owners.items() if after[partition] == owner]
                before.append(longest_gap(group.reads, kept, began_s, joined_s))
                gaps.append(longest_gap(group.reads, kept, joined_s, ended_s))
                group.guest.ask("leave")
    say(
        f"the longest gaps while a member joined were {', '.join(f'{1000 * gap:.0f}' for gap in gaps)} ms, "
        f"in the second before it {', '.join(f'{1000 * gap:.0f}' for gap in before)} ms"
    )
    return 1000 * statistics.median(gaps)


def _joined(stand: Stand, sizes: GroupSizes, topic: str, processes: MemberProcesses, plan: Plan) -> _Group:
    stand.make_topic(topic, sizes.partitions)
    group = _Group(processes, plan, sizes.partitions)
    for process in (*group.residents, group.guest):
        process.ask("join")
    return group


def _taken_over(group: _Group, sizes: GroupSizes, send: Send, part: Callable[[], float]) -> float:
    """Seconds from the guest's parting until every partition has been read by others. Those that kept their owner are
    looked at afterwards; where one did not after all, its time counts, too."""
    before = owners_of(group.settle([*group.residents, group.guest]))
    moving = [partition for partition, owner in before.items() if owner == group.guest_number]
    with Feed(send, moving, sizes.feed_period_s):
        _await_reads(group, [group.guest], set(moving), 0.0, -1)
        parted_s = part()
        first = _await_reads(group, group.residents, set(moving), parted_s, group.guest_number)
    others = set(before) - set(moving)
    for partition in others:
        send(partition)
    for partition, read in _await_reads(group, group.residents, others, parted_s, group.guest_number).items():
        if read.member != before[partition]:
            first[partition] = read
    group.settle(group.residents)
    group.reads.clear()
    return max(read.at_s for read in first.values()) - parted_s


def _await_reads(
    group: _Group, processes: Sequence[MemberProcess], partitions: set[int], since_s: float, without: int
) -> dict[int, Read]:
    """The first read of each partition after a moment, by any but one member."""
    found: dict[int, Read] = {}

    def missing() -> str:
        nonlocal found
        group.take_reads(processes)
        found = first_reads(group.reads, since_s, without)
        left = partitions - set(found)
        return f"{len(left)} of {len(partitions)} partitions were not read" if left else ""

    until(missing, SETTLE_TIMEOUT_S, _READS_S)
    return {partition: found[partition] for partition in partitions}

"""CPU and memory of groups of processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import psutil

Groups = Mapping[str, Sequence[int]]
"""Process ids by the name of what they make up."""


def cpu_and_memory(
    groups: Groups, window_s: float, wait: Callable[[float], None] = time.sleep
) -> dict[str, tuple[float, float]]:
    """By group: CPU in per cent of a core over the window, and MB of resident memory at its end. Raises
    `psutil.NoSuchProcess` where one has ended meanwhile."""
    processes = {name: [psutil.Process(pid) for pid in pids] for name, pids in groups.items()}
    began = time.monotonic()
    before = {name: _cpu_s(members) for name, members in processes.items()}
    wait(window_s)
    after = {name: _cpu_s(members) for name, members in processes.items()}
    took = time.monotonic() - began
    share = {name: 100 * (after[name] - before[name]) / took for name in groups}
    return {name: (share[name], memory_mb(pids)) for name, pids in groups.items()}


def most_of_each(used: Mapping[str, tuple[float, float]]) -> tuple[float, float]:
    """CPU of the group that has most, and memory of the one that has most."""
    return max(cpu for cpu, _ in used.values()), max(memory for _, memory in used.values())


def memory_mb(pids: Sequence[int]) -> float:
    """MB of resident memory; what processes share is counted for each."""
    return float(sum(psutil.Process(pid).memory_info().rss for pid in pids) / 1e6)


def _cpu_s(processes: Sequence[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return float(sum(spent.user + spent.system for spent in times))

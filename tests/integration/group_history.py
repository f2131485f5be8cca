"""What members of a group did, as they wrote it down (`group_chaos_members.py`), and what may never be in it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path


@dataclass(frozen=True, slots=True, order=True)
class Run:
    """Records of one partition that one member was given at once."""

    at: float
    member: str
    share: str
    partition: int
    first: int
    last: int


def read_history(files: list[Path]) -> tuple[dict[int, list[Run]], dict[int, list[Run]]]:
    """By partition what was handed out and what was processed, each in the order of time."""
    found: dict[str, dict[int, list[Run]]] = {"handed": defaultdict(list), "done": defaultdict(list)}
    for file in files:
        for line in file.read_text().splitlines():
            at, what, member, *words = line.split(" ")
            if what in found:
                share, partition, first, last = words
                run = Run(float(at), member, share, int(partition), int(first), int(last))
                found[what][run.partition].append(run)
    for kind in found.values():
        for runs in kind.values():
            runs.sort()
    return found["handed"], found["done"]


def overlaps(handed: dict[int, list[Run]]) -> list[str]:
    """One owner at a time: where another member was given records of a partition, the one before gets no more of it,
    unless it was assigned anew."""
    wrong = []
    for runs in handed.values():
        over: set[str] = set()
        for before, after in pairwise(runs):
            if after.share != before.share:
                over.add(before.share)
                if after.share in over:
                    wrong.append(f"{after} after {before}")
    return wrong


def jumps(handed: dict[int, list[Run]]) -> list[str]:
    """Within a share each record follows the one before."""
    wrong = []
    for runs in handed.values():
        last: dict[str, Run] = {}
        for run in runs:
            before = last.get(run.share)
            if before is not None and run.first != before.last + 1:
                wrong.append(f"{run} after {before}")
            last[run.share] = run
    return wrong


def skipped(done: dict[int, list[Run]], ends: dict[int, int]) -> list[str]:
    """At least once: nobody begins behind a record that nobody has processed by then, and all is processed in the
    end."""
    wrong = []
    for partition, end in ends.items():
        reached = 0
        for run in done[partition]:
            if run.first > reached:
                wrong.append(f"{run}: only {reached} are processed")
            reached = max(reached, run.last + 1)
        if reached != end:
            wrong.append(f"partition {partition}: {reached} of {end} are processed")
    return wrong


def repeated(done: dict[int, list[Run]]) -> list[str]:
    """At most once."""
    wrong = []
    for runs in done.values():
        reached = 0
        for run in sorted(runs, key=lambda run: run.first):
            if run.first < reached:
                wrong.append(f"{run}: records up to {reached} are processed already")
            reached = max(reached, run.last + 1)
    return wrong

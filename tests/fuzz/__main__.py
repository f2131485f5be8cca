"""Fuzzes a cluster for as long as wanted, or sends again what a finding was.

    python -m tests.fuzz --seconds 600 --seed 7
    python -m tests.fuzz --replay build/fuzz/7-1.json

It begins with the largest request of each RPC (not with `--first`), and goes on with what is drawn. A seed fixes
the calls and their order, not how they fall together. Exit status 1: something was wrong; what, and the calls around
it, is in a file under build/fuzz/, with the logs of the processes beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
from itertools import chain, count
from pathlib import Path
from time import monotonic

from .calls import Finding, largest
from .cluster import fuzzed_cluster
from .decoders import read_for
from .readers import decoders
from .run import Outcome, drawn, fuzz, replay

READING = 0.1
"""The readers' share of the time."""
FINDINGS = Path(__file__).parents[2] / "build" / "fuzz"
_REPORT_S = 30.0
_MOST_FINDINGS = 50  # beyond them a run says nothing new


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3)))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument(
        "--first", type=int, help="the number of the first call; what was asked of a seed later, sooner"
    )
    parser.add_argument("--replay", type=Path, help="a finding's file")
    arguments = parser.parse_args()
    finding = Finding.from_json(arguments.replay.read_text()) if arguments.replay else None
    seed = finding.seed if finding else arguments.seed
    print(f"seed {seed}", flush=True)
    data = Path(tempfile.mkdtemp(prefix="highwater-fuzz-"))
    files = data / "files"
    files.mkdir()
    if finding is not None and finding.read is not None:
        name, content = finding.read
        problem = decoders()[name].problem(content, files)
        print(problem or "nothing is wrong")
        return 1 if problem else 0
    reported = Reported(seed, "replayed-" if finding else "")
    try:
        wrong = 0
        if finding is None:
            for problem, name, content in read_for(arguments.seconds * READING, seed, decoders().values(), files):
                wrong += reported.found(Finding(problem, seed, read=(name, content)))
        with fuzzed_cluster(data) as cluster:
            if finding is None:
                seconds = arguments.seconds * (1 - READING)
                first = arguments.first
                calls = drawn(seed, first) if first is not None else chain(largest(seed), drawn(seed))
                outcome = asyncio.run(fuzz(cluster, seed, calls, seconds, reported))
            else:
                print(f"{len(finding.calls)} calls that were sent when {finding.problem}", flush=True)
                outcome = asyncio.run(replay(cluster, finding))
        reported.last(outcome)
        wrong += len(outcome.findings)
        if outcome.findings:
            shutil.copytree(data / "logs", FINDINGS / f"{seed}-logs", dirs_exist_ok=True)
    finally:
        shutil.rmtree(data, ignore_errors=True)
    return 1 if wrong else 0


class Reported:
    """Writes findings as they come, and says how far the run is."""

    def __init__(self, seed: int, prefix: str = "") -> None:
        self._seed = seed
        self._prefix = prefix
        self._signatures: set[str] = set()
        self._written = 0
        self._said_s = monotonic()
        self._numbers = count(1)

    def __call__(self, outcome: Outcome) -> None:
        for finding in outcome.findings[self._written : _MOST_FINDINGS]:
            self.found(finding)
        self._written = len(outcome.findings)
        if monotonic() - self._said_s >= _REPORT_S:
            self._said_s = monotonic()
            print(summary(outcome), flush=True)

    def found(self, finding: Finding) -> bool:
        """Writes it, and tells whether it is another than those before."""
        if finding.signature in self._signatures:
            return False
        self._signatures.add(finding.signature)
        FINDINGS.mkdir(parents=True, exist_ok=True)
        path = FINDINGS / f"{self._prefix}{self._seed}-{next(self._numbers)}.json"
        path.write_text(finding.to_json())
        print(f"{finding.problem}\n  -> {path} ({len(finding.calls)} calls)", flush=True)
        return True

    def last(self, outcome: Outcome) -> None:
        self(outcome)
        print(summary(outcome))
        for path in sorted({path for path, _ in outcome.statuses}):
            answers = {status: n for (each, status), n in sorted(outcome.statuses.items()) if each == path}
            codes = {code: n for (each, code), n in outcome.errors.most_common() if each == path}
            print(f"  {path}: {answers} {codes}")
        for line, number in outcome.error_lines.most_common(40):
            print(f"  {number} x {line}")


def summary(outcome: Outcome) -> str:
    pauses = {name: round(1000 * longest) for name, longest in sorted(outcome.longest_s.items())}
    memory = {name: most >> 20 for name, most in sorted(outcome.most_memory_bytes.items())}
    return (
        f"{outcome.calls} calls, {len(outcome.findings)} findings; others: {outcome.acked} records acknowledged, "
        f"after {1000 * outcome.longest_ack_s:.0f} ms at most (number {outcome.longest_acked})\n"
        f"  longest pause of each loop, ms: {pauses}\n"
        f"  most memory, MiB: {memory}"
    )


if __name__ == "__main__":
    sys.exit(main())

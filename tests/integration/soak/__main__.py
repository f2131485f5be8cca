"""A cluster of real processes that is broken at random for as long as wanted.

    python tests/integration/soak --seed 3 --seconds 600 --faults kill,disk

Processes are killed, stopped for a while (zombies, RULES 8.1) and terminated, one service or a whole broker at a time;
disks fail with EIO and drop what was not synced, fill up, machines lose their power; where network namespaces are
permitted, links are cut, flap, and lose one direction. Faults come in episodes (`episodes.py`). Meanwhile

    - numbered records go to six partitions from an idempotent producer with `acks=all`, and a consumer that follows
      checks each: none is lost, doubled, reordered or taken back after it was seen;
    - keys of a compacted topic are written again and again, and the cleaner and the scrubber are at work all the time;
    - topics are made, written, read, given partitions and deleted, also under the same names again;
    - replicas move between the log directories of their brokers, and leaderships go back to preferred leaders;
    - programs end without closing their producers, fork, and start other programs beside an open client.

After each episode everything must heal in time; at the end every acknowledged record be there once, every key have its
last value, and all replicas hold the same batches. A seed fixes which faults and which `flush.messages` are drawn, not
how they fall together with what the processes do. Exit status 1, and the data directory stays: something was wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from soak import exits, faults, flush_modes, world
from soak.cluster import running
from soak.report import summary
from soak.run import run
from soak.state import Soak

SETTINGS = {
    "broker.session.timeout.ms": "3000",
    "controller.session.timeout.ms": "1000",
    "log.segment.bytes": "1000000",
    "log.scrub.interval.ms": "20000",
    "log.cleaner.backoff.ms": "1000",
    "log.cleaner.min.cleanable.ratio": "0.3",
    "file.delete.delay.ms": "3000",
    "replica.lag.time.max.ms": "3000",
    "leader.imbalance.check.interval.seconds": "5",
}
KINDS = (*faults.KINDS, *exits.KINDS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(2)))
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--faults", default=",".join(KINDS), help="kinds, with commas between; all: %(default)s")
    arguments = parser.parse_args()
    kinds = arguments.faults.split(",")
    unknown = set(kinds) - set(KINDS)
    if unknown:
        parser.error(f"no such faults: {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    without = world.enter()
    if without:
        print(f"without faults of the network, and full disks by injected errors: {without}", flush=True)
        kinds = [kind for kind in kinds if kind not in faults.NETWORK]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what runs in the background
    return soak_with(arguments.seed, arguments.seconds, kinds, None if without else world.Network())


def soak_with(seed: int, seconds: float, kinds: list[str], network: world.Network | None) -> int:
    data = Path(tempfile.mkdtemp(prefix="highwater-soak-"))
    soak = Soak(seed, "")
    flushing = flush_modes.draw(soak.random("flush"))
    soak.say(f"seed {seed}, {flushing}")
    outcome = "interrupted"
    try:
        with running(data, {**SETTINGS, **flushing.broker}, network) as cluster:
            soak.bootstrap = cluster.bootstrap
            try:
                asyncio.run(run(soak, cluster, flushing, seconds, kinds))
            except Exception as error:
                soak.problem(f"{type(error).__name__}: {error}")
            outcome = f"{soak.problems} problems" if soak.problems else "nothing was wrong"
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    finally:
        if soak.problems:
            outcome += f"; data and logs of the processes are in {data}"
        else:
            shutil.rmtree(data, ignore_errors=True)
        print(summary(soak, flushing.all, outcome), flush=True)
    return 1 if soak.problems or outcome == "interrupted" else 0


if __name__ == "__main__":
    sys.exit(main())

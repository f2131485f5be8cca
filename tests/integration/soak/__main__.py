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
last value, and all replicas hold the same batches.

With `--operating` the cluster is a secure one (mutual TLS, ACLs, tokens), of which processes alone are broken, and it
is operated meanwhile (`operating/`).

A seed fixes which faults, which acts of the operator and which `flush.messages` are drawn, not how they fall together
with what the processes do. Exit status 1, and the data directory stays: something was
wrong.
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
from soak.faults import PROCESSES
from soak.operating import run as operating
from soak.operating.principals import Identities
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
    parser.add_argument("--faults", help=f"kinds, with commas between; all: {','.join(KINDS)}")
    parser.add_argument("--operating", action="store_true", help="a secure cluster that is operated meanwhile")
    arguments = parser.parse_args()
    kinds = arguments.faults.split(",") if arguments.faults else [*(PROCESSES if arguments.operating else KINDS)]
    unknown = set(kinds) - set(KINDS)
    if unknown:
        parser.error(f"no such faults: {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    if arguments.operating and not set(kinds) <= set(PROCESSES):
        parser.error(f"what is operated meanwhile is broken by {', '.join(PROCESSES)} alone")
    without = "" if arguments.operating else world.enter()
    if without:
        print(f"without faults of the network, and full disks by injected errors: {without}", flush=True)
        kinds = [kind for kind in kinds if kind not in faults.NETWORK]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what runs in the background
    network = None if without or arguments.operating else world.Network()
    return soak_with(arguments.seed, arguments.seconds, kinds, network, is_operated=arguments.operating)


def soak_with(seed: int, seconds: float, kinds: list[str], network: world.Network | None, *, is_operated: bool) -> int:
    data = Path(tempfile.mkdtemp(prefix="highwater-soak-"))
    soak = Soak(seed, "")
    flushing = flush_modes.draw(soak.random("flush"))
    soak.say(f"seed {seed}, {flushing}")
    outcome = "interrupted"
    try:
        identities = Identities(data, data / "security") if is_operated else None
        settings = {**SETTINGS, **flushing.broker}
        if identities is not None:
            settings |= {**operating.SETTINGS, "tokens.file": str(identities.tokens_file)}
        with running(data, settings, network, secure=is_operated) as cluster:
            soak.bootstrap = cluster.bootstrap
            os.environ |= cluster.client_environment
            try:
                if identities is None:
                    asyncio.run(run(soak, cluster, flushing, seconds, kinds))
                else:
                    asyncio.run(operating.run(soak, cluster, identities, flushing, seconds, kinds))
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

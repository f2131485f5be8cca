"""How the cost of a cluster grows with its partitions and its clients: `make bench-scale`.

    python -m bench.scale [--kafka] [--only scale_latency,...] [--partitions 300] [--window 30] [--rounds 20]

scale_latency     a lone record's p50 beside 3,000 idle partitions, over that with none
scale_create      a topic of 100 partitions: the last of 9,000 partitions over the first
scale_idle        CPU and memory of a broker that hosts 9,000 idle replicas
scale_failover    kill -9 of a broker that leads 3,000 partitions, until all are led and have taken a record
scale_restart     that broker started again, until it is back in all 9,000 ISRs
scale_controller  kill -9 of the controller of 9,000 partitions, until a broker hears of the next one
scale_stopped     all brokers stood still for 10 s and lost their leases, until 9,000 partitions have a record each
scale_starved     the same after other programs had the cores for 15 s
scale_produce     tables over 1,000 partitions, in per cent of the rate over 6
scale_clients     500 producers and 500 consumers, 20 records a second each: p99, and a broker's memory
scale_round       messages, bytes and CPU of an idle second with 3,000 partitions, over one with 1,000; and the longest
                  callback of any event loop

The first eight stand on one cluster, which grows; the others each on one of their own. Kafka is measured afterwards, on
the first five: the two do not stand beside each other, as each would idle at the other's expense. With `--partitions`
all are measured with so many, their aims are left out, and what is measured says little of larger numbers.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Protocol

from bench.kafka_peer import NO_PEER, peer_script
from bench.results import publish, results
from bench.scale.highwater import HighwaterScale
from bench.scale.progress import say
from bench.scale.rounds import Rounds
from bench.scale.sizes import DEFAULT_PARTITIONS, Sizes

GROWING = (
    *("scale_latency", "scale_create", "scale_idle", "scale_failover", "scale_restart", "scale_controller"),
    *("scale_stopped", "scale_starved"),
)
OF_KAFKA = GROWING[:5]
BUSY_LOAD = 0.5
FIGURE_TIMEOUT_S = 3600
"""Of one figure, with all the partitions that have to be made for it. Each wait in it has a shorter one of its own."""


class Stand(Protocol):
    """A cluster that figures are measured on, each by the method of its name."""

    @property
    def name(self) -> str: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def seen(self) -> str:
        """What is to be told beside the figure that was measured last; empty: nothing."""
        ...


class Measured:
    """The figures of one side, and those that were not to be had."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.figure_of: dict[str, str] = {}
        self.failures: list[str] = []

    def measure(self, stand: Callable[[Path], Stand], figures: Sequence[str]) -> None:
        """Each figure on the cluster that those before it have left; one that failed leaves none, and the next begins
        with another."""
        left = list(figures)
        while left:
            with tempfile.TemporaryDirectory(prefix="highwater-bench-", ignore_cleanup_errors=True) as data:
                side = stand(Path(data))
                try:
                    self._measure(side, left)
                finally:
                    side.stop()

    def _measure(self, side: Stand, left: list[str]) -> None:
        """Takes from `left` what it has measured, and what has failed."""
        figure = left[0]
        try:
            with limited(FIGURE_TIMEOUT_S):
                side.start()
            while left:
                figure = left[0]
                print(f"{side.name}: {figure} …", file=sys.stderr, flush=True)
                with limited(FIGURE_TIMEOUT_S):
                    found = getattr(side, figure)()
                self.values |= found
                self.figure_of |= dict.fromkeys(found, figure)
                if told := side.seen():
                    say(told)
                del left[0]
        except Exception as error:
            traceback.print_exc()
            self.failures.append(f"{side.name}: {figure} was not measured: {type(error).__name__}: {error}")
            del left[0]


class limited:  # noqa: N801  (a context manager, used as one)
    """Raises `TimeoutError` in the main thread where what is done takes longer."""

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGALRM, self._over)
        signal.alarm(self._seconds)

    def __exit__(self, *exception: object) -> None:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, self._before)

    def _over(self, number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"it was not over after {self._seconds} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kafka", action="store_true", help="Apache Kafka afterwards (HIGHWATER_KAFKA_PEER)")
    parser.add_argument("--only", default="", help="some of the figures, separated by commas")
    parser.add_argument("--partitions", type=int, help="of every figure, instead of its own number")
    parser.add_argument("--window", type=float, default=30, help="seconds of idling, and of many clients' work")
    parser.add_argument("--rounds", type=int, default=1, help="of scale_stopped and scale_starved; the longest counts")
    arguments = parser.parse_args()
    wanted = arguments.only.split(",") if arguments.only else list(DEFAULT_PARTITIONS)
    if unknown := [figure for figure in wanted if figure not in DEFAULT_PARTITIONS]:
        parser.error(f"--only {','.join(unknown)}: the figures are {','.join(DEFAULT_PARTITIONS)}")
    if arguments.partitions is not None and arguments.partitions < 3:
        parser.error(f"--partitions {arguments.partitions}: a broker leads a third of them: at least 3")
    if arguments.rounds < 1:
        parser.error(f"--rounds {arguments.rounds}: at least 1")
    script = peer_script()
    if arguments.kafka and script is None:
        print(NO_PEER, file=sys.stderr)
        return 1
    if (load := os.getloadavg()[0]) > BUSY_LOAD:
        say(f"this machine is not idle (load {load:.1f}): what else it does is in the figures")
    sizes = Sizes.of(arguments.partitions, arguments.window, arguments.rounds)
    ours, theirs = Measured(), Measured()
    ours.measure(lambda data: HighwaterScale(data, sizes), [figure for figure in GROWING if figure in wanted])
    for figure in ("scale_produce", "scale_clients"):
        ours.measure(lambda data: HighwaterScale(data, sizes), [figure] if figure in wanted else [])
    ours.measure(lambda data: Rounds(data, sizes), ["scale_round"] if "scale_round" in wanted else [])
    if arguments.kafka and script is not None:
        from bench.scale.kafka import KafkaScale  # noqa: PLC0415  (confluent-kafka is needed by this side alone)

        theirs.measure(lambda data: KafkaScale(script, sizes), [figure for figure in OF_KAFKA if figure in wanted])
    found = results(ours.values, "Kafka" if theirs.values else None, theirs.values)
    for result in found:
        result.partitions = sizes.partitions[ours.figure_of[result.name]]
        if arguments.partitions is not None:
            result.target, result.met = None, None
    publish(found)
    for failure in (*ours.failures, *theirs.failures):
        print(failure, file=sys.stderr)
    return 1 if ours.failures or theirs.failures else 0


if __name__ == "__main__":
    sys.exit(main())

"""Archives of topics under failures drawn at random, for as long as wanted.

    python tests/spark/archive_soak --seed 7 --seconds 900

Two topics are written to all the time, and a pipeline archives them into a Delta table, in small micro-batches, with
speculation, on executors that are processes of their own. Meanwhile (`failures.py`)

    - executors, tasks' Python processes, the source's, and the driver (Python, JVM, or both) are killed; executors are
      stopped for a while; the pipeline is terminated; checkpoints are lost;
    - a second archive with a checkpoint of its own writes to the same table;
    - files are merged, by the pipeline itself or by OPTIMIZE of another engine: by turns, start by start;
      and now and then twice at once, by one that does not look for that;
    - others run VACUUM without retention beside it, and restore earlier versions;
    - topics are trimmed, get partitions, are deleted and made anew, beside a run and between two;
    - readers follow the table, and read old versions of it.

After every few of these it is to catch up; then the table must have each acknowledged record once, as in the topics.
A pipeline may end only with exit status 1 and a sentence that fits what was done to it, or with 0 after SIGTERM. A seed
fixes what is drawn, not how it falls together with what the processes do. Exit status 1, and the directory stays:
something was wrong.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from time import monotonic

sys.path.insert(0, str(Path(__file__).parents[1]))

from archive_soak.failures import Failures
from archive_soak.spark_cluster import spark_cluster
from archive_soak.state import Soak
from archive_soak.topics import Topics
from highwater.cli.local_cluster import LocalCluster, LocalClusterSettings
from highwater.client.blocking import Admin

TOPICS = ["soak-a", "soak-b"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(2)))
    parser.add_argument("--seconds", type=float, default=600)
    arguments = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    soak = Soak(arguments.seed)
    soak.say(f"seed {soak.seed}")
    directory = Path(tempfile.mkdtemp(prefix="highwater-archive-soak-"))
    outcome = "interrupted"
    try:
        run(soak, directory, arguments.seconds)
        outcome = f"{len(soak.problems)} problems" if soak.problems else "nothing was wrong"
    except KeyboardInterrupt:
        soak.problem("interrupted")
    except Exception as error:
        soak.problem(repr(error))
        raise
    finally:
        if soak.problems:
            again = f"make soak-spark SECONDS={arguments.seconds:g} SEED={soak.seed}"
            outcome += f" ({again}); tables, checkpoints and logs are in {directory}"
        else:
            shutil.rmtree(directory, ignore_errors=True)
        print(summary(soak, outcome), flush=True)
    return 1 if soak.problems else 0


def run(soak: Soak, directory: Path, seconds: float) -> None:
    cluster = LocalCluster(LocalClusterSettings(directory / "cluster", brokers=1, port=0))
    cluster.start()
    try:
        with spark_cluster(directory) as spark, Admin(cluster.bootstrap) as admin:
            topics = Topics(soak, cluster.bootstrap, admin, TOPICS)
            try:
                Failures(soak, directory, cluster.bootstrap, admin, topics, spark).run(seconds)
            finally:
                topics.stop()
    finally:
        cluster.kill()


def summary(soak: Soak, outcome: str) -> str:
    minutes = (monotonic() - soak.begun) / 60
    done = [f"{count:6}  {what}" for what, count in sorted(soak.counts.items())]
    problems = [f"PROBLEM: {said}" for said in soak.problems]
    compared = f"{soak.rounds} rounds in {minutes:.1f} minutes, {soak.rows} rows compared one by one"
    return "\n".join(["", *done, *problems, f"seed {soak.seed}: {compared}: {outcome}"])


if __name__ == "__main__":
    sys.exit(main())

"""How fast log storage is, without the rest of the system: `make bench-storage`.

    python -m bench.storage [--directory DIR] [--only append,fsync,...] [--gigabytes 10]

append     1 MB batches through the log, in turn with a bare loop of `write` of the same buffers to a file beside it
fsync      16 appenders of batches of 64 KB to a log-storage process under flush.messages=1, each waiting for its
           answer, in turn with the same without a flush
recovery   reopening an unflushed log of batches of 64 KB by one thread: every CRC, both indexes
open       opening 1,000 logs of 10 segments after a clean stop
lookup     random reads by offset and by timestamp in a log of 10 GB, indexes warm, data not: the pages of index and
           ranges of data that each touches, and how long it takes
compaction 10 million records of 1 million keys, values of 100 bytes: time and peak memory
beside_compaction  appends of 16 KB to a log-storage process, one after another, while another of its logs is compacted,
           in turn with the same while nothing else is done
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench.results import publish, results
from bench.storage_beside_compaction import measure_beside_compaction
from bench.storage_compaction import measure_compaction
from bench.storage_open import measure_open, measure_recovery
from bench.storage_reads import measure_lookup
from bench.storage_writes import measure_append, measure_fsync

MEASURES: dict[str, Callable[[Path, float], dict[str, float]]] = {
    "append": measure_append,
    "fsync": measure_fsync,
    "recovery": measure_recovery,
    "open": measure_open,
    "lookup": measure_lookup,
    "compaction": measure_compaction,
    "beside_compaction": measure_beside_compaction,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, help="on which file system (default: that of temporary files)")
    parser.add_argument("--only", default="", help=f"some of {','.join(MEASURES)}")
    parser.add_argument("--gigabytes", type=float, default=10, help="how large the log of `lookup` is")
    arguments = parser.parse_args()
    wanted = arguments.only.split(",") if arguments.only else list(MEASURES)
    unknown = [name for name in wanted if name not in MEASURES]
    if unknown:
        parser.error(f"--only {','.join(unknown)}: the measurements are {','.join(MEASURES)}")
    found: dict[str, float] = {}
    for name in wanted:
        print(f"{name} …", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="highwater-bench-", dir=arguments.directory) as directory:
            found |= MEASURES[name](Path(directory), arguments.gigabytes)
    publish(results({f"storage_{name}": value for name, value in found.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m highwater.kube.inventory DIR…`: prints what the log directories of one broker hold, as a line of JSON. Its
log-storage must not run meanwhile: the logs are recovered as it would recover them, and closed."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from highwater.errors import UserError
from highwater.kube.lost_etcd.reading import take_inventory


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directories", type=Path, nargs="+", metavar="DIR", help="all of the broker's log.dirs")
    parser.add_argument("--broker-id", type=int, help="whose they are to be; needed for volumes that are empty")
    parser.add_argument("--threads", type=int, default=2, help="logs that are recovered at once in each directory")
    parser.add_argument("--compressed", action="store_true", help="in a line for a pod's log, a tenth as long")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    try:
        inventory = take_inventory(given.directories, given.broker_id, recovery_threads=given.threads)
    except (UserError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(inventory.to_compressed() if given.compressed else inventory.to_json(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

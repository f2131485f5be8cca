"""`python -m highwater.kube.backup --etcd … --out DIR --keep N`: backs up what etcd holds of a cluster, as the CronJob
of the chart does; `--print` writes the backup to standard output instead."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from highwater.atomic_file import remove_temporaries
from highwater.errors import UserError
from highwater.kube import etcd_arguments
from highwater.kube.lost_etcd import backup_file
from highwater.kube.lost_etcd.backup_file import Backup
from highwater.kube.lost_etcd.metadata import take_backup
from highwater.metadata.store.etcd_errors import StoreError


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    etcd_arguments.add_to(parser)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--out", type=Path, help="the directory of the backups")
    where.add_argument("--print", action="store_true", help="write the backup to standard output")
    parser.add_argument("--keep", type=_positive, default=24, help="how many backups stay in the directory")
    given = parser.parse_args(arguments)
    try:
        backup = asyncio.run(_take(given))
        if given.print:
            sys.stdout.buffer.write(backup.to_bytes())
            return 0
        given.out.mkdir(parents=True, exist_ok=True)
        remove_temporaries(given.out)
        path = backup_file.write(backup, given.out)
        backup_file.read(path)  # what cannot be read back is no backup, and takes no other's place
        gone = backup_file.rotate(backup, given.out, given.keep)
    except (UserError, StoreError, OSError) as error:
        print(f"there is no new backup: {error}", file=sys.stderr)
        return 1
    print(f"{path}: {len(backup.entries)} keys at revision {backup.revision}; {len(gone)} older backups removed")
    return 0


async def _take(given: argparse.Namespace) -> Backup:
    async with etcd_arguments.store_of(given) as store:
        return await take_backup(store, etcd_arguments.keys_of(given), time.time_ns() // 1_000_000)


def _positive(text: str) -> int:
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

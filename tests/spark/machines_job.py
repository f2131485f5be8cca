"""Archives into directories of each format, twice each, in one application; prints what each start ends with.

python machines_job.py BOOTSTRAP TOPIC DIRECTORY MASTER NAME=VALUE…
"""

from __future__ import annotations

import json
import sys

from highwater.spark.pipelines.archive import ArchiveFormat, ArchiveOptions, run


def main(bootstrap: str, topic: str, directory: str, master: str, *conf: str) -> None:
    of_session = list(conf)
    for kind in (ArchiveFormat.DELTA, ArchiveFormat.PARQUET):
        to, checkpoint = f"{directory}/{kind}/archive", f"{directory}/{kind}/checkpoint"
        for _ in range(2):
            given = {"to": to, "checkpoint": checkpoint, "format": kind, "master": master, "conf": of_session}
            try:
                run(ArchiveOptions(bootstrap=bootstrap, topic=[topic], **given))  # type: ignore[arg-type]
                said = "archived"
            except Exception as error:
                said = str(error)
            print(json.dumps([kind, said]), flush=True)
            of_session = []  # the first start makes it


if __name__ == "__main__":
    main(*sys.argv[1:])

"""`python -m highwater.kube.smoke_test`: makes a topic, sends records, reads them back, deletes it: `helm test`."""

from __future__ import annotations

import argparse
import sys
import time
import uuid
from collections.abc import Sequence

import pyarrow as pa

from highwater.client.blocking import Admin, Consumer, Producer
from highwater.client.exceptions import HighwaterError

RECORDS = 1000
_READ_S = 30.0


class WrongRecordsError(Exception):
    """Raised where what was read is not what was sent."""


def produce_and_consume(bootstrap: str, *, wait_s: float) -> str:
    """Sends records and reads them; tells what was done, in a sentence. Raises `HighwaterError` and
    `WrongRecordsError`."""
    topic = f"highwater-test-{uuid.uuid4().hex[:12]}"
    began = time.monotonic()
    with Admin(bootstrap, max_block_ms=wait_s * 1000) as admin:
        made = admin.create_topic(topic, partitions=3)
        try:
            _send_and_read(bootstrap, topic)
        finally:
            admin.delete_topic(topic)
    return (
        f"{2 * RECORDS} records were acknowledged by {made.replication_factor} replicas and read back, "
        f"{time.monotonic() - began:.1f} s"
    )


def _send_and_read(bootstrap: str, topic: str) -> None:
    keys = [b"%d" % number for number in range(RECORDS)]
    with Producer(bootstrap) as producer:
        for key in keys:
            producer.send(topic, b"single", key=key)
        producer.send_table(topic, pa.table({"key": keys, "value": [b"table"] * RECORDS}))
        producer.flush()
    wanted: set[tuple[bytes | None, bytes | None]] = {(key, value) for key in keys for value in (b"single", b"table")}
    with Consumer(topic, bootstrap=bootstrap, auto_offset_reset="earliest") as consumer:
        deadline = time.monotonic() + _READ_S
        while wanted and time.monotonic() < deadline:
            for record in consumer.poll(timeout_ms=500):
                if (record.key, record.value) not in wanted:
                    raise WrongRecordsError(f"{record.key!r} was read twice, or was never sent")
                wanted.remove((record.key, record.value))
    if wanted:
        raise WrongRecordsError(f"{len(wanted)} of {2 * RECORDS} records were not read within {_READ_S:g} s")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--wait", type=float, default=60, help="seconds that the cluster may take to answer")
    given = parser.parse_args(arguments)
    try:
        print(produce_and_consume(given.bootstrap, wait_s=given.wait))
    except (HighwaterError, WrongRecordsError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Apache Kafka's brokers, started by a script that `HIGHWATER_KAFKA_PEER` names: `up` prints the bootstrap list,
`create TOPIC`, `pid N`, `start N`, `spark-jars` (of Spark's Kafka connector), `down`."""

from __future__ import annotations

import os
import subprocess
import time

NO_PEER = (
    "HIGHWATER_KAFKA_PEER does not name a program: it must be one that starts Kafka (bench/kafka_peer.py says with "
    "which commands)"
)


class KafkaPeer:
    def __init__(self, script: str) -> None:
        self.script = script
        self.bootstrap = ""

    def run(self, *arguments: str) -> str:
        return subprocess.run([self.script, *arguments], check=True, capture_output=True, text=True).stdout.strip()

    def up(self) -> float:
        """Seconds until it serves."""
        self.run("down")
        started = time.monotonic()
        self.bootstrap = self.run("up").splitlines()[-1]
        return time.monotonic() - started

    def create(self, topic: str) -> None:
        self.run("create", topic)

    def pid(self, broker: int) -> int:
        return int(self.run("pid", str(broker)))

    def start(self, broker: int) -> None:
        self.run("start", str(broker))

    def down(self) -> None:
        self.run("down")


def peer_script() -> str | None:
    """The script; None: there is none."""
    script = os.environ.get("HIGHWATER_KAFKA_PEER", "")
    return script if os.access(script, os.X_OK) else None

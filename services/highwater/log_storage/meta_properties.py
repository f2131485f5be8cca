"""`meta.properties`, as Kafka has it in each log directory: which cluster, and which broker of it, the logs belong to.

An etcd that has lost everything shows every log as unwanted; the cluster's id tells it from one in which everything was
deleted (RULES 9.3).
"""

from __future__ import annotations

from pathlib import Path

from highwater.log_storage.durable import replace_file

FILE_NAME = "meta.properties"
_CLUSTER_ID = "cluster.id"


def read_cluster_id(directory: Path) -> str:
    """Empty where none is recorded. Raises `OSError`."""
    try:
        lines = (directory / FILE_NAME).read_text().splitlines()
    except FileNotFoundError:
        return ""
    for line in lines:
        key, _, value = line.partition("=")
        if key.strip() == _CLUSTER_ID:
            return value.strip()
    return ""


def write(directory: Path, broker_id: int, cluster_id: str) -> None:
    """Durable when it returns. Raises `OSError`."""
    replace_file(directory / FILE_NAME, f"version=0\nbroker.id={broker_id}\n{_CLUSTER_ID}={cluster_id}\n".encode())

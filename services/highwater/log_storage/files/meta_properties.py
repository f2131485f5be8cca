"""`meta.properties`, as Kafka has it in each log directory: which cluster, and which broker of it, the logs belong to,
and the id of the directory.

An etcd that has lost everything shows every log as unwanted; the cluster's id tells it from one in which everything was
deleted (RULES 9.3). The directory's id is random, goes with the volume, and tells one volume from a copy of another.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from highwater.atomic_file import OversizedFileError, read_whole, replace_file

FILE_NAME = "meta.properties"
_BROKER_ID = "broker.id"
_CLUSTER_ID = "cluster.id"
_DIRECTORY_ID = "directory.id"


@dataclass(frozen=True, slots=True)
class MetaProperties:
    cluster_id: str = ""  # empty: not recorded yet
    directory_id: str = ""  # 22 characters, as Kafka prints a UUID; empty: not recorded yet
    broker_id: str = ""


def read(directory: Path) -> MetaProperties:
    """Reads what the file says; nothing where there is none, or a damaged one. Raises `OSError`."""
    try:
        lines = read_whole(directory / FILE_NAME).decode(errors="replace").splitlines()
    except (FileNotFoundError, OversizedFileError):
        return MetaProperties()
    found = {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in lines)}
    return MetaProperties(found.get(_CLUSTER_ID, ""), found.get(_DIRECTORY_ID, ""), found.get(_BROKER_ID, ""))


def write(directory: Path, properties: MetaProperties) -> None:
    """Durable when it returns. Raises `OSError`."""
    lines = ["version=0", f"{_BROKER_ID}={properties.broker_id}"]
    if properties.cluster_id:
        lines.append(f"{_CLUSTER_ID}={properties.cluster_id}")
    lines.append(f"{_DIRECTORY_ID}={properties.directory_id}")
    replace_file(directory / FILE_NAME, "".join(f"{line}\n" for line in lines).encode())

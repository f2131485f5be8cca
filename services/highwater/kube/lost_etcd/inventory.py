"""The content of a broker's log directories, as values with a JSON form. Pure."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from highwater.errors import UserError
from highwater.model.leader_epochs import NO_EPOCH, EpochEntry, LeaderEpochCache
from highwater.model.partition import PartitionKey
from highwater.model.written_json import checked, parse_json

FORMAT = "highwater-inventory"
VERSION = 1
COMPRESSED = "inventory:"
"""Begins a line that is compressed."""
NO_PRODUCER_ID = -1


@dataclass(frozen=True)
class Replica:
    """One log. Where it cannot be opened `failure` says why, and of the offsets nothing is known (0)."""

    topic: str
    topic_id: bytes
    partition: int
    log_start_offset: int = 0
    log_end_offset: int = 0
    high_watermark: int = 0  # as checkpointed: everything below it was committed
    epochs: tuple[EpochEntry, ...] = ()  # of the leader-epoch cache
    last_epoch: int = NO_EPOCH  # of the last batch
    fence_epoch: int = NO_EPOCH  # the highest leader epoch that the log was fenced under; NO_EPOCH: none
    # The last that it was fenced to lead under; NO_EPOCH: it never led; None: the fence is of a version that kept none.
    led_epoch: int | None = NO_EPOCH
    highest_producer_id: int = NO_PRODUCER_ID
    failure: str = ""

    @property
    def key(self) -> PartitionKey:
        return PartitionKey(self.topic_id, self.partition)

    @cached_property
    def cache(self) -> LeaderEpochCache:
        return LeaderEpochCache(self.epochs)


@dataclass(frozen=True)
class Directory:
    path: str
    directory_id: str = ""
    failure: str = ""  # why it cannot be used; then nothing is known of what is in it


@dataclass(frozen=True)
class BrokerInventory:
    """`tail_lost`: what the broker wrote last may be gone (RULES 7.2). `unidentified`: (topic, partition) of logs whose
    topic id is not known. `missing_directories`: so many were there at the broker's last start, and are not now."""

    broker_id: int
    cluster_id: str  # "": none of the directories was ever used in a cluster
    directories: tuple[Directory, ...]
    replicas: tuple[Replica, ...] = ()
    tail_lost: bool = False
    unidentified: tuple[tuple[str, int], ...] = ()
    missing_directories: int = 0

    @property
    def whole(self) -> bool:
        """Tells whether every log that the broker had is listed. Of volumes that no broker ever used it is not known
        what was on those in whose place they are."""
        used = bool(self.cluster_id)
        return used and not self.missing_directories and not any(each.failure for each in self.directories)

    def to_json(self) -> str:
        """One line."""
        value = {"format": FORMAT, "version": VERSION, **asdict(self)}
        for replica, made in zip(self.replicas, value["replicas"], strict=True):
            made["topic_id"] = replica.topic_id.hex()
        return json.dumps(value, separators=(",", ":"), sort_keys=True)

    def to_compressed(self) -> str:
        """The same in less: the log of a pod, and a ConfigMap, hold only so much."""
        packed = gzip.compress(self.to_json().encode(), mtime=0)
        return COMPRESSED + base64.b64encode(packed).decode()


def from_json(text: str) -> BrokerInventory:
    """Of either form. Raises `UserError`."""
    try:
        if text.startswith(COMPRESSED):
            text = gzip.decompress(base64.b64decode(text.removeprefix(COMPRESSED))).decode()
        value: dict[str, Any] = parse_json(text)
        if (value.pop("format"), value.pop("version")) != (FORMAT, VERSION):
            raise ValueError("another format or version")
        replicas = tuple(
            checked(
                Replica(
                    **{
                        **each,
                        "topic_id": bytes.fromhex(each["topic_id"]),
                        "epochs": tuple(EpochEntry(*entry) for entry in each["epochs"]),
                    }
                )
            )
            for each in value.pop("replicas")
        )
        directories = tuple(checked(Directory(**each)) for each in value.pop("directories"))
        unidentified = tuple((str(topic), int(partition)) for topic, partition in value.pop("unidentified"))
        return checked(BrokerInventory(**value, replicas=replicas, directories=directories, unidentified=unidentified))
    except (ValueError, KeyError, TypeError, AttributeError, OSError, EOFError, zlib.error) as error:
        raise UserError(
            f"this is no inventory of a broker's log directories ({error!r}): make it with "
            "python -m highwater.kube.inventory, of the same version"
        ) from error


def from_lines(lines: Iterable[str]) -> list[BrokerInventory]:
    """One inventory a line. Raises `UserError`."""
    return [from_json(line) for line in lines if line.strip()]

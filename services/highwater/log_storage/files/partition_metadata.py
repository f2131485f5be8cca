"""`partition.metadata`, the topic id of a log's directory (RULES 1.1), and the directory's name, both as Kafka has
them."""

from __future__ import annotations

import base64
import binascii
import re
from pathlib import Path

from highwater.atomic_file import OversizedFileError, read_whole, replace_file
from highwater.model.partition import TOPIC_ID_BYTES, format_topic_id

FILE_NAME = "partition.metadata"

_LARGEST = 2**31 - 1
_DIRECTORY_NAME = re.compile(r"(?P<topic>[A-Za-z0-9._-]+)-(?P<partition>[0-9]{1,10})")
_TOPIC_ID_LINE = re.compile(r"topic_id: (?P<id>[A-Za-z0-9_-]{22})")


class PartitionMetadataError(ValueError):
    """The file is damaged. The message names it."""


def directory_name(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def parse_directory_name(name: str) -> tuple[str, int] | None:
    """(topic, partition), or None for a directory that is no log's."""
    found = _DIRECTORY_NAME.fullmatch(name)
    return (found["topic"], int(found["partition"])) if found and int(found["partition"]) <= _LARGEST else None


def read(directory: Path) -> bytes | None:
    """The topic id, None where there is no file. Raises `PartitionMetadataError`."""
    path = directory / FILE_NAME
    try:
        lines = read_whole(path).decode(errors="replace").splitlines()
    except FileNotFoundError:
        return None
    except OversizedFileError:
        lines = []
    found = _TOPIC_ID_LINE.fullmatch(lines[1]) if len(lines) == 2 and lines[0] == "version: 0" else None
    if found is None:
        raise PartitionMetadataError(f"{path} is damaged: it should read `version: 0` and `topic_id: <22 characters>`")
    try:
        return base64.urlsafe_b64decode(found["id"] + "==")
    except binascii.Error:
        raise PartitionMetadataError(f"{path} is damaged: {found['id']!r} is not a topic id") from None


def write(directory: Path, topic_id: bytes) -> None:
    """Durable when it returns. Raises `OSError`."""
    if len(topic_id) != TOPIC_ID_BYTES:
        raise ValueError(f"a topic id has {TOPIC_ID_BYTES} bytes, not {len(topic_id)}")
    replace_file(directory / FILE_NAME, f"version: 0\ntopic_id: {format_topic_id(topic_id)}".encode())

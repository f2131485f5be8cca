"""The names and marks of a `-future` log: the copy of a partition's log that is made in another directory, to take its
place. A directory that is named so is the move that was asked for: it goes on after a restart."""

from __future__ import annotations

import re
import secrets
from pathlib import Path

from highwater.atomic_file import read_whole, replace_file

# In a future log that holds all of the log it is to replace. The log that is replaced goes only after it is on disk;
# from then on this one is the log, whatever its directory is still called.
COMPLETE = "move-complete"

_NAME = re.compile(r"(?P<copied>[A-Za-z0-9._-]+-(?P<partition>[0-9]{1,10}))\.[0-9a-f]{32}-future")
_TOPIC_CHARACTERS = 200  # a file name has 255


def future_directory_name(topic: str, partition: int) -> str:
    """A new one, as Kafka names them: `<topic>-<partition>.<random>-future`."""
    return f"{copied_name(topic, partition)}.{secrets.token_hex(16)}-future"


def copied_name(topic: str, partition: int) -> str:
    """The beginning of the name of a copy of that partition. Those of long topics may share it."""
    return f"{topic[:_TOPIC_CHARACTERS]}-{partition}"


def copied(name: str) -> str | None:
    """The `copied_name` of a future log's directory; None for another one."""
    found = _NAME.fullmatch(name)
    return found["copied"] if found else None


def partition_of(name: str) -> int | None:
    """Of a future log's directory; None for another one."""
    found = _NAME.fullmatch(name)
    return int(found["partition"]) if found else None


def mark_complete(directory: Path, topic: str) -> None:
    """Durable when it returns. Raises `OSError`."""
    replace_file(directory / COMPLETE, topic.encode())


def completed_topic(directory: Path) -> str | None:
    """The topic's name where the copy was complete. Raises `OSError`, and `ValueError` where the mark is damaged."""
    try:
        topic = read_whole(directory / COMPLETE).decode()
    except FileNotFoundError:
        return None
    if copied_name(topic, partition_of(directory.name) or 0) != copied(directory.name):
        raise ValueError(
            f"{directory / COMPLETE} is damaged: write the topic's name to it, which the directory's begins with"
        )
    return topic


def unmark(directory: Path) -> None:
    """Raises `OSError`."""
    (directory / COMPLETE).unlink(missing_ok=True)

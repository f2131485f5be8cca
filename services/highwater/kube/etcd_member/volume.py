"""One etcd member's volume: whether it holds a log, and the note that says how far its first start has come."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from highwater.errors import UserError

NOTE_NAME = "highwater.json"


class Held(StrEnum):
    """The content of a volume. The first four have no log: the member was not started on this volume.

    EMPTY -> PREPARED -> AGREED -> STARTED is the first start of a whole cluster, EMPTY -> JOINING -> STARTED how a
    member comes to one that is there; a volume goes back to EMPTY only by being lost.
    """

    EMPTY = "empty"
    PREPARED = "prepared"
    """Every other member has said that its volume has no log, while this one was EMPTY."""
    AGREED = "agreed"
    """Every other member was at least PREPARED: this one may start anew."""
    JOINING = "joining"
    """At some time after the cluster named no member of this peer URL, this volume's run asked for one: whatever it
    names under that URL since then was never started anywhere else."""
    REMAINS = "remains"
    """A database or a started member's note without a log: a part was lost. Never taken for an empty volume."""
    STARTED = "started"
    """A log: etcd starts as what it was, and heeds no `initial-…` setting."""


@dataclass(frozen=True, slots=True)
class Note:
    held: Held
    peer_url: str
    """The one that this member had then."""


class MemberVolume:
    """The data directory of an etcd: `member/wal/*.wal` is the log, `member/snap/db` the database.

    The note lies beside the log, so that nobody empties one and leaves the other.
    """

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self._member = data_dir / "member"
        self._note_path = self._member / NOTE_NAME

    def note(self) -> Note | None:
        """Raises `UserError` where it cannot be read."""
        try:
            found = json.loads(self._note_path.read_text())
            return Note(Held(found["held"]), str(found["peer_url"]))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UserError(f"{self._note_path} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{self._note_path} is damaged: delete this member's volume and it joins the others anew"
            ) from error

    def held(self) -> Held:
        """Raises `UserError` where the volume cannot be read."""
        try:
            if any(path.suffix == ".wal" for path in _entries(self._member / "wal")):  # etcd's own test
                return Held.STARTED
            note = self.note()
            if note is None:
                unfinished = self._note_path.with_name(NOTE_NAME + ".tmp")
                return Held.REMAINS if any(path != unfinished for path in _entries(self._member)) else Held.EMPTY
            return Held.REMAINS if note.held is Held.STARTED else note.held
        except OSError as error:
            raise UserError(f"the volume at {self.data_dir} cannot be read: {error.strerror}") from error

    def write(self, held: Held, peer_url: str) -> None:
        """Durable when it returns. Raises `UserError`."""
        try:
            self.data_dir.parent.mkdir(parents=True, exist_ok=True)
            for directory in (self.data_dir, self._member):
                directory.mkdir(mode=0o700, exist_ok=True)  # etcd complains of any other mode
            write_durably(self._note_path, json.dumps({"held": held.value, "peer_url": peer_url}) + "\n")
            for directory in (self.data_dir, self.data_dir.parent):
                _sync(directory)
        except OSError as error:
            raise UserError(f"the volume at {self.data_dir} cannot be written: {error.strerror}") from error

    def clear(self, *, remains: bool = False) -> None:
        """Deletes what an etcd left that ended before it had a log, but not the note; with `remains` all. Raises
        `UserError`."""
        assert self.held() is not Held.STARTED, "a log is never deleted"
        assert remains or self.held() is not Held.REMAINS, "what is left of a log is deleted only to join a cluster"
        try:
            # The note goes last: without it, what is left is REMAINS still.
            for path in sorted(_entries(self._member), key=lambda path: path.name == NOTE_NAME):
                if path.name != NOTE_NAME or remains:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            if self._member.is_dir():
                _sync(self._member)
        except OSError as error:
            raise UserError(f"the volume at {self.data_dir} cannot be written: {error.strerror}") from error


def write_durably(path: Path, text: str) -> None:
    """Whole or not at all, whenever the process or the machine ends. Raises `OSError`."""
    written = path.with_name(path.name + ".tmp")
    with written.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    written.replace(path)
    _sync(path.parent)


def _entries(directory: Path) -> list[Path]:
    with contextlib.suppress(FileNotFoundError):
        return list(directory.iterdir())
    return []


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

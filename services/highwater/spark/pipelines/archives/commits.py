"""Commits of an archive of plain files: files appear in it, and are replaced, by numbered commits that a crash cannot
halve.

    ARCHIVE/_commits/000000000007.json     the commit that was applied last
    ARCHIVE/_commits/000000000008.json     the one that is being applied, if there is one

A commit says which staged files become files of the archive, which files they replace, and up to which offset each
partition is archived once that is done. It is written in one piece before anything is moved. Applying it moves the new
files in, removes the old ones, and then removes the commit before it: as long as there are two, the higher one is
pending, and whoever opens the archive next applies it again; every step of that can be done twice. On a local disk each
of these steps outlasts a loss of power before the next one is done.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Protocol, TypeVar

from highwater.errors import UserError
from highwater.spark.pipelines.archives.offsets import Offsets

COMMITS = "_commits"
SETTLE_S = 120.0

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Commit:
    """Paths of `adds` and `removes` are below the archive, those of staged files are not."""

    number: int
    offsets: Offsets
    adds: Mapping[str, str] = field(default_factory=dict)  # where a file goes: where it is staged
    removes: tuple[str, ...] = ()
    topic_ids: Mapping[str, str] = field(default_factory=dict)  # in hex, of the archived topics as far as known

    def to_json(self) -> bytes:
        return json.dumps(
            {
                "offsets": self.offsets,
                "adds": self.adds,
                "removes": self.removes,
                "topic_ids": self.topic_ids,
            },
            indent=1,
            sort_keys=True,
        ).encode()


def parse_commit(number: int, text: bytes) -> Commit:
    read: dict[str, Any] = json.loads(text)
    offsets = {
        topic: {int(partition): offset for partition, offset in partitions.items()}
        for topic, partitions in read["offsets"].items()
    }
    return Commit(number, offsets, read["adds"], tuple(read["removes"]), read.get("topic_ids", {}))


class Files(Protocol):
    def exists(self, path: str) -> bool: ...
    def names(self, directory: str) -> list[str]: ...
    def read(self, path: str) -> bytes: ...
    def write(self, path: str, content: bytes) -> None: ...
    def write_new(self, path: str, content: bytes) -> bool: ...
    def size_bytes(self, path: str) -> int: ...
    def move(self, source: str, target: str) -> None: ...
    def delete(self, path: str) -> None: ...
    def fsync(self, paths: Iterable[str]) -> None: ...


class CommitLog:
    """The commits of one archive, for the one process that writes to it."""

    def __init__(self, files: Files, archive: str, check: Callable[[], None] = lambda: None) -> None:
        """`check` raises where this process may not write any more."""
        self._files = files
        self._archive = archive.rstrip("/")
        self._check = check
        self._last: Commit | None = None

    @property
    def begun(self) -> bool:
        """True where the archive has commits."""
        return bool(self._numbers())

    @property
    def last(self) -> Commit:
        """The commit that was applied last."""
        assert self._last is not None, "open() or begin() comes first"
        return self._last

    def open(self) -> bool:
        """Finishes what a crash left; False where the archive has no commits yet."""
        numbers = self._numbers()
        if not numbers:
            return False
        self._last = self._read(numbers[-1])
        if len(numbers) > 1:
            self._finish(self._last, before=numbers[-2])
        return True

    def begin(self, number: int, offsets: Offsets) -> None:
        """The first commit, of an archive that is as it is."""
        self._last = Commit(number, offsets)
        if not self._files.write_new(self._path(number), self._last.to_json()):
            raise self._refusal()

    def commit(self, commit: Commit) -> None:
        """Raises `UserError` where another process has written to the archive meanwhile, or a staged file is gone."""
        before = self.last.number
        assert commit.number == before + 1
        self._check()
        if self._numbers() != [before]:
            raise self._refusal()
        if gone := [staged for staged in commit.adds.values() if not self._files.exists(staged)]:
            raise UserError(f"{gone[0]} is gone, and {len(gone) - 1} more: leave alone what is staged for an archive")
        self._files.fsync(commit.adds.values())
        if not self._files.write_new(self._path(commit.number), commit.to_json()):
            raise self._refusal()
        # Between the check and the commit this process may have stood still for longer than its lease.
        numbers = self._numbers()
        if max(numbers, default=0) > commit.number:
            # Others have made, applied and removed one of this number: theirs is the one before the next.
            self._files.delete(self._path(commit.number))
        self._check()
        if numbers != [before, commit.number]:
            raise self._refusal()
        self._apply(commit, before, staged=True)
        self._last = commit

    def _refusal(self) -> UserError:
        return UserError(f"another archive pipeline writes to {self._archive}: only one at a time can")

    def _finish(self, commit: Commit, before: int) -> None:
        whole = all(
            self._files.exists(staged) or self._files.exists(self._target(target))
            for target, staged in commit.adds.items()
        )
        # To look at all of them takes its time: another process may have finished it, and gone on.
        self._check()
        if whole or not all(self._files.exists(self._target(removed)) for removed in commit.removes):
            self._apply(commit, before, staged=False)
            return
        # Staged files were deleted by someone else, and nothing was removed yet: the commit before still holds.
        for target in commit.adds:
            self._files.delete(self._target(target))
        self._files.fsync(map(self._target, commit.adds))
        self._files.delete(self._path(commit.number))
        self._last = self._read(before)

    def _apply(self, commit: Commit, before: int, *, staged: bool) -> None:
        """`staged`: nothing of it was done yet. Else what is nowhere was in the archive, and was taken out since."""
        for target, source in commit.adds.items():
            if self._files.exists(source):
                self._move(source, self._target(target), again=not staged)
            elif staged:
                # There are two commits now, and the next start takes this one back.
                raise UserError(f"{source} is gone: leave alone what is staged for an archive, and start again")
        self._files.fsync(map(self._target, commit.adds))
        for removed in commit.removes:
            self._files.delete(self._target(removed))
        self._files.fsync(map(self._target, commit.removes))
        self._files.delete(self._path(before))

    def _move(self, source: str, target: str, *, again: bool) -> None:
        """An object store copies and then deletes: what a crash left between the two is in both places."""
        if again and self._files.exists(target):
            if self._files.size_bytes(target) == self._files.size_bytes(source):
                self._files.delete(source)
                return
            self._files.delete(target)
        self._files.move(source, target)

    def _numbers(self) -> list[int]:
        return commit_numbers(self._files.names(f"{self._archive}/{COMMITS}"))

    def _read(self, number: int) -> Commit:
        return parse_commit(number, self._files.read(self._path(number)))

    def _path(self, number: int) -> str:
        return f"{self._archive}/{COMMITS}/{number:012d}.json"

    def _target(self, path: str) -> str:
        return f"{self._archive}/{path}"


def commit_numbers(names: Iterable[str]) -> list[int]:
    """The numbers of commits, of the names in their directory; a partial file counts for nothing."""
    return sorted(int(name.removesuffix(".json")) for name in names if name.removesuffix(".json").isdecimal())


def pending_commit(files: Files, archive: str) -> Commit | None:
    """The commit that is being applied, or that a crash left half applied; for those who only read the archive."""
    directory = f"{archive.rstrip('/')}/{COMMITS}"
    while len(numbers := commit_numbers(files.names(directory))) > 1:
        path = f"{directory}/{numbers[-1]:012d}.json"
        if files.exists(path):  # else it and the next one were applied since
            return parse_commit(numbers[-1], files.read(path))
    return None


def applied_commit(files: Files, archive: str) -> Commit | None:
    """The last one of which all is there; None where the archive has no commits. For those who only read it."""
    directory = f"{archive.rstrip('/')}/{COMMITS}"
    while numbers := commit_numbers(files.names(directory)):
        path = f"{directory}/{numbers[0]:012d}.json"
        if files.exists(path):  # else the next one was applied since
            return parse_commit(numbers[0], files.read(path))
    return None


def settled(files: Files, archive: str, look: Callable[[], Found]) -> tuple[Found, frozenset[str]]:
    """The result of `look`, which looks at all of an archive that another process may be writing to, and the paths that
    are to be left out of it. Raises `UserError` where the archive has changed with every look for `SETTLE_S`.

    A commit number that is the last one before and after a look was so all the time. Of a commit that is pending
    meanwhile, what it removes is removed when all is there that it adds: that was so before the look, or not after it.
    """
    directory = f"{archive.rstrip('/')}/{COMMITS}"
    deadline = monotonic() + SETTLE_S
    while monotonic() < deadline:
        numbers = commit_numbers(files.names(directory))
        pending = pending_commit(files, archive)
        before = _has_added(files, archive, pending)
        found = look()
        after = before or _has_added(files, archive, pending)
        if commit_numbers(files.names(directory)) == numbers and before == after:
            return found, left_out(pending, applied=before)
    raise UserError(
        f"{archive} has changed with every look for {SETTLE_S:g} s: try again when less is written to it or merged"
    )


def _has_added(files: Files, archive: str, pending: Commit | None) -> bool:
    return pending is None or all(files.exists(f"{archive.rstrip('/')}/{path}") for path in pending.adds)


def left_out(pending: Commit | None, *, applied: bool) -> frozenset[str]:
    """The files of an archive that do not count while a commit is being applied. `applied`: all is there that it adds.
    Pure."""
    if pending is None:
        return frozenset()
    return frozenset(pending.removes if applied else pending.adds)


def visible(present: Iterable[str], pending: Commit | None) -> list[str]:
    """The files of an archive that hold each record once, while a commit is being applied, too. Pure."""
    present = set(present)
    applied = pending is None or present.issuperset(pending.adds)
    return sorted(present - left_out(pending, applied=applied))

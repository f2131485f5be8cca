"""An archive's commits: a crash before or within any step of them leaves every record there, and there once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from threading import Semaphore, Thread
from typing import Any, cast

import pytest

from highwater.errors import UserError
from highwater.spark.pipelines.archives.commits import (
    Commit,
    CommitLog,
    pending_commit,
    settled,
    visible,
)
from highwater.spark.pipelines.archives.offsets import merged_offsets
from highwater.spark.pipelines.files.hadoop_files import write_new_file

ARCHIVE = "/archive"


class Crash(Exception):  # noqa: N818  (not an error of ours)
    pass


@dataclass
class Disk:
    """Files by their path. Dies before step `dies_at`, or within it where a step can be halved."""

    content: dict[str, bytes] = field(default_factory=dict)
    dies_at: int | None = None
    within: bool = False
    steps: int = 0

    def exists(self, path: str) -> bool:
        return path in self.content

    def names(self, directory: str) -> list[str]:
        return sorted(
            {path[len(directory) + 1 :].split("/")[0] for path in self.content if self._below(path, directory)}
        )

    def read(self, path: str) -> bytes:
        return self.content[path]

    def write(self, path: str, content: bytes) -> None:
        self._step(lambda: self.content.update({f"{path}.partial": content[: len(content) // 2]}))
        self.content.pop(f"{path}.partial", None)
        self.content[path] = content

    def write_new(self, path: str, content: bytes) -> bool:
        if self.exists(path):
            return False
        self.write(path, content)
        return True

    def size_bytes(self, path: str) -> int:
        return len(self.content[path])

    def move(self, source: str, target: str) -> None:
        self._step()
        self.content[target] = self.content.pop(source)

    def fsync(self, paths: Iterable[str]) -> None:
        pass

    def delete(self, path: str) -> None:
        self._step()
        for found in [one for one in self.content if one == path or self._below(one, path)]:
            del self.content[found]

    def _step(self, half: object = None) -> None:
        self.steps += 1
        if self.dies_at is not None and self.steps >= self.dies_at:
            if self.within and callable(half) and self.steps == self.dies_at:
                half()
            raise Crash

    @staticmethod
    def _below(path: str, directory: str) -> bool:
        return path.startswith(f"{directory}/")

    def archived(self) -> list[str]:
        """As any reader lists them."""
        found = [path[len(ARCHIVE) + 1 :] for path in self.content if self._below(path, ARCHIVE)]
        return sorted(path for path in found if not path.startswith("_"))

    def records(self, paths: list[str]) -> Counter[str]:
        """A file's content is the letters of its records."""
        return Counter(letter for path in paths for letter in self.content[f"{ARCHIVE}/{path}"].decode())


class ObjectStore(Disk):
    """It has no renames."""

    def move(self, source: str, target: str) -> None:
        self._step()
        assert target not in self.content
        self.content[target] = self.content[source]
        self._step()
        del self.content[source]


@dataclass
class Cached(Disk):
    """Its machine may lose its power: what was not kept is then as it is, or as it was, each file for itself."""

    kept: dict[str, bytes] = field(default_factory=dict)

    def write_new(self, path: str, content: bytes) -> bool:
        written = super().write_new(path, content)
        self.fsync([path])
        return written

    def fsync(self, paths: Iterable[str]) -> None:
        for path in paths:
            if path in self.content:
                self.kept[path] = self.content[path]
            directory = path.rpartition("/")[0]
            for gone in [one for one in self.kept if one not in self.content and self._below(one, directory)]:
                del self.kept[gone]

    def after_power_loss(self, drawn: Random) -> Disk:
        states = {path: drawn.choice((self.content, self.kept)) for path in sorted({*self.content, *self.kept})}
        return Disk({path: state[path] for path, state in states.items() if path in state})


def stage(disk: Disk, files: dict[str, str]) -> dict[str, str]:
    """Staged anew, as by a micro-batch that is run again; where each goes and where it is."""
    for name, letters in files.items():
        disk.content[f"/staging/{name}"] = letters.encode()
    return {f"hour/{name}": f"/staging/{name}" for name in files}


# Each step: how many offsets are archived then, what it adds, what that replaces.
STORY: list[tuple[int, dict[str, str], tuple[str, ...]]] = [
    (4, {"1": "ab", "2": "cd"}, ()),
    (6, {"3": "e", "4": "f"}, ()),
    (6, {"5": "abcd", "6": "ef"}, ("hour/1", "hour/2", "hour/3", "hour/4")),
    (7, {"7": "g"}, ()),
]


LETTERS = {f"hour/{name}": letters for _, files, _ in STORY for name, letters in files.items()}


def archived_offset(log: CommitLog) -> int:
    return log.last.offsets.get("topic", {}).get(0, 0)


def go_on(disk: Disk) -> None:
    """What a process that starts does: opens, then everything that is not in yet."""
    log = CommitLog(disk, ARCHIVE)
    if not log.open():
        log.begin(1, {})
    disk.delete("/staging")
    for offset, files, removes in STORY:
        merging = bool(removes)
        todo = any(disk.exists(f"{ARCHIVE}/{path}") for path in removes) if merging else archived_offset(log) < offset
        if todo:
            log.commit(Commit(log.last.number + 1, {"topic": {0: offset}}, stage(disk, files), removes))


@pytest.mark.parametrize(("kind", "within"), [(Disk, False), (Disk, True), (ObjectStore, False)])
def test_a_crash_at_every_step(kind: type[Disk], within: bool) -> None:
    whole = kind()
    go_on(whole)
    assert whole.records(whole.archived()) == Counter("abcdefg")
    for dies_at in range(1, whole.steps + 1):
        disk = kind(dies_at=dies_at, within=within)
        with pytest.raises(Crash):
            go_on(disk)
        pending = pending_commit(disk, ARCHIVE)
        seen = disk.records(visible(disk.archived(), pending))
        assert set(seen.values()) <= {1}, (dies_at, seen)
        if pending is None or not pending.removes:
            # Only while files are replaced does a reader who does not look at the commits see a record twice.
            assert set(disk.records(disk.archived()).values()) <= {1}, dies_at
        assert set(disk.records(disk.archived())) >= set(seen)
        for dies_again_at in (1, 2, 3, None):
            again = kind(dict(disk.content), dies_at=dies_again_at, within=within)
            with suppress(Crash):
                go_on(again)
            again.dies_at = None
            go_on(again)
            assert again.records(again.archived()) == Counter("abcdefg"), (dies_at, dies_again_at)
            assert pending_commit(again, ARCHIVE) is None


@pytest.mark.parametrize("seed", range(50))
def test_a_loss_of_power_at_every_step(seed: int) -> None:
    drawn = Random(seed)
    whole = Cached()
    go_on(whole)
    for dies_at in range(1, whole.steps + 1):
        disk = Cached(dies_at=dies_at)
        with pytest.raises(Crash):
            go_on(disk)
        again = disk.after_power_loss(drawn)
        go_on(again)
        assert again.records(again.archived()) == Counter("abcdefg"), dies_at


@pytest.mark.parametrize("copied", [b"ab", b"a"])
def test_a_file_that_is_staged_and_in_its_place(copied: bytes) -> None:
    """A copy that a crash has cut short is made anew."""
    disk = Disk()
    log = CommitLog(disk, ARCHIVE)
    log.begin(1, {})
    disk.dies_at = disk.steps + 2  # written, nothing moved
    with pytest.raises(Crash):
        log.commit(Commit(2, {"topic": {0: 2}}, stage(disk, {"1": "ab"})))
    again = ObjectStore({**disk.content, f"{ARCHIVE}/hour/1": copied})
    assert CommitLog(again, ARCHIVE).open()
    assert again.records(again.archived()) == Counter("ab")
    assert not again.exists("/staging/1")


@dataclass
class Shared(Disk):
    """A disk that a writer in a thread of its own changes, step by step, when whoever reads from it says so."""

    may_step: Semaphore = field(default_factory=lambda: Semaphore(0))
    has_stepped: Semaphore = field(default_factory=lambda: Semaphore(0))

    def _step(self, half: object = None) -> None:
        self.has_stepped.release()
        self.may_step.acquire()

    def let_write(self, steps: int) -> None:
        for _ in range(steps):
            self.may_step.release()
            self.has_stepped.acquire()


@pytest.mark.parametrize("seed", range(200))
def test_who_reads_beside_a_writer_sees_every_commit_whole(seed: int) -> None:
    drawn = Random(seed)
    disk = Shared()

    def write() -> None:
        go_on(disk)
        while True:
            disk._step()

    Thread(target=write, daemon=True).start()
    disk.has_stepped.acquire()

    class Reading:
        def names(self, directory: str) -> list[str]:
            disk.let_write(drawn.choice((0, 0, 1, 2, 5)))
            return disk.names(directory)

        def exists(self, path: str) -> bool:
            disk.let_write(drawn.choice((0, 0, 0, 12)))
            return disk.exists(path)

        def read(self, path: str) -> bytes:
            return disk.read(path)

    def listed() -> list[str]:
        """Name by name, in whatever order."""
        found = []
        for path in drawn.sample(sorted(LETTERS), len(LETTERS)):
            disk.let_write(drawn.choice((0, 0, 0, 0, 1)))
            if disk.exists(f"{ARCHIVE}/{path}"):
                found.append(path)
        return found

    whole = {"", "abcd", "abcdef", "abcdefg"}
    for _ in range(6):
        found, hidden = settled(cast(Any, Reading()), ARCHIVE, listed)
        paths = [path for path in found if path not in hidden]
        seen = "".join(sorted(LETTERS[path] for path in paths))
        assert "".join(sorted(seen)) in whole, (paths, seen)


def test_a_commit_whose_staged_files_were_deleted_is_taken_back() -> None:
    disk = Disk()
    log = CommitLog(disk, ARCHIVE)
    log.begin(1, {"topic": {0: 3}})
    disk.dies_at = disk.steps + 3  # written, one file moved
    with pytest.raises(Crash):
        log.commit(Commit(2, {"topic": {0: 9}}, stage(disk, {"1": "ab", "2": "cd"})))
    assert disk.archived() == ["hour/1"]
    disk.dies_at = None
    disk.delete("/staging")
    again = CommitLog(disk, ARCHIVE)
    assert again.open()
    assert archived_offset(again) == 3
    assert disk.archived() == []
    assert pending_commit(disk, ARCHIVE) is None


def test_staged_files_that_vanish_while_they_are_moved() -> None:
    """As where somebody removes the checkpoint of a pipeline that is running: they are not said to be archived."""

    class Vanishing(Disk):
        def move(self, source: str, target: str) -> None:
            super().move(source, target)
            self.delete("/staging")

    disk = Vanishing()
    log = CommitLog(disk, ARCHIVE)
    log.begin(1, {"topic": {0: 3}})
    with pytest.raises(UserError, match="/staging/2 is gone: leave alone what is staged .* and start again"):
        log.commit(Commit(2, {"topic": {0: 9}}, stage(disk, {"1": "ab", "2": "cd"})))
    again = CommitLog(disk, ARCHIVE)
    assert again.open()
    assert (archived_offset(again), disk.archived()) == (3, [])


@pytest.mark.parametrize("commits_of_the_other", [1, 3])
def test_a_process_that_stood_still_before_its_commit(commits_of_the_other: int) -> None:
    """For longer than its lease: another one has gone on meanwhile."""

    class StandingStill(Disk):
        def write_new(self, path: str, content: bytes) -> bool:
            if still.pop():
                assert other.open()
                for number in range(2, 2 + commits_of_the_other):
                    adds = stage(self, {f"other-{number}": "abcd"[number - 2]})
                    still.append(False)
                    other.commit(Commit(number, {"topic": {0: number - 1}}, adds))
            return super().write_new(path, content)

    disk, still = StandingStill(), [True, False]  # the last one: when it begins
    one, other = CommitLog(disk, ARCHIVE), CommitLog(disk, ARCHIVE)
    one.begin(1, {})
    with pytest.raises(UserError, match="another archive pipeline writes to /archive"):
        one.commit(Commit(2, {"topic": {0: 2}}, stage(disk, {"one-2": "ab"})))
    again = CommitLog(disk, ARCHIVE)
    assert again.open()
    assert archived_offset(again) == commits_of_the_other
    assert disk.records(disk.archived()) == Counter("abc"[:commits_of_the_other])


def test_who_went_on_goes_on_beside_a_process_that_stood_still() -> None:
    class StandingStill(Disk):
        def write_new(self, path: str, content: bytes) -> bool:
            if standing:
                standing.pop()
                for number in (2, 3):
                    other.commit(Commit(number, {"topic": {0: number}}, stage(self, {f"other-{number}": "a"})))
            return super().write_new(path, content)

    disk, standing = StandingStill(), list[bool]()
    one, other = CommitLog(disk, ARCHIVE), CommitLog(disk, ARCHIVE)
    one.begin(1, {})
    assert other.open()
    standing.append(True)
    with pytest.raises(UserError, match="another archive pipeline writes to /archive"):
        one.commit(Commit(2, {"topic": {0: 9}}, stage(disk, {"one-2": "ab"})))
    other.commit(Commit(4, {"topic": {0: 4}}, stage(disk, {"other-4": "a"})))
    assert disk.archived() == ["hour/other-2", "hour/other-3", "hour/other-4"]
    assert disk.names(f"{ARCHIVE}/_commits") == [f"{4:012d}.json"]


def test_a_process_that_stood_still_before_it_takes_a_commit_back() -> None:
    """Another one has taken it back meanwhile, and gone on with a commit of the same number."""

    class StandingStill(Disk):
        def exists(self, path: str) -> bool:
            found = super().exists(path)
            if path.startswith("/staging") and standing:
                standing.pop()
                assert other.open()
                other.commit(Commit(2, {"topic": {0: 2}}, stage(self, {"1": "ab"})))
                lost.append(True)
            return found

    def check() -> None:
        if lost:
            raise UserError("another archive pipeline writes to /archive")

    disk, standing, lost = StandingStill(), [True], list[bool]()
    one, other = CommitLog(disk, ARCHIVE, check), CommitLog(disk, ARCHIVE)
    other.begin(1, {})
    pending = Commit(2, {"topic": {0: 2}}, {"hour/1": "/staging/1"})
    disk.write_new(f"{ARCHIVE}/_commits/{2:012d}.json", pending.to_json())
    with pytest.raises(UserError, match="another archive pipeline writes to /archive"):
        one.open()
    again = CommitLog(disk, ARCHIVE)
    assert again.open()
    assert (archived_offset(again), disk.archived()) == (2, ["hour/1"])


def test_two_processes_on_one_archive() -> None:
    disk = Disk()
    first, second = CommitLog(disk, ARCHIVE), CommitLog(disk, ARCHIVE)
    first.begin(1, {})
    assert second.open()
    first.commit(Commit(2, {"topic": {0: 2}}, stage(disk, {"1": "ab"})))
    with pytest.raises(UserError, match="another archive pipeline writes to /archive"):
        second.commit(Commit(2, {"topic": {0: 2}}, stage(disk, {"1": "ab"})))


def test_offsets_go_on_from_the_highest_record() -> None:
    assert merged_offsets({"a": {0: 5}}, [("a", 0, 9), ("a", 1, 0), ("b", 0, 7), ("a", 0, 3)]) == {
        "a": {0: 10, 1: 1},
        "b": {0: 8},
    }


def test_a_new_file_does_not_replace_one(tmp_path: Path) -> None:
    path = tmp_path / "_commits" / "8.json"
    assert write_new_file(path, b"first")
    assert not write_new_file(path, b"second")
    assert path.read_bytes() == b"first"
    assert [one.name for one in path.parent.iterdir()] == ["8.json"]

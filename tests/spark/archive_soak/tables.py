"""An archive's table, without Spark: compared with its topics, read, merged and cleaned by others."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pyarrow as pa
from archived import COLUMNS
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from archive_soak.state import Soak
from archive_soak.topics import SCHEMA, SoakTopic
from highwater.client import TopicPartition
from highwater.spark.pipelines.archives.history import Archived, Transaction

Span = tuple[int, int]


class WrongTableError(AssertionError):
    """It is not what the topics are."""


@dataclass
class SoakTable:
    path: Path
    topics: dict[str, SoakTopic]
    begins: Mapping[TopicPartition, int]
    """Where each partition began when the table did."""
    vacuums: int = 0
    restores: int = 0
    trimmed_at: int = -1
    """The last version when records of its topics were last trimmed."""

    @property
    def log(self) -> Path:
        return self.path / "_delta_log"

    def latest_version(self) -> int:
        """-1 where there is none yet."""
        return max((int(one.stem) for one in self.log.glob("*.json") if one.stem.isdecimal()), default=-1)

    def archived(self) -> Archived | None:
        """What the last transaction of an archive says, if it is still so."""
        for version in range(self.latest_version(), -1, -1):
            said = self._said(version)
            if said.get("operation") == "RESTORE":
                return None
            if (found := _archived(version, said)) is not None:
                return found
        return None

    def overtaken(self, version: int) -> bool:
        """Whether its last rows were written over a `RESTORE` that their writer did not know of: it ends and says so,
        and until then, and until somebody does what it says, they are there without what was taken away. (Delta may
        have read it for the transaction: the writer looks before that.)"""
        for number in range(version, -1, -1):
            said = self._said(number)
            if said.get("operation") == "RESTORE":
                return False
            if (archived := _archived(number, said)) is not None and archived.after is not None:
                between = range(archived.after + 1, number)
                return any(self._said(one).get("operation") == "RESTORE" for one in between)
        return False

    def twice(self, version: int) -> bool:
        """Whether files were replaced, since the last `RESTORE` before it, that had been replaced already."""
        live: set[str] = set()
        twice = False
        for number in range(version + 1):
            lines = (self.log / f"{number:020d}.json").read_text().splitlines()
            actions = [json.loads(line) for line in lines]
            added = {one["add"]["path"] for one in actions if "add" in one}
            removed = {one["remove"]["path"] for one in actions if "remove" in one}
            restored = any(one.get("commitInfo", {}).get("operation") == "RESTORE" for one in actions)
            twice = not restored and (twice or bool(added and removed - live))
            live = live - removed | added
        return twice

    def _said(self, version: int) -> dict[str, Any]:
        """Of a version by who wrote it."""
        lines = (self.log / f"{version:020d}.json").read_text().splitlines()
        return next((said for line in lines if (said := json.loads(line).get("commitInfo")) is not None), {})

    def ends(self) -> dict[TopicPartition, int]:
        """What is before them it says to have."""
        found = self.archived()
        offsets = found.offsets if found is not None else {}
        return {TopicPartition(topic, number): end for topic, ends in offsets.items() for number, end in ends.items()}

    def reached(self, ends: Mapping[TopicPartition, int]) -> bool:
        found = self.ends()
        return all(found.get(partition, 0) >= end for partition, end in ends.items())

    def spans(self, table: DeltaTable) -> dict[TopicPartition, Span]:
        """First offset and end of each partition. Raises `WrongTableError` where one is twice, or lacks something."""
        rows = table.to_pyarrow_table(columns=["topic", "partition", "offset"])
        wanted = [("offset", how) for how in ("count", "count_distinct", "min", "max")]
        found = {}
        for row in rows.group_by(["topic", "partition"]).aggregate(wanted).to_pylist():
            partition = TopicPartition(row["topic"], row["partition"])
            first, end = row["offset_min"], row["offset_max"] + 1
            begins = self.begins.get(partition, 0)
            if not row["offset_count"] == row["offset_count_distinct"] == end - first or first != begins:
                raise WrongTableError(f"version {table.version()} of {self.path.name}, from {begins} on: {row}")
            found[partition] = first, end
        return found

    def check(self, ends: Mapping[TopicPartition, int]) -> int:
        """How many rows it has. Raises `WrongTableError` where one is not as in the topic, is there twice, or lacks;
        also of those before `ends`."""
        table = DeltaTable(self.path)
        spans = self.spans(table)
        for partition, end in ends.items():
            begins = self.begins.get(partition, 0)
            if spans.get(partition, (begins, begins))[1] < end:
                raise WrongTableError(
                    f"version {table.version()} of {self.path.name} has {spans.get(partition)} of {partition}, and "
                    f"says that it has what is before {end}"
                )
        rows = table.to_pyarrow_table(columns=list(COLUMNS)).select(COLUMNS).cast(SCHEMA)
        rows = rows.sort_by([(name, "ascending") for name in ("topic", "partition", "offset")]).combine_chunks()
        expected = [self.topics[topic].sent(number, *span) for (topic, number), span in sorted(spans.items())]
        wanted = pa.concat_tables([SCHEMA.empty_table(), *expected]).combine_chunks()
        if not rows.equals(wanted):
            pairs = zip(rows.to_pylist(), wanted.to_pylist(), strict=False)
            different = next(((a, b) for a, b in pairs if a != b), (rows.num_rows, wanted.num_rows))
            raise WrongTableError(
                f"version {table.version()} of {self.path.name} has {different[0]}, not {different[1]}"
            )
        return int(rows.num_rows)

    def restore(self, version: int) -> bool:
        """False where files of that version are gone, or another transaction was quicker."""
        self.restores += 1
        try:
            DeltaTable(self.path).restore(version)
        except (CommitFailedError, DeltaError, OSError):
            return False
        return True

    def optimize(self) -> bool:
        """False where another transaction was quicker."""
        try:
            DeltaTable(self.path).optimize.compact()
        except CommitFailedError:
            return False
        return True

    def optimize_twice(self) -> bool:
        """By two that begin with the same files: delta-rs does not look for that. False where there was nothing to
        merge, or another transaction was quicker."""
        both = DeltaTable(self.path), DeltaTable(self.path)
        try:
            return all(one.optimize.compact()["numFilesRemoved"] for one in both)
        except CommitFailedError:
            return False

    def vacuum(self, *, full: bool) -> int:
        """Files removed: those that the table has had; `full`: also those that it never has, which is for when nobody
        writes to it."""
        self.vacuums += 1
        removed = DeltaTable(self.path).vacuum(0, dry_run=False, enforce_retention_duration=False, full=full)
        return len(removed)


def _archived(version: int, said: dict[str, Any]) -> Archived | None:
    return Transaction(version, said.get("operation", ""), said.get("userMetadata")).archived


class Readers:
    """One that follows the table, and one that takes an old version and reads it a while later: what they see has no
    row twice and lacks none. Of what `VACUUM` has taken they are told so."""

    def __init__(self, soak: Soak, table: SoakTable) -> None:
        self.table = table
        self._soak = soak
        self._stopping = Event()
        both = (("that follows", self._follow), ("of an old version", self._pin))
        self._threads = [Thread(target=self._run, args=each, name=f"reader {each[0]}") for each in both]
        self._random = soak.random("readers")
        self._seen: tuple[object, dict[TopicPartition, Span]] = None, {}
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _run(self, name: str, each: Callable[[SoakTable], None]) -> None:
        while not self._stopping.wait(self._random.uniform(0.5, 2)):
            table = self.table
            if table.latest_version() < 0:
                continue
            try:
                each(table)
            except WrongTableError as error:
                self._soak.problem(f"a reader ({name}) sees {error}")
            except Exception as error:
                self._soak.problem(f"a reader ({name}) ends with {error!r}")

    def _follow(self, table: SoakTable) -> None:
        now = table.path, table.restores
        found = self._spans(table, DeltaTable(table.path))
        before, spans = self._seen
        if found is None:
            return
        for partition, (_, end) in spans.items() if before == now else ():
            if found.get(partition, (0, 0))[1] < end:
                raise WrongTableError(f"{partition} end before {end}, where it ended before: {found.get(partition)}")
        self._seen = now, found

    def _pin(self, table: SoakTable) -> None:
        latest = table.latest_version()
        pinned = DeltaTable(table.path, version=self._random.randint(max(latest - 30, 0), latest))
        self._stopping.wait(self._random.uniform(0, 3))
        self._spans(table, pinned)

    def _spans(self, table: SoakTable, pinned: DeltaTable) -> dict[TopicPartition, Span] | None:
        try:
            found = table.spans(pinned)
        except WrongTableError:
            overtaken, twice = table.overtaken(pinned.version()), table.twice(pinned.version())
            if not overtaken and not twice:
                raise
            what = "that were written over a RESTORE" if overtaken else "with files that were merged twice"
            self._soak.counts[f"versions read {what}"] += 1
            return None
        except (OSError, DeltaError):
            if not table.vacuums or table.latest_version() == pinned.version():
                raise
            self._soak.counts["old versions of which a reader was told that they are gone"] += 1
            return None
        self._soak.counts["versions read"] += 1
        return found

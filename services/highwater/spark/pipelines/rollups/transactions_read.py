"""The transactions of a table that a streaming query has read: others of the same numbers are not taken for them.

Of what it has read Spark's checkpoint says the number of the version only. A backup of the table that is put back has
the table's id, and what is written to it from there on has the numbers of what was lost: Delta would go on behind them,
and pass over their records. So the last transaction that a planned micro-batch reads stands beside the checkpoint, in
the name of an empty file:

    CHECKPOINT/rollup/read/11-9f86d081884c7d65…    the version, and a digest of the transaction

Spark writes down what a micro-batch reads, this is noted, and then the micro-batch is run: one that is not noted has
not been run. Where Spark writes the rows by itself it may run meanwhile. If a crash came in between, or the checkpoint
is older than this record, the times tell: a transaction that was made after the micro-batch was planned was not read
with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

from highwater.errors import UserError
from highwater.spark.pipelines.archives.found import DELTA_LOG

# Of a transaction's file, which is large where many files were merged. When it was made and random names of files are
# in that.
_DIGESTED_BYTES = 64 * 1024
# By which the clocks of two machines, of the archive and of the rollup, may differ.
_CLOCKS_MS = 10 * 60 * 1000
_NOTE = re.compile(r"(\d+)-([0-9a-f]{64})")


class Files(Protocol):
    def exists(self, path: str) -> bool: ...
    def names(self, directory: str) -> list[str]: ...
    def read(self, path: str, at_most_bytes: int | None = None) -> bytes: ...
    def overwrite(self, path: str, content: bytes) -> None: ...
    def delete(self, path: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Planned:
    """A micro-batch, as Spark wrote it down."""

    version: int  # the last one that it reads, at least in part; -1: none
    at_ms: int


@dataclass(frozen=True, slots=True, order=True)
class _Read:
    version: int
    digest: str

    @property
    def name(self) -> str:
        return f"{self.version}-{self.digest}"


class TransactionsRead:
    """The transactions that the query of one checkpoint has read; nobody else works with the checkpoint."""

    def __init__(
        self, files: Files, checkpoint: str, table_files: Files, table: str, said: str, latest: Callable[[], int]
    ) -> None:
        """`files` has the checkpoint, `table_files` the table, which the user calls `said` and whose version is what
        `latest` returns."""
        self._files = files
        self._checkpoint = checkpoint
        self._notes = f"{checkpoint}/rollup/read"
        self._table_files = table_files
        self._table = table
        self._said = said
        self._latest = latest
        self._batch = -1  # the last one that is noted
        self._read: _Read | None = None  # as it is noted

    def check(self) -> None:
        """Confirms, before the query begins, that the table has what was read of it. Raises `UserError`."""
        self._batch = max(map(int, filter(str.isdecimal, self._files.names(f"{self._checkpoint}/offsets"))), default=-1)
        planned = self._planned(self._batch) if self._batch >= 0 else Planned(-1, 0)
        # After a loss of power there may be one of a micro-batch that Spark knows no more of: it is planned anew.
        self._read = max((one for one in self._noted() if one.version <= planned.version), default=None)
        for one in self._noted():
            if one != self._read:
                self._files.delete(f"{self._notes}/{one.name}")
        if self._read is not None:
            self._check_read(self._read)
        if planned.version > (-1 if self._read is None else self._read.version):
            begun = self._beginning(planned.version)
            made = None if begun is None else made_ms(begun)
            if made is not None and made > planned.at_ms + _CLOCKS_MS:
                raise self._put_back(planned.version)
            self._note(planned.version)

    def note(self) -> None:
        """Writes down the last transaction that is read, once Spark has planned a micro-batch. Raises `UserError` where
        the table no longer has what was read."""
        batch = self._batch
        while self._files.exists(f"{self._checkpoint}/offsets/{batch + 1}"):
            batch += 1
        if batch == self._batch:
            return
        version = self._planned(batch).version
        if version > (-1 if self._read is None else self._read.version):
            if self._read is not None:
                self._check_read(self._read)
            self._note(version)
        self._batch = batch

    def _note(self, version: int) -> None:
        if (begun := self._beginning(version)) is None:
            return
        self._read = _Read(version, _digest(begun))
        self._files.overwrite(f"{self._notes}/{self._read.name}", b"")
        for one in self._noted():
            if one.version < version:
                self._files.delete(f"{self._notes}/{one.name}")

    def _noted(self) -> list[_Read]:
        found = map(_NOTE.fullmatch, self._files.names(self._notes))
        return [_Read(int(one[1]), one[2]) for one in found if one is not None]

    def _check_read(self, read: _Read) -> None:
        begun = self._beginning(read.version)
        if begun is not None and _digest(begun) != read.digest:
            raise self._put_back(read.version)

    def _beginning(self, version: int) -> bytes | None:
        """The first bytes of a transaction's file; None where Delta has cleaned that up. Raises `UserError` where the
        table has not come so far."""
        path = f"{self._table}/{DELTA_LOG}/{version:020d}.json"
        if self._table_files.exists(path):
            return self._table_files.read(path, _DIGESTED_BYTES)
        if self._latest() < version:
            raise self._put_back(version)
        return None

    def _put_back(self, version: int) -> UserError:
        return UserError(
            f"{self._said} was put back to before version {version}, as from a backup, and checkpoint "
            f"{self._checkpoint} has read it up to there, and would miss records: remove the checkpoint and what was "
            "written with it, and start again"
        )

    def _planned(self, batch: int) -> Planned:
        return planned_of(self._files.read(f"{self._checkpoint}/offsets/{batch}"), self._checkpoint, batch)


def planned_of(text: bytes, checkpoint: str, batch: int) -> Planned:
    """Parses what Spark wrote down of a micro-batch that reads a table, in one place of a query or in several. Raises
    `UserError`. Pure."""
    try:
        form, settings, *offsets = text.decode().splitlines()
        if form == "v1":
            versions = [_version(json.loads(one)) for one in offsets if one != "-"]
            return Planned(max(versions, default=-1), json.loads(settings)["batchTimestampMs"])
    except (ValueError, KeyError, TypeError):
        raise UserError(
            f"offsets/{batch} in checkpoint {checkpoint} is not whole, as after a loss of power: remove the checkpoint "
            "and what was written with it, and start again"
        ) from None
    raise UserError(
        f"checkpoint {checkpoint} has offsets in Spark's format {form}, and a rollup of an archive reads v1: leave "
        "spark.sql.streaming.offsetLog.formatVersion as it is, and begin with another checkpoint"
    )


def _version(offset: dict[str, int | bool]) -> int:
    """Delta's offset is the next file of a version, or one of a snapshot; -1 and less is before the first file."""
    part = offset["isStartingVersion"] or offset["index"] >= 0
    return offset["reservoirVersion"] - (not part)


def made_ms(begun: bytes) -> int | None:
    """The time at which a transaction was made, as it says itself, in ms since 1970; None where it does not. Pure."""
    for line in begun.splitlines():
        try:
            return int(json.loads(line)["commitInfo"]["timestamp"])
        except (ValueError, KeyError, TypeError):
            continue
    return None


def _digest(begun: bytes) -> str:
    return sha256(begun).hexdigest()

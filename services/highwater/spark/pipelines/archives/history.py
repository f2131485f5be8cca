"""A Delta table's history, and what the transactions of archives say in it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from highwater.errors import UserError
from highwater.spark.pipelines.archives.offsets import Offsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RESTORE = "RESTORE"
_KEY = "highwater"
_BEGINS = f'{{"{_KEY}"'  # the JSON of an archive's transaction
# How many of the last transactions are looked at for one of an archive: others merge files or delete rows.
_HISTORIES = (20, 1000, None)
# Of a table's history, the transactions of archives, those that restored it, and those that did not go on with the
# version before them, or do not say with which, and may have replaced files.
_COUNTS = f"""
    operation = '{RESTORE}' or startswith(userMetadata, '{_BEGINS}') or (
        coalesce(readVersion, -1) < version - 1 and not coalesce(isBlindAppend, false)
        and not startswith(coalesce(operation, ''), 'VACUUM')
    )
"""


@dataclass(frozen=True, slots=True)
class Archived:
    """The contents of a table, as its last transaction of an archive says."""

    lineage: str
    number: int = 0
    offsets: Offsets = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)  # in hex, as far as known
    after: int | None = None  # the version that it goes on with; None: not known

    def to_json(self) -> str:
        said = {
            "lineage": self.lineage,
            "number": self.number,
            "after": self.after,
            "offsets": self.offsets,
            "topic_ids": dict(self.topic_ids),
        }
        return json.dumps({_KEY: said}, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction of a table's history."""

    version: int
    operation: str  # empty: it does not say
    user_metadata: str | None
    read_version: int | None = None  # the one at which it was begun; None: it does not say
    engine: str | None = None  # that wrote it

    @property
    def may_replace_files(self) -> bool:
        """False where it is one of an archive, which only adds files."""
        return not (self.user_metadata or "").startswith(_BEGINS)

    @property
    def archived(self) -> Archived | None:
        """The contents of the table that it says, if it is one of an archive."""
        try:
            said = json.loads(self.user_metadata or "")[_KEY]
        except (ValueError, KeyError, TypeError):
            return None
        offsets = {
            topic: {int(partition): offset for partition, offset in partitions.items()}
            for topic, partitions in said["offsets"].items()
        }
        return Archived(said["lineage"], said["number"], offsets, said["topic_ids"], said.get("after"))


def archived_by(history: Iterable[Transaction]) -> tuple[int, Archived] | None:
    """The contents by the last transaction of an archive, and its version; None where none of these is one, or where
    the table was restored to what it was before. The newest comes first. Pure."""
    for transaction in history:
        if transaction.operation == RESTORE:
            return None
        if (archived := transaction.archived) is not None:
            return transaction.version, archived
    return None


def broken(history: Sequence[Transaction]) -> tuple[Transaction, Transaction] | None:
    """The first transaction of an archive that does not go on with the one before it, and that one (or the RESTORE): of
    those since the last RESTORE, as that mends what was before it. The newest comes first. Pure."""
    before: tuple[Transaction, Archived | None] | None = None
    found: tuple[Transaction, Transaction] | None = None
    for transaction in reversed(history):
        if transaction.operation == RESTORE:
            before, found = (transaction, None), None
        elif (archived := transaction.archived) is not None:  # which parses all the offsets: once for each
            if found is None and before is not None and not _goes_on(archived, before[1]):
                found = transaction, before[0]
            before = transaction, archived
    return found


def _goes_on(archived: Archived, before: Archived | None) -> bool:
    """A lineage has each number once, in their order, and another one begins only with what was restored (None)."""
    if before is None:
        return archived.number == 1
    return (archived.lineage, archived.number) == (before.lineage, before.number + 1)


def begun(offsets: Offsets, restored: int | None = None, topic_ids: Mapping[str, str] | None = None) -> Archived:
    """A new lineage, of a table that holds what is before these offsets. Whoever begins one with the same contents
    begins the same. `restored`: the version that made them so."""
    return Archived(named([offsets, restored]), 0, offsets, topic_ids or {})


def named(what: object) -> str:
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:32]


class History:
    """The history of one table. Everything raises `UserError` where Spark's tasks, which read it, do not find it."""

    def __init__(self, session: SparkSession, path: str, said: str) -> None:
        """`said` is what the user calls it."""
        self._session = session
        self._table = quoted(path)
        self._said = said

    def latest_version(self) -> int:
        rows = self._session.sql(f"DESCRIBE HISTORY {self._table} LIMIT 1").collect()
        if not rows:
            raise not_shared_error(self._said, "the table's log")
        return int(rows[0].version)

    def back_to_last(self) -> list[Transaction]:
        """Transactions of archives, those that restored the table, and those that may have missed what others did, the
        newest first: back to the last one of an archive, or RESTORE, at least, if there is one."""
        found: list[Transaction] = []
        for limit in _HISTORIES:
            found = self._found(limit)
            if any(one.operation == RESTORE or not one.may_replace_files for one in found):
                break
        return found

    def since(self, version: int) -> list[Transaction]:
        """Transactions as in `back_to_last`, all of those after this version."""
        latest = self.latest_version()
        while True:
            found = self._found(latest - version)
            if (now := self.latest_version()) == latest:
                return [one for one in found if one.version > version]
            latest = now

    def topic_ids(self) -> Mapping[str, str]:
        """The topics' ids by the last transaction of an archive, whether or not the table was restored since."""
        for limit in _HISTORIES:
            for one in self._found(limit):
                if (archived := one.archived) is not None:
                    return archived.topic_ids
        return {}

    def _found(self, limit: int | None) -> list[Transaction]:
        """Those of the last `limit` transactions that count."""
        told = f"DESCRIBE HISTORY {self._table}" + ("" if limit is None else f" LIMIT {limit}")
        columns = ("version", "coalesce(operation, '')", "userMetadata", "readVersion", "engineInfo")
        kept = self._session.sql(told).where(_COUNTS).selectExpr(*columns)
        return [Transaction(*row) for row in kept.orderBy("version", ascending=False).collect()]


def not_shared_error(directory: str, what: str) -> UserError:
    return UserError(
        f"Spark's driver and tasks do not see the same in {directory} ({what}): begin anew in a directory, and with a "
        "checkpoint, on a file system that all machines share"
    )


def quoted(path: str) -> str:
    """A table by its path, in SQL."""
    return f"delta.`{path.replace('`', '``')}`"

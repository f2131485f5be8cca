"""The log of a Delta table, read file by file: a transaction has one, until Delta cleans it up after 30 days."""

from __future__ import annotations

import json
from typing import Any, Protocol
from urllib.parse import unquote

from highwater.spark.pipelines.archives.found import DELTA_LOG


class Files(Protocol):
    def exists(self, path: str) -> bool: ...
    def read(self, path: str) -> bytes: ...


class TableLog:
    def __init__(self, files: Files, table: str) -> None:
        self._files = files
        self._table = table

    def path(self, version: int) -> str:
        return f"{self._table}/{DELTA_LOG}/{version:020d}.json"

    def has(self, version: int) -> bool:
        return self._files.exists(self.path(version))

    def actions(self, version: int) -> list[dict[str, Any]]:
        """All that a transaction says: some 500 bytes for each file that it adds or removes."""
        return [json.loads(line) for line in self._files.read(self.path(version)).decode().splitlines()]

    def user_metadata(self, version: int) -> str | None:
        made = (one["commitInfo"] for one in self.actions(version) if "commitInfo" in one)
        return next((one.get("userMetadata") for one in made), None)

    def sizes_added(self, version: int) -> dict[str, int]:
        """The files that a transaction has added, by their paths below the table, and their sizes in bytes."""
        return {unquote(one["add"]["path"]): one["add"]["size"] for one in self.actions(version) if "add" in one}

    def removed_since(self, version: int) -> set[str]:
        """Paths of files that a later transaction has taken out of the table."""
        removed: set[str] = set()
        while self.has(version := version + 1):
            removed.update(unquote(one["remove"]["path"]) for one in self.actions(version) if "remove" in one)
        return removed

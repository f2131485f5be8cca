"""`rollup --archive`: what can be said with it, and what is made of Delta's errors."""

from __future__ import annotations

from typing import Any

import pytest

from highwater.errors import UserError
from highwater.spark.pipelines.rollup import RollupOptions
from highwater.spark.pipelines.rollups.sources import sentence_of

ROLLUP: dict[str, Any] = {"archive": "/a", "topic": ["t"], "checkpoint": "c", "to_topic": "o", "count": True}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"starting_offsets": "latest"}, "--starting-offsets is of topics, .*: leave it out, .* WHERE _timestamp >="),
        ({"commit_offsets_to_group": "g"}, "--commit-offsets-to-group is of topics, .*: leave it out"),
        ({"max_offsets_per_trigger": 7}, "--max-offsets-per-trigger is of topics: .* --option maxBytesPerTrigger=1g"),
        ({"option": ["ignoreDeletes=true"]}, "--option ignoreDeletes is not for an archive: it can be maxFilesPerTri"),
        ({"option": ["highwater.fetch.max.bytes=1"]}, "--option highwater.fetch.max.bytes is not for an archive"),
        ({"topic": [], "pattern": "("}, r"--pattern is not a regular expression: '\('"),
        ({"topic": []}, "say which topics to read: with --topic, or with --pattern"),
    ],
)
def test_options_that_are_of_topics(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        RollupOptions(**{**ROLLUP, **given})


def test_options_of_an_archive() -> None:
    options = ["maxfilespertrigger=1", "maxBytesPerTrigger=1g", "valueSchemaId=7"]
    assert RollupOptions(**ROLLUP, option=options, value_schema="f.avsc").option == options


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        (
            "[DELTA_SOURCE_IGNORE_DELETE] Detected deleted data (for example topic=t/f) from streaming source at "
            "version 11. This is",
            "version 11 of /a takes records away, or changes them (DELETE, RESTORE or the like), and what was counted "
            "stays counted: remove checkpoint c and what was written with it, and start again",
        ),
        (
            "x\n[DELTA_SOURCE_TABLE_IGNORE_CHANGES] Detected a data update (for example DELETE (Map(a\nb))) in the "
            "source table at version 3. This",
            "version 3 of /a takes records away",
        ),
        (
            "[DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE] The",
            "/a was removed, or made anew, since checkpoint c was",
        ),
        (
            "[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file file:/a/f.",
            "a file of /a that was still to be read is gone, as after VACUUM of files that had been merged: remove",
        ),
        (
            "[DELTA_MISSING_FILES_UNEXPECTED_VERSION] Delta stream cannot resume from version 3; transaction log starts"
            " at 7. Log files may have been deleted by log retention.",
            "the log of /a no longer says what came since checkpoint c was written (Delta keeps 30 days of it): remove",
        ),
        ("Could not find any delta files for version 11", "the log of /a no longer says what came since checkpoint c"),
    ],
)
def test_what_delta_says_of_a_table_that_changed(told: str, sentence: str) -> None:
    said = sentence_of(told, "/a", "file:/a", "c")
    assert said is not None
    assert said.startswith(sentence)
    assert "\n" not in said


@pytest.mark.parametrize(
    "told",
    [
        "t-0, offset 1: the value is not a JSON object of the schema; correct --schema",
        "[CANNOT_LOAD_STATE_STORE.CANNOT_READ_DELTA_FILE_NOT_EXISTS] Error reading delta file file:/c/state/0/0/1.delta"
        " of HDFSStateStoreProvider: file:/c/state/0/0/1.delta does not exist.\nDeltaSource[file:/a/]",
        "Caused by: java.io.FileNotFoundException: File file:/target/f does not exist\nDeltaSource[file:/a/]",
    ],
)
def test_other_errors_are_not_taken_for_one(told: str) -> None:
    assert sentence_of(told, "/a", "file:/a", "c") is None

"""What commands say of one thing, of several, and of none."""

from __future__ import annotations

from pathlib import Path

import pytest

from highwater.cli.app import app
from highwater.console.counted import counted
from highwater.console.exit_status import exit_status
from highwater.log_storage.files import partition_metadata
from highwater.records import Codec, Record, encode_rows


@pytest.mark.parametrize(
    ("number", "words", "said"),
    [
        (0, ("record",), "0 records"),
        (1, ("record",), "1 record"),
        (2, ("record",), "2 records"),
        (1_234_567, ("record",), "1,234,567 records"),
        (1, ("batch", "batches"), "1 batch"),
        (0, ("batch", "batches"), "0 batches"),
        (1_000, ("batch", "batches"), "1,000 batches"),
    ],
)
def test_a_number_of_things(number: int, words: tuple[str, ...], said: str) -> None:
    assert counted(number, *words) == said


def test_a_command_counts_like_that(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch = encode_rows([Record(0, 1_000, None, b"x", ())], codec=Codec.NONE)
    directory = tmp_path / "t-0"
    directory.mkdir()
    (directory / f"{0:020}.log").write_bytes(batch)
    partition_metadata.write(directory, b"t" * 16)
    assert exit_status(app, ["log", "verify", str(directory)]) == 0
    assert " files with 1 batch, " in capsys.readouterr().out

"""Command lines of `highwater` run in this process: one of its own takes most of a second to import everything."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import NamedTuple

import pytest

from highwater.cli import main as entry


class Result(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.out.splitlines()]

    def is_one_sentence(self, *parts: str) -> None:
        """On stderr and nowhere else, with a status that is not 0."""
        assert self.status in {1, 2}, self
        assert self.err.count("\n") == 1, self.err
        assert self.err.startswith("highwater: "), self.err
        assert "Traceback" not in self.err
        for part in parts:
            assert part in self.err, self.err


Run = Callable[..., Result]


def runner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    def run(*arguments: object, stdin: bytes = b"") -> Result:
        out, err = TextIOWrapper(BytesIO(), "utf-8"), TextIOWrapper(BytesIO(), "utf-8")
        (tmp_path / "stdin").write_bytes(stdin)
        kept = os.dup(0)
        with (tmp_path / "stdin").open("rb") as source:
            os.dup2(source.fileno(), 0)
        status = 0
        try:
            with monkeypatch.context() as patched:
                patched.setattr(sys, "argv", ["highwater", *map(str, arguments)])
                patched.setattr(sys, "stdout", out)
                patched.setattr(sys, "stderr", err)
                entry.main()
        except SystemExit as ended:
            status = int(ended.code or 0)
        finally:
            os.dup2(kept, 0)
            os.close(kept)
        texts = []
        for stream in (out, err):
            stream.flush()
            texts.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
        return Result(status, *texts)

    return run

"""Runs the scenarios that are named for a rule (`5.1-....txt`); `runner.py` says how they are written.

With HIGHWATER_REWRITE_SCENARIOS set, the files are rewritten with what is printed now: read the difference.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from runner import run

SCENARIOS = sorted(Path(__file__).parent.glob("[0-9]*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    expected = path.read_text()
    printed = run(expected)
    if os.environ.get("HIGHWATER_REWRITE_SCENARIOS"):
        path.write_text(printed)
    else:
        assert printed == expected

"""Docstrings begin with what a thing is or does, not with a question; and no rule stands for its sentence."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import highwater

ROOT = Path(highwater.__file__).parent
QUESTIONS = {"How", "What", "When", "Where", "Whether", "Which", "Who", "Whose", "Why"}
RULE_NUMBER = re.compile(r"\(?(RULES |rules? )?\d+(\.\d+)+\)?\.?")


def docstrings(path: Path) -> Iterator[tuple[str, str]]:
    """The docstrings of a file, by where they stand."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield f"{path.relative_to(ROOT)}:{node.body[0].lineno}", text


def is_wrong(text: str) -> bool:
    return text.split(maxsplit=1)[0].rstrip(":,.;") in QUESTIONS or RULE_NUMBER.fullmatch(text.strip()) is not None


@pytest.mark.parametrize("text", ["What a log holds.", "Whether it is there.", "RULES 5.6.", "(4.2)", "Why: because."])
def test_what_is_not_wanted_is_found(text: str) -> None:
    assert is_wrong(text)


@pytest.mark.parametrize("text", ["Tells whether it is there (RULES 5.6).", "A log: what it holds.", "Whatever."])
def test_what_is_wanted_is_not(text: str) -> None:
    assert not is_wrong(text)


@pytest.mark.parametrize("part", sorted({path.name for path in ROOT.iterdir()} - {"v1", "__pycache__"}))
def test_docstrings_begin_with_a_verb_or_a_noun_phrase(part: str) -> None:
    files = [ROOT / part] if (ROOT / part).is_file() else sorted((ROOT / part).rglob("*.py"))
    wrong = [
        f"{where}: {text.splitlines()[0]}"
        for path in files
        if path.suffix == ".py"
        for where, text in docstrings(path)
        if is_wrong(text)
    ]
    assert not wrong

"""The rooms of a service: each imports itself and those before it, none behind, as its package's `__init__` says."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import highwater

ROOT = Path(highwater.__file__).parent

OWN_FILES = ""  # what stands in the package itself: the service, which wires the rooms together
ROOMS = {
    "replica_manager": ("partition", "storage", "replicas", "membership", "requests", "server", OWN_FILES),
    "fetcher": ("follower", OWN_FILES),
    "controller": ("state_machines", "topics", "sending", "term", "administration", OWN_FILES),
}
# Decisions: no I/O, no clock (docs/architecture.md).
PURE = ("replica_manager/partition", "fetcher/follower", "controller/state_machines", "controller/topics")
IMPURE = {"aetcd", "asyncio", "grpc", "random", "socket", "time"}
MOST_FILES = 16


def imported(path: Path) -> Iterator[str]:
    """The modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from package import room` names a room as `from package.room import thing` does.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room_of(package: str, module: str) -> str:
    """The room of a module of the package, given without the package's own name."""
    first = module.split(".", maxsplit=1)[0]
    return first if (ROOT / package / first).is_dir() else OWN_FILES


@pytest.mark.parametrize("package", ROOMS)
def test_every_room_is_listed(package: str) -> None:
    folders = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
    assert folders == set(ROOMS[package]) - {OWN_FILES}


@pytest.mark.parametrize("package", ROOMS)
def test_no_room_imports_one_behind_it(package: str) -> None:
    rank = {room: number for number, room in enumerate(ROOMS[package])}
    prefix = f"highwater.{package}."
    wrong = []
    for path in (ROOT / package).rglob("*.py"):
        inner = path.relative_to(ROOT / package)
        own = rank[inner.parts[0] if len(inner.parts) > 1 else OWN_FILES]
        wrong += [
            f"{inner} imports {module}"
            for module in imported(path)
            if module.startswith(prefix) and rank[room_of(package, module.removeprefix(prefix))] > own
        ]
    assert not wrong


@pytest.mark.parametrize("room", PURE)
def test_what_decides_does_no_io(room: str) -> None:
    for path in (ROOT / room).glob("*.py"):
        assert not {module.split(".")[0] for module in imported(path)} & IMPURE, path.name


@pytest.mark.parametrize("package", ROOMS)
def test_a_folder_can_be_taken_in_at_a_glance(package: str) -> None:
    for folder in {path.parent for path in (ROOT / package).rglob("*.py")}:
        files = [path.name for path in folder.glob("*.py") if not path.name.startswith("__")]
        assert len(files) <= MOST_FILES, f"{folder.relative_to(ROOT)}: {files}"

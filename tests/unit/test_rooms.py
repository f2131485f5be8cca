"""Who may import whom: the packages; and within one its rooms, each itself and those before it (its `__init__`)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import highwater

ROOT = Path(highwater.__file__).parent

OWN_FILES = ""  # what stands in the package itself: the service, which wires the rooms together
# What everybody may import: values, the batch, what all servers share.
COMMON = frozenset(
    {
        *("atomic_file", "errors", "extras", "supervision", "validation"),
        *("configuration", "model", "records", "rpc", "security", "telemetry", "v1"),
    }
)
# The packages among them.
SHARED_PACKAGES = frozenset({"configuration", "model", "records", "rpc", "security", "telemetry"})
# What else a package may. Services know each other by their contracts alone, and nobody opens segments but log-storage,
# and who looks at them through its room `inspect`.
ARROWS = {
    "client": frozenset[str](),
    "metadata": frozenset[str](),
    "log_storage": frozenset[str](),
    "log_storage_client": frozenset[str](),
    "fetcher": frozenset({"log_storage_client", "quotas"}),
    "replica_manager": frozenset({"groups", "log_storage_client", "metadata", "quotas"}),
    "controller": frozenset({"metadata"}),
    "console": frozenset({"client"}),
    "groups": frozenset[str](),
    "quotas": frozenset[str](),
    "kube": frozenset({"client", "metadata", "log_storage.inspect"}),
    "spark": frozenset({"client", "console", "log_storage.inspect"}),
    # `highwater up` gives each service the settings that it knows.
    "cli": frozenset(
        {"client", "console", "kube", "metadata", "log_storage.inspect"}
        | {f"{service}.settings" for service in ("controller", "fetcher", "log_storage", "replica_manager")}
    ),
}
ROOMS = {
    "log_storage": (
        *("files", "segment", "producers", "log", "recovery", "log_manager", "scrubbing", "compaction", "server"),
        *("inspect", OWN_FILES),
    ),
    "replica_manager": (
        *("partition", "storage", "replicas", "membership", "responses", "requests", "groups"),
        *("admission", "server"),
        OWN_FILES,
    ),
    "fetcher": ("follower", OWN_FILES),
    "client": ("cluster", "membership", "groups", "producer", "consumer", "scan", "admin", "blocking", OWN_FILES),
    "metadata": ("store", "schema", "leases", "state", OWN_FILES),
    "groups": ("records", "assignors", OWN_FILES),
    "controller": ("state_machines", "topics", "sending", "term", "administration", OWN_FILES),
    "spark": ("values", "options", "offsets", "progress", "worker", "source", "sink", OWN_FILES, "pipelines"),
    "spark/pipelines": (
        *("command", "session", "files", "typed_values", "running", "archives", "sending", "audits", "rollups"),
        OWN_FILES,
    ),
}
# Of the package itself, and every room's.
SHARED = {
    "client": {"exceptions", "notebook", "topic_partition", "windowed"},
    "controller": {"settings"},
    "groups": {"topics"},
    "log_storage": {"clock", "config", "errors", "fence", "thread_work", "throttle"},
    "spark": {"errors", "schema"},
}
# Rooms of which none imports another, whichever stands first.
SIDE_BY_SIDE = {
    "client": {"producer", "consumer", "admin"},
    "log_storage": {"compaction", "server"},
    "metadata": {"leases", "state"},
    "spark": {"source", "sink"},
    "spark/pipelines": {"sending", "audits", "rollups"},
}
# Decisions: no I/O, no clock (docs/architecture.md).
PURE = (
    *("configuration", "model", "quotas", "metadata/schema", "replica_manager/partition", "fetcher/follower"),
    *("controller/state_machines", "controller/topics", "groups", "groups/records", "groups/assignors"),
    "client/membership",
)
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


def test_every_package_is_listed() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages == set(ARROWS) | SHARED_PACKAGES | {"v1"}


@pytest.mark.parametrize("package", ARROWS)
def test_a_package_imports_what_it_may(package: str) -> None:
    wrong, used = [], set()
    for path in (ROOT / package).rglob("*.py"):
        for module in imported(path):
            top, _, rest = module.partition(".")
            inner = rest.split(".")
            if top != "highwater" or inner[0] in COMMON | {package} or not (ROOT / inner[0]).is_dir():
                continue
            arrow = next((name for name in (inner[0], ".".join(inner[:2])) if name in ARROWS[package]), None)
            used.add(arrow)
            if arrow is None:
                wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    assert not wrong
    assert used == ARROWS[package], "an arrow that nobody uses any more"


@pytest.mark.parametrize(
    "package",
    [*sorted(SHARED_PACKAGES), "errors.py", "supervision.py", "validation.py"],
)
def test_what_everybody_imports_imports_no_package(package: str) -> None:
    files = [ROOT / package] if package.endswith(".py") else [*(ROOT / package).rglob("*.py")]
    for path in files:
        foreign = {module.split(".")[1] for module in imported(path) if module.startswith("highwater.")} & set(ARROWS)
        assert not foreign, path.relative_to(ROOT)


@pytest.mark.parametrize("package", ROOMS)
def test_every_room_is_listed(package: str) -> None:
    folders = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
    assert folders == set(ROOMS[package]) - {OWN_FILES}


@pytest.mark.parametrize("package", ROOMS)
def test_no_room_imports_one_behind_it(package: str) -> None:
    rank = {room: number for number, room in enumerate(ROOMS[package])}
    prefix = f"highwater.{package.replace('/', '.')}."
    wrong = []
    for path in (ROOT / package).rglob("*.py"):
        inner = path.relative_to(ROOT / package)
        own = rank[inner.parts[0] if len(inner.parts) > 1 else OWN_FILES]
        wrong += [
            f"{inner} imports {module}"
            for module in imported(path)
            if module.startswith(prefix)
            and module.removeprefix(prefix).split(".")[0] not in SHARED.get(package, ())
            and rank[room_of(package, module.removeprefix(prefix))] > own
        ]
    assert not wrong


@pytest.mark.parametrize("package", SIDE_BY_SIDE)
def test_rooms_side_by_side_do_not_know_each_other(package: str) -> None:
    for own in SIDE_BY_SIDE[package]:
        prefix = f"highwater.{package.replace('/', '.')}."
        others = tuple(f"{prefix}{room}." for room in SIDE_BY_SIDE[package] - {own})
        for path in (ROOT / package / own).rglob("*.py"):
            assert not [module for module in imported(path) if module.startswith(others)], path.relative_to(ROOT)


@pytest.mark.parametrize("room", PURE)
def test_what_decides_does_no_io(room: str) -> None:
    for path in (ROOT / room).glob("*.py"):
        assert not {module.split(".")[0] for module in imported(path)} & IMPURE, path.name


@pytest.mark.parametrize("package", sorted({*ARROWS, *SHARED_PACKAGES}))
def test_a_folder_can_be_taken_in_at_a_glance(package: str) -> None:
    for folder in {path.parent for path in (ROOT / package).rglob("*.py")}:
        files = [path.name for path in folder.glob("*.py") if not path.name.startswith("__")]
        assert len(files) <= MOST_FILES, f"{folder.relative_to(ROOT)}: {files}"

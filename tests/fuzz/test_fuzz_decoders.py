"""Every reader of bytes under bytes that no writer leaves: a short, repeatable run of each."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import FrameType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import highwater.groups.records
import highwater.log_storage.files
import highwater.log_storage.producers
import highwater.metadata.schema
import highwater.records

from .readers import decoders

CORPUS = Path(__file__).parent / "corpus" / "decoders"
DECODERS = decoders()
PACKAGES = (
    highwater.records,
    highwater.log_storage.files,
    highwater.log_storage.producers,
    highwater.metadata.schema,
    highwater.groups.records,
)
READER = re.compile(r"(read|decode|decompress|iter_batches|split_batches|scan|parse|notified|completed)_?|\w*from_json")
MEMORY_BYTES = 768 << 20  # a payload of 256 MiB, and what is made of it
EXAMPLES = 60


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("decoders") / "t.0.0123456789abcdef0123456789abcdef-move"


@pytest.mark.parametrize("name", DECODERS)
def test_what_a_writer_left_is_read(name: str, directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    decoder = DECODERS[name]
    for seed in decoder.seeds:
        if decoder.name != "move, complete":
            decoder.read(seed, directory)
        assert decoder.problem(seed, directory) is None


@pytest.mark.parametrize("name", DECODERS)
def test_what_no_writer_left_is_refused_by_its_own_error(name: str, directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    decoder = DECODERS[name]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10

    @settings(max_examples=EXAMPLES, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
    @given(st.integers(0, 2**32).map(lambda seed: decoder.draw(Random(seed))) | st.binary(max_size=200))
    def run(data: bytes) -> None:
        problem = decoder.problem(data, directory)
        assert problem is None, problem

    run()
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - before < MEMORY_BYTES


@pytest.mark.parametrize("path", sorted(CORPUS.rglob("*.bin")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_was_wrong_once(path: Path, directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    for name, decoder in DECODERS.items():
        if re.sub(r"\W+", "-", name) == path.parent.name:
            assert decoder.problem(path.read_bytes(), directory) is None
            return
    raise AssertionError(f"there is no decoder for {path.parent.name}")


def readers() -> Iterator[str]:
    """Public functions and methods that read, by their names."""
    for package in PACKAGES:
        for module in pkgutil.iter_modules(package.__path__):
            held = importlib.import_module(f"{package.__name__}.{module.name}")
            for name, value in vars(held).items():
                if inspect.isfunction(value) and value.__module__ == held.__name__ and READER.match(name):
                    yield f"{held.__name__}.{name}"
                elif inspect.isclass(value) and value.__module__ == held.__name__:
                    for method, member in vars(value).items():
                        body = getattr(member, "__func__", member)
                        if inspect.isfunction(body) and READER.match(method) and "Protocol" not in str(value.__mro__):
                            yield f"{held.__name__}.{value.__name__}.{method}"


def test_no_reader_is_forgotten(directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    called: set[str] = set()

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            called.add(f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}")

    sys.setprofile(profile)
    try:
        for decoder in DECODERS.values():
            for seed in decoder.seeds:
                decoder.problem(seed, directory)
    finally:
        sys.setprofile(None)
    assert not set(readers()) - called
    assert len(called) > 50

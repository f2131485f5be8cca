"""`highwater log verify DIR`: sound directories are, and no damage goes unseen."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from log_storage_batches import batch, lead, produced
from typer.testing import CliRunner

from highwater.cli.app import app
from highwater.errors import UserError
from highwater.log_storage.config import LogConfig
from highwater.log_storage.fence import Fence
from highwater.log_storage.inspect.verify import verify
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey

CONFIG = LogConfig(segment_bytes=1024, index_interval_bytes=100)
KEY = PartitionKey(b"t" * 16, 0)
FIRST = 6  # where the first segment begins


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory with a log of several segments, epochs and producers, stopped cleanly."""
    manager = LogManager([tmp_path / "data"], CONFIG, broker_id=1)
    manager.load()
    manager.create("t", KEY, {})
    manager.logs.log_dirs[0].fences.record({KEY: Fence(2, Role.LEADER, "rm", "ls")})
    log = manager.logs.get(KEY).online()
    for number in range(12):
        log.become_leader(1 + number // 5)
        lead(log, batch(2, value=b"x" * 100, timestamp=number), epoch=1 + number // 5)
    lead(log, produced(2, sequence=0), epoch=3)
    log.offsets.raise_high_watermark(log.log_end_offset)
    log.log_start.raise_to(9)
    log.remove_deleted()
    assert log.segments[0].base_offset == FIRST
    assert len(log.segments) > 2
    manager.close()
    return tmp_path / "data"


def problems(directory: Path) -> dict[str, list[str]]:
    return {file.path.name: file.problems for file in verify(directory) if file.problems}


def test_a_sound_directory(data: Path) -> None:
    files = list(verify(data))
    assert not any(file.problems for file in files)
    assert {file.path.name for file in files} >= {
        "recovery-point-offset-checkpoint",
        "fence-journal",
        "t-0",
        "partition.metadata",
        "leader-epoch-checkpoint",
        f"{FIRST:020}.log",
        f"{FIRST:020}.index",
        f"{FIRST:020}.timeindex",
        "00000000000000000026.snapshot",
    }
    assert sum(file.batches for file in files) == 10
    assert problems(data / "t-0") == {}


def test_nothing_is_written(data: Path) -> None:
    def contents() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}

    before = contents()
    list(verify(data))
    assert contents() == before


def test_every_flipped_bit_of_a_segment_is_seen(data: Path) -> None:
    """Base offset, length and leader epoch stand outside the CRC: what they say must go with the rest."""
    path = sorted((data / "t-0").glob("*.log"))[1]
    good = path.read_bytes()
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 0x40
        path.write_bytes(bad)
        assert problems(data), position


@pytest.mark.parametrize("suffix", ["index", "timeindex", "snapshot"])
def test_every_flipped_bit_of_what_belongs_to_it_is_seen(data: Path, suffix: str) -> None:
    for path in sorted((data / "t-0").glob(f"*.{suffix}")):
        good = path.read_bytes()
        for position in range(len(good)):
            bad = bytearray(good)
            bad[position] ^= 1
            path.write_bytes(bad)
            assert path.name in problems(data), position
        path.write_bytes(good[:-1])
        if good:
            assert path.name in problems(data)
        path.write_bytes(good)


def _without_a_segment(data: Path) -> None:
    sorted((data / "t-0").glob("*.log"))[-1].unlink()


def _with_a_hole(data: Path) -> None:
    (data / "t-0" / "00000000000000000012.log").unlink()


def _with_an_overlap(data: Path) -> None:
    first, second = sorted((data / "t-0").glob("*.log"))[:2]
    shutil.copy(second, first.with_name(f"{int(first.stem) + 1:020}.log"))


def _rewritten(name: str, content: bytes) -> Callable[[Path], None]:
    def damage(data: Path) -> None:
        (data / name).write_bytes(content)

    return damage


@pytest.mark.parametrize(
    ("damage", "file", "message"),
    [
        (_without_a_segment, "t-0", "the log ends at"),
        (_with_a_hole, "00000000000000000018.log", "the offsets 12 to 17 in front of it are missing"),
        (_with_an_overlap, f"{FIRST + 1:020}.log", "it begins below"),
        (_rewritten("recovery-point-offset-checkpoint", b"0\n1\n"), "recovery-point-offset-checkpoint", "line 2"),
        (
            _rewritten("replication-offset-checkpoint", b"0\n1\nt 0 99\n"),
            "t-0",
            "replication-offset-checkpoint says 99",
        ),
        (_rewritten("fence-journal", b"00000000 []\n"), "fence-journal", "line 1"),
        (_rewritten("t-0/partition.metadata", b"?"), "partition.metadata", "damaged"),
        (_rewritten("t-0/leader-epoch-checkpoint", b"1\n"), "leader-epoch-checkpoint", "missing"),
        (_rewritten("t-0/leader-epoch-checkpoint", b"0\n1\n3 21\n"), "leader-epoch-checkpoint", "begins at 21"),
        (_rewritten("t-0/00000000000000000099.snapshot", b""), "00000000000000000099.snapshot", "0 bytes"),
        (_rewritten("t-0/x.log", b""), "x.log", "name"),
    ],
)
def test_what_does_not_go_together(data: Path, damage: Callable[[Path], None], file: str, message: str) -> None:
    damage(data)
    assert any(message in problem for problem in problems(data)[file])


def test_a_directory_in_use_is_left_alone(data: Path) -> None:
    manager = LogManager([data], CONFIG, broker_id=1)
    manager.lock()
    for directory in (data, data / "t-0"):
        with pytest.raises(UserError, match="in use"):
            list(verify(directory))
    manager.unlock()
    assert problems(data) == {}


def test_what_is_no_log_directory(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no log"):
        list(verify(tmp_path))


def test_the_command(data: Path) -> None:
    run = CliRunner().invoke
    sound = run(app, ["log", "verify", str(data)])
    assert sound.exit_code == 0
    path = data / "replication-offset-checkpoint"
    path.write_bytes(b"0\n1\nt 0 99\n")
    bad = run(app, ["log", "verify", str(data), "--json"])
    assert bad.exit_code != 0
    lines = [json.loads(line) for line in bad.stdout.splitlines() if line.startswith("{")]
    assert [line["path"] for line in lines if line["problems"]] == [str(data / "t-0")]

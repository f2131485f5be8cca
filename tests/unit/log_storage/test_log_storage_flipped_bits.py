"""A flipped bit in every file of a log directory, after a clean stop: what a start, reads and lookups make of it, and
that `highwater log verify` sees it. Records are never other ones than were written; where a field that no CRC covers
may be believed, the test says so."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from log_storage_batches import batch, lead, make_log, manager_with_log, produced

from highwater.errors import UserError
from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.fence import Fence
from highwater.log_storage.inspect.verify import verify
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.log_storage.recovery.recovery import Checkpointed
from highwater.model.fence_role import Role
from highwater.model.partition import PartitionKey
from highwater.records import HEADER_BYTES, iter_batches

KEY = PartitionKey(b"t" * 16, 0)
FENCE = Fence(3, Role.LEADER, "rm", "ls")
CONFIG = LogConfig(segment_bytes=500, index_interval_bytes=100)
TIMES = range(995, 1_060, 5)

# Of a batch header: what stands outside the CRC, and may be believed by a read.
BASE_OFFSET, LEADER_EPOCH = range(8), range(12, 16)


class Seen(NamedTuple):
    """What a start finds, and what reads return."""

    refused: str  # the directory, the log or a read; empty: none
    batches: list[bytes]
    timed: list[int]  # offsets for `TIMES`
    producers: object
    fence: Fence | None
    high_watermark: int


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a log of several segments, epochs and a producer, stopped cleanly."""
    data = tmp_path_factory.mktemp("sound") / "data"
    manager = manager_with_log(data, KEY, CONFIG, FENCE)
    log = manager.logs.get(KEY).online()
    for number in range(6):
        log.become_leader(1 + number // 3)
        lead(log, batch(2, timestamp=1_000 + 10 * number), epoch=1 + number // 3)
    lead(log, produced(2, sequence=0), epoch=3)
    log.offsets.raise_high_watermark(12)
    assert len(log.segments) > 1
    manager.close()
    return data


@pytest.fixture
def disk_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fsync", "fdatasync", "posix_fallocate"):
        monkeypatch.setattr(f"os.{name}", lambda *arguments: None)


def look(data: Path) -> Seen:
    manager = LogManager([data], CONFIG, broker_id=1)
    try:
        manager.lock()
    except UserError as error:
        return Seen(str(error), [], [], None, None, 0)
    batches: list[bytes] = []
    try:
        manager.load()
        log = manager.logs.get(KEY).online()
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            content = log.read(offset, -1, 1)
            batches.append(content)
            [(_, header)] = iter_batches(content)
            offset = max(header.next_offset, offset + 1)
        timed = [log.reader.list_offset(time).offset for time in TIMES]
        producers = {who: (state.epoch, state.batches) for who, state in log.producers.items()}
        return Seen("", batches, timed, producers, manager.logs.get(KEY).fence, log.high_watermark)
    except LogError as error:
        return Seen(f"{error.code.name}: {error}", batches, [], None, None, 0)
    finally:
        manager.unlock()


class Flipped(NamedTuple):
    position: int
    problems: set[str]  # names of the files in which `verify` finds something
    seen: Seen


def flipped(sound: Path, name: str, work: Path, positions: range | None = None) -> list[Flipped]:
    """One case for each byte of the file."""
    good = (sound / name).read_bytes()
    assert good
    cases = []
    for position in positions or range(len(good)):
        shutil.copytree(sound, work)
        bad = bytearray(good)
        bad[position] ^= 1 << position % 8
        (work / name).write_bytes(bad)
        problems = {file.path.name for file in verify(work) if file.problems}
        cases.append(Flipped(position, problems, look(work)))
        shutil.rmtree(work)
    return cases


@pytest.fixture
def work(tmp_path: Path, disk_is_fast: None) -> Path:
    return tmp_path / "work"


@pytest.fixture
def good(sound: Path, work: Path) -> Seen:
    shutil.copytree(sound, work)
    seen = look(work)
    assert not [file for file in verify(sound) if file.problems]
    shutil.rmtree(work)
    assert not seen.refused
    assert seen.fence == FENCE
    return seen


def names(sound: Path, suffix: str) -> list[str]:
    return sorted(f"t-0/{path.name}" for path in (sound / "t-0").glob(f"*.{suffix}") if path.stat().st_size)


def test_a_batch(sound: Path, work: Path, good: Seen) -> None:
    """The second batch of a sealed segment: its header, and some of its records."""
    name = names(sound, "log")[0]
    [(begin, header), *_] = list(iter_batches((sound / name).read_bytes()))[1:]
    for case in flipped(sound, name, work, range(begin, begin + HEADER_BYTES + 20)):
        where = case.position - begin
        assert case.problems, where
        if where in BASE_OFFSET:  # read as it is, or not found at its offset, until `verify` or a scrub has seen it
            others = [content for content in good.batches if content != good.batches[1]]
            assert [content for content in case.seen.batches if content in others] == case.seen.batches[:1] + [
                content for content in case.seen.batches[1:] if content in others
            ]
        elif where in LEADER_EPOCH:
            assert [content[16:] for content in case.seen.batches] == [
                content[16:] for content in good.batches[: len(case.seen.batches)]
            ]
        else:
            assert case.seen.refused, where
            assert case.seen.batches == good.batches[:1], where
    assert header.record_count == 2


@pytest.mark.parametrize("suffix", ["index", "snapshot"])
def test_what_can_be_made_again_does_no_harm(sound: Path, work: Path, good: Seen, suffix: str) -> None:
    name = names(sound, suffix)[-1]
    size = (sound / name).stat().st_size
    for case in flipped(sound, name, work, range(0, size, max(size // 40, 1))):
        assert Path(name).name in case.problems, case.position
        assert case.seen == good, case.position


def test_a_time_index(sound: Path, work: Path, good: Seen) -> None:
    """Reads do not use it. A lookup by time may be wrong, until `verify` has seen it."""
    name = names(sound, "timeindex")[0]
    for case in flipped(sound, name, work):
        assert Path(name).name in case.problems, case.position
        assert case.seen._replace(timed=good.timed) == good, case.position


def test_leader_epochs(sound: Path, work: Path, good: Seen) -> None:
    size = (sound / "t-0" / "leader-epoch-checkpoint").stat().st_size
    for case in flipped(sound, "t-0/leader-epoch-checkpoint", work):
        assert case.seen == good, case.position
        assert case.problems or case.position == size - 1, case.position  # the last end of a line may be another one


def test_the_topic_id(sound: Path, work: Path, good: Seen) -> None:
    """The log is found under its own id or not at all. (The last characters have bits that stand for nothing.)"""
    for case in flipped(sound, "t-0/partition.metadata", work):
        assert case.seen == good or ("partition.metadata" in case.problems and not case.seen.batches), case.position


@pytest.mark.parametrize(
    "name", ["recovery-point-offset-checkpoint", "replication-offset-checkpoint", "cleaner-offset-checkpoint"]
)
def test_offset_checkpoints(sound: Path, work: Path, good: Seen, name: str) -> None:
    """What they say of the log does not change what is read. A lower high watermark is learnt again."""
    for case in flipped(sound, name, work):
        assert case.seen._replace(high_watermark=good.high_watermark) == good, case.position
        assert case.problems or case.seen.high_watermark < good.high_watermark, case.position


def test_log_starts(sound: Path, work: Path, good: Seen) -> None:
    """A higher log start within the log is believed: Kafka's checkpoints have no CRC."""
    for case in flipped(sound, "log-start-offset-checkpoint", work):
        shown = case.seen.batches
        assert shown == good.batches[len(good.batches) - len(shown) :], case.position
        assert not case.seen.refused, case.position


def test_fences(sound: Path, work: Path) -> None:
    """After a clean stop the last line cannot be torn: a lost fence would let a deposed leader write again."""
    for case in flipped(sound, "fence-journal", work):
        assert "fence-journal" in case.problems, case.position
        assert "is damaged" in case.seen.refused, case.position


@pytest.mark.parametrize("name", ["meta.properties", ".highwater_boot"])
def test_whose_directory_it_is(sound: Path, work: Path, good: Seen, name: str) -> None:
    """At most the directory is refused, or its tail counts as lost (RULES 7.2)."""
    size = (sound / name).stat().st_size
    for case in flipped(sound, name, work, range(0, size, 3)):
        assert case.seen == good or "belongs to" in case.seen.refused, case.position


@pytest.mark.parametrize("recovery_point", [0, 4, 12])
def test_recovery_cuts_what_was_not_flushed_and_nothing_else(tmp_path: Path, recovery_point: int) -> None:
    """RULES 7.6: of what was on disk nothing is dropped without a word, in the last segment neither."""
    log = make_log(tmp_path)
    for _ in range(6):
        lead(log, batch(2))
    path, third = log.segments[0].path, log.segments[0].position_of(4)
    assert third is not None
    content = bytearray(path.read_bytes())
    content[third[0] + HEADER_BYTES + 3] ^= 1
    path.write_bytes(content)
    known = Checkpointed(recovery_point=recovery_point)
    if recovery_point <= 4:
        assert make_log(tmp_path, known=known).log_end_offset == 4
    else:
        with pytest.raises(LogError, match="damaged below the recovery point"):
            make_log(tmp_path, known=known)
        assert path.read_bytes() == content

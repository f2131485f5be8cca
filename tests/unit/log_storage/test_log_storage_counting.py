"""How many logs are offline or damaged is told as it changes, without a walk over all of them each second."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from log_storage_batches import lead, produced

from highwater.log_storage.config import LogConfig
from highwater.log_storage.errors import LogError
from highwater.log_storage.log_manager.hosted_log import HostedLog
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.log_storage.log_manager.log_registry import LogRegistry
from highwater.log_storage.segment.damage import DamagedRange
from highwater.model.partition import PartitionKey


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[LogManager]:
    manager = LogManager([tmp_path / "a", tmp_path / "b"], LogConfig(segment_bytes=600), broker_id=1)
    manager.load()
    for partition in range(4):
        manager.create("t", PartitionKey(bytes(16), partition), {})
    manager.logs.recount()
    yield manager
    manager.unlock()


def counts(logs: LogRegistry) -> tuple[int, int]:
    """(offline, damaged), as the next round of a second finds them."""
    logs.recount()
    return logs.offline_logs, logs.damaged_logs


def logs_of(manager: LogManager) -> list[HostedLog]:
    return [manager.logs.get(PartitionKey(bytes(16), partition)) for partition in range(4)]


def test_a_round_looks_at_no_log_where_none_has_changed(manager: LogManager, monkeypatch: pytest.MonkeyPatch) -> None:
    def walk(logs: LogRegistry) -> Iterator[HostedLog]:
        raise AssertionError("a walk over all logs")

    with monkeypatch.context() as patched:
        patched.setattr(LogRegistry, "__iter__", walk)
        assert counts(manager.logs) == (0, 0)


def test_a_log_and_a_directory_that_go_offline_are_counted_by_the_next_round(manager: LogManager) -> None:
    first, *others = logs_of(manager)
    assert counts(manager.logs) == (0, 0)
    first.online().context.fail("a failed sync")
    assert counts(manager.logs) == counts(manager.logs) == (1, 0)
    other = next(each.log_dir for each in others if each.log_dir is not first.log_dir)
    other.disk.fail("gone")
    assert counts(manager.logs) == (3, 0)
    first.log_dir.disk.fail("gone")
    assert counts(manager.logs) == (4, 0)


def test_a_log_that_fails_while_they_are_counted_is_in_the_next_count(
    manager: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *_, last = logs_of(manager)
    walk = LogRegistry.__iter__

    def fail_behind(logs: LogRegistry) -> Iterator[HostedLog]:
        yield from walk(logs)
        first.online().context.fail("a failed sync")

    last.online().context.fail("a failed sync")
    with monkeypatch.context() as patched:
        patched.setattr(LogRegistry, "__iter__", fail_behind)
        assert counts(manager.logs) == (1, 0)
    assert counts(manager.logs) == (2, 0)


def test_a_count_that_fails_is_made_again(manager: LogManager, monkeypatch: pytest.MonkeyPatch) -> None:
    log = logs_of(manager)[0].online()
    log.context.fail("a failed sync")
    with monkeypatch.context() as patched:
        patched.setattr(log, "await_no_sync", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            manager.logs.recount()
    assert counts(manager.logs) == (1, 0)


def test_a_log_that_is_deleted_or_moved_is_counted_where_it_is(manager: LogManager) -> None:
    first, second, *_ = logs_of(manager)
    first.online().context.fail("a failed sync")
    assert counts(manager.logs) == (1, 0)
    manager.delete(first.key, -1)
    assert counts(manager.logs) == (0, 0)
    left = second.log_dir
    (target,) = [log_dir for log_dir in manager.logs.log_dirs if log_dir is not left]
    manager.mover.start_move(second.key, str(target.path))
    manager.mover.swap(second)
    left.disk.fail("gone")
    elsewhere = sum(1 for each in manager.logs if each.log_dir is left)
    assert counts(manager.logs) == (elsewhere, 0)
    manager.create("t", PartitionKey(bytes(16), 9), {})
    target.disk.fail("gone")
    assert counts(manager.logs) == (len(manager.logs), 0)


def test_a_directory_that_fails_as_a_log_comes_is_counted_with_that_log(
    manager: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = logs_of(manager)[0]
    (target,) = [log_dir for log_dir in manager.logs.log_dirs if log_dir is not moved.log_dir]
    before = sum(1 for each in manager.logs if each.log_dir is target)
    let_go = manager.logs.let_go

    def fail_after(directory: Path) -> None:
        let_go(directory)
        target.disk.fail("gone")
        assert counts(manager.logs) == (before, 0)

    monkeypatch.setattr(manager.logs, "let_go", fail_after)
    manager.mover.start_move(moved.key, str(target.path))
    with pytest.raises(LogError):
        manager.mover.swap(moved)
    assert counts(manager.logs) == (before + 1, 0)


def test_damage_that_is_let_go_of_is_not_counted_any_more(manager: LogManager) -> None:
    first, second, *_ = logs_of(manager)
    for hosted in (first, second):
        log = hosted.online()
        for sequence in range(20):
            lead(log, produced(sequence=sequence))
        log.damage.note(log.segments[0], [DamagedRange(0, 0, "flipped")])
    manager.logs.count_offline()
    assert counts(manager.logs) == (0, 2)
    log = first.online()
    log.offsets.raise_high_watermark(20)
    log.log_start.raise_to(log.segments[1].base_offset)
    assert counts(manager.logs) == (0, 1)
    manager.truncate_fully_and_start_at(second, 30, -1)
    assert counts(manager.logs) == (0, 0)

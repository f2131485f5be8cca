"""RULES 3.1 and 3.5: the fence is only ever raised, and is not forgotten."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from highwater.errors import ErrorCode
from highwater.log_storage.fence import Fence, FenceVerdict, admission, propose
from highwater.log_storage.files.fence_journal import FenceJournal, FenceJournalError
from highwater.model.fence_role import Role
from highwater.model.leader_epochs import NO_EPOCH
from highwater.model.partition import PartitionKey
from highwater.records.header import crc32c

KEY = PartitionKey(b"t" * 16, 0)
OTHER = PartitionKey(b"u" * 16, 3)


def leader(epoch: int, replica_manager: str = "rm", log_storage: str = "ls") -> Fence:
    return Fence(epoch, Role.LEADER, replica_manager, log_storage)


def follower(epoch: int, log_storage: str = "ls") -> Fence:
    return Fence(epoch, Role.FOLLOWER, "", log_storage)


@pytest.mark.parametrize(
    ("current", "proposed", "verdict"),
    [
        (None, leader(0), FenceVerdict.RAISED),
        (leader(3), leader(4), FenceVerdict.RAISED),
        (leader(3), follower(4), FenceVerdict.RAISED),
        (leader(3), leader(2), FenceVerdict.REFUSED),
        (leader(3), follower(2), FenceVerdict.REFUSED),
        (leader(3), leader(3), FenceVerdict.UNCHANGED),
        (leader(3), follower(3), FenceVerdict.REFUSED),
        (follower(3), leader(3), FenceVerdict.REFUSED),
        (leader(3), leader(3, replica_manager="restarted"), FenceVerdict.REFUSED),
        (leader(3), leader(3, log_storage="restarted"), FenceVerdict.REFUSED),
        (follower(3), follower(3), FenceVerdict.UNCHANGED),
        (follower(3), follower(3, log_storage="restarted"), FenceVerdict.UNCHANGED),
    ],
)
def test_a_fence_is_only_raised(current: Fence | None, proposed: Fence, verdict: FenceVerdict) -> None:
    assert propose(current, proposed) is verdict


def test_what_a_fence_admits() -> None:
    assert admission(None, Role.LEADER, 0, "ls") is ErrorCode.UNKNOWN_FENCE
    assert admission(leader(3), Role.LEADER, 3, "ls") is ErrorCode.NONE
    assert admission(leader(3), Role.LEADER, 2, "ls") is ErrorCode.STALE_FENCE
    assert admission(leader(3), Role.LEADER, 4, "ls") is ErrorCode.STALE_FENCE
    assert admission(leader(3), Role.FOLLOWER, 3, "ls") is ErrorCode.STALE_FENCE
    assert admission(leader(3), Role.LEADER, 3, "restarted") is ErrorCode.STALE_FENCE  # RULES 3.5
    assert admission(follower(3), Role.FOLLOWER, 3, "restarted") is ErrorCode.NONE


def test_fences_outlive_the_process(tmp_path: Path) -> None:
    journal = FenceJournal(tmp_path / "fence-journal")
    journal.record({KEY: leader(1), OTHER: follower(5)})
    journal.record({KEY: follower(2)})
    again = FenceJournal(tmp_path / "fence-journal")  # the first was not closed: a kill
    assert again.fences == {KEY: follower(2), OTHER: follower(5)}
    again.forget([OTHER])
    again.close()
    assert FenceJournal(tmp_path / "fence-journal").fences == {KEY: follower(2)}


def test_one_call_costs_one_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = FenceJournal(tmp_path / "fence-journal")
    calls = []
    monkeypatch.setattr("os.fdatasync", calls.append)
    monkeypatch.setattr("os.fsync", calls.append)
    journal.record({PartitionKey(b"t" * 16, number): leader(1) for number in range(500)})
    assert len(calls) == 1


def test_a_torn_last_line_was_not_answered_for(tmp_path: Path) -> None:
    path = tmp_path / "fence-journal"
    journal = FenceJournal(path)
    journal.record({KEY: leader(1)})
    whole = path.read_bytes()
    journal.record({KEY: leader(2)})
    torn = path.read_bytes()
    for length in range(len(whole), len(torn)):
        path.write_bytes(torn[:length])
        expected = leader(2) if length == len(torn) - 1 else leader(1)  # only the line's end is missing
        assert FenceJournal(path).fences == {KEY: expected}, length


@pytest.mark.parametrize("line", [0, 1])
def test_a_damaged_line_before_the_last_is_an_error(tmp_path: Path, line: int) -> None:
    path = tmp_path / "fence-journal"
    journal = FenceJournal(path)
    journal.record({KEY: leader(1)})
    journal.record({KEY: leader(2)})
    lines = path.read_bytes().split(b"\n")
    lines[line] = lines[line][:-1] + b"?"
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(FenceJournalError, match=f"line {line + 1} is damaged"):
        FenceJournal(path)


def test_damage_to_the_rewritten_file_is_an_error_too(tmp_path: Path) -> None:
    path = tmp_path / "fence-journal"
    FenceJournal(path).record({KEY: leader(1)})
    FenceJournal(path).close()  # one line now, and nothing can have torn it
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(FenceJournalError):
        FenceJournal(path)


def test_after_a_failed_write_no_fence_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = FenceJournal(tmp_path / "fence-journal")
    with monkeypatch.context() as patch:
        patch.setattr("os.fdatasync", _fails)
        with pytest.raises(OSError, match="no disk"):
            journal.record({KEY: leader(1)})
    assert journal.failed
    with pytest.raises(OSError, match="no disk"):
        journal.record({KEY: leader(2)})


def test_the_file_does_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("highwater.log_storage.files.fence_journal.REWRITE_BYTES", 1000)
    path = tmp_path / "fence-journal"
    journal = FenceJournal(path)
    for epoch in range(200):
        journal.record({KEY: leader(epoch)})
        assert path.stat().st_size < 1500
    assert FenceJournal(path).fences == {KEY: leader(199)}


def _fails(descriptor: int) -> None:
    raise OSError("no disk")


def test_what_a_log_has_led_outlives_later_fences(tmp_path: Path) -> None:
    """RULES 7.9."""
    path = tmp_path / "fence-journal"
    journal = FenceJournal(path)
    assert follower(1).last_led_epoch == NO_EPOCH
    for fence in (follower(1), leader(2), follower(3), follower(4)):
        journal.record({KEY: fence.after(journal.get(KEY))})
    journal.close()
    kept = FenceJournal(path).get(KEY)
    assert kept == follower(4)
    assert kept.last_led_epoch == 2
    assert leader(5).after(kept).last_led_epoch == 5


def test_a_fence_of_an_earlier_version_does_not_say_what_was_led(tmp_path: Path) -> None:
    path = tmp_path / "fence-journal"
    entries = [[KEY.topic_id.hex(), 0, 4, 2, "", "ls"], [OTHER.topic_id.hex(), 3, 4, 1, "rm", "ls"]]
    body = json.dumps(entries).encode()
    path.write_bytes(b"%08x %s\n" % (crc32c(body), body))
    read = FenceJournal(path)
    assert read.get(KEY) == follower(4)
    assert read.fences[KEY].last_led_epoch is None
    assert read.fences[KEY].after(None).last_led_epoch is None
    assert follower(5).after(read.fences[KEY]).last_led_epoch is None
    assert read.fences[OTHER].last_led_epoch == 4


def test_of_a_log_that_has_lost_something_it_is_not_said_what_it_led(tmp_path: Path) -> None:
    """RULES 7.9. What it is fenced to lead under since says something again."""
    keys = [PartitionKey(b"v" * 16, number) for number in range(4)]
    path = tmp_path / "fence-journal"
    journal = FenceJournal(path)
    journal.record({keys[0]: leader(2), keys[1]: leader(2), keys[2]: leader(2), keys[3]: follower(2)})
    journal.close()
    journal = FenceJournal(path)
    for key, fence in ((keys[1], follower(3)), (keys[2], leader(3))):
        journal.record({key: fence.after(journal.get(key))})
    short = journal.after_loss()
    assert short.keys() == {keys[0], keys[1]}
    journal.record(short)
    journal.close()
    journal = FenceJournal(path)
    assert [journal.fences[key] for key in keys] == [leader(2), follower(3), leader(3), follower(2)]
    assert [journal.fences[key].last_led_epoch for key in keys] == [None, None, 3, NO_EPOCH]
    assert follower(4).after(journal.fences[keys[0]]).last_led_epoch is None
    assert leader(4).after(journal.fences[keys[0]]).last_led_epoch == 4


def test_a_fence_to_lead_of_an_earlier_version_led(tmp_path: Path) -> None:
    path = tmp_path / "fence-journal"
    body = json.dumps([[KEY.topic_id.hex(), KEY.partition, 3, 1, "rm", "ls"]]).encode()
    path.write_bytes(b"%08x %s\n" % (crc32c(body), body))
    assert FenceJournal(path).fences[KEY].last_led_epoch == 3

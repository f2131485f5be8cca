"""What one member's volume says of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from highwater.errors import UserError
from highwater.kube.etcd_member.volume import NOTE_NAME, Held, MemberVolume

URL = "http://etcd-0:2380"


@pytest.fixture
def volume(tmp_path: Path) -> MemberVolume:
    return MemberVolume(tmp_path / "volume" / "data")


def put_log(volume: MemberVolume) -> Path:
    log = volume.data_dir / "member" / "wal" / "0000000000000000-0000000000000000.wal"
    log.parent.mkdir(parents=True)
    log.touch()
    return log


def put_database(volume: MemberVolume) -> None:
    database = volume.data_dir / "member" / "snap" / "db"
    database.parent.mkdir(parents=True)
    database.write_bytes(b"x")


def test_nothing_is_empty(volume: MemberVolume) -> None:
    assert volume.held() is Held.EMPTY
    (volume.data_dir / "member").mkdir(parents=True)
    assert volume.held() is Held.EMPTY
    (volume.data_dir / "member" / f"{NOTE_NAME}.tmp").touch()  # killed within its first note
    assert volume.held() is Held.EMPTY


@pytest.mark.parametrize("held", [Held.PREPARED, Held.AGREED, Held.JOINING])
def test_a_note_is_kept_until_there_is_a_log(volume: MemberVolume, held: Held) -> None:
    volume.write(held, URL)
    put_database(volume)  # etcd makes it before its log
    assert MemberVolume(volume.data_dir).held() is held
    put_log(volume)
    assert volume.held() is Held.STARTED


def test_what_a_start_left_without_a_log_is_cleared_and_the_note_stays(volume: MemberVolume) -> None:
    volume.write(Held.AGREED, URL)
    put_database(volume)
    volume.clear()
    assert [path.name for path in (volume.data_dir / "member").iterdir()] == [NOTE_NAME]
    assert volume.held() is Held.AGREED


def test_a_part_of_what_was_there_is_not_taken_for_an_empty_volume(volume: MemberVolume) -> None:
    put_database(volume)
    assert volume.held() is Held.REMAINS
    with pytest.raises(AssertionError, match="only to join"):
        volume.clear()
    volume.clear(remains=True)
    assert volume.held() is Held.EMPTY


def test_a_started_members_lost_log_is_not_taken_for_an_empty_volume(volume: MemberVolume) -> None:
    log = put_log(volume)
    volume.write(Held.STARTED, URL)
    log.unlink()
    assert volume.held() is Held.REMAINS


def test_a_log_is_never_cleared(volume: MemberVolume) -> None:
    put_log(volume)
    with pytest.raises(AssertionError, match="never deleted"):
        volume.clear(remains=True)


def test_a_damaged_note_is_told(volume: MemberVolume) -> None:
    volume.write(Held.AGREED, URL)
    (volume.data_dir / "member" / NOTE_NAME).write_text("{")
    with pytest.raises(UserError, match="is damaged: delete"):
        volume.held()

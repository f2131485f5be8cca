"""Backups on disk: whole or not at all, so many kept, and none taken for good that is damaged."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import pytest

from highwater.errors import UserError
from highwater.kube import rebuild
from highwater.kube.lost_etcd import backup_file
from highwater.kube.lost_etcd.backup_file import Backup
from highwater.kube.lost_etcd.inventory import BrokerInventory, Directory

BACKUP = Backup("highwater", "one", 12, 1_700_000_000_000, {"/cluster_id": b"one", "/config/topics/t": b"\xff\x00"})


def later(backup: Backup, seconds: int) -> Backup:
    return replace(backup, revision=backup.revision + seconds, taken_ms=backup.taken_ms + 1000 * seconds)


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert backup_file.read(backup_file.write(BACKUP, tmp_path)) == BACKUP
    assert [path.suffix for path in tmp_path.iterdir()] == [".gz"]


def test_the_oldest_go_and_other_clusters_stay(tmp_path: Path) -> None:
    paths = [backup_file.write(later(BACKUP, seconds), tmp_path) for seconds in range(5)]
    emptied = [backup_file.write(replace(later(BACKUP, n), cluster_id="two"), tmp_path) for n in range(9, 12)]
    (tmp_path / "highwater-notes.txt").touch()
    assert backup_file.rotate(later(BACKUP, 4), tmp_path, 2) == paths[:3]
    assert set(tmp_path.glob("*.gz")) == {*paths[3:], *emptied}
    assert backup_file.latest(tmp_path, "one") == paths[-1]
    assert backup_file.latest(tmp_path, "two") == emptied[-1]


def test_a_clock_that_was_ahead_does_not_cost_what_was_just_taken(tmp_path: Path) -> None:
    ahead = [backup_file.write(later(BACKUP, seconds), tmp_path) for seconds in range(10**6, 10**6 + 3)]
    taken = backup_file.write(BACKUP, tmp_path)
    assert backup_file.rotate(BACKUP, tmp_path, 3) == []
    assert taken.exists()
    older = backup_file.write(later(BACKUP, -1), tmp_path)
    assert backup_file.rotate(BACKUP, tmp_path, 3) == [older]
    assert {*ahead, taken} == set(tmp_path.iterdir())


def test_without_a_volume_that_was_used_it_is_the_only_clusters(tmp_path: Path) -> None:
    """Of etcd and of all brokers the volumes are lost: topics and configurations are left."""
    whole = replace(BACKUP, entries={"/cluster_id": b"one"})
    paths = [backup_file.write(later(whole, seconds), tmp_path) for seconds in range(2)]
    empty = BrokerInventory(0, "", (Directory("/data/0"),), tail_lost=True).to_json()
    (tmp_path / "inventory").write_text(empty)
    given = argparse.Namespace(
        inventories=[tmp_path / "inventory"], backup=tmp_path, brokers="0", topic=[], without_broker=[],
        min_insync_replicas=1,
    )  # fmt: skip
    assert backup_file.latest(tmp_path, None) == paths[1]
    assert rebuild._plan(given).cluster_id == "one"
    backup_file.write(replace(BACKUP, cluster_id="two"), tmp_path)
    with pytest.raises(UserError, match=f"several clusters.*{paths[1].name}"):
        backup_file.latest(tmp_path, None)


def test_a_damaged_one_is_refused(tmp_path: Path) -> None:
    path = backup_file.write(BACKUP, tmp_path)
    good = path.read_bytes()
    for position in range(10, len(good)):  # behind gzip's own head, whose time and name are nothing
        path.write_bytes(good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :])
        with pytest.raises(UserError, match="take another one"):
            backup_file.read(path)
        path.write_bytes(good[:position])
        with pytest.raises(UserError, match="take another one"):
            backup_file.read(path)
    with pytest.raises(UserError, match="cannot read"):
        backup_file.read(tmp_path / "none")


def test_a_directory_without_any(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no backup"):
        backup_file.latest(tmp_path, "one")

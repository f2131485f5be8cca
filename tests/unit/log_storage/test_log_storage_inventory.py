"""The inventory of log directories that nobody serves: what the next start of log-storage would find, and no less."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from log_storage_batches import batch, follow, lead, manager_with_log, produced

from highwater.errors import UserError
from highwater.kube import inventory as command
from highwater.kube.lost_etcd.inventory import BrokerInventory, Replica, from_json
from highwater.kube.lost_etcd.reading import take_inventory
from highwater.log_storage.config import LogConfig
from highwater.log_storage.fence import Fence
from highwater.log_storage.files import boot_record, partition_metadata
from highwater.log_storage.files.boot_record import CLEAN_SHUTDOWN
from highwater.log_storage.log_manager.log_manager import LogManager
from highwater.model.fence_role import Role
from highwater.model.leader_epochs import EpochEntry
from highwater.model.partition import PartitionKey

KEY = PartitionKey(b"t" * 16, 0)
SEGMENT = Path("t-0") / "00000000000000000000.log"


def begun(data: Path, config: LogConfig | None = None) -> LogManager:
    return manager_with_log(data, KEY, config or LogConfig(), Fence(5, Role.LEADER, "rm", "ls"))


def written(data: Path) -> LogManager:
    """Two batches of epoch 5, which it led, and one of epoch 7, in which it follows; all but that is committed."""
    manager = begun(data)
    hosted = manager.logs.get(KEY)
    lead(hosted.online(), produced(2, sequence=0, producer_id=41), epoch=5)
    lead(hosted.online(), produced(1, sequence=2, producer_id=41), epoch=5)
    fence = Fence(7, Role.FOLLOWER, "", "ls").after(hosted.fence)
    manager.logs.log_dirs[0].record_fences({KEY: fence})
    follow(hosted.online(), batch(1, base_offset=3, epoch=7), epoch=7)
    hosted.online().flush()
    hosted.online().offsets.raise_high_watermark(3)
    manager.logs.write_checkpoints(manager.logs.log_dirs[0])
    return manager


WRITTEN = Replica("t", KEY.topic_id, 0, 0, 4, 3, (EpochEntry(5, 0), EpochEntry(7, 3)), 7, 7, 5, 41)


def one(inventory: BrokerInventory) -> Replica:
    [replica] = inventory.replicas
    return replica


@pytest.mark.parametrize("clean", [True, False])
def test_what_a_log_is(tmp_path: Path, clean: bool) -> None:
    manager = written(tmp_path)
    if clean:
        manager.close()
    else:
        manager.unlock()
    inventory = take_inventory([tmp_path])
    assert one(inventory) == WRITTEN
    assert (inventory.broker_id, inventory.cluster_id, inventory.tail_lost, inventory.whole) == (
        1,
        "cluster",
        False,
        True,
    )
    assert take_inventory([tmp_path]) == inventory  # as often as one likes
    assert (tmp_path / CLEAN_SHUTDOWN).exists()


def test_the_end_of_a_log_that_a_kill_has_torn(tmp_path: Path) -> None:
    written(tmp_path).unlock()
    with (tmp_path / SEGMENT).open("ab") as segment:
        segment.write(batch(1, base_offset=4, epoch=7)[:-3])
    assert one(take_inventory([tmp_path])) == WRITTEN


def test_a_lost_tail_is_said_and_stays_so(tmp_path: Path) -> None:
    written(tmp_path).unlock()
    record = boot_record.read_record(tmp_path)
    assert record is not None
    boot_record.write_record(tmp_path, replace(record, boot=boot_record.Boot("another", "another")))
    for _ in range(2):
        assert take_inventory([tmp_path]).tail_lost
    manager = LogManager([tmp_path], LogConfig(), broker_id=1)
    manager.lock()
    assert manager.logs.log_dirs[0].tail_lost  # as the broker has not registered so
    manager.unlock()


@pytest.mark.parametrize("every", [True, False])
def test_whether_every_append_was_flushed_is_not_forgotten(tmp_path: Path, every: bool) -> None:
    config = LogConfig(flush_messages=1) if every else LogConfig()
    begun(tmp_path, config).close()
    killed = LogManager([tmp_path], config, broker_id=1)
    killed.lock()
    killed.unlock()
    before = boot_record.read_record(tmp_path)
    take_inventory([tmp_path])
    assert boot_record.read_record(tmp_path) == before
    assert before is not None
    assert before.flush_every_message == every


def test_directories_in_use_are_left_alone(tmp_path: Path) -> None:
    manager = written(tmp_path)
    with pytest.raises(UserError, match="in use"):
        take_inventory([tmp_path])
    manager.close()


def test_a_log_that_cannot_be_opened_is_listed_with_its_fence(tmp_path: Path) -> None:
    written(tmp_path).close()
    (tmp_path / "t-0" / "nonsense.log").touch()
    found = one(take_inventory([tmp_path]))
    assert "nonsense" in found.failure
    assert (found.fence_epoch, found.led_epoch) == (7, 5)


def test_a_log_whose_topic_is_not_known(tmp_path: Path) -> None:
    written(tmp_path).close()
    (tmp_path / "t-0" / partition_metadata.FILE_NAME).unlink()
    inventory = take_inventory([tmp_path])
    assert (inventory.replicas, inventory.unidentified) == ((), (("t", 0),))
    partition_metadata.write(tmp_path / "t-0", b"?" * 16)  # one that nobody has a fence of
    assert take_inventory([tmp_path]).unidentified == (("t", 0),)


def test_a_directory_that_was_there_and_is_not(tmp_path: Path) -> None:
    paths = [tmp_path / "0", tmp_path / "1"]
    manager = LogManager(paths, LogConfig(), broker_id=1)
    manager.load()
    for log_dir in manager.logs.log_dirs:
        log_dir.record_boot()
        log_dir.record_cluster("cluster")
    manager.close()
    assert take_inventory(paths).whole
    inventory = take_inventory(paths[:1])
    assert (inventory.missing_directories, inventory.tail_lost) == (1, True)
    shutil.rmtree(paths[1])
    paths[1].mkdir()  # another volume in its place
    inventory = take_inventory(paths)
    assert (inventory.missing_directories, len(inventory.directories)) == (1, 2)
    with pytest.raises(UserError, match="no directory"):
        take_inventory([tmp_path / "2" / "log"])
    assert take_inventory([paths[0], paths[1], tmp_path / "2"]).directories[2].directory_id == ""


def test_volumes_that_were_never_used(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--broker-id"):
        take_inventory([tmp_path])
    inventory = take_inventory([tmp_path / "log"], 4)
    assert not inventory.whole
    assert (inventory.broker_id, inventory.cluster_id, inventory.replicas, inventory.tail_lost) == (4, "", (), True)
    assert not list(tmp_path.iterdir())


def test_the_command_prints_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path).close()
    assert command.main([str(tmp_path), "--broker-id=1"]) == 0
    out = capsys.readouterr().out
    assert from_json(out) == take_inventory([tmp_path])
    assert json.loads(out)["replicas"][0]["topic_id"] == KEY.topic_id.hex()
    assert command.main([str(tmp_path), "--broker-id=2"]) == 1
    assert "of broker 1, not of 2" in capsys.readouterr().err

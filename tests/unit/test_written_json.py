"""JSON of files and of etcd that is none of ours: refused where it is read, by each of its readers in its own way."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from highwater.errors import UserError
from highwater.kube.lost_etcd import inventory
from highwater.log_storage.files import boot_record, fence_journal
from highwater.metadata.schema.cluster_view import CorruptMetadataError, decode_snapshot
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import BrokerRegistration, ControllerRegistration, PartitionState, TopicAssignment
from highwater.metadata.store.transactions import Entry, Listing
from highwater.model.written_json import checked, parse_json
from highwater.records.header import crc32c

KEYS = Keys("c")
DEEP = b"[" * 100_000
STATE = PartitionState(1, 5, 100, (1, 2), (3,), (), 2, 1)
BOOT = boot_record.BootRecord(1, boot_record.Boot("boot", "/d"), True, ("d",))
NO_INT = (None, True, 1.5, float("inf"), "1", [], {}, 1 << 63, -(1 << 63) - 1)
NO_TEXT = (None, True, 1, [], {}, "\ud800")


def other(value: Any, **changes: object) -> bytes:
    return json.dumps({**json.loads(value.to_json()), **changes}).encode()


def read(key: str, value: bytes) -> None:
    decode_snapshot(KEYS, Listing((Entry(key, value, 1, 2),), 2))


@pytest.mark.parametrize("wrong", NO_INT, ids=repr)
def test_a_state_in_etcd_with_a_number_that_is_none(wrong: object) -> None:
    key = KEYS.state("t", 0)
    read(key, STATE.to_json())
    for changes in ({"leader_epoch": wrong}, {"isr": [1, wrong]}, {"elr": wrong}):
        if changes not in ({"elr": []}, {"elr": {}}):
            with pytest.raises(CorruptMetadataError):
                read(key, other(STATE, **changes))


@pytest.mark.parametrize("wrong", NO_TEXT, ids=repr)
def test_a_registration_in_etcd_with_a_text_that_is_none(wrong: object) -> None:
    broker = BrokerRegistration(1, "h:1", "i", "l", listeners={"CLIENT": "h:2"})
    read(KEYS.broker(1), broker.to_json())
    for changes in ({"address": wrong}, {"listeners": {"CLIENT": wrong}}, {"rack": wrong}):
        with pytest.raises(CorruptMetadataError):
            read(KEYS.broker(1), other(broker, **changes))
    with pytest.raises(CorruptMetadataError):
        read(KEYS.controller, other(ControllerRegistration(0, "h:1", 3, "i"), address=wrong))
    with pytest.raises(CorruptMetadataError):
        read(KEYS.topic("t"), other(TopicAssignment("t", bytes(16), ((1, 2),)), topic=wrong))


@pytest.mark.parametrize(
    "key", [KEYS.broker(1), KEYS.topic("t"), KEYS.state("t", 0), KEYS.topic_config("t"), KEYS.controller]
)
def test_what_is_nested_deeply_in_etcd_is_left_out_as_anything_else_that_cannot_be_read(key: str) -> None:
    with pytest.raises(CorruptMetadataError):
        read(key, DEEP)


@pytest.mark.parametrize(
    "body", [DEEP, b'[["00",true,5,1,"","",-1]]', b'[["00",0,"5",1,"","",-1]]', b'[["00",0,5,1,7,"",-1]]']
)
def test_a_fence_that_is_none_loses_the_journal_and_not_the_process(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / fence_journal.FILE_NAME
    path.write_bytes(b"%08x %s\n" % (crc32c(body), body))
    with pytest.raises(fence_journal.FenceJournalError, match="line 1 is no list of fences"):
        fence_journal.read_fences(path)


def test_a_boot_record_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / boot_record.FILE_NAME
    path.write_text(json.dumps(dataclasses.asdict(BOOT)))
    assert boot_record.read_record(tmp_path) == BOOT
    for changed in ({"broker_id": "1"}, {"boot": {"boot_id": 1, "mount": ""}}, {"directory_ids": [1]}):
        path.write_text(json.dumps({**dataclasses.asdict(BOOT), **changed}))
        assert boot_record.read_record(tmp_path) is None
    path.write_bytes(DEEP)
    assert boot_record.read_record(tmp_path) is None


def test_an_inventory_that_is_none() -> None:
    whole = json.loads(inventory.BrokerInventory(1, "c", (inventory.Directory("/d"),)).to_json())
    assert inventory.from_json(json.dumps(whole)).broker_id == 1
    for text in (json.dumps({**whole, "broker_id": "1"}), json.dumps({**whole, "cluster_id": 7}), DEEP.decode()):
        with pytest.raises(UserError):
            inventory.from_json(text)


def test_what_is_checked_and_what_is_said() -> None:
    assert checked(STATE) is STATE
    with pytest.raises(TypeError, match="leader_epoch cannot be 'five'"):
        checked(STATE.with_(leader_epoch="five"))
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json(DEEP)

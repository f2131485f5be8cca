"""Every reader of bytes: of batches, codecs, indexes, checkpoints, snapshots, frames, group records, etcd values. What
they may raise is theirs to say; anything else, much CPU and a value that is not what it is declared to be are findings.

A reader's `bodies` are what it reads as a writer left it, without the envelope (a CRC, a checksum), which is put around
a body after it has been broken: most readers look at nothing else before it is right."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from highwater.errors import UserError
from highwater.groups.patterns import PatternError, compile_pattern
from highwater.groups.records import codec as group_codec
from highwater.groups.records import keys as group_keys
from highwater.groups.records import values as group_values
from highwater.groups.records.buffer import UnreadableRecordError
from highwater.kube.lost_etcd import backup_file, inventory
from highwater.log_storage.files import (
    boot_record,
    checkpoints,
    fence_journal,
    future_files,
    meta_properties,
    partition_metadata,
)
from highwater.log_storage.files.descriptor import Descriptor
from highwater.log_storage.inspect.segment_audit import SegmentTask, audit_segment
from highwater.log_storage.producers import producer_snapshots
from highwater.log_storage.segment.offset_index import OffsetIndex
from highwater.log_storage.segment.time_index import TimeIndex
from highwater.log_storage.segment.walk import walk
from highwater.metadata.schema import models
from highwater.metadata.schema.cluster_view import CorruptMetadataError, decode_snapshot
from highwater.metadata.schema.keys import Keys
from highwater.metadata.store.transactions import Entry, Listing
from highwater.model.leader_epochs import EpochEntry
from highwater.model.partition import PartitionKey, format_topic_id
from highwater.records import CorruptBatchError, decode, iter_batches
from highwater.records.codec import Codec
from highwater.records.codecs import compress, decompress
from highwater.records.compaction import retain
from highwater.records.errors import CorruptPayloadError
from highwater.records.header import crc32c, read_header, split_batches, verify
from highwater.records.payload_scan import scan_few_rows, scan_front, scan_payload
from highwater.records.varint import decode_varint, encode_varint
from highwater.rpc.framed_stream import FrameError, FrameReader, Kind, frame, hello, read_hello
from highwater.security.acls import Acl, Operation, PatternType, PermissionType, ResourceType, problem_with
from highwater.security.principal import user

from . import batches
from .decoders import Decoder

_KEYS = Keys("fuzz")
_ID = bytes(range(16))
_BOOT = boot_record.BootRecord(1, boot_record.Boot("boot", "/d"), True, ("d",))


def _in_file(
    name: str, read: Callable[[Path], object], *, of_directory: bool = False
) -> Callable[[bytes, Path], object]:
    def reading(data: bytes, directory: Path) -> object:
        path = directory / name
        path.write_bytes(data)
        return read(directory if of_directory else path)

    return reading


def _written(name: str, write: Callable[[Path], object], directory: Path, *, of_directory: bool = False) -> bytes:
    write(directory if of_directory else directory / name)
    return (directory / name).read_bytes()


# Batches


def _batch_bodies() -> tuple[bytes, ...]:
    """Batches of every codec, rows and columns."""
    random = Random(1)
    found: dict[tuple[int, int], bytes] = {}
    while len(found) < 2 * len(Codec):
        batch = batches.valid(random)
        found.setdefault((batch[22] & 7, batch[22] & 0x80), batch)
    return tuple(found.values())


def _sealed(batch: bytes) -> bytes:
    return batches.sealed(batch, batch[61:]) if len(batch) >= 61 else batch


def _decode_batch(data: bytes, _: Path) -> None:
    batch = decode(data)
    batch.records()
    batch.to_arrow()


def _scan_batch(data: bytes, _: Path) -> None:
    header = read_header(data)
    if header.size_bytes <= len(data):
        verify(data, 0, header)
        scan_payload(data, 0, header, max_payload_bytes=16 << 20)


def _front_says_what_scan_says(data: bytes, _: Path) -> None:
    """What an event loop finds at once is what a thread finds."""
    header = read_header(data)
    if header.size_bytes > len(data):
        return
    found = scan_front(data, 0, header, max_payload_bytes=16 << 20)
    if found is not None:
        scan, front = scan_payload(data, 0, header, max_payload_bytes=16 << 20), found[0]
        assert front.keyless == scan.keyless
        assert (front.offsets == scan.offsets).all()
        assert (front.timestamps == scan.timestamps).all()


def _few_rows_say_what_scan_says(data: bytes, _: Path) -> None:
    """What an event loop finds of rows is what a thread finds."""
    header = read_header(data)
    if header.size_bytes > len(data) or header.columnar:
        return
    found = scan_few_rows(data, 0, header, max_payload_bytes=16 << 20)
    if found is not None:
        scan = scan_payload(data, 0, header, max_payload_bytes=16 << 20)
        assert found.keyless == scan.keyless
        assert [header.base_offset + delta for delta in found.offset_deltas] == scan.offsets.tolist()
        assert list(found.timestamps) == scan.timestamps.tolist()


def _scan_says_what_decode_says(data: bytes, _: Path) -> None:
    """What a broker takes, readers can read."""
    header = read_header(data)
    if header.size_bytes > len(data) or header.codec is Codec.LZ4:  # of which the scan leaves something out
        return
    scan = scan_payload(data, 0, header)
    batch = decode(data, verify_crc=False)
    offsets = [record.offset - header.base_offset for record in batch.records()]
    found = [int(offset) - header.base_offset for offset in scan.offsets]
    assert offsets == found, f"{offsets[:5]} and {found[:5]}"


def _retain_batch(data: bytes, _: Path) -> None:
    batch = decode(data)
    keep = np.arange(batch.header.record_count) % 2 == 0
    decode(retain(data, 0, keep, delete_horizon_ms=7))


def _split(data: bytes, _: Path) -> None:
    assert b"".join(split_batches(data, 2)) == data
    for _position, _header in iter_batches(data, partial_ok=True):
        pass


def _decompressed(codec: Codec) -> Callable[[bytes, Path], object]:
    return lambda data, _: decompress(codec, memoryview(data), 16 << 20)


def _walked(data: bytes, directory: Path) -> None:
    path = directory / f"{0:020}.log"
    path.write_bytes(data)
    file = Descriptor(path, os.O_RDONLY)
    for each in walk(file, 0, len(data), check_crcs=True, pass_over_damage=True, chunk_bytes=256):
        assert 0 <= each.position < len(data)
    list(audit_segment(SegmentTask(str(path), 0, None, 0, 1000)))


def _indexed(kind: type[OffsetIndex] | type[TimeIndex]) -> Callable[[Path], None]:
    def read(path: Path) -> None:
        index = kind(path, 0, 10 << 20)
        index.load()
        if index.valid(1 << 20):
            for wanted in (-1, 0, 5, 2**31, 2**62):
                if isinstance(index, OffsetIndex):
                    index.lookup(wanted)
                    index.entry_at_or_below(wanted)
                else:
                    index.offset_before(wanted)
                    index.timestamp_up_to(wanted)
        index.last()
        index.close()

    return read


# Files


def _fences(body: bytes) -> bytes:
    """Each line with its CRC."""
    return b"".join(b"%08x %s\n" % (crc32c(line), line) for line in body.split(b"\n") if line)


def _snapshot(body: bytes) -> bytes:
    return struct.pack(">hI", 1, crc32c(body)) + body


def _backup(body: bytes) -> bytes:
    body = body if body.endswith(b"\n") else body + b"\n"
    digest = json.dumps({"sha256": hashlib.sha256(body).hexdigest()}).encode()
    return gzip.compress(body + digest + b"\n", mtime=0)


def _checkpoint(*lines: str) -> bytes:
    return "\n".join(("0", str(len(lines)), *lines, "")).encode()


def _snapshot_body() -> bytes:
    entries = [(1, 0, 4, 4, 4, 1000, -1, -1), (1, 0, 9, 9, 4, 1000, -1, -1), (7, 3, 0, 20, 0, 2000, -1, -1)]
    return struct.pack(">i", len(entries)) + b"".join(struct.pack(">qhiqiqiq", *entry) for entry in entries)


def _frames(data: bytes, _: Path) -> None:
    reader, begin = FrameReader(), 0
    while begin < len(data):
        room = reader.get_buffer()
        size = min(len(room), len(data) - begin, 100)
        room[:size] = data[begin : begin + size]
        begin += size
        for kind, payload in reader.received(size):
            if kind is Kind.HELLO:
                read_hello(payload)


# Records of groups, and patterns


def _group_bodies() -> tuple[bytes, ...]:
    """Key and value, with the key's length in front."""
    partitions = frozenset({PartitionKey(_ID, 0), PartitionKey(_ID, 3)})
    commit, member = group_keys.OffsetCommitKey("g", "t", 1), ("g", "m")
    topics = frozenset({"t", "u"})
    state = group_values.MemberState.UNREVOKED_PARTITIONS
    pairs: list[tuple[Any, Any]] = [
        (commit, group_values.OffsetCommitValue(5, 1, "m", 1000)),
        (commit, group_values.OffsetCommitValue(5, 1, "m", 1000, topic_id=_ID)),
        (commit, group_values.OffsetCommitValue(5, 1, "m", 1000, 2000)),
        (commit, None),
        (group_keys.GroupEpochKey("g"), group_values.GroupEpochValue(3, 77)),
        (
            group_keys.MemberSubscriptionKey(*member),
            group_values.MemberSubscriptionValue("i", "r", "c", "h", topics, "t.*", 1000, "uniform"),
        ),
        (group_keys.TargetEpochKey("g"), group_values.TargetEpochValue(3)),
        (group_keys.TargetAssignmentKey(*member), group_values.TargetAssignmentValue(partitions)),
        (
            group_keys.CurrentAssignmentKey(*member),
            group_values.CurrentAssignmentValue(3, 2, state, partitions, partitions),
        ),
        (group_keys.PatternKey("g", "t.*"), group_values.PatternValue(topics, 4, 1000)),
    ]
    return tuple(map(_pair, pairs))


def _pair(pair: tuple[Any, Any]) -> bytes:
    record = group_codec.encode(*pair, timestamp_ms=0)
    return len(record.key).to_bytes(2, "big") + record.key + (record.value or b"")


def _group_record(data: bytes, _: Path) -> object:
    size = int.from_bytes(data[:2], "big")
    key, value = data[2 : 2 + size], data[2 + size :]
    return group_codec.decode(key, value or None)


def _pattern(data: bytes, _: Path) -> None:
    compiled = compile_pattern(data.decode(errors="replace"))
    compiled.matches("a" * 249)
    compiled.matches("prey-0")


# Values of etcd

_STATE = models.PartitionState(1, 5, 100, (1, 2), (3,), (), 2, 1)
_VALUES: dict[str, tuple[bytes, ...]] = {
    _KEYS.broker(1): (
        models.BrokerRegistration(1, "h:1", "i", "l", extra={"a": "b"}, listeners={"CLIENT": "h:2"}).to_json(),
    ),
    _KEYS.broker_tail(1): (b"100",),
    _KEYS.topic("t"): (models.TopicAssignment("t", _ID, ((1, 2), (2, 1))).to_json(),),
    _KEYS.state("t", 0): (_STATE.to_json(),),
    _KEYS.topic_config("t"): (models.config_to_json({"retention.ms": "1", "cleanup.policy": "compact"}),),
    _KEYS.delete_topic("t"): (_ID.hex().encode(),),
    _KEYS.isr_change(1, 100, 1): (models.IsrNotification(1, 100, 1, (("t", 0), ("u", 1))).to_json(),),
    _KEYS.controller: (models.ControllerRegistration(0, "h:1", 3, "i").to_json(),),
    _KEYS.controller_epoch: (b"3",),
}


def _etcd_value(key: str) -> Callable[[bytes, Path], object]:
    return lambda data, _: decode_snapshot(_KEYS, Listing((Entry(key, data, 1, 2),), 2))


def _etcd_decoders() -> Iterator[Decoder]:
    for key, bodies in _VALUES.items():
        is_json = bodies[0][:1] in b"{["
        yield Decoder(f"etcd {key}", _etcd_value(key), (CorruptMetadataError,), bodies, json=is_json)


def _etcd_key(data: bytes, _: Path) -> object:
    return _KEYS.parse(data.decode(errors="replace"))


def _etcd_entity(data: bytes, _: Path) -> None:
    """Whose configuration a key says it is makes that key again."""
    key = data.decode(errors="replace")
    entity = _KEYS.parse_entity_config(key)
    if entity is not None:
        assert _KEYS.entity_config(entity) == key


def _etcd_acl(data: bytes, _: Path) -> None:
    key = data.decode(errors="backslashreplace")
    try:
        acl = _KEYS.parse_acl(key)
    except ValueError:
        denied = _KEYS.unreadable_acls(key)
        assert denied
        assert not any(map(problem_with, denied))
        raise
    assert _KEYS.parse_acl(_KEYS.acl(acl)) == acl


_ENTITIES = tuple(
    f"{_KEYS.prefix}/config/{each}".encode()
    for each in ("cluster", "brokers/1", "clients/a%2Fb", "users/__default/clients/c")
)
_ACL_KEYS = tuple(
    _KEYS.acl(Acl(ResourceType.TOPIC, pattern, name, user("alice/x"), Operation.READ, PermissionType.ALLOW)).encode()
    for pattern, name in ((PatternType.LITERAL, "*"), (PatternType.PREFIXED, "a.b"))
)


def decoders() -> dict[str, Decoder]:
    """By name."""
    batch, plain = _batch_bodies(), tuple(batches.valid_payload(Random(number)) for number in range(6))
    index = struct.pack(">iiii", 5, 100, 9, 300), struct.pack(">ii", 2**31 - 1, 4000)
    times = struct.pack(">qiqi", 1000, 5, 2000, 9), struct.pack(">qi", 2**62, 7)
    marks = _checkpoint("t 0 5", "u 12 0"), _checkpoint()
    epochs = _checkpoint("0 0", "3 17", "9 100"), _checkpoint()
    metadata = b"version: 0\ntopic_id: " + format_topic_id(_ID).encode()
    boot = json.dumps(dataclasses.asdict(_BOOT)).encode()
    fences = b'[["%s",0,5,1,"rm","ls",4],["%s",1,6,2,"","",null]]\n[["%s",0,-1,0,"",""]]' % ((_ID.hex().encode(),) * 3)
    properties = b"version=0\nbroker.id=1\ncluster.id=abc\ndirectory.id=0123456789012345678901\n"
    backup = backup_file.Backup("c", "id-1", 7, 1000, {"/a": b"1", "/b": b"2"})
    inventory_text = inventory.BrokerInventory(
        1,
        "c",
        (inventory.Directory("/d", "i"),),
        (inventory.Replica("t", _ID, 0, epochs=(EpochEntry(0, 0),)),),
        unidentified=(("u", 1),),
    ).to_json()
    corrupt = (CorruptBatchError,)
    found = [
        Decoder("batch", _decode_batch, corrupt, batch, _sealed),
        Decoder("batch, scanned", _scan_batch, corrupt, batch, _sealed),
        Decoder("batch, its front scanned", _front_says_what_scan_says, corrupt, batch, _sealed),
        Decoder("batch, its few rows scanned", _few_rows_say_what_scan_says, corrupt, batch, _sealed),
        Decoder("batch, scanned and decoded", _scan_says_what_decode_says, corrupt, batch, _sealed),
        Decoder("batch, compacted", _retain_batch, corrupt, batch, _sealed),
        Decoder("batches, split", _split, corrupt, (b"".join(batch[:5]), *batch)),
        Decoder("segment", _walked, (), (b"".join(batch), batch[0])),
        Decoder(
            "varint",
            lambda data, _: decode_varint(data, 0),
            (ValueError, IndexError),
            tuple(map(encode_varint, (0, -1, 2**31))),
        ),
        *(
            Decoder(
                f"codec {codec.name}",
                _decompressed(codec),
                (CorruptPayloadError,),
                tuple(bytes(compress(codec, each)) for each in (*plain, bytes(1 << 20))),
            )
            for codec in Codec
        ),
        Decoder("offset index", _in_file("0.index", _indexed(OffsetIndex)), (), index),
        Decoder("time index", _in_file("0.timeindex", _indexed(TimeIndex)), (), times),
        Decoder("checkpoint", _in_file("c", checkpoints.read_offsets), (checkpoints.CheckpointError,), marks),
        Decoder("leader epochs", _in_file("c", checkpoints.read_epochs), (checkpoints.CheckpointError,), epochs),
        Decoder(
            "fence journal",
            _in_file("f", fence_journal.read_fences),
            (fence_journal.FenceJournalError,),
            (fences,),
            _fences,
            json=True,
        ),
        Decoder(
            "boot record",
            _in_file(boot_record.FILE_NAME, boot_record.read_record, of_directory=True),
            (),
            (boot,),
            json=True,
        ),
        Decoder(
            "meta.properties",
            _in_file(meta_properties.FILE_NAME, meta_properties.read, of_directory=True),
            (),
            (properties,),
        ),
        Decoder(
            "partition.metadata",
            _in_file(partition_metadata.FILE_NAME, partition_metadata.read, of_directory=True),
            (partition_metadata.PartitionMetadataError,),
            (metadata,),
        ),
        Decoder(
            "move, complete",
            _in_file(future_files.COMPLETE, future_files.completed_topic, of_directory=True),
            (ValueError,),
            (b"t",),
        ),
        Decoder(
            "name of a log directory",
            lambda data, _: partition_metadata.parse_directory_name(data.decode(errors="replace")),
            (),
            (b"t-0", b"a.b-c-2147483647"),
        ),
        Decoder(
            "producer snapshot",
            lambda data, _: producer_snapshots.decode(data, 10_000, 0),
            (producer_snapshots.SnapshotError,),
            (_snapshot_body(),),
            _snapshot,
        ),
        Decoder("frames", _frames, (FrameError,), (hello("x") + frame(Kind.MESSAGE, b"abc") * 3,)),
        Decoder("group record", _group_record, (UnreadableRecordError,), _group_bodies()),
        Decoder("pattern", _pattern, (PatternError,), (b"prey-.*", b"(a|b)+[a-c]{1,9}\\d?", b"^(?:x|yy*)$")),
        Decoder(
            "backup of etcd",
            lambda data, _: backup_file.parse(data, "it"),
            (UserError,),
            (gzip.decompress(backup.to_bytes()).rpartition(b'{"sha')[0],),
            _backup,
            json=True,
        ),
        Decoder(
            "inventory",
            lambda data, _: inventory.from_json(data.decode(errors="replace")),
            (UserError,),
            (inventory_text.encode(),),
        ),
        Decoder(
            "etcd key of a configuration", _etcd_entity, (), tuple(_KEYS.prefix.encode() + each for each in _ENTITIES)
        ),
        Decoder("etcd key of an ACL", _etcd_acl, (ValueError,), _ACL_KEYS),
        Decoder("etcd key", _etcd_key, (), tuple(key.encode() for key in _VALUES)),
        *_etcd_decoders(),
    ]
    return {each.name: each for each in found}

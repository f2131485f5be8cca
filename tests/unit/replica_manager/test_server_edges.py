"""Pieces of the server that need no server: hand-made messages, what produced bytes must be, metadata, sessions."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.errors import ErrorCode
from highwater.metadata.schema.models import PartitionState
from highwater.model.partition import PartitionKey
from highwater.records import Codec, Record, encode_columns, encode_rows, iter_batches
from highwater.records.varint import encode_unsigned_varint
from highwater.replica_manager.partition.fetch_sessions import FetchSessions
from highwater.replica_manager.partition.topic_config import TopicConfig, parse
from highwater.replica_manager.replicas.hosted_partition import tail_batches
from highwater.replica_manager.replicas.metadata_cache import CachedPartition, CachedTopic, Endpoint, MetadataCache
from highwater.replica_manager.requests.batch_check import check
from highwater.replica_manager.requests.payload_check import check_payloads
from highwater.replica_manager.requests.payloads import rows_before_columns
from highwater.rpc.embedding import embed
from highwater.v1 import broker_pb2, common_pb2

KEY = PartitionKey(b"t" * 16, 3)
ANY = TopicConfig(min_insync_replicas=1, max_message_bytes=1 << 20, rows_only=False, compacted=False)


def rows(*values: bytes, key: bytes | None = b"k") -> bytes:
    return encode_rows([Record(i, 1000 + i, key, value, ()) for i, value in enumerate(values)], codec=Codec.NONE)


def columns(*values: bytes, key: bytes | None = b"k") -> bytes:
    table = pa.table(
        {
            "timestamp": pa.array([1000] * len(values), pa.int64()),
            "key": pa.array([key] * len(values), pa.binary()),
            "value": pa.array(values, pa.binary()),
        }
    )
    return encode_columns(table, codec=Codec.NONE)


# Messages put together by hand


@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_varints_are_protobufs(value: int) -> None:
    # Field 1 of ProduceRequest is an int64: its tag, then the value.
    assert broker_pb2.ProduceRequest.FromString(b"\x08" + encode_unsigned_varint(value)).correlation_id == value


@given(st.lists(st.lists(st.binary(max_size=400), max_size=4), max_size=4))
def test_a_response_put_together_around_its_records_reads_as_the_same_response(results: list[list[bytes]]) -> None:
    out: list[bytes | bytearray | memoryview] = [broker_pb2.FetchResponse(correlation_id=7).SerializeToString()]
    for offset, pieces in enumerate(results):
        small = broker_pb2.FetchResult(
            partition=common_pb2.PartitionKey(topic_id=KEY.topic_id, partition=3), high_watermark=offset
        )
        embed(out, 2, small.SerializeToString(), 5, [memoryview(piece) for piece in pieces])
    read = broker_pb2.FetchResponse.FromString(b"".join(out))
    assert read.correlation_id == 7
    assert [result.records for result in read.results] == [b"".join(pieces) for pieces in results]
    assert [result.high_watermark for result in read.results] == list(range(len(results)))


# What is produced


def test_whole_batches_are_counted_by_their_offsets() -> None:
    checked = check(rows(b"a", b"b") + columns(b"c"), ANY, 2000)
    assert (checked.error, checked.offsets, len(checked.batches)) == (ErrorCode.NONE, 3, 2)


@pytest.mark.parametrize(
    ("produced", "config", "error"),
    [
        (b"", ANY, ErrorCode.INVALID_REQUEST),
        (rows(b"a")[:-1], ANY, ErrorCode.CORRUPT_MESSAGE),
        (rows(b"a" * 200), TopicConfig(1, 100, False, False), ErrorCode.MESSAGE_TOO_LARGE),
        (columns(b"a"), TopicConfig(1, 1 << 20, True, False), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (rows(b"a", key=None), TopicConfig(1, 1 << 20, False, True), ErrorCode.INVALID_RECORD),
        (columns(b"a", key=None), TopicConfig(1, 1 << 20, False, True), ErrorCode.INVALID_RECORD),
        (columns(b"a"), TopicConfig(1, 1 << 20, False, True), ErrorCode.NONE),
    ],
)
def test_what_a_topic_does_not_take_is_refused(produced: bytes, config: TopicConfig, error: ErrorCode) -> None:
    checked = check(produced, config, 2000)
    if checked.error is ErrorCode.NONE:
        checked = check_payloads(produced, checked, config, 2000)
    assert checked.error is error
    assert bool(checked.message) is (error is not ErrorCode.NONE)


def test_control_batches_are_not_a_producers_to_write() -> None:
    control = bytearray(rows(b"a"))
    control[22] |= 1 << 5
    assert check(bytes(control), ANY, 2000).error is ErrorCode.INVALID_RECORD


def test_topic_configuration_falls_back_to_the_brokers() -> None:
    found = parse(
        {"min.insync.replicas": "2", "cleanup.policy": "delete, compact", "max.message.bytes": "many"},
        min_insync_replicas=1,
        message_max_bytes=500,
        cleanup_policy="delete",
    )
    assert found == TopicConfig(2, 500, rows_only=False, compacted=True)


@pytest.mark.parametrize(
    ("topic", "broker", "compacted"),
    [
        ({}, "delete", False),
        ({}, "compact", True),
        ({}, "compact,delete", True),
        ({"cleanup.policy": "delete"}, "compact", False),
        ({"cleanup.policy": "compact"}, "delete", True),
    ],
)
def test_a_topic_without_a_cleanup_policy_has_the_brokers(topic: dict[str, str], broker: str, compacted: bool) -> None:
    """Records without a key are then refused (RULES 10.3)."""
    found = parse(topic, min_insync_replicas=1, message_max_bytes=500, cleanup_policy=broker)
    assert found.compacted is compacted


def test_what_is_cached_is_what_log_storage_wrote() -> None:
    produced = rows(b"a", b"b") + rows(b"c")
    batches = tail_batches(9, 40, produced, tuple(iter_batches(produced)))
    assert [(batch.base_offset, batch.next_offset) for batch in batches] == [(40, 42), (42, 43)]
    stored = b"".join(piece for batch in batches for piece in batch.pieces)
    assert len(stored) == sum(batch.size_bytes for batch in batches) == len(produced)
    headers = [header for _, header in iter_batches(stored)]
    assert [(header.base_offset, header.partition_leader_epoch) for header in headers] == [(40, 9), (42, 9)]
    assert stored[16:][: headers[0].size_bytes - 16] == produced[16 : headers[0].size_bytes]


# What is read


def test_a_reader_of_rows_gets_the_rows_in_front_of_columns() -> None:
    first, second = rows(b"a"), columns(b"b")
    error, pieces = rows_before_columns([first, second])
    assert (error, b"".join(pieces)) == (ErrorCode.NONE, first)
    assert rows_before_columns([second, first]) == (ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ())


# Metadata


def topic(topic_id: bytes = b"1" * 16, name: str = "orders", epoch: int = 0, revision: int = 10) -> CachedTopic:
    state = PartitionState(leader=1, leader_epoch=epoch, leader_broker_epoch=5, isr=(1,))
    return CachedTopic(name, topic_id, {}, {0: CachedPartition(state, revision, (1,))})


def test_an_older_state_never_replaces_a_newer_one() -> None:
    cache = MetadataCache()
    cache.update([topic(epoch=2, revision=30)], full=True)
    cache.update([topic(epoch=1, revision=40)], full=False)
    cache.update([topic(epoch=2, revision=29)], full=True)
    assert cache.leader(PartitionKey(b"1" * 16, 0)) == (1, 2)
    found = cache.by_name("orders")
    assert found is not None
    assert found.partitions[0].revision == 30


def test_an_id_keeps_its_name_until_it_is_deleted() -> None:
    cache = MetadataCache()
    cache.update([topic(b"1" * 16, "orders")], full=True)
    cache.update([topic(b"1" * 16, "payments", revision=50)], full=False)
    assert [each.topic for each in cache.topics()] == ["orders"]
    assert cache.by_name("payments") is None
    cache.update([], full=False, deleted=[b"1" * 16])
    assert cache.topics() == []
    assert cache.by_name("orders") is None


def test_a_topic_made_again_under_its_name_is_another() -> None:
    cache = MetadataCache()
    cache.update([topic(b"1" * 16)], full=True)
    cache.update([topic(b"2" * 16)], full=False)
    cache.update([], full=False, deleted=[b"1" * 16])
    found = cache.by_name("orders")
    assert found is not None
    assert found.topic_id == b"2" * 16
    cache.update([], full=True)
    assert cache.by_name("orders") is None
    assert cache.topics() == []


def test_partitions_beyond_one_that_is_not_known_yet_are_not_shown() -> None:
    """Clients index partitions by number: while some are being added, they become known in any order."""
    one = topic()
    state = one.partitions[0]
    cache = MetadataCache()
    cache.update([one, replace(one, partitions={2: state})], full=True)
    (found,) = cache.topics()
    assert [number for number, _ in found.numbered()] == [0]
    cache.update([replace(one, partitions={1: state})], full=False)
    assert [number for number, _ in cache.topics()[0].numbered()] == [0, 1, 2]


def test_one_partition_is_put_in_its_place_and_the_others_of_its_topic_stay_in_theirs() -> None:
    """Where they were copied for each, a topic of n partitions would cost n * n."""
    cache = MetadataCache()
    one = topic()
    cache.update([one], full=True)
    before = cache.by_name("orders")
    assert before is not None
    for number in range(1, 100):
        cache.update([replace(one, partitions={number: one.partitions[0]})], full=False)
    after = cache.by_name("orders")
    assert after is not None
    assert after is not before
    assert after.partitions is before.partitions
    assert len(after.partitions) == 100


def test_what_a_caller_gives_is_not_changed_afterwards() -> None:
    one = topic()
    state = one.partitions[0]
    cache = MetadataCache()
    cache.update([one], full=True)
    cache.update([replace(one, partitions={1: state})], full=False)
    assert list(one.partitions) == [0]


def test_an_address_of_an_earlier_registration_does_not_replace_a_later_one() -> None:
    cache = MetadataCache()
    cache.set_brokers([Endpoint(1, 50, "new:1", "")])
    cache.add_brokers([Endpoint(1, 40, "old:1", ""), Endpoint(2, 45, "two:1", "")])
    assert {broker.address for broker in cache.brokers.values()} == {"new:1", "two:1"}


# Sessions


def test_the_newest_stream_takes_a_session_over() -> None:
    sessions = FetchSessions()
    older = sessions.open(1, 50, 0)
    newer = sessions.open(1, 50, 0)
    other = sessions.open(1, 50, 1)
    assert newer.number > older.number
    assert not sessions.is_newest(older)
    sessions.close(older)
    assert sessions.is_newest(newer)
    assert sessions.is_newest(other)

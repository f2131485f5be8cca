"""A leader looks into what is produced before it is appended: in a thread, and in the order of each stream."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
from test_late_appends import KEY, Leader, Log
from test_late_appends import batch as small_batch

from highwater.errors import ErrorCode
from highwater.records import Codec, Record, encode_lists, encode_rows
from highwater.records.codecs import compress
from highwater.records.header import CHECKED_FROM, HEADER_BYTES, crc32c
from highwater.records.varint import encode_varint
from highwater.replica_manager.partition.topic_config import TopicConfig
from highwater.replica_manager.requests import payload_check
from highwater.replica_manager.requests.batch_check import CheckedBatches, check
from highwater.replica_manager.requests.payload_check import (
    INLINE_COLUMN_BYTES,
    INLINE_ROWS,
    InlineChecks,
    check_payloads,
)
from highwater.replica_manager.requests.produce import PARTS_AT_ONCE, ProducePart, ProduceResult
from highwater.replica_manager.server.broker_servicer import BrokerServicer
from highwater.rpc.listeners import Listener
from highwater.rpc.partition_keys import to_key
from highwater.v1 import broker_pb2

NOW = 1_800_000_000_000
CONFIG = TopicConfig(min_insync_replicas=1, max_message_bytes=1 << 20, rows_only=False, compacted=False)
COMPACTED = replace(CONFIG, compacted=True)
MAX_TIMESTAMP_AT, BASE_TIMESTAMP_AT = 35, 27


def rows(count: int = 3, codec: Codec = Codec.NONE, key: bytes | None = b"k", value: bytes = b"value") -> bytes:
    return encode_rows([Record(0, NOW + number, key, value) for number in range(count)], codec=codec)


def columns(count: int = 3, codec: Codec = Codec.NONE, key: bytes | None = b"k", value: bytes = b"value") -> bytes:
    return encode_lists(range(NOW, NOW + count), [key] * count, [value] * count, codec=codec)


def sealed(batch: bytes) -> bytes:
    changed = bytearray(batch)
    struct.pack_into(">i", changed, 8, len(changed) - 12)
    struct.pack_into(">I", changed, 17, crc32c(bytes(changed[CHECKED_FROM:])))
    return bytes(changed)


def with_time(batch: bytes, position: int, timestamp: int) -> bytes:
    changed = bytearray(batch)
    struct.pack_into(">q", changed, position, timestamp)
    return sealed(bytes(changed))


def outcome(produced: bytes, config: TopicConfig = CONFIG) -> CheckedBatches:
    checked = check(produced, config, NOW)
    assert checked.error is ErrorCode.NONE, checked.message
    found = check_payloads(produced, checked, config, NOW)
    assert not InlineChecks().sound(produced, checked, config, NOW) or found == checked
    return found


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("encode", [rows, columns])
def test_what_producers_send_is_taken(encode: Any, codec: Codec) -> None:
    for config in (CONFIG, COMPACTED):
        two = encode(codec=codec) + encode(1000, codec)
        assert outcome(two, config) == check(two, config, NOW)
    assert outcome(encode(codec=codec, key=None)).error is ErrorCode.NONE
    keyless = outcome(encode(codec=codec, key=None), COMPACTED)
    assert (keyless.error, keyless.message) == (
        ErrorCode.INVALID_RECORD,
        "the batch at byte 0 has 3 records without a key, the topic is compacted",
    )


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("encode", [rows, columns])
def test_garbage_under_a_right_crc_is_refused(encode: Any, codec: Codec) -> None:
    good = encode(codec=codec)
    garbage = b"\xde\xad\xbe\xef" * 20
    for payload in (garbage, bytes(compress(codec, garbage)), good[HEADER_BYTES:-1], good[HEADER_BYTES:] + b"\0"):
        found = outcome(good + sealed(good[:HEADER_BYTES] + payload))
        assert found.error is ErrorCode.CORRUPT_MESSAGE
        assert found.message.startswith(f"the batch at byte {len(good)} cannot be decoded: ")


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_a_payload_that_expands_beyond_the_multiple_is_too_large(codec: Codec) -> None:
    wide = replace(CONFIG, max_message_bytes=4 << 20)
    batch = encode_rows([Record(0, NOW, b"k", bytes(20 << 20))], codec=codec)
    assert outcome(batch, wide).error is ErrorCode.NONE
    found = outcome(batch, replace(wide, max_message_bytes=len(batch)))
    assert found.error is ErrorCode.MESSAGE_TOO_LARGE
    assert "the limit is 16777216 where max.message.bytes is" in found.message
    assert found.message.endswith("send smaller batches")


def test_six_million_empty_headers_are_refused() -> None:
    body = b"\0\0\0" + encode_varint(-1) + encode_varint(-1) + encode_varint(6_000_000) + b"\0\1" * 6_000_000
    payload = compress(Codec.ZSTD, encode_varint(len(body)) + body)
    batch = sealed(rows(1, Codec.ZSTD)[:HEADER_BYTES] + bytes(payload))
    assert len(batch) < 2_000
    for config in (CONFIG, COMPACTED):
        found = outcome(batch, config)
        assert found.error is ErrorCode.INVALID_RECORD
        assert "a record has 6000000 headers, the limit is 1000" in found.message


@pytest.mark.parametrize("encode", [rows, columns])
@pytest.mark.parametrize("lie", [NOW + 2 + 1, NOW + 1, NOW + 3_600_000, -1])
def test_the_headers_largest_timestamp_is_the_records(encode: Any, lie: int) -> None:
    found = outcome(with_time(encode(), MAX_TIMESTAMP_AT, lie))
    assert found.error is ErrorCode.INVALID_TIMESTAMP
    assert f"has the largest timestamp {lie} in its header, its records' is {NOW + 2}" in found.message


def test_a_timestamp_of_the_end_of_time_is_refused_by_its_header() -> None:
    endless = replace(CONFIG, timestamp_after_max_ms=2**63 - 1)
    for batch in (rows(), columns()):
        lying = with_time(batch, MAX_TIMESTAMP_AT, 2**63 - 1)
        assert check(lying, endless, NOW).error is ErrorCode.INVALID_TIMESTAMP


def test_the_first_timestamp_of_columns_is_the_headers() -> None:
    found = outcome(with_time(columns(), BASE_TIMESTAMP_AT, NOW - 1))
    assert found.error is ErrorCode.INVALID_TIMESTAMP
    assert f"has the first timestamp {NOW - 1} in its header, its first record's is {NOW}" in found.message


def test_what_takes_little_time_is_checked_at_once_and_the_rest_in_a_thread() -> None:
    def at_once(produced: bytes, inline: InlineChecks | None = None) -> bool:
        return (inline or InlineChecks()).sound(produced, check(produced, CONFIG, NOW), CONFIG, NOW)

    assert at_once(rows())
    assert at_once(rows(codec=Codec.ZSTD))
    assert not at_once(rows(1000))
    assert not at_once(rows(1, Codec.ZSTD, value=bytes(1 << 20)))
    assert at_once(columns())
    assert at_once(columns(1000, Codec.LZ4, value=bytes(4096)))
    assert not at_once(columns(codec=Codec.ZSTD))
    assert not at_once(columns(3, Codec.LZ4, value=bytes(INLINE_COLUMN_BYTES // 3)))
    assert not at_once(sealed(columns(codec=Codec.LZ4)[:-8]))
    assert not at_once(with_time(columns(codec=Codec.LZ4), MAX_TIMESTAMP_AT, NOW + 9))


def test_what_a_request_has_checked_at_once_is_bounded_for_all_its_batches() -> None:
    """10,000 parts of what each was soon done held the event loop for seconds."""
    for batch, most in ((rows(100), INLINE_ROWS // 100), (columns(codec=Codec.LZ4), INLINE_COLUMN_BYTES // (64 << 10))):
        inline = InlineChecks()
        checked = check(batch, CONFIG, NOW)
        found = [inline.sound(batch, checked, CONFIG, NOW) for _ in range(2 * most)]
        assert found == [True] * most + [False] * most


class Gate:
    """Holds the threads that look into batches until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()
        self.threads: set[int] = set()

        def gated(*arguments: Any) -> CheckedBatches:
            self.threads.add(threading.get_ident())
            self.entered.set()
            assert self.opened.wait(10)
            return check_payloads(*arguments)

        monkeypatch.setattr("highwater.replica_manager.requests.payload_check.check_payloads", gated)


def large(number: int) -> bytes:
    return encode_rows([Record(0, 1000, None, b"%d" % number * 9000)])


async def test_a_streams_requests_keep_their_order_while_a_thread_looks_into_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate(monkeypatch)
    leader = Leader(log := Log())
    batches = [large(1), small_batch(2), large(3), small_batch(4)]

    async def requests() -> AsyncIterator[broker_pb2.ProduceRequest]:
        for number, records in enumerate(batches):
            part = broker_pb2.ProducePartition(partition=to_key(KEY), records=records)
            yield broker_pb2.ProduceRequest(correlation_id=number, acks=1, timeout_ms=1_000, partitions=[part])

    nothing: Any = None
    servicer = BrokerServicer(
        leader.replica_manager,
        leader.produce_handler,
        nothing,
        nothing,
        nothing,
        nothing,
        nothing,
        cluster_id=lambda: "",
        listener=Listener("internal", "internal"),
    )
    responses = servicer.ProduceStream(requests(), nothing)
    first = asyncio.ensure_future(anext(responses))
    assert await asyncio.to_thread(gate.entered.wait, 10)
    assert not log.sent  # nor what came behind it
    assert leader.slots == (1, len(batches[0]))  # and it counts
    gate.opened.set()
    async with asyncio.timeout(10):
        while len(log.sent) < len(batches):  # noqa: ASYNC110  log-storage's stand-in has no event
            await asyncio.sleep(0)
        assert [bytes(append.records) for append, _ in log.sent] == batches
        log.answer_all()
        assert [(await first).correlation_id] + [(await anext(responses)).correlation_id for _ in batches[1:]] == [
            0,
            1,
            2,
            3,
        ]
    await responses.aclose()  # type: ignore[attr-defined]
    assert threading.get_ident() not in gate.threads
    assert leader.slots == (0, 0)


async def test_a_replica_that_goes_meanwhile_refuses_what_was_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    leader = Leader(log := Log())
    answers: list[ProduceResult] = []
    handed_over = leader.produce_handler.submit(1, 1_000, [ProducePart(KEY, large(1))], answers.extend)
    assert handed_over is not None
    leader.replica_manager.hosted.pop(KEY)
    gate.opened.set()
    await asyncio.wait_for(handed_over, 10)
    assert [answer.error for answer in answers] == [ErrorCode.UNKNOWN_TOPIC_ID]
    assert not log.sent
    assert leader.slots == (0, 0)


async def test_requests_that_are_looked_into_count_among_those_that_will_wait() -> None:
    """What is admitted is not refused once it is written: a retry would write it again."""
    leader = Leader(log := Log(), max_waits=2)
    answers: list[ProduceResult] = []
    futures = [
        leader.produce_handler.submit(-1, 1_000, [ProducePart(KEY, large(number))], answers.extend)
        for number in range(8)
    ]
    refused = [answer.error for answer in answers]
    assert refused == [ErrorCode.OVERLOADED] * 6
    await asyncio.wait_for(asyncio.gather(*(each for each in futures if each is not None)), 10)
    log.answer_all()
    assert [answer.error for answer in answers] == refused  # two wait for followers
    assert log.log_end_offset == 2


async def test_a_request_of_many_partitions_leaves_others_their_turn() -> None:
    leader = Leader(log := Log(), max_waits=10_000)
    count = 2 * PARTS_AT_ONCE + 1
    parts = [ProducePart(KEY, small_batch(number)) for number in range(count)]
    answers: list[ProduceResult] = []
    handed_over = leader.produce_handler.submit(1, 1_000, parts, answers.extend)
    assert handed_over is not None
    at_turns = [len(log.sent)]
    while not handed_over.done():
        await asyncio.sleep(0)
        at_turns.append(len(log.sent))
    assert sorted(set(at_turns)) == [PARTS_AT_ONCE, 2 * PARTS_AT_ONCE, count]
    assert [bytes(append.records) for append, _ in log.sent] == [part.records for part in parts]
    log.answer_all()
    assert [answer.base_offset for answer in answers] == list(range(count))
    assert leader.slots == (0, 0)


async def test_a_thread_looks_into_those_of_many_that_need_it() -> None:
    leader = Leader(log := Log(), max_waits=10_000)
    needing = 5
    parts = [
        ProducePart(KEY, large(number) if number % (PARTS_AT_ONCE // needing) == 0 else small_batch(number))
        for number in range(PARTS_AT_ONCE + 1)
    ]
    answers: list[ProduceResult] = []
    handed_over = leader.produce_handler.submit(1, 1_000, parts, answers.extend)
    assert handed_over is not None
    assert not log.sent
    await asyncio.wait_for(handed_over, 10)
    assert [bytes(append.records) for append, _ in log.sent] == [part.records for part in parts]
    log.answer_all()
    assert {answer.error for answer in answers} == {ErrorCode.NONE}
    assert leader.slots == (0, 0)


async def test_a_request_that_cannot_be_handed_over_ends_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Leader(Log())

    def failing(*_: Any, **__: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(leader.produce_handler, "_append", failing)
    handed_over = leader.produce_handler.submit(1, 1_000, [ProducePart(KEY, large(1))], lambda results: None)
    assert handed_over is not None
    with pytest.raises(RuntimeError, match="a bug"):
        await asyncio.wait_for(handed_over, 10)


@pytest.mark.parametrize("acks", [0, 1, -1])
@pytest.mark.parametrize("until_done", [False, True])
@pytest.mark.parametrize("made", [large, small_batch], ids=["by a thread", "at once"])
async def test_a_request_that_is_handed_over_in_part_gives_its_slot_back(
    monkeypatch: pytest.MonkeyPatch, acks: int, until_done: bool, made: Callable[[int], bytes]
) -> None:
    leader = Leader(log := Log())
    handler = leader.produce_handler
    hand_over = handler.hand_over

    def failing(request: Any, index: int, *rest: Any) -> None:
        if index == 1:
            raise RuntimeError("a bug")
        hand_over(request, index, *rest)

    monkeypatch.setattr(handler, "hand_over", failing)
    answers: list[ProduceResult] = []
    parts = [ProducePart(KEY, made(number)) for number in range(3)]

    async def submit() -> None:
        handed_over = handler.submit(acks, 0, parts, answers.extend, until_done=until_done)
        assert handed_over is not None
        await asyncio.wait_for(handed_over, 10)

    with pytest.raises(RuntimeError, match="a bug"):
        await submit()
    log.answer_all()
    leader.time_passes(1)
    assert leader.slots == (0, 0)
    assert handler._coming == 0
    if acks:
        assert [answer.error for answer in answers[1:]] == [ErrorCode.UNKNOWN_SERVER_ERROR] * 2


async def test_an_append_that_raises_is_not_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Leader(log := Log())
    pipeline = leader.hosted.pipeline
    assert pipeline is not None
    append = pipeline.append

    def failing(*args: Any, **named: Any) -> None:
        append(*args, **named)
        raise RuntimeError("a bug, when it is sent already")

    monkeypatch.setattr(pipeline, "append", failing)
    with pytest.raises(RuntimeError, match="a bug"):
        leader.produce_handler.submit(-1, 1_000, [ProducePart(KEY, small_batch(1))], lambda results: None)
    log.answer_all()
    assert leader.slots == (0, 0)
    assert leader.produce_handler._coming == 0


async def test_a_check_that_fails_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a bug")

    monkeypatch.setattr(payload_check, "scan_payload", failing)
    leader = Leader(Log())
    answers: list[ProduceResult] = []
    handed_over = leader.produce_handler.submit(1, 1_000, [ProducePart(KEY, large(1))], answers.extend)
    assert handed_over is not None
    await asyncio.wait_for(handed_over, 10)
    assert [answer.error for answer in answers] == [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert "a bug" in answers[0].message


async def test_a_part_that_is_refused_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Leader(log := Log())
    garbage = sealed(large(1)[:HEADER_BYTES] + b"\xff" * 9000)
    answers: list[ProduceResult] = []
    parts = [ProducePart(KEY, garbage), ProducePart(KEY, large(2))]
    handed_over = leader.produce_handler.submit(1, 1_000, parts, answers.extend)
    assert handed_over is not None
    await asyncio.wait_for(handed_over, 10)
    log.answer_all()
    assert [answer.error for answer in answers] == [ErrorCode.CORRUPT_MESSAGE, ErrorCode.NONE]

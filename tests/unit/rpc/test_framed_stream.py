"""Frames, however they arrive."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from highwater.rpc.connections.channel import MAX_MESSAGE_BYTES
from highwater.rpc.framed_stream import (
    FrameError,
    FrameReader,
    Kind,
    frame,
    frame_header,
    hello,
    read_hello,
    socket_path,
)
from highwater.rpc.listeners import check_address

BUFFER_BYTES = 256 << 10


def feed(reader: FrameReader, data: bytes, most: int = 1 << 30) -> list[tuple[Kind, bytes]]:
    """As a socket does that has at most so many bytes at a time."""
    found = []
    while data:
        room = reader.get_buffer()
        assert len(room) > 0
        count = min(len(room), len(data), most)
        room[:count] = data[:count]
        data = data[count:]
        found += [(kind, bytes(payload)) for kind, payload in reader.received(count)]
    return found


def greeted() -> FrameReader:
    reader = FrameReader()
    assert feed(reader, hello("one")) == [(Kind.HELLO, b"\x01one")]
    return reader


sizes = st.one_of(
    st.integers(0, 40), st.integers(BUFFER_BYTES - 10, BUFFER_BYTES + 10), st.integers(0, 3 * BUFFER_BYTES)
)


@settings(max_examples=60, deadline=None)
@given(st.lists(sizes, max_size=8), st.one_of(st.integers(1, 64), st.integers(1000, 600_000)))
def test_frames_come_whole_and_in_order_however_they_are_cut(lengths: list[int], most: int) -> None:
    payloads = [bytes([number + 1]) * length for number, length in enumerate(lengths)]
    if sum(lengths) // most > 20_000:
        most = 4096
    stream = hello("x") + b"".join(frame(Kind.MESSAGE, payload) for payload in payloads)
    assert feed(FrameReader(), stream, most) == [
        (Kind.HELLO, b"\x01x"),
        *((Kind.MESSAGE, payload) for payload in payloads),
    ]


def test_a_large_payload_has_one_object_and_no_copy() -> None:
    reader = greeted()
    payload = b"r" * (8 << 20)
    stream = frame(Kind.MESSAGE, payload)
    tracemalloc.start()
    room = reader.get_buffer()
    room[: len(room)] = stream[: len(room)]
    assert list(reader.received(len(room))) == []
    given = len(room)
    while given < len(stream):
        room = reader.get_buffer()
        assert len(room) == len(stream) - given  # the socket may fill it in one go
        room[:100_000] = stream[given : given + 100_000]
        count = min(100_000, len(room))
        found = list(reader.received(count))
        given += count
    assert [(kind, len(taken)) for kind, taken in found] == [(Kind.MESSAGE, len(payload))]
    assert found[0][1] == payload
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < len(payload) + (2 << 20)


def test_the_payloads_of_one_arrival_are_kept_apart() -> None:
    """The buffer is used again, and what was handed out is not changed by that."""
    reader = greeted()
    first = feed(reader, frame(Kind.MESSAGE, b"first"))
    feed(reader, frame(Kind.MESSAGE, b"later"))
    assert first == [(Kind.MESSAGE, b"first")]


@pytest.mark.parametrize(
    ("stream", "says"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "unknown kind"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "unknown kind"),
        (frame(Kind.MESSAGE, b"too early"), "MESSAGE where it has no place"),
        (hello() + hello(), "HELLO where it has no place"),
        (hello() + frame(Kind.REFUSED, b"late"), "REFUSED where it has no place"),
        ((1 << 20).to_bytes(4, "little") + bytes([Kind.HELLO]), "1048576 bytes, where 1024"),
        (hello() + (MAX_MESSAGE_BYTES + 1).to_bytes(4, "little") + bytes([Kind.MESSAGE]), "where 134217728"),
    ],
)
def test_what_is_no_frame_is_refused_before_anything_is_kept_for_it(stream: bytes, says: str) -> None:
    with pytest.raises(FrameError, match=says):
        feed(FrameReader(), stream)


def test_a_frame_that_no_peer_would_take_is_not_made() -> None:
    assert len(frame_header(Kind.MESSAGE, MAX_MESSAGE_BYTES)) == 5
    with pytest.raises(FrameError, match="134217729 bytes"):
        frame_header(Kind.MESSAGE, MAX_MESSAGE_BYTES + 1)


def test_a_greeting() -> None:
    assert hello("ab12") == b"\x05\x00\x00\x00\x01\x01ab12"  # in every version
    assert read_hello(b"\x01ab12") == (1, "ab12")
    assert read_hello(b"\x07whatever comes") == (7, "whatever comes")
    with pytest.raises(FrameError, match="without a version"):
        read_hello(b"")


def test_where_the_socket_of_an_address_stands() -> None:
    path = socket_path("unix:/run/s", ".append")
    assert str(path) == "/run/s.append"
    assert socket_path("127.0.0.1:9083", ".append") is None
    longest = "unix:/" + "p" * 99
    check_address(longest)
    assert len(str(socket_path(longest, ".append"))) == 107  # what a socket's path may have

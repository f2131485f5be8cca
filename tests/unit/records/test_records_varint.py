"""Zig-zag varints."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.records.errors import CorruptPayloadError
from highwater.records.varint import decode_varint, encode_varint


@given(value=st.integers(-(2**63), 2**63 - 1))
def test_varints_round_trip(value: int) -> None:
    encoded = encode_varint(value)
    assert decode_varint(b"-" + encoded + b"-", 1) == (value, 1 + len(encoded))
    assert len(encoded) <= 10


@pytest.mark.parametrize(
    ("value", "encoded"), [(0, "00"), (-1, "01"), (1, "02"), (63, "7e"), (64, "8001"), (-65, "8101")]
)
def test_varints_are_protobufs(value: int, encoded: str) -> None:
    assert encode_varint(value) == bytes.fromhex(encoded)


def test_varints_are_bounded() -> None:
    for endless in (b"\x80" * 20, b"\xff" * 9 + b"\x7f"):
        with pytest.raises(CorruptPayloadError, match="64 bits"):
            decode_varint(endless, 0)


@pytest.mark.parametrize("value", [1 << 63, -(1 << 63) - 1])
def test_what_is_no_int64_is_refused_not_mangled(value: int) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        encode_varint(value)

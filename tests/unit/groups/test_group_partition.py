"""Kafka's partition of a group, by what Java's `String.hashCode` gives."""

from __future__ import annotations

import pytest

from highwater.groups.group_partition import partition_for


@pytest.mark.parametrize(
    ("group", "java_hash"),
    [
        ("", 0),
        ("a", 97),
        ("abc", 96354),
        ("hello", 99162322),
        ("Hello World", -862545276),
        ("polygenelubricants", -(2**31)),  # whose absolute value is no int: Kafka takes 0
        ("ä", 228),
        ("😀", 1772899),  # two UTF-16 units: 0xD83D * 31 + 0xDE00
    ],
)
def test_partition_is_kafkas(group: str, java_hash: int) -> None:
    expected = 0 if java_hash == -(2**31) else abs(java_hash)
    assert partition_for(group) == expected % 50
    assert partition_for(group, 7) == expected % 7

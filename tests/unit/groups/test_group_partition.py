"""Kafka's partition of a group, by what Java's `String.hashCode` gives."""

from __future__ import annotations

import weakref

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


class GroupId(str):
    """That can be seen to go."""


def test_long_ids_are_not_kept_for_whoever_asks_for_them() -> None:
    """16,384 of 32,767 bytes each, with one character that takes four of them, were 2 GB for good."""
    kept = weakref.WeakValueDictionary[int, GroupId]()
    for number in range(300):
        kept[number] = group_id = GroupId(f"{number:03}" + "a" * 300)
        partition_for(group_id)
    assert len(kept) < 100

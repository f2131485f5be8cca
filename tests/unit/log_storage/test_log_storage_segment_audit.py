"""What an audit of a segment says of it, beside a log-storage that may be writing it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_storage_batches import batch

from highwater.log_storage.inspect.segment_audit import Damage, DamagedRange, SegmentTask, WalkedBatch, audit_segment

BATCHES = [batch(2, base_offset=100 + 2 * number, epoch=1, value=b"v" * 50) for number in range(6)]
SIZE = len(BATCHES[0])


def write(path: Path, *batches: bytes) -> str:
    path.write_bytes(b"".join(batches))
    return str(path)


def walked(
    path: str, *, until: int | None = None, log_start: int = 0, end: int = 112, compacted_to: int = 0
) -> list[str]:
    """`100-101` for a batch, `corrupt 102-103` for damage."""
    found = audit_segment(SegmentTask(path, 100, until, log_start, end, compacted_to))
    return [
        f"{one.header.base_offset}-{one.header.last_offset}"
        if isinstance(one, WalkedBatch)
        else f"{one.kind.value} {one.first_offset}-{one.last_offset}"
        for one in found
    ]


ALL = [f"{first}-{first + 1}" for first in range(100, 112, 2)]


def test_a_sound_segment(tmp_path: Path) -> None:
    path = write(tmp_path / "s", *BATCHES)
    assert walked(path) == ALL
    assert walked(path, until=112, end=500) == ALL
    assert walked(path, log_start=103, end=108) == ["102-103", "104-105", "106-107"]


def test_above_the_high_watermark_nothing_is_asked(tmp_path: Path) -> None:
    torn = BATCHES[5][:-3]
    assert walked(write(tmp_path / "torn", *BATCHES[:5], torn), end=110) == ALL[:5]
    assert walked(write(tmp_path / "zeros", *BATCHES[:5], bytes(61)), end=110) == ALL[:5]
    assert walked(write(tmp_path / "short", *BATCHES[:5], BATCHES[5][:20]), end=110) == ALL[:5]
    flipped = BATCHES[5][:-1] + bytes([BATCHES[5][-1] ^ 1])
    assert walked(write(tmp_path / "flipped", *BATCHES[:5], flipped), end=110) == ALL[:5]
    assert walked(write(tmp_path / "empty"), end=100) == []


def test_below_it_everything_is(tmp_path: Path) -> None:
    torn = BATCHES[5][:-3]
    assert walked(write(tmp_path / "torn", *BATCHES[:5], torn)) == [*ALL[:5], "corrupt 110-111"]
    assert walked(write(tmp_path / "cut", *BATCHES[:4])) == [*ALL[:4], "missing 108-111"]
    assert walked(write(tmp_path / "hole", *BATCHES[:2], *BATCHES[3:])) == [*ALL[:2], "missing 104-105", *ALL[3:]]
    assert walked(str(tmp_path / "gone"), until=106) == ["missing 100-105"]
    assert walked(str(tmp_path / "gone"), until=106, log_start=106) == []
    zeroed = write(tmp_path / "zeroed", *BATCHES[:2], bytes(SIZE), *BATCHES[3:])
    assert walked(zeroed) == [*ALL[:2], "corrupt 104-111"]
    assert walked(zeroed, until=110, end=500) == [*ALL[:2], "corrupt 104-109"]
    assert walked(write(tmp_path / "twice", *BATCHES[:2], *BATCHES[1:]), end=112)[:2] == ALL[:2]


def test_a_disk_that_does_not_give_back_what_it_has(tmp_path: Path) -> None:
    """A directory can be opened, and not be read."""
    (found,) = audit_segment(SegmentTask(str(tmp_path), 100, None, 0, 112, 0))
    assert found == DamagedRange(100, 111, "the file cannot be read: Is a directory")


def test_a_batch_that_is_damaged_hides_only_itself(tmp_path: Path) -> None:
    flipped = BATCHES[2][:-1] + bytes([BATCHES[2][-1] ^ 1])
    assert walked(write(tmp_path / "flipped", *BATCHES[:2], flipped, *BATCHES[3:])) == [
        *ALL[:2],
        "corrupt 104-105",
        *ALL[3:],
    ]
    # Offset and epoch stand outside of the CRC.
    moved = (50).to_bytes(8, "big") + BATCHES[2][8:]
    assert walked(write(tmp_path / "moved", *BATCHES[:2], moved, *BATCHES[3:])) == [
        *ALL[:2],
        "corrupt 104-105",
        *ALL[3:],
    ]


def test_compaction_leaves_gaps(tmp_path: Path) -> None:
    path = write(tmp_path / "s", BATCHES[1], BATCHES[3], BATCHES[5])
    kept = [ALL[1], ALL[3], ALL[5]]
    assert walked(path, compacted_to=112) == kept
    assert walked(path, compacted_to=106) == [ALL[1], ALL[3], "missing 108-109", ALL[5]]
    assert walked(path, compacted_to=105) == [ALL[1], "missing 105-105", ALL[3], "missing 108-109", ALL[5]]


@pytest.mark.parametrize("end", [104, 112])
@given(position=st.integers(0, 6 * SIZE - 1), bit=st.integers(0, 7))
def test_no_flipped_bit_below_the_high_watermark_goes_unseen(
    tmp_path_factory: pytest.TempPathFactory, end: int, position: int, bit: int
) -> None:
    """Unless it is in the leader epoch, which only the other replicas can tell."""
    content = bytearray(b"".join(BATCHES))
    content[position] ^= 1 << bit
    path = tmp_path_factory.mktemp("walk") / "s"
    path.write_bytes(content)
    found = list(audit_segment(SegmentTask(str(path), 100, None, 0, end, 0)))
    damaged = [one for one in found if isinstance(one, DamagedRange)]
    batches = [one for one in found if isinstance(one, WalkedBatch)]
    offsets = [(one.header.base_offset, one.header.last_offset) for one in batches]
    epochs = {one.header.partition_leader_epoch for one in batches}
    inside = 12 <= position % SIZE < 16
    below = position < (end - 100) // 2 * SIZE
    if below and not inside:
        assert damaged
    if not below:
        assert not damaged
        assert offsets == [(first, first + 1) for first in range(100, end, 2)]
    if below and inside:
        assert len(epochs) == 2 or damaged  # a negative one is no epoch
    assert all(100 <= one.first_offset <= one.last_offset < end for one in damaged)
    assert all(one.kind in (Damage.CORRUPT, Damage.MISSING) for one in damaged)

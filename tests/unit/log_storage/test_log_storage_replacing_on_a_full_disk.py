"""A volume that is full when cleaned segments are to take the place of others: the log goes on with the old ones."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from faulty_disk import FaultyDisk
from log_storage_batches import batch, lead, read_all
from test_log_storage_replacing import SMALL, cleaned, filled, offsets

from highwater.errors import ErrorCode
from highwater.log_storage.errors import LogError
from highwater.log_storage.recovery.recovery import Checkpointed, open_log


@pytest.mark.parametrize("operations", [("open",), ("replace",), ("fsync",)])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE])
def test_the_log_stays_online_and_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operations: tuple[str, ...], number: int
) -> None:
    log = filled(tmp_path)
    old = log.segments[1:4]
    new = cleaned(log, old, [3, 6, 7], split_at=6)
    disk = FaultyDisk(tmp_path.parent, monkeypatch)
    disk.fail(operations, number)
    with pytest.raises(LogError) as refused:
        log.replacement.replace(old, new)
    disk.heal()
    assert log.failure is None
    if number != errno.EMFILE:
        assert refused.value.code is ErrorCode.STORAGE_FULL
    assert offsets(log) == list(range(10))
    lead(log, batch())
    log.flush()
    # Nothing of them is left that a start would put into the log.
    assert not list(tmp_path.glob("*.swap")) + list(tmp_path.glob("*.cleaned"))
    again = open_log(tmp_path, SMALL, Checkpointed(recovery_point=log.recovery_point, high_watermark=11))
    assert [header.base_offset for header in read_all(again)] == list(range(11))


def test_the_reserve_makes_room_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path)
    old = log.segments[1:4]
    new = cleaned(log, old, [3, 6, 7])
    tried = []

    def using_reserve(work):  # type: ignore[no-untyped-def]
        try:
            tried.append(work)
            raise OSError(errno.ENOSPC, "full")
        except OSError:
            return work()

    monkeypatch.setattr(log.disk, "using_reserve", using_reserve)
    assert log.replacement.replace(old, new)
    assert len(tried) > 4
    assert offsets(log) == [0, 1, 3, 6, 7, 8, 9]

"""Reads that several share: one at a time of the same, an outcome for each, and none that nobody waits for."""

from __future__ import annotations

import asyncio

import pytest

from highwater.replica_manager.storage import shared_reads
from highwater.replica_manager.storage.shared_reads import SharedReads


class Disk:
    def __init__(self) -> None:
        self.begun = 0
        self.cancelled = 0
        self.answers: list[asyncio.Future[str]] = []

    async def read(self) -> str:
        self.begun += 1
        self.answers.append(asyncio.get_running_loop().create_future())
        try:
            return await self.answers[-1]
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


async def begun(
    disk: Disk, reads: SharedReads[str], keys: list[str], *, max_bytes: int = 100
) -> list[asyncio.Task[str]]:
    tasks = [asyncio.create_task(reads.read(key, max_bytes, disk.read)) for key in keys]
    await settled()
    return tasks


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> SharedReads[str]:
    monkeypatch.setattr(shared_reads, "KEPT_S", 0.2)
    return SharedReads(len)


async def nothing_is_kept(reads: SharedReads[str]) -> None:
    async with asyncio.timeout(10):
        while len(reads):  # noqa: ASYNC110  (a timer lets go of it)
            await asyncio.sleep(0.01)


async def test_those_that_ask_for_the_same_ask_once(reads: SharedReads[str]) -> None:
    disk = Disk()
    tasks = await begun(disk, reads, ["a", "a", "b", "a"])
    assert disk.begun == 2
    disk.answers[0].set_result("A")
    disk.answers[1].set_result("B")
    assert await asyncio.gather(*tasks) == ["A", "A", "B", "A"]


async def test_who_comes_a_moment_later_has_the_same_and_later_ones_read_anew(reads: SharedReads[str]) -> None:
    disk = Disk()
    (first,) = await begun(disk, reads, ["a"])
    disk.answers[0].set_result("old")
    assert await first == "old"
    assert await reads.read("a", 100, disk.read) == "old"
    await nothing_is_kept(reads)
    (later,) = await begun(disk, reads, ["a"])
    disk.answers[1].set_result("new")
    assert await later == "new"


async def test_what_is_kept_is_bounded(reads: SharedReads[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_reads, "KEPT_BYTES", 5)
    disk = Disk()
    tasks = await begun(disk, reads, ["a", "b", "c"])
    for answer, outcome in zip(disk.answers, ("123", "456", "78"), strict=True):
        answer.set_result(outcome)
    await asyncio.gather(*tasks)
    await settled()
    assert len(reads) == 2  # the second one had no room
    await nothing_is_kept(reads)
    (again,) = await begun(disk, reads, ["b"])  # all of the room is back
    disk.answers[-1].set_result("12345")
    await again
    await settled()
    assert len(reads) == 1


async def test_nobody_is_given_more_than_the_limit(reads: SharedReads[str]) -> None:
    disk = Disk()
    (large,) = await begun(disk, reads, ["a"], max_bytes=100)
    small = await begun(disk, reads, ["a", "a"], max_bytes=2)
    assert disk.begun == 1
    disk.answers[0].set_result("much")
    assert await large == "much"
    await settled()
    assert disk.begun == 2  # one for both
    disk.answers[1].set_result("mu")
    assert await asyncio.gather(*small) == ["mu", "mu"]


async def test_who_has_a_smaller_limit_shares_what_is_within_it_and_a_larger_one_reads(
    reads: SharedReads[str],
) -> None:
    disk = Disk()
    (first,) = await begun(disk, reads, ["a"], max_bytes=50)
    (smaller,) = await begun(disk, reads, ["a"], max_bytes=10)
    (larger,) = await begun(disk, reads, ["a"], max_bytes=100)  # there may be more for it
    assert disk.begun == 2
    disk.answers[0].set_result("A")
    disk.answers[1].set_result("A and more")
    assert await asyncio.gather(first, smaller, larger) == ["A", "A", "A and more"]


async def test_an_error_is_everybodys_and_is_not_kept(reads: SharedReads[str]) -> None:
    disk = Disk()
    tasks = await begun(disk, reads, ["a", "a"])
    disk.answers[0].set_exception(OSError("gone"))
    for task in tasks:
        with pytest.raises(OSError, match="gone"):
            await task
    assert len(reads) == 0


async def test_one_that_leaves_ends_nobody_elses_and_the_last_one_ends_the_read(reads: SharedReads[str]) -> None:
    disk = Disk()
    first, second = await begun(disk, reads, ["a", "a"])
    first.cancel()
    await asyncio.wait((first,))
    assert disk.cancelled == 0
    second.cancel()
    (again,) = await begun(disk, reads, ["a"])  # in the same moment: it is another read
    assert (disk.begun, disk.cancelled) == (2, 1)
    disk.answers[1].set_result("")
    assert await again == ""
    assert len(reads) == 0

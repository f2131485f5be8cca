"""Which topics do not exist, asked of etcd by one read at a time, whatever the clients do (RULES 9.5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, cast

import pytest

from highwater.controller.administration import absent_topics
from highwater.controller.administration.absent_topics import MAX_NAMES, AbsentTopics
from highwater.metadata.store.etcd_errors import Refused, StoreError, Unavailable
from highwater.supervision import TaskSupervisor


class Etcd:
    """`made` are its topics as a read finds them when it begins."""

    def __init__(self) -> None:
        self.made: set[str] = set()
        self.reads: list[set[str]] = []
        self.under_way = self.most = 0
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.failure: Exception | None = None

    async def read(self, store: object, keys: object, names: Iterable[str], *, timeout_s: float) -> frozenset[str]:
        wanted = set(names)
        self.reads.append(wanted)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        absent = frozenset(wanted - self.made)
        try:
            await asyncio.sleep(0.001)
            async with asyncio.timeout(timeout_s):
                await self.goes_on.wait()
            if self.failure is not None:
                raise self.failure
            return absent
        except TimeoutError:
            raise Unavailable("etcd does not answer") from None
        finally:
            self.under_way -= 1


@pytest.fixture
def etcd(monkeypatch: pytest.MonkeyPatch) -> Etcd:
    made = Etcd()
    monkeypatch.setattr(absent_topics, "read_absent_topics", made.read)
    monkeypatch.setattr(absent_topics, "PATIENCE_S", 60.0)  # a machine that others have all of lets a thousand wait
    return made


@pytest.fixture
async def topics(etcd: Etcd) -> AsyncIterator[AbsentTopics]:
    found = AbsentTopics(cast(Any, None), cast(Any, None))
    supervisor = TaskSupervisor()
    supervisor.run_forever("absent topics", found.answer)
    yield found
    await supervisor.stop()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_a_thousand_who_ask_are_one_read_at_a_time(topics: AbsentTopics, etcd: Etcd) -> None:
    etcd.made = {"t"}
    names = [f"nope-{number % 100}" for number in range(1000)]
    answers = await asyncio.gather(*(topics.among(["t", name]) for name in names))
    assert answers == [frozenset({name}) for name in names]
    assert etcd.most == 1
    assert len(etcd.reads) <= 1000 / MAX_NAMES + 2
    assert max(map(len, etcd.reads)) <= MAX_NAMES


async def test_those_who_come_while_a_read_is_under_way_share_the_next(topics: AbsentTopics, etcd: Etcd) -> None:
    """What is under way began before they came: a topic may have been made since."""
    etcd.goes_on.clear()
    early = asyncio.create_task(topics.among(["t"]))
    await until(lambda: len(etcd.reads) == 1)
    etcd.made = {"t"}
    late = [asyncio.create_task(topics.among(["t", "nope"])) for _ in range(1000)]
    await asyncio.sleep(0.05)
    assert len(etcd.reads) == 1
    etcd.goes_on.set()
    assert await early == {"t"}
    assert set(await asyncio.gather(*late)) == {frozenset({"nope"})}
    assert (etcd.most, etcd.reads) == (1, [{"t"}, {"t", "nope"}])


async def test_many_names_of_one_who_asks_are_several_reads(topics: AbsentTopics, etcd: Etcd) -> None:
    names = {f"nope-{number}" for number in range(3 * MAX_NAMES + 1)}
    assert await topics.among(names) == names
    assert await topics.among([]) == set()
    assert sorted(map(len, etcd.reads)) == [1, MAX_NAMES, MAX_NAMES, MAX_NAMES]


@pytest.mark.parametrize("failure", [Unavailable("etcd has no leader"), Refused("etcd refused the request")])
async def test_a_read_that_fails_says_nothing_of_any_topic(
    topics: AbsentTopics, etcd: Etcd, failure: StoreError
) -> None:
    etcd.failure = failure
    outcomes = await asyncio.gather(*(topics.among(["nope"]) for _ in range(100)), return_exceptions=True)
    assert {type(each) for each in outcomes} == {Unavailable}
    assert {str(each) for each in outcomes} == {str(failure)}
    assert len(etcd.reads) == 1
    etcd.failure = None
    assert await topics.among(["nope"]) == {"nope"}


async def test_a_fault_of_ours_ends_no_question_without_a_word(topics: AbsentTopics, etcd: Etcd) -> None:
    etcd.failure = RuntimeError("a bug")
    with pytest.raises(Unavailable, match="the read of etcd has failed"):
        await topics.among(["nope"])
    etcd.failure = None
    assert await topics.among(["nope"]) == {"nope"}


async def test_a_silent_etcd_is_waited_for_for_a_bounded_time(
    topics: AbsentTopics, etcd: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(absent_topics, "PATIENCE_S", 0.3)
    monkeypatch.setattr(absent_topics, "READ_TIMEOUT_S", 60.0)
    etcd.goes_on.clear()
    first = asyncio.create_task(topics.among(["nope"]))
    await until(lambda: len(etcd.reads) == 1)
    others = [asyncio.create_task(topics.among([f"nope-{number}"])) for number in range(1000)]
    async with asyncio.timeout(20):  # before the read's own end
        outcomes = await asyncio.gather(first, *others, return_exceptions=True)
    assert {type(each) for each in outcomes} == {Unavailable}
    assert etcd.most == 1
    assert not topics._waiting, "questions of those who have left"
    monkeypatch.setattr(absent_topics, "PATIENCE_S", 20.0)
    etcd.goes_on.set()
    assert await topics.among(["nope"]) == {"nope"}
    assert etcd.reads == [{"nope"}, {"nope"}]


async def test_who_leaves_takes_the_answer_from_nobody(topics: AbsentTopics, etcd: Etcd) -> None:
    """Those whose read is under way, and those who wait for the next."""
    etcd.goes_on.clear()
    first = [asyncio.create_task(topics.among(["nope"])) for _ in range(2)]
    await until(lambda: len(etcd.reads) == 1)
    second = [asyncio.create_task(topics.among(["nope"])) for _ in range(2)]
    await asyncio.sleep(0)
    first[0].cancel()
    second[0].cancel()
    etcd.goes_on.set()
    assert [await each for each in (first[1], second[1])] == [{"nope"}, {"nope"}]
    assert len(etcd.reads) == 2

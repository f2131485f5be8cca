"""No long-lived task ends unnoticed (`highwater.supervision`)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry, Counter

from highwater import supervision
from highwater.supervision import TaskGroup, TaskSupervisor, UnaskedCancellationError

DEADLINE_S = 10


@pytest.fixture
def failures() -> Counter:
    return Counter("task_failures", "", ("task",), registry=CollectorRegistry())


@pytest.fixture
async def supervisor(failures: Counter, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TaskSupervisor]:
    monkeypatch.setattr(supervision, "FIRST_PAUSE_S", 0.001)
    running = TaskSupervisor(failures)
    yield running
    await running.stop()


def counted(failures: Counter, task: str) -> float:
    return failures.labels(task)._value.get()


async def test_a_task_that_raises_is_counted_logged_and_begun_anew(
    supervisor: TaskSupervisor, failures: Counter, caplog: pytest.LogCaptureFixture
) -> None:
    runs = 0
    third = asyncio.Event()

    async def work() -> None:
        nonlocal runs
        runs += 1
        if runs < 3:
            raise ValueError("broken")
        third.set()
        await asyncio.Event().wait()

    supervisor.run_forever("looker", work)
    async with asyncio.timeout(DEADLINE_S):
        await third.wait()

    assert counted(failures, "looker") == 2
    assert [record.message for record in caplog.records].count("a task failed task=looker") == 2
    assert caplog.records[0].exc_info is not None


async def test_a_task_that_returns_is_begun_anew(supervisor: TaskSupervisor, failures: Counter) -> None:
    runs: asyncio.Queue[None] = asyncio.Queue()

    async def work() -> None:
        runs.put_nowait(None)

    supervisor.run_forever("looker", work)
    async with asyncio.timeout(DEADLINE_S):
        for _ in range(3):
            await runs.get()

    assert counted(failures, "looker") >= 2


async def test_expected_errors_are_one_line(supervisor: TaskSupervisor, caplog: pytest.LogCaptureFixture) -> None:
    failed = False
    begun_anew = asyncio.Event()

    async def work() -> None:
        nonlocal failed
        if failed:
            begun_anew.set()
            await asyncio.Event().wait()
        failed = True
        raise OSError("no room")

    supervisor.run_forever("looker", work, expected=(OSError,))
    async with asyncio.timeout(DEADLINE_S):
        await begun_anew.wait()

    assert caplog.records[0].message == "a task failed task=looker error=no room"
    assert caplog.records[0].exc_info is None


async def test_periodic_work_goes_on_after_a_failure(supervisor: TaskSupervisor, failures: Counter) -> None:
    runs: asyncio.Queue[None] = asyncio.Queue()

    async def work() -> None:
        runs.put_nowait(None)
        if runs.qsize() == 1:
            raise RuntimeError("dictionary changed size during iteration")

    supervisor.run_every("housekeeping", 0.001, work)
    async with asyncio.timeout(DEADLINE_S):
        for _ in range(3):
            await runs.get()

    assert counted(failures, "housekeeping") >= 1


async def test_finite_work_that_fails_tells_its_owner(supervisor: TaskSupervisor, failures: Counter) -> None:
    told: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    async def work() -> None:
        raise ValueError("broken")

    supervisor.run_once("start", work, told.set_result)

    async with asyncio.timeout(DEADLINE_S):
        assert str(await told) == "broken"
    assert counted(failures, "start") == 1


async def test_stop_cancels_everything_and_nothing_starts_afterwards(failures: Counter) -> None:
    supervisor = TaskSupervisor(failures)

    async def work() -> None:
        await asyncio.Event().wait()

    tasks = [supervisor.run_forever("a", work), supervisor.run_every("b", 0, work), supervisor.run_once("c", work)]
    await asyncio.sleep(0)
    await supervisor.stop()
    late = supervisor.run_once("d", work)
    await asyncio.gather(late, return_exceptions=True)

    assert all(task.cancelled() for task in (*tasks, late))
    assert not failures.collect()[0].samples


async def cancelled_from_elsewhere() -> None:
    """As a call whose channel is closed."""
    call: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(call.cancel)
    await call


async def test_a_task_that_nobody_cancelled_is_begun_anew(
    supervisor: TaskSupervisor, failures: Counter, caplog: pytest.LogCaptureFixture
) -> None:
    runs: asyncio.Queue[None] = asyncio.Queue()

    async def work() -> None:
        runs.put_nowait(None)
        await cancelled_from_elsewhere()

    supervisor.run_forever("looker", work)
    supervisor.run_every("housekeeping", 0.001, work)
    async with asyncio.timeout(DEADLINE_S):
        for _ in range(6):
            await runs.get()

    assert counted(failures, "looker") >= 1
    assert counted(failures, "housekeeping") >= 1
    assert "a task failed task=looker" in caplog.text


async def test_finite_work_that_nobody_cancelled_tells_its_owner(supervisor: TaskSupervisor, failures: Counter) -> None:
    told: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
    supervisor.run_once("start", cancelled_from_elsewhere, told.set_result)
    async with asyncio.timeout(DEADLINE_S):
        assert isinstance(await told, UnaskedCancellationError)
    assert counted(failures, "start") == 1


async def test_a_group_fails_with_a_task_that_nobody_cancelled() -> None:
    async def run() -> None:
        async with TaskGroup() as group:
            group.create_task(asyncio.Event().wait())
            group.create_task(cancelled_from_elsewhere())

    with pytest.raises(ExceptionGroup) as failed:
        await asyncio.wait_for(run(), DEADLINE_S)
    assert failed.group_contains(UnaskedCancellationError)


@pytest.mark.filterwarnings("error")
async def test_a_group_goes_on_without_a_task_that_was_cancelled() -> None:
    async def work() -> None:
        await asyncio.Event().wait()

    async with asyncio.timeout(DEADLINE_S), TaskGroup() as group:
        begun = group.create_task(work())
        await asyncio.sleep(0)
        begun.cancel()
        group.create_task(work()).cancel()  # it never begins
    assert begun.cancelled()


@pytest.mark.filterwarnings("error")
async def test_a_group_that_ends_takes_no_tasks() -> None:
    async def work() -> None:
        await asyncio.Event().wait()

    async with TaskGroup() as group:
        pass
    with pytest.raises(RuntimeError, match="finished"):
        group.create_task(work())


async def test_a_limit_in_time_is_no_failure(supervisor: TaskSupervisor, failures: Counter) -> None:
    ended = asyncio.Event()

    async def work() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        ended.set()

    await supervisor.run_once("start", work)
    assert ended.is_set()
    assert not failures.collect()[0].samples

"""Members of a group in processes of their own, which are told through pipes what to do."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol, Self

from bench.groups.reads import Read
from bench.groups.sizes import SETTLE_TIMEOUT_S


@dataclass(frozen=True)
class Plan:
    """Members of one process; they join when they are told to."""

    bootstrap: str
    topic: str
    group: str
    numbers: Sequence[int]
    """Of these members among all."""
    session_timeout_ms: int = 0
    """With Kafka the member says it; 0: the brokers' own."""
    heartbeat_interval_ms: int = 0


class Members(Protocol):
    """In their process."""

    def join(self) -> None:
        """Starts all, and reads all that comes."""
        ...

    def leave(self) -> float:
        """Ends all, as an application does that is shut down; when it began to."""
        ...

    def owned(self) -> dict[int, frozenset[int]]: ...
    def take_reads(self) -> list[Read]:
        """Those since the last time."""
        ...


MakeMembers = Callable[[Plan], Members]


class MemberProcess:
    def __init__(self, make: MakeMembers, plan: Plan) -> None:
        context = multiprocessing.get_context("spawn")
        self.numbers = plan.numbers
        self._pipe, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(make, plan, there), daemon=True)
        self._process.start()
        there.close()

    def ask(self, what: str) -> Any:
        """Has a method of its `Members` called. Raises `RuntimeError` with what that raised, and `TimeoutError`."""
        self.begin(what)
        return self.answer(what)

    def begin(self, what: str) -> None:
        """Has it called; `answer` waits until it is over."""
        self._pipe.send(what)

    def answer(self, what: str) -> Any:
        if not self._pipe.poll(SETTLE_TIMEOUT_S):
            raise TimeoutError(f"members {self.numbers} did not {what} within {SETTLE_TIMEOUT_S:g} s")
        answer, failure = self._pipe.recv()
        if failure:
            raise RuntimeError(f"members {self.numbers} could not {what}: {failure}")
        return answer

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()


class MemberProcesses:
    """All of one measurement; none is left after it."""

    def __init__(self, make: MakeMembers) -> None:
        self._make = make
        self._all: list[MemberProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self._all:
            process.kill()

    def start(self, plan: Plan) -> MemberProcess:
        process = MemberProcess(self._make, plan)
        self._all.append(process)
        process.ask("owned")  # answered once all is imported: that is not to happen beside what is measured
        return process


def shares_of(processes: Iterable[MemberProcess]) -> dict[int, frozenset[int]]:
    """Partitions by member."""
    return {member: share for process in processes for member, share in process.ask("owned").items()}


def _serve(make: MakeMembers, plan: Plan, pipe: Connection) -> None:
    members = make(plan)
    with contextlib.suppress(EOFError, OSError):  # the bench has gone
        while True:
            what = pipe.recv()
            try:
                answer, failure = getattr(members, what)(), ""
            except Exception as error:
                answer, failure = None, f"{type(error).__name__}: {error}"
            pipe.send((answer, failure))

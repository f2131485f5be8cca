"""Watches that etcd ends for good, and an etcd that refuses on and on: told with the reason, never in a tight loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aetcd import rpc

from highwater.metadata.store.etcd_errors import GuardFailed, Refused, StoreClosed, Unavailable, may_pass
from highwater.metadata.store.refusals import FIRST_PAUSE_S, FORGOTTEN_AFTER_S, LONGEST_PAUSE_S, Refusals
from highwater.metadata.store.watch_stream import watch_range


class Stream:
    """A watch that is answered with this alone."""

    def __init__(self, response: Any) -> None:
        self._responses = [rpc.WatchResponse(created=True), response]

    async def write(self, request: Any) -> None: ...

    def cancel(self) -> None: ...

    async def __aiter__(self) -> AsyncIterator[Any]:
        for response in self._responses:
            yield response


class Member:
    def __init__(self, responses: list[Any]) -> None:
        self.opened = 0
        self._responses = responses
        self.watch = self

    def Watch(self, metadata: Any) -> Stream:
        self.opened += 1
        return Stream(self._responses.pop(0))


class Connections:
    def __init__(self, member: Member) -> None:
        self._member = member

    async def member(self, deadline: float) -> Member:
        return self._member

    def failed(self, member: Member) -> None: ...

    def using(self, member: Member, stream: Stream) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def cancelled(reason: str) -> Any:
    return rpc.WatchResponse(canceled=True, cancel_reason=reason)


async def test_a_watch_that_is_not_permitted_says_so() -> None:
    """It used to be asked for again ten times a second, for ever, without a word."""
    member = Member([cancelled("rpc error: code = PermissionDenied desc = etcdserver: permission denied")])
    watch = watch_range(Connections(member), Refusals(), b"/k", b"", 1)  # type: ignore[arg-type]
    async with asyncio.timeout(5):
        with pytest.raises(Refused, match="/k: .*permission denied"):
            await anext(watch)
    assert member.opened == 1


async def test_a_watch_outlives_a_member_that_lost_its_leader() -> None:
    event = rpc.Event(type=rpc.Event.PUT, kv=rpc.KeyValue(key=b"/k", mod_revision=7, create_revision=7))
    member = Member([cancelled("etcdserver: no leader"), cancelled(""), rpc.WatchResponse(events=[event])])
    watch = watch_range(Connections(member), Refusals(), b"/k", b"", 1)  # type: ignore[arg-type]
    async with asyncio.timeout(5):
        batch = await anext(watch)
    assert (batch.revision, member.opened) == (7, 3)
    await watch.aclose()


def test_refusals_are_told_later_and_later_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 100.0
    refusals = Refusals(lambda: now_s)
    error = Refused("etcd refused the request: etcdserver: mvcc: database space exceeded")
    pauses = []
    for _ in range(12):
        pauses.append(refusals.noted(error))
        assert refusals.noted(error) == pauses[-1]  # another caller, in the same instant
        now_s += pauses[-1]
    assert pauses[0] == FIRST_PAUSE_S
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE_S
    assert [record.message for record in caplog.records] == [f"{error}: it is asked again until that is put right"]
    now_s += FORGOTTEN_AFTER_S
    assert refusals.noted(error) == FIRST_PAUSE_S


def test_what_goes_on_waits_out_a_refusal() -> None:
    assert all(map(may_pass, (Refused("no space"), Unavailable("no leader"))))
    assert not any(map(may_pass, (StoreClosed("closed"), GuardFailed("deposed"))))

"""One member's `Session` stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterable, Iterator
from dataclasses import replace
from time import thread_time

from highwater.errors import ErrorCode
from highwater.groups.requests import Heartbeat, Refusal, SessionAnswer
from highwater.quotas.client_quotas import Quota
from highwater.replica_manager.admission.throttling import CallCharges
from highwater.replica_manager.groups.group_coordinator import GroupCoordinator
from highwater.replica_manager.groups.member_streams import MemberStream
from highwater.replica_manager.server import group_messages as wire
from highwater.replica_manager.server.refused import may_not
from highwater.security.access import Access
from highwater.security.acls import Operation, ResourceType
from highwater.v1 import group_pb2

MOST_OF_SESSION = 0.1
"""Of a session's timeout: a member that exceeds a quota is not read for so long, or it would be taken for lost."""
ASKED_AT_ONCE = 100
"""Topics that the authorizer is asked about: of 10,000 it takes 0.1 s, or 2 where ACLs have prefixes of 250 lengths."""


class GroupSession:
    """A sign of life costs no task and no answer: it is read, and handed to the shard."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        client_host: str,
        access: Access | None = None,
        charges: CallCharges | None = None,
    ) -> None:
        self._charges = charges
        self._coordinator = coordinator
        self._access = access
        self._topics: tuple[str, ...] = ()  # that the member names, where somebody is asked whether it may
        self._client_host = client_host
        self._wake = asyncio.Event()
        self._stream = MemberStream(self._wake.set)
        self._first: group_pb2.SessionRequest | None = None
        # What it was told last, whole, and what of that it may not see, where somebody is asked.
        self._told: SessionAnswer | None = None
        self._told_topics: frozenset[str] = frozenset()
        self._unseen: frozenset[str] = frozenset()

    async def read(self, requests: AsyncIterator[group_pb2.SessionRequest]) -> None:
        """Until the client ends its side, or the stream is over."""
        try:
            async for request in requests:
                if self._stream.ended:
                    return
                charges = self._charges
                if charges is None or not charges.may_apply:
                    for _ in self._hearing(request):
                        await asyncio.sleep(0)
                    continue
                begun_s = thread_time()
                for _ in self._hearing(request):
                    charges.charge(Quota.REQUEST, "", thread_time() - begun_s)
                    await asyncio.sleep(0)
                    begun_s = thread_time()
                charges.charge(Quota.REQUEST, "", thread_time() - begun_s)
                if charges.pausing:
                    await charges.pause(self._coordinator.config.session_timeout_ms / 1000 * MOST_OF_SESSION)
        finally:
            self.close()

    async def responses(self) -> AsyncIterator[group_pb2.SessionResponse]:
        """Until nothing more will be told."""
        while True:
            answer = self._stream.take()
            if answer is not None:
                charges = self._charges
                if charges is None or not charges.may_apply:
                    yield self._response(answer)
                    continue
                begun_s = thread_time()
                response = self._response(answer)
                charges.charge(Quota.REQUEST, "", thread_time() - begun_s)  # who reads pauses for it
                yield response
            elif self._stream.ended:
                return
            else:
                self._wake.clear()
                await self._wake.wait()

    def _response(self, answer: SessionAnswer) -> group_pb2.SessionResponse:
        """Of an assignment the topics that the member may DESCRIBE: a pattern is matched with all that there are."""
        response = wire.session_response(answer, self._coordinator.config, self._coordinator.image)
        if self._access is None:
            return response
        if answer.assignment is not None:
            self._told = answer
            self._told_topics = frozenset(each.topic for each in response.assignment.topics)
            self._unseen = self._not_to_be_seen(self._access)
            wire.leave_out(response.assignment.topics, self._unseen)
        elif self._told is not None:
            self._told = replace(self._told, member_epoch=answer.member_epoch)
        return response

    def _not_to_be_seen(self, access: Access) -> frozenset[str]:
        """Of the topics of the last assignment; one that was deleted has no name."""
        return frozenset(
            topic for topic in self._told_topics if topic and not access.may_topic(Operation.DESCRIBE, topic)
        )

    def close(self) -> None:
        """The stream has ended; the member has not."""
        self._stream.closed()
        self._wake.set()

    def _hearing(self, request: group_pb2.SessionRequest) -> Iterator[None]:
        """Between two steps others may have their turn."""
        first = self._first
        if first is None:
            first = self._first = group_pb2.SessionRequest(
                group=request.group, member_id=request.member_id, instance_id=request.instance_id
            )
        elif not _same_member(request, first):
            self._refuse("a stream is one member's: group, member id and instance id stand in its first request alone")
            return
        if refusal := wire.bad_word(request):
            self._refuse(refusal)
            return
        if self._access is not None:
            named: tuple[str, ...] = ()
            if request.HasField("subscription"):
                named = self._topics = tuple(request.subscription.topics)
            may_stay = yield from self._may_stay(named)  # what was named before is looked at when ACLs change
            if not may_stay or self._stream.ended:
                return
        self._coordinator.heard(
            Heartbeat(
                first.group,
                first.member_id,
                request.member_epoch,
                first.instance_id,
                wire.subscription(request.subscription) if request.HasField("subscription") else None,
                wire.partitions(request.owned) if request.HasField("owned") else None,
                request.seen_assignment,
                self._client_host,
            ),
            self._stream,
        )

    def access_changed(self) -> Iterator[None]:
        """The ACLs have changed: a member that may stay no more hears it at once, and one that may see more or less of
        its assignment is told it again. Between two steps others may have their turn."""
        if self._first is None or self._stream.ended:
            return
        may_stay = yield from self._may_stay(self._topics)
        if not may_stay or self._stream.ended:
            return
        access, told = self._access, self._told
        if access is not None and told is not None and self._not_to_be_seen(access) != self._unseen:
            self._stream.tell_again(told)

    def _may_stay(self, topics: Iterable[str]) -> Generator[None, None, bool]:
        """Tells whether the member may READ its group, and DESCRIBE these topics; else the stream ends."""
        access, first = self._access, self._first
        if access is None or first is None:
            return True
        refused = may_not(access, Operation.READ, ResourceType.GROUP, first.group)
        for number, topic in enumerate(topics, 1):
            if refused is not None:
                break
            refused = may_not(access, Operation.DESCRIBE, ResourceType.TOPIC, topic)
            if number % ASKED_AT_ONCE == 0:
                yield
        if refused is not None:
            self._stream.tell(SessionAnswer(error=Refusal(*refused)))
        return refused is None

    def _refuse(self, message: str) -> None:
        self._stream.tell(SessionAnswer(error=Refusal(ErrorCode.INVALID_REQUEST, message)))


def _same_member(request: group_pb2.SessionRequest, first: group_pb2.SessionRequest) -> bool:
    return (
        request.group in ("", first.group)
        and request.member_id in ("", first.member_id)
        and request.instance_id in ("", first.instance_id)
    )

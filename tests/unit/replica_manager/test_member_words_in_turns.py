"""A member that names thousands of topics, each of which the authorizer is asked about, lets others have their turn."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from counted_turns import with_turns

from highwater.groups.config import GroupConfig
from highwater.groups.requests import Heartbeat
from highwater.groups.topics import TopicImage
from highwater.replica_manager.groups.member_streams import MemberStream
from highwater.replica_manager.server.group_session import ASKED_AT_ONCE, GroupSession
from highwater.security.access import Access
from highwater.security.acls import parse_acl
from highwater.security.authorizer import Authorizer
from highwater.security.principal import user
from highwater.v1 import group_pb2

TURNS = 20
ALLOWED = [
    ("topic", "prefixed", "t", "User:alice", "describe", "allow"),
    ("group", "literal", "g", "User:alice", "read", "allow"),
]


async def test_a_word_and_a_change_of_acls_take_their_turns() -> None:
    heard: list[Heartbeat] = []

    def hears(word: Heartbeat, stream: MemberStream) -> None:
        heard.append(word)

    authorizer = Authorizer()
    authorizer.changed([parse_acl(*words) for words in ALLOWED], 1)
    coordinator: Any = SimpleNamespace(config=GroupConfig(), image=TopicImage(), heard=hears)
    session = GroupSession(coordinator, "host", Access(authorizer, user("alice"), lambda _: None))
    topics = [f"t{number}" for number in range(TURNS * ASKED_AT_ONCE)]

    async def words() -> AsyncIterator[group_pb2.SessionRequest]:
        yield group_pb2.SessionRequest(group="g", member_id="m", subscription=group_pb2.Subscription(topics=topics))
        authorizer.changed([parse_acl(*words) for words in ALLOWED], 2)
        assert sum(1 for _ in session.access_changed()) == TURNS
        authorizer.changed([parse_acl(*ALLOWED[1])], 3)
        assert not list(session.access_changed())

    _, turns = await with_turns(session.read(words()))
    assert turns >= TURNS - 1
    assert [each.subscription is not None for each in heard] == [True]
    ended = session._stream.take()
    assert ended is not None
    assert ended.error is not None
    assert "may not DESCRIBE topic 't0'" in ended.error.message

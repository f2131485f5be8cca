"""A topic that does not exist is refused at once, and none that was made, however short a time ago (RULES 9.5)."""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest
from running_cluster import Deployment

from highwater.client import Admin, Producer, UnknownTopicError

PROMPT_S = 0.9
CONTROLLER_S = 30.0  # for one to take office
ROUNDS = 50


@pytest.fixture
async def controlled(deployed: Deployment) -> Deployment:
    """A controller acts, whatever the test before did: without one, a topic is looked for."""
    async with asyncio.timeout(CONTROLLER_S):
        await deployed.admin.describe_cluster()
    return deployed


async def test_a_send_to_a_topic_that_does_not_exist_is_refused_at_once(controlled: Deployment) -> None:
    """Every send, not the fastest alone. One could take 3 s soon after a test had killed the controller: the question
    failed at a broker's connection to it, or as nobody was in office, and no other was put."""
    took = []
    async with Producer(controlled.cluster.bootstrap) as producer:
        for number in range(3):
            begun = monotonic()
            with pytest.raises(UnknownTopicError, match="create it first"):
                await producer.send(f"nobody-made-it-{number}", b"v")
            took.append(monotonic() - begun)
    assert max(took) < PROMPT_S, took


async def test_a_send_right_after_the_topic_was_made_is_never_refused(deployed: Deployment) -> None:
    bootstrap = deployed.cluster.bootstrap
    names = [f"just-made-{number}" for number in range(ROUNDS)]
    async with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
        for name in names:
            with pytest.raises(UnknownTopicError):
                await producer.send(name, b"too early")
            await admin.create_topic(name, 1, 3)
            assert (await producer.send_and_wait(name, b"v")).offset == 0
        await admin.delete_topics(names)
        with pytest.raises(UnknownTopicError):
            async with Producer(bootstrap) as another:
                await another.send(names[0], b"too late")

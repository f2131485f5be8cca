"""A topic that does not exist is refused at once, and none that was made, however short a time ago (RULES 9.5)."""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest
from replica_manager_cluster import eventually
from running_cluster import KEYS, Deployment

from highwater.client import Admin, Producer, UnknownTopicError
from highwater.metadata.leases.controller_election import read_controller

PROMPT_S = 0.9
CONTROLLER_S = 30.0  # for one to take office
ROUNDS = 50


@pytest.fixture
async def controlled(deployed: Deployment) -> Deployment:
    """A controller acts, whatever the test before did: without one, a topic is looked for."""
    async with asyncio.timeout(CONTROLLER_S):
        await deployed.admin.describe_cluster()
    return deployed


async def refused(bootstrap: str, name: str) -> list[float]:
    """Seconds that each of three sends took."""
    took = []
    async with Producer(bootstrap) as producer:
        for number in range(3):
            begun = monotonic()
            with pytest.raises(UnknownTopicError, match="create it first"):
                await producer.send(f"{name}-{number}", b"v")
            took.append(monotonic() - begun)
    return took


async def test_a_send_to_a_topic_that_does_not_exist_is_refused_at_once(controlled: Deployment) -> None:
    took = await refused(controlled.cluster.bootstrap, "nobody-made-it")
    assert max(took) < PROMPT_S, took


async def test_it_is_refused_at_once_by_a_controller_that_was_restarted(controlled: Deployment) -> None:
    """A broker's connection to the former process fails the first question; another is put soon. By this a send could
    take 3 s, whichever test had killed the controller before."""
    controller = controlled.cluster.processes["controller"]
    for broker in controlled.cluster.bootstrap.split(","):  # so that each has one
        async with Admin(broker) as admin:
            await admin.describe_cluster()
    former = await read_controller(controlled.store, KEYS)

    async def another_acts() -> bool:
        return await read_controller(controlled.store, KEYS) not in (None, former)

    controller.kill()
    controller.start()
    await eventually(another_acts, "the controller is back in office", CONTROLLER_S)
    took = await refused(controlled.cluster.bootstrap, "nor-this")
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

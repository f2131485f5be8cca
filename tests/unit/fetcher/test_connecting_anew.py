"""How long a fetcher waits for a leader that does not answer, before it connects anew."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from highwater.fetcher.fetcher_metrics import FetcherMetrics
from highwater.fetcher.follower.following import FetcherId, LeaderEndpoint
from highwater.fetcher.replica_fetcher import ReplicaFetcher
from highwater.fetcher.settings import FetcherSettings
from highwater.rpc.settings import load
from highwater.telemetry.metrics import Metrics

DEADLINE_S = 10.0


@pytest.fixture
async def fetcher() -> AsyncIterator[ReplicaFetcher]:
    """Its leader's port is one that nobody listens at until the test does."""
    settings = load(
        FetcherSettings,
        {"broker.id": "1", "listen": "unix:/f", "replica.manager": "unix:/rm", "log.storage": "unix:/ls"},
    )
    with socket.create_server(("127.0.0.1", 0)) as unused:
        host, port = unused.getsockname()
    storage: Any = None
    leader = LeaderEndpoint(f"{host}:{port}", 3)
    made = ReplicaFetcher(FetcherId(2, 0), leader, settings, storage, FetcherMetrics(Metrics("fetcher")), lambda: 0)
    yield made
    await made.stop()


async def until(fetcher: ReplicaFetcher, wanted: grpc.ChannelConnectivity) -> None:
    channel = fetcher._link.channel
    async with asyncio.timeout(DEADLINE_S):
        while (state := channel.get_state(try_to_connect=True)) is not wanted:
            await channel.wait_for_state_change(state)


async def test_one_that_cannot_be_connected_to_is_tried_as_soon_again(fetcher: ReplicaFetcher) -> None:
    """Its name may not resolve yet: only a new channel looks it up soon."""
    before = fetcher._limit_ms
    for _ in range(3):
        await until(fetcher, grpc.ChannelConnectivity.TRANSIENT_FAILURE)
        fetcher._connect_anew()
    assert fetcher._limit_ms == before


async def test_one_that_takes_the_connection_is_given_more_time(fetcher: ReplicaFetcher) -> None:
    """It may be slow."""
    before = fetcher._limit_ms
    host, port = fetcher.leader.address.split(":")
    with socket.create_server((host, int(port))):
        await until(fetcher, grpc.ChannelConnectivity.CONNECTING)
        fetcher._connect_anew()
    assert fetcher._limit_ms > before

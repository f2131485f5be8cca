"""The memory of a replica-manager for requests that come in, under clients that send as much as they can."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from half_sent import HalfSent
from replica_manager_cluster import eventually
from test_replica_manager_process import health, log_storage, running

from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.keys import Keys
from highwater.metadata.store.store import Store
from highwater.rpc.connections.channel import open_channel
from highwater.rpc.process.malloc import KEPT_BYTES
from highwater.security.call_shares import OWN_PLACES

pytestmark = pytest.mark.alone

MIB = 1 << 20
LARGEST, CALLS = 2 * MIB, 40
OF_CLIENTS = CALLS - CALLS // OWN_PLACES
# Sockets, tables of calls, what malloc keeps; and what comes in before a stream is refused, which is up to a window of
# 4 MiB of each: 21 to 33 MB in all on a quiet machine, 59 and 62 where the process was kept from running.
SLACK = 48 * MIB + KEPT_BYTES
DEADLINE_S = 20

__all__ = ["log_storage"]


def memory(pid: int, name: str = "VmRSS") -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise AssertionError(name)


@pytest.mark.parametrize(
    ("message_bytes", "held"),
    [
        pytest.param(60 * MIB, 0, id="larger than any request may be"),
        pytest.param(LARGEST, OF_CLIENTS * LARGEST, id="as large as a request may be, never whole"),
    ],
)
async def test_two_hundred_streams_fill_no_more_than_the_calls_that_may_be_open(
    etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path, log_storage: Any, message_bytes: int, held: int
) -> None:
    async with (
        asyncio.timeout(DEADLINE_S),
        running(
            etcd.address,
            keys.cluster,
            tmp_path,
            listeners=f"INTERNAL://unix:{tmp_path}/rm,CLIENT://unix:{tmp_path}/c",
            inter_broker_listener_name="INTERNAL",
            socket_request_max_bytes=str(LARGEST),
            max_open_calls=str(CALLS),
        ) as process,
    ):
        assert await eventually(lambda: health(tmp_path, "highwater.v1.Broker"), "it serves")
        before = memory(process.pid)
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(
                    HalfSent(f"{tmp_path}/c", f"/highwater.v1.Broker/{method}", 100, message_bytes)
                )
                for method in ("ProduceStream", "FetchStream")
            ]
            for client in clients:
                await client.settled()
            assert sum(len(client.open) for client in clients) * message_bytes == held
            assert memory(process.pid, "VmHWM") - before < held + SLACK
            # Brokers and the controller are not kept out.
            assert await health(tmp_path, "highwater.v1.Broker")
        # And clients get in again.
        await eventually(lambda: metadata(f"unix:{tmp_path}/c"), "a client is served")


async def metadata(address: str) -> bool:
    async with open_channel(address) as channel:
        call = channel.unary_unary("/highwater.v1.Broker/Metadata")
        try:
            await call(b"", timeout=5)
        except Exception:
            return False
    return True

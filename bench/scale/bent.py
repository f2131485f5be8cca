"""A cluster that is kept from its work for so long that leases are lost, and when it is whole again."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager

from bench.highwater_side import last_served
from bench.scale.sizes import REPLICATION_FACTOR, WHOLE_TIMEOUT_S
from highwater.cli.local_cluster import CLUSTER
from highwater.client import Producer, TopicPartition
from highwater.metadata.schema.cluster_view import ClusterSnapshot
from highwater.metadata.schema.keys import Keys
from highwater.metadata.state.cluster_watch import watch_cluster
from highwater.metadata.store.store import Store

_TAKEN_AT_MOST_S = 60
# Between two listings of all partitions, which are work of their own: a fifth of a core's at most.
_LIST_S = 1.0
_LIST_TIMES = 4  # as long as the last one took


@contextmanager
def standing_still(pids: Sequence[int]) -> Iterator[None]:
    """The kernel does not run these processes meanwhile."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@contextmanager
def cores_taken() -> Iterator[None]:
    """A busy loop for each core, and one more; each ends by itself where nobody is left to end it."""
    busy = f"import time\nend = time.monotonic() + {_TAKEN_AT_MOST_S}\nwhile time.monotonic() < end: pass"
    taking = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range((os.cpu_count() or 1) + 1)]
    try:
        yield
    finally:
        for process in taking:
            process.kill()
            process.wait()


async def whole_again(etcd: str, bootstrap: str, partitions: int, since: float) -> tuple[float, float]:
    """Seconds from `since` (of `time.perf_counter`) until all that many partitions are led and in sync, as etcd says,
    and until each has acknowledged a record that was sent then. Raises `TimeoutError` with what is missing."""
    async with Store([etcd]) as store:
        while True:
            began = time.perf_counter()
            if not (told := missing(snapshot := await _listed(store), partitions)):
                break
            if time.perf_counter() - since > WHOLE_TIMEOUT_S:
                raise TimeoutError(f"{told} after {WHOLE_TIMEOUT_S:g} s")
            await asyncio.sleep(max(_LIST_S, _LIST_TIMES * (time.perf_counter() - began)))
    led = time.perf_counter() - since
    async with Producer(bootstrap, linger_ms=0) as producer:
        return led, await last_served(producer, (TopicPartition(*place) for place in snapshot.states), since)


async def _listed(store: Store) -> ClusterSnapshot:
    async with aclosing(watch_cluster(store, Keys(CLUSTER))) as updates:
        async for update in updates:
            assert isinstance(update, ClusterSnapshot)
            return update
    raise AssertionError("a watch of the cluster begins with all that there is")


def missing(snapshot: ClusterSnapshot, partitions: int) -> str:
    """How many partitions have no leader that is registered as it was when it was elected, or have replicas outside
    their ISRs, in words; nothing: it is whole."""
    epochs = {broker_id: broker.broker_epoch for broker_id, broker in snapshot.brokers.items()}
    states = [versioned.state for versioned in snapshot.states.values()]
    led = sum(epochs.get(state.leader) == state.leader_broker_epoch for state in states)
    full = sum(len(state.isr) == REPLICATION_FACTOR for state in states)
    if led < partitions:
        return f"{partitions - led:,} of {partitions:,} have no leader that is registered"
    return "" if full >= partitions else f"{partitions - full:,} of {partitions:,} have replicas outside their ISRs"

"""Programs that open clients and end without closing them, fork, or start others (`client_process.py`)."""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from collections.abc import Sequence

from highwater.client import Consumer
from highwater.rpc.process.local_process import tied_to_parent
from soak import client_process
from soak.state import DELIVERY_TIMEOUT_S, EXITS, EXITS_PARTITIONS, SETTLE_S, Soak

KINDS = {"exit": ("end", "exit"), "fork": ("exec", "fork", "spawn")}
RECORDS = 200
DEADLINE_S = DELIVERY_TIMEOUT_S + 60
_REPORTED = 300  # characters of what a process wrote


async def run_clients(soak: Soak, kinds: Sequence[str]) -> None:
    """One at a time; `kinds`: keys of `KINDS`."""
    random = soak.random("exits")
    number = 0
    while not soak.stopped.is_set():
        what = random.choice([each for kind in kinds for each in KINDS[kind]])
        number += 1
        await _run_client(soak, what, f"{what}{number}")
        await soak.pause(random.uniform(0.5, 4))


async def _run_client(soak: Soak, what: str, run: str) -> None:
    command = [sys.executable, client_process.__file__, what, soak.bootstrap, EXITS, run, str(RECORDS)]
    process = await asyncio.create_subprocess_exec(
        *tied_to_parent(command), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(DEADLINE_S):
            output, errors = await process.communicate()
    except TimeoutError:
        soak.problem(f"client {run} did not end within {DEADLINE_S} s")
        return
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    soak.clients[what] += 1
    if process.returncode == 0 and output.decode().strip().endswith("ok"):
        soak.exits[run] = RECORDS
    else:
        told = (output + errors).decode(errors="replace").strip()
        soak.problem(f"client {run} ended with {process.returncode}: ...{told[-_REPORTED:]}")


async def read_exits(soak: Soak, consumer: Consumer) -> None:
    """Every record of every program that ended well is there once."""
    partitions = [(EXITS, partition) for partition in range(EXITS_PARTITIONS)]
    ends = await consumer.end_offsets(partitions)
    consumer.assign(partitions)
    found: dict[str, list[int]] = defaultdict(list)
    async with asyncio.timeout(SETTLE_S):
        while any([await consumer.position(partition) < ends[partition] for partition in ends]):
            for record in await consumer.poll(500):
                run, _, number = (record.value or b"").decode().partition(":")
                if number:
                    found[run].append(int(number))
    lost = {run: count - len(set(found[run])) for run, count in soak.exits.items() if len(set(found[run])) < count}
    if lost:
        soak.problem(
            f"{len(lost)} of {len(soak.exits)} programs ended well and lost {sum(lost.values())} records: {lost}"
        )
    doubled = {run for run in soak.exits if len(found[run]) > len(set(found[run]))}
    if doubled:
        soak.problem(f"records of {sorted(doubled)} are there more than once")

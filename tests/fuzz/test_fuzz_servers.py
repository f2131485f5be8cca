"""A short run against live servers, of a seed that stays; and an oracle that sees what it is there to see."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from highwater.metadata.store.store import Store

from .calls import Call, Finding
from .cluster import FuzzedCluster, fuzzed_cluster
from .oracle import Oracle
from .rpcs import APPEND_SOCKET, CLIENT, INTERNAL, SERVED, targets
from .run import drawn, fuzz
from .sender import address_of

pytestmark = pytest.mark.alone

CORPUS = Path(__file__).parent / "corpus" / "calls"
SEED = 3
CALLS = 10 * len(targets())
SECONDS = 20.0
PAUSE_S = 0.4


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FuzzedCluster]:
    with fuzzed_cluster(tmp_path_factory.mktemp("fuzzed")) as running:
        yield running


def known() -> list[Call]:
    """The calls that were wrong once."""
    return [call for path in sorted(CORPUS.glob("*.json")) for call in Finding.from_json(path.read_text()).calls]


async def test_nothing_is_wrong_under_calls_that_no_client_of_ours_makes(cluster: FuzzedCluster) -> None:
    calls = [*known(), *itertools.islice(drawn(SEED), CALLS)]
    outcome = await fuzz(cluster, SEED, calls, SECONDS)
    assert not outcome.findings, "\n".join(finding.problem for finding in outcome.findings)
    assert outcome.acked > 100
    assert outcome.calls > len(known()) + len(targets())
    answered = {path for (path, status) in outcome.statuses if status != "half"}
    assert answered == {rpc.path for _, rpc in targets()}


def test_the_servers_have_no_other_services(cluster: FuzzedCluster) -> None:
    for server in {server for servers in SERVED.values() for server in servers}:
        with grpc.insecure_channel(address_of(cluster, server)) as channel:
            named = ProtoReflectionDescriptorDatabase(channel).get_services()
        served = {name.removeprefix("highwater.v1.") for name in named if name.startswith("highwater.v1.")}
        assert served == {service for service, servers in SERVED.items() if server in servers}, server
    assert CLIENT != INTERNAL
    assert APPEND_SOCKET not in SERVED


async def test_the_oracle_sees_a_traceback(cluster: FuzzedCluster) -> None:
    async with Store([cluster.etcd]) as store, Oracle(cluster, store) as oracle:
        with cluster.processes["controller"].log_file.open("a") as log:
            log.write("2026-01-01T00:00:00.000 ERROR x: failed\nTraceback (most recent call last):\n")
            log.write('  File "x.py", line 1, in x\nValueError: 7\n')
        (problem,) = [each for each in await oracle.look() if "traceback" in each]
    assert problem.endswith("ValueError: 7")
    assert Finding(problem, 1).signature == Finding(problem.replace("7", "8"), 1).signature
    assert json.loads(Finding(problem, 1).to_json())["problem"] == problem


async def test_the_oracle_sees_a_held_loop_and_a_process_that_ends(cluster: FuzzedCluster) -> None:
    process = cluster.processes["fetcher-2"]
    assert process.pid is not None
    async with Store([cluster.etcd]) as store, Oracle(cluster, store) as oracle:
        os.kill(process.pid, signal.SIGSTOP)
        await asyncio.sleep(PAUSE_S)
        os.kill(process.pid, signal.SIGCONT)
        await asyncio.sleep(0.2)  # until its timer has come round
        assert any("the event loop of fetcher-2 was held" in problem for problem in await oracle.look())
        process.kill()
        assert any("fetcher-2 has ended" in problem for problem in await oracle.look())

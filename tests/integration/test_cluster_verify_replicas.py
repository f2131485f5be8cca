"""`highwater replicas verify` against a running cluster: equal replicas, a damaged one, one that is away."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from command_line import Run, runner
from replica_manager_cluster import eventually
from running_cluster import Deployment

from highwater.client import Producer
from highwater.log_storage.files import partition_metadata

PARTITIONS = 2


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, deployed: Deployment, tmp_path: Path) -> Run:
    monkeypatch.setenv("HIGHWATER_BOOTSTRAP", deployed.cluster.bootstrap)
    monkeypatch.setenv("COLUMNS", "200")
    return runner(monkeypatch, tmp_path)


def log_of(deployed: Deployment, topic: str, broker: int, partition: int) -> Path:
    directory = partition_metadata.directory_name(topic, partition)
    return deployed.cluster.settings.data / f"broker-{broker}" / directory / f"{0:020}.log"


async def test_replicas_are_compared_as_their_brokers_have_them(deployed: Deployment) -> None:
    topic = "compared"
    await deployed.create_topic(topic, [[1, 2, 3], [2, 3, 1]])
    async with Producer(deployed.cluster.bootstrap) as producer:
        for number in range(40):
            await producer.send_and_wait(topic, b"%d" % number, partition=number % PARTITIONS)
    for partition in range(PARTITIONS):
        found = await deployed.admin.verify_replicas(topic, partition, check_crcs=True)
        assert found.ok, found
        assert (found.high_watermark, found.reference) == (20, (1, 2)[partition])
        assert sorted((replica.compared, replica.behind) for replica in found.replicas) == [(0, 0), (20, 0), (20, 0)]

    # A bit of a record of broker 3's copy. Its header is as it was.
    path = log_of(deployed, topic, 3, 0)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    with path.open("r+b") as file:
        file.seek(len(content) - 1)
        file.write(content[-1:])
    assert (await deployed.admin.verify_replicas(topic, 0)).ok
    found = await deployed.admin.verify_replicas(topic, 0, check_crcs=True)
    assert not found.ok
    damaged = {replica.broker_id: replica.damaged for replica in found.replicas if not replica.ok}
    assert list(damaged) == [3]
    assert [(each.first_offset, each.last_offset) for each in damaged[3]] == [(19, 19)]
    assert "CRC-32C" in damaged[3][0].problem
    with path.open("r+b") as file:
        file.seek(len(content) - 1)
        file.write(bytes([content[-1] ^ 1]))
    assert (await deployed.admin.verify_replicas(topic, 0, check_crcs=True)).ok

    deployed.cluster.kill_broker(3)
    await deployed.left_isr(3, topic, range(PARTITIONS))

    async def noticed() -> bool:
        found = await deployed.admin.verify_replicas(topic, 1)
        return {replica.broker_id for replica in found.replicas if replica.error is not None} == {3}

    await eventually(noticed, "the dead broker's replica cannot be read")
    deployed.cluster.start_broker(3)
    await deployed.healed(topic, PARTITIONS)


async def test_the_command(deployed: Deployment, run: Run) -> None:
    topic = "verified-by-command"
    await deployed.create_topic(topic, [[1, 2, 3]])
    async with Producer(deployed.cluster.bootstrap) as producer:
        await producer.send_and_wait(topic, b"one")
    verified = await asyncio.to_thread(run, "replicas", "verify", topic, "--json")
    assert verified.status == 0, verified
    (row,) = verified.rows
    assert (row["ok"], row["high_watermark"]) == (True, 1)
    shown = await asyncio.to_thread(run, "replicas", "verify", topic, "--check-crcs", "--partition", 0)
    assert [line.split()[-3:-1] for line in shown.out.splitlines() if "the same" in line] == [["the", "same"]] * 3
    missing = await asyncio.to_thread(run, "replicas", "verify", "absent")
    missing.is_one_sentence("'absent' does not exist")

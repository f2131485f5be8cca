"""kill -9 of every process, alone and all of a broker at once, while records flow: nothing lost, duplicated or
reordered, and everything heals by itself."""

from __future__ import annotations

import asyncio
import json
import subprocess

import pytest
from replica_manager_cluster import eventually
from running_cluster import HIGHWATER, Deployment, traffic

from highwater.cli.child_process import ChildProcess
from highwater.metadata.schema.cluster_view import BrokerChange, StateChange

ASSIGNMENT = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]


@pytest.mark.parametrize("service", ["log-storage", "replica-manager", "fetcher"])
async def test_a_killed_process_of_a_broker_comes_back_alone(deployed: Deployment, service: str) -> None:
    topic = f"killed-{service}"
    await deployed.create_topic(topic, ASSIGNMENT)
    killed = deployed.cluster.processes[f"{service}-1"]
    others = [each.pid for each in deployed.cluster.broker_processes(1) if each is not killed]
    async with traffic(deployed.cluster.bootstrap, topic, 3) as flow:
        killed.kill()
        if service != "fetcher":
            await deployed.replaced(1, topic, 3)
        if service != "replica-manager":  # whose fetcher goes on copying
            await deployed.left_isr(1, topic, [1, 2])
        await flow.until_acked(50)
        # RULES 5.6: a follower that went away is waited for half a second, not for replica.lag.time.max.ms.
        assert max(flow.longest_pause_s[partition] for partition in (1, 2)) < 5.0
        killed.start()
        await deployed.healed(topic, 3)
    assert [each.pid for each in deployed.cluster.broker_processes(1) if each is not killed] == others
    assert all(each.running for each in deployed.cluster.processes.values())


@pytest.mark.parametrize("name", ["controller", "etcd"])
async def test_records_flow_on_without_controller_or_etcd(deployed: Deployment, name: str) -> None:
    topic = f"killed-{name}"
    await deployed.create_topic(topic, ASSIGNMENT)
    async with traffic(deployed.cluster.bootstrap, topic, 3) as flow:
        deployed.cluster.processes[name].kill()
        await flow.until_acked(200)
        deployed.cluster.processes[name].start()
        # It takes part again: a topic is made, and a leader that dies is replaced.
        await deployed.create_topic(f"{topic}-later", ASSIGNMENT)
        deployed.cluster.processes["replica-manager-1"].kill()
        await deployed.replaced(1, topic, 3)
        await flow.until_acked(50)
        deployed.cluster.processes["replica-manager-1"].start()
        await deployed.healed(topic, 3)


async def test_brokers_are_killed_and_started_one_after_another(deployed: Deployment) -> None:
    await deployed.create_topic("rolling", ASSIGNMENT)
    async with traffic(deployed.cluster.bootstrap, "rolling", 3) as flow:
        for broker in (3, 2):
            deployed.cluster.kill_broker(broker)
            await deployed.left_isr(broker, "rolling", [0, 1, 2])
            await flow.until_acked(50)
            deployed.cluster.start_broker(broker)
            await deployed.healed("rolling", 3)


async def test_leaderships_go_back_to_brokers_that_were_away(deployed: Deployment) -> None:
    topic = "balanced"
    await deployed.create_topic(topic, ASSIGNMENT)
    async with traffic(deployed.cluster.bootstrap, topic, 3) as flow:
        deployed.cluster.kill_broker(1)
        await deployed.replaced(1, topic, 3)
        refused = await elect_leaders(deployed, topic)
        assert (refused.returncode, refused.stdout.count("broker 1, the preferred leader of balanced-0, is not")) == (
            1,
            1,
        )
        deployed.cluster.start_broker(1)
        await deployed.healed(topic, 3)
        moved = await elect_leaders(deployed, topic, "--json")
        assert [json.loads(line) for line in moved.stdout.splitlines()] == [
            {"topic": topic, "partition": 0, "error": None}
        ]
        assert [state.leader for state in await deployed.states(topic, 3)] == [1, 2, 3]
        await flow.until_acked(50)


async def elect_leaders(deployed: Deployment, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [HIGHWATER, "topics", "elect-leaders", *arguments, "--bootstrap", deployed.cluster.bootstrap]
    return await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)


async def test_sigterm_moves_leadership_before_the_process_ends(deployed: Deployment) -> None:
    await deployed.create_topic("terminated", ASSIGNMENT)
    async with traffic(deployed.cluster.bootstrap, "terminated", 3) as flow, deployed.recorded_changes() as changes:
        process = deployed.cluster.processes["replica-manager-2"]
        process.terminate()
        await ended(process)
        await flow.until_acked(50)
        assert max(flow.longest_pause_s.values()) < 2.5  # and so without the end of a session, which takes 3 s
        gone = next(i for i, each in enumerate(changes) if isinstance(each, BrokerChange) and each.broker is None)
        led = [
            (each.partition, each.value.state.leader)
            for each in changes[:gone]
            if isinstance(each, StateChange) and each.topic == "terminated" and each.value is not None
        ]
        assert (1, 3) in led, "the next of its replicas leads before the broker leaves"
        # The other two follow; all end by themselves, and the broker takes its place again.
        for process in deployed.cluster.broker_processes(2):
            process.terminate()
            await ended(process)
        deployed.cluster.start_broker(2)
        await deployed.healed("terminated", 3)


async def test_two_brokers_that_are_drained_at_once_leave_every_isr_its_minimum(deployed: Deployment) -> None:
    """RULES 7.8: one stops; the other goes on copying until it is back."""
    topic = "drained"
    await deployed.create_topic(topic, ASSIGNMENT)
    async with traffic(deployed.cluster.bootstrap, topic, 3) as flow, deployed.recorded_changes() as changes:
        drained = [deployed.cluster.processes[f"replica-manager-{broker}"] for broker in (1, 2)]
        for process in drained:
            process.terminate()

        async def one_has_stopped() -> bool:
            return any(not process.running for process in drained)

        await eventually(one_has_stopped, "one of them stops")
        (waiting,) = [process for process in drained if process.running]
        (stopped,) = [process for process in drained if not process.running]
        await flow.until_acked(100)
        assert waiting.running
        stopped.start()
        await ended(waiting)
        await flow.until_acked(50)
        waiting.start()
        await deployed.healed(topic, 3)
        states = [
            each.value.state for each in changes if isinstance(each, StateChange) and each.topic == topic and each.value
        ]
        assert states
        assert min(len(state.isr) for state in states) == 2


async def ended(process: ChildProcess) -> None:
    async def gone() -> bool:
        return not process.running

    await eventually(gone, f"{process.name} ends")
    assert process.exit_status == 0, process.last_words()

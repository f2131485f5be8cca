"""A controller in office: elections, shutdowns, ISR changes, lost tails, and how its term ends."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from controller_world import World, acts, create, elected, joins_isr, new_topic, only
from fake_broker import FakeBroker, eventually, eventually_async

from highwater.errors import ErrorCode
from highwater.metadata.schema.models import PartitionState, TopicAssignment, config_to_json
from highwater.metadata.state.partition_states import StateWrite, write_states
from highwater.metadata.state.topics import create_topic, mark_for_deletion, read_topics
from highwater.metadata.store.etcd_errors import ControllerDeposed
from highwater.metadata.store.store import Store
from highwater.model.partition import PartitionKey
from highwater.rpc.errors import from_proto
from highwater.v1 import common_pb2, controller_pb2, controller_pb2_grpc

pytestmark = pytest.mark.alone


async def test_a_killed_broker_is_replaced_long_before_its_lease_ends(world: World) -> None:
    """RULES 8.3: refused connections end the registration; one batch of elections follows."""
    stub = await world.cluster()
    keys = await create(stub, "failover", 30, 3)
    dead = world.brokers[1]
    led = dead.leads()
    assert len(led) == 10
    await dead.kill()
    survivors = [world.brokers[2], world.brokers[3]]
    # It waits for 10 s; the lease is 30 s.
    await eventually(lambda: led <= survivors[0].leads() | survivors[1].leads(), "new leaders are told")
    await eventually(lambda: all(each.live == {2, 3} for each in survivors), "clients are told")
    for number, state in enumerate(await world.states("failover", 30)):
        moved = keys[number] in led
        assert state.leader_epoch == int(moved)
        assert state.isr == ((2, 3) if moved else (1, 2, 3))


async def test_a_restarted_broker_is_told_everything_and_leads_under_a_new_epoch(world: World) -> None:
    stub = await world.cluster(2)
    shared = await create(stub, "shared", 4, 2)
    alone = new_topic("alone", -1, -1)
    alone.topics[0].assignment.add(partition=0, replicas=[1])
    response = await stub.CreateTopics(alone)
    assert only(response) is ErrorCode.NONE
    own = PartitionKey(response.results[0].topic_id, 0)
    restarted, other = world.brokers[1], world.brokers[2]
    await restarted.register()
    await eventually(lambda: set(restarted.states) == {*shared, own}, "the whole of LeaderAndIsr")
    await eventually(lambda: restarted.leads() == {own}, "it leads what nobody else can")
    await eventually(lambda: other.leads() == set(shared), "the other one took over meanwhile")
    assert restarted.states[own].leader_epoch == 2  # RULES 3.5: nobody led under 1
    assert restarted.states[own].leader_broker_epoch == restarted.broker_epoch


async def test_a_storage_error_moves_the_leadership_of_that_partition_alone(world: World) -> None:
    """RULES 7.7."""
    stub = await world.cluster(2)
    good = await create(stub, "good", 2, 2)
    broken, other = world.brokers[1], world.brokers[2]
    led = broken.leads()
    broken.broken_topic = "broken"
    keys = await create(stub, "broken", 4, 2)
    assert other.leads() == {*keys, *good} - led
    assert broken.leads() == led
    broken.broken_topic = ""
    await eventually(lambda: set(broken.states) == {*keys, *good}, "it is asked until it answers without error")


async def test_controlled_shutdown_moves_leaderships_first(world: World) -> None:
    stub = await world.cluster()
    keys = await create(stub, "moving", 6, 3)
    alone = new_topic("alone", -1, -1)
    alone.topics[0].assignment.add(partition=0, replicas=[1])
    assert only(await stub.CreateTopics(alone)) is ErrorCode.NONE
    leaving = world.brokers[1]
    request = controller_pb2.ControlledShutdownRequest(broker_id=1, broker_epoch=leaving.broker_epoch)
    await leaving.mark_leaving()
    response = await stub.ControlledShutdown(request)
    assert not response.remaining  # of "alone" there is no other replica: nothing would change
    assert {key for broker in (2, 3) for key in world.brokers[broker].leads()} == set(keys)
    for state in await world.states("moving", 6):
        assert state.isr == (2, 3)
    stale = controller_pb2.ControlledShutdownRequest(broker_id=1, broker_epoch=leaving.broker_epoch - 1)
    assert from_proto((await stub.ControlledShutdown(stale)).error) is ErrorCode.STALE_BROKER_EPOCH
    # A topic made now keeps away from it.
    await create(stub, "later", 2, 2)
    assert [state.isr for state in await world.states("later", 2)] == [(2, 3)] * 2


async def test_two_that_shut_down_at_once_leave_every_isr_its_minimum(world: World) -> None:
    """RULES 7.8: each partition lets one of them go. They take several transactions."""
    stub = await world.cluster()
    number = 350
    keys = await create(stub, "drained", number, 3)
    leader = world.brokers[3]

    async def ask(broker_id: int) -> controller_pb2.ControlledShutdownResponse:
        epoch = world.brokers[broker_id].broker_epoch
        return await stub.ControlledShutdown(
            controller_pb2.ControlledShutdownRequest(broker_id=broker_id, broker_epoch=epoch), timeout=10
        )

    async def released() -> set[int]:
        answers = await asyncio.gather(ask(1), ask(2))
        for answer in answers:
            assert from_proto(answer.error) is ErrorCode.NONE
            assert len(answer.remaining) == min(answer.leads + answer.needed_by, 10)
        return {broker_id for broker_id, answer in zip((1, 2), answers, strict=True) if not answer.remaining}

    await asyncio.gather(*(world.brokers[each].mark_leaving() for each in (1, 2)))
    let_go: set[int] = set()
    for _ in range(5):
        let_go |= await released()
    states = await world.states("drained", number)
    assert all(len(state.isr) == 2 and state.leader == 3 for state in states)
    assert leader.leads() == set(keys)
    (broker_id,) = let_go
    assert all(broker_id not in state.isr for state in states)


async def test_what_is_in_a_broker_s_way_to_being_ready(world: World) -> None:
    """RULES 8.6: what it has not been told, and its replicas outside their ISRs."""
    stub = await world.cluster(2)
    (key,) = await create(stub, "common", 1, 2)
    leader, other = (world.brokers[each] for each in ((1, 2) if world.brokers[1].leads() else (2, 1)))

    async def standing(broker: FakeBroker) -> tuple[bool, int, list[tuple[str, int]]]:
        request = controller_pb2.DescribeReadinessRequest(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch)
        answer = await stub.DescribeReadiness(request)
        assert from_proto(answer.error) in (ErrorCode.NONE, ErrorCode.STALE_BROKER_EPOCH)
        return answer.told, answer.out_of_sync, [(each.topic, each.partition) for each in answer.sample]

    async def stands(broker: FakeBroker, *expected: object) -> None:
        async def holds() -> bool:
            return await standing(broker) == expected

        await eventually_async(holds, f"broker {broker.broker_id} stands at {expected}")

    for broker in (leader, other):
        await stands(broker, True, 0, [])
    await joins_isr(world, "common", key, leader, (leader.broker_id,))
    await stands(other, True, 1, [("common", 0)])
    assert await standing(leader) == (True, 0, [])
    # What it refuses it has not been told; once it was told, what is new does not count.
    other.broken_topic = "common"
    await other.register()
    await stands(other, False, 1, [("common", 0)])
    other.broken_topic = ""
    await stands(other, True, 1, [("common", 0)])
    await joins_isr(world, "common", key, leader, (1, 2))
    await stands(other, True, 0, [])
    stale = controller_pb2.DescribeReadinessRequest(broker_id=1, broker_epoch=world.brokers[1].broker_epoch - 1)
    assert from_proto((await stub.DescribeReadiness(stale)).error) is ErrorCode.STALE_BROKER_EPOCH


async def led_by_another(
    world: World, stub: controller_pb2_grpc.ControllerAsyncStub, topic: str
) -> tuple[PartitionKey, FakeBroker, FakeBroker]:
    """A partition, its preferred leader, which asked to be shut down, and the broker that leads it instead."""
    (key,) = await create(stub, topic, 1, 2)
    (state,) = await world.states(topic, 1)
    preferred, other = (
        (world.brokers[1], world.brokers[2]) if state.leader == 1 else (world.brokers[2], world.brokers[1])
    )
    await preferred.mark_leaving()
    await stub.ControlledShutdown(
        controller_pb2.ControlledShutdownRequest(broker_id=preferred.broker_id, broker_epoch=preferred.broker_epoch)
    )
    assert other.leads() == {key}
    return key, preferred, other


async def test_preferred_leaders_are_elected_on_demand(world: World) -> None:
    stub = await world.cluster(2)
    key, preferred, other = await led_by_another(world, stub, "preferred")
    place = common_pb2.TopicPartition(topic="preferred", partition=0)
    request = controller_pb2.ElectLeadersRequest(partitions=[place], timeout_ms=5_000)

    async def outcome() -> ErrorCode:
        return from_proto((await stub.ElectLeaders(request)).results[0].error)

    assert await outcome() is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    await preferred.register()
    await joins_isr(world, "preferred", key, other, (1, 2))
    await eventually(lambda: preferred.states, "it is back")

    async def moved() -> bool:
        return await outcome() is ErrorCode.NONE

    await eventually_async(moved, "the controller sees it in the ISR")
    await eventually(lambda: preferred.leads() == {key}, "it leads again")
    assert await outcome() is ErrorCode.ELECTION_NOT_NEEDED


@pytest.mark.parametrize("enabled", [True, False])
async def test_leaderships_go_back_by_themselves(world: World, monkeypatch: pytest.MonkeyPatch, enabled: bool) -> None:
    settings = world.settings().model_copy(
        update={"leader_imbalance_check_interval_seconds": 1, "auto_leader_rebalance_enable": enabled}
    )
    monkeypatch.setattr(world, "settings", lambda controller_id: settings)
    key, preferred, other = await led_by_another(world, await world.cluster(2), "rebalanced")
    await preferred.register()
    await joins_isr(world, "rebalanced", key, other, (1, 2))
    if enabled:
        await eventually(lambda: preferred.leads() == {key}, "it leads again")
    else:
        await asyncio.sleep(1.5)
        assert not preferred.leads()


async def test_isr_changes_are_collected_announced_and_removed(world: World) -> None:
    """RULES 2.5 (the quiet time is short here)."""
    stub = await world.cluster(2)
    (key,) = await create(stub, "shrinking", 1, 2)
    (state,) = await world.states("shrinking", 1)
    await joins_isr(world, "shrinking", key, world.brokers[state.leader], (state.leader,))

    def told() -> bool:
        return all(
            list(b.metadata["shrinking"].partitions[0].state.isr) == [state.leader] for b in world.brokers.values()
        )

    await eventually(told, "everyone hears of the ISR")

    async def removed() -> bool:
        return not (await world.store.get_prefix(world.keys.isr_changes)).entries

    await eventually_async(removed, "the notification is removed")


async def test_a_lost_tail_leaves_the_isr_and_is_recorded(world: World) -> None:
    """RULES 7.2."""
    stub = await world.cluster()
    keys = await create(stub, "tails", 3, 3)
    lost = world.brokers[2]
    led = {key.partition for key in keys if key in lost.leads()}
    await lost.register(tail_lost=True)

    async def recorded() -> bool:
        entry = await world.store.get(world.keys.broker_tail(2))
        return entry is not None and entry.value == str(lost.broker_epoch).encode()

    await eventually_async(recorded, "the registration is recorded")
    for number, state in enumerate(await world.states("tails", 3)):
        assert state.isr == (1, 3)
        assert number in led or state.lost == (2,)  # what it led, the election may have taken from it before


async def test_what_a_controller_left_half_done_is_finished(world: World) -> None:
    """RULES 9.1, 9.2."""
    for broker_id in (1, 2):
        await world.broker(broker_id)
    earlier = await elected(world)
    replicas = ((1, 2), (2, 1))
    made = TopicAssignment("made", uuid.uuid4().bytes, replicas)
    await create_topic(world.store, world.keys, earlier.term, made, {"min.insync.replicas": "1"})
    doomed = TopicAssignment("doomed", uuid.uuid4().bytes, replicas)
    versioned = await create_topic(world.store, world.keys, earlier.term, doomed, {})
    await mark_for_deletion(world.store, world.keys, earlier.term, versioned)
    await earlier.election.resign()
    await world.acting()
    wanted = {PartitionKey(made.topic_id, number) for number in (0, 1)}
    await eventually(lambda: all(set(b.states) == wanted for b in world.brokers.values()), "states are made and sent")
    assert [state.leader for state in await world.states("made", 2)] == [1, 2]

    async def deleted() -> bool:
        return doomed.topic_id not in (await read_topics(world.store, world.keys)).topics

    await eventually_async(deleted, "the deletion is finished")


async def test_another_controller_takes_over_at_once_when_one_stops(world: World) -> None:
    first = await world.controller(0)
    await acts(first)
    second = await world.controller(1)
    broker = await world.broker(1)
    await eventually(lambda: broker.live == {1}, "the broker is seen")
    stub = world.stub(first.address)
    keys = await create(stub, "kept", 2, 1)
    await eventually(lambda: second._acting() is not None, "the second one knows who acts")
    answer = await world.stub(second.address).CreateTopics(new_topic("elsewhere"))
    assert from_proto(answer.error) is ErrorCode.NOT_CONTROLLER
    assert answer.controller.address == first.address
    broker.states.clear()
    await first.stop()
    await acts(second)
    await eventually(lambda: set(broker.states) == set(keys), "the new one sends everything")
    assert broker.controller_epoch == 2
    assert {state.leader_epoch for state in await world.states("kept", 2)} == {0}  # nothing changed, nothing is elected


async def test_a_zombie_can_neither_write_nor_instruct(world: World, tmp_path: Path) -> None:
    """Invariant 9: a controller that was paused while another took over."""
    settings = world.settings(5)
    arguments = [f"controller.id={settings.controller_id}", f"cluster={settings.cluster}", f"etcd={world.etcd.address}"]
    arguments += ["listen=127.0.0.1:0", "advertised.listener=127.0.0.1:0", "controller.session.timeout.ms=1000"]
    with (tmp_path / "controller.log").open("wb") as log:
        zombie = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "highwater.controller", *(f"--set={each}" for each in arguments), stderr=log
        )
    try:
        broker = await world.broker(1)
        await eventually(lambda: broker.metadata_updates, "the first controller acts", 20)
        assert set(broker.every_controller) == {5}
        zombie.send_signal(signal.SIGSTOP)
        stub = await world.acting(0)
        await create(stub, "after", 1, 1)
        zombie.send_signal(signal.SIGCONT)
        broker.every_controller.clear()
        await create(stub, "more", 2, 1)
        await eventually(lambda: b"deposed" in (tmp_path / "controller.log").read_bytes(), "the zombie finds out")
        assert broker.controller_epoch == 2
        assert {state.controller_epoch for state in await world.states("more", 2)} == {2}
    finally:
        os.kill(zombie.pid, signal.SIGCONT)
        zombie.kill()
        await zombie.wait()


async def test_every_write_of_a_deposed_controller_is_refused(world: World) -> None:
    """RULES 2.2."""
    earlier = await elected(world)
    assignment = TopicAssignment("t", uuid.uuid4().bytes, ((1,),))
    await create_topic(world.store, world.keys, earlier.term, assignment, {})
    await earlier.election.resign()
    await world.acting()
    state = PartitionState(leader=1, leader_epoch=7, leader_broker_epoch=1, isr=(1,))
    with pytest.raises(ControllerDeposed):
        await write_states(world.store, world.keys, earlier.term, [StateWrite("t", 0, state, 0)])


async def test_a_controller_that_a_broker_calls_stale_ends_its_term(world: World) -> None:
    service = await world.controller()
    await acts(service)
    broker = FakeBroker(1, world.store, world.keys)
    world.brokers[1] = broker
    broker.controller_epoch = 3
    await broker.start()
    await eventually(
        lambda: service.active_controller is not None and service.active_controller.term.controller_epoch >= 3,
        "a later term",
    )
    await eventually(lambda: broker.metadata_updates, "which the broker listens to")


async def test_a_broker_that_registers_while_it_still_refuses_is_left_to_its_lease(world: World) -> None:
    """RULES 8.3: it lives, and is only out of the controller's reach."""
    await world.cluster(2)
    unreachable = world.brokers[2]
    await unreachable.kill()
    await eventually(lambda: world.brokers[1].live == {1}, "its first registration ends")
    await unreachable.register()
    await eventually(lambda: world.brokers[1].live == {1, 2}, "its second one is seen")
    service = world.controllers[0]
    assert service.active_controller is not None
    fast_path = service.active_controller._fast_paths[2]
    await eventually(lambda: fast_path._barred_until_ms is not None, "its refusals are seen")
    epoch = unreachable.broker_epoch
    # Three times as long as a first refusal was suffered:
    with pytest.raises(AssertionError, match="not within"):
        await eventually(lambda: world.brokers[1].live == {1}, "it is ended again", 0.9)
    assert service.active_controller.cluster.is_registered(2, epoch)


@pytest.mark.parametrize("lost", ["process", "way"])
async def test_the_process_itself_is_probed_where_its_host_is_known(world: World, lost: str) -> None:
    """RULES 8.3. At the advertised address somebody else may refuse connections for a broker that lives (a Service
    without endpoints), or take them for one that is gone (a mesh)."""
    await world.acting()
    peer = await world.broker(1)
    with process_double() as (address, end_process):
        broker = world.brokers[2] = FakeBroker(2, world.store, world.keys)
        await broker.start(host_address=address)
        await eventually(lambda: peer.live == {1, 2}, "both are registered")
        await eventually(lambda: world.connected() >= {1, 2}, "both are probed")
        if lost == "process":
            end_process()
            await eventually(lambda: peer.live == {1}, "its registration ends")
        else:
            await broker.kill()
            with pytest.raises(AssertionError, match="not within"):  # three times as long as refusals are suffered
                await eventually(lambda: peer.live == {1}, "its registration ends", 0.9)


@contextmanager
def process_double() -> Iterator[tuple[str, Callable[[], None]]]:
    """What takes connections, where, and how it ends. The kernel takes them by itself; with what listens it ends those
    that nobody accepted, too."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        host, port = listening.getsockname()
        yield f"{host}:{port}", listening.close


async def test_an_etcd_that_loses_answered_writes_is_told_of(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert re.match(r"3\.\d+\.\d+", await world.store.version())

    async def version(_: Store) -> str:
        return "3.5.1"

    monkeypatch.setattr(Store, "version", version)
    await world.acting()
    assert "etcd 3.5.1 is not for production" in caplog.text


async def test_entries_that_cannot_be_taken_keep_nobody_from_the_rest(world: World) -> None:
    """As another version, or a hand, may have written them: what is large is 80 MB in all, more than a message."""
    large = {"follower.replication.throttled.replicas": "1:1," * 320_000, "min.insync.replicas": "1"}
    for number in range(64):
        name = f"large-{number:02d}"
        topic = TopicAssignment(name, uuid.uuid4().bytes, ((1, 2),))
        await world.store.put(world.keys.topic(name), topic.to_json())
        await world.store.put(world.keys.topic_config(name), config_to_json(large), timeout_s=30)
    await world.store.put(world.keys.topic("nonsense"), b"nonsense")
    halved = TopicAssignment("halved", uuid.uuid4().bytes, ((1, 2), (1, 2)))
    await world.store.put(world.keys.topic("halved"), halved.to_json())
    await world.store.put(world.keys.state("halved", 0), b"{")
    stub = await world.cluster(2)
    unreadable = world.controllers[-1]._unreadable
    assert len(unreadable) == 66
    broker = world.brokers[1]
    # All topics but the one that cannot be read are served, and of that which is damaged what is not.
    await eventually(lambda: len(broker.states) == 65, "the broker is told of its partitions")
    assert PartitionKey(halved.topic_id, 1) in broker.states
    assert len(await create(stub, "new", 2, 2)) == 2
    # Put right, it is served.
    await world.store.put(world.keys.state("halved", 0), elected_state().to_json())
    await eventually(lambda: PartitionKey(halved.topic_id, 0) in broker.states, "the repaired partition is told")
    assert len(unreadable) == 65


def elected_state() -> PartitionState:
    return PartitionState(leader=-1, leader_epoch=0, leader_broker_epoch=0, isr=(1, 2))


async def test_a_configuration_is_bounded_with_what_it_has_already(world: World) -> None:
    stub = await world.cluster(2)
    name = "follower.replication.throttled.replicas"
    full = ",".join(["1000:1"] * 580)  # 4,059 characters
    (response,) = (await stub.CreateTopics(new_topic("t", 1, 2, config={name: full}))).results
    assert from_proto(response.error) is ErrorCode.NONE
    other = name.replace("follower", "leader")
    resource = controller_pb2.ConfigResource(type=controller_pb2.CONFIG_RESOURCE_TYPE_TOPIC, name="t")
    request = controller_pb2.AlterConfigsRequest(resource=resource, set={other: full})
    altered = await stub.AlterConfigs(request)
    assert from_proto(altered.error) is ErrorCode.INVALID_CONFIG
    assert "8192 are the most" in altered.error.message
    request.unset.append(name)
    assert from_proto((await stub.AlterConfigs(request)).error) is ErrorCode.NONE

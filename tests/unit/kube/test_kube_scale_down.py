from __future__ import annotations

from highwater.client.admin.descriptions import PartitionDescription, TopicDescription
from highwater.kube.scale_down import refusal


def topic(name: str, *replicas: tuple[int, ...]) -> TopicDescription:
    partitions = tuple(
        PartitionDescription(
            partition=number, leader=hosts[0], leader_epoch=0, replicas=hosts, isr=hosts, offline_replicas=()
        )
        for number, hosts in enumerate(replicas)
    )
    return TopicDescription(name, b"0" * 16, partitions, {}, internal=False)


def test_brokers_that_host_nothing_may_go() -> None:
    assert refusal([topic("a", (0, 1, 2)), topic("b", (2, 0))], 3) is None
    assert refusal([], 0) is None


def test_a_broker_that_hosts_replicas_is_named_with_some_of_them_and_what_to_keep() -> None:
    said = refusal([topic("a", (0, 1), (3, 0)), topic("b", (4, 3))], 3)
    assert said is not None
    assert "broker 3 hosts 2 replicas, broker 4 hosts 1 replicas" in said
    assert "(a-1, b-0)" in said
    assert "Keep broker.replicas at 5" in said


def test_only_some_of_very_many_partitions_are_named() -> None:
    said = refusal([topic("a", *[(1, 0)] * 1000)], 1)
    assert said is not None
    assert "broker 1 hosts 1000 replicas (a-0, a-1, a-2, a-3, a-4, …)" in said

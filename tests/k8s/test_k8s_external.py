"""Clients outside the cluster's network reach every broker at the address that it advertises to them."""

from __future__ import annotations

import random
from typing import Any

from kubernetes_cluster import Release, command

from highwater.client.blocking import Admin, Producer
from highwater.kube import smoke_test

BROKERS = 3


def test_a_client_outside_reaches_every_broker_by_its_own_address(release: Release, values: dict[str, Any]) -> None:
    template = "{.items[0].status.addresses[?(@.type=='InternalIP')].address}"
    node = command("kubectl", "get", "nodes", "-o", f"jsonpath={template}").split()[0]
    first = random.randrange(30000, 32767 - BROKERS)
    ports = list(range(first, first + BROKERS))
    advertised = [f"{node}:{port}" for port in ports]
    outside = {"enabled": True, "type": "NodePort", "advertised": advertised, "nodePorts": ports}
    release.install({**values, "externalAccess": outside})
    for bootstrap in advertised:
        print(bootstrap, smoke_test.produce_and_consume(bootstrap, wait_s=30))
    # Each broker leads some of the partitions: a client that could not reach one of them would fail here.
    with Admin(advertised[0]) as admin, Producer(advertised[0], delivery_timeout_ms=20_000) as producer:
        reach = admin.check_brokers()
        assert [(one.address, one.problem) for one in reach] == [(address, None) for address in advertised]
        admin.create_topic("outside", partitions=2 * BROKERS)
        (topic,) = admin.describe_topics(["outside"])
        assert {one.leader for one in topic.partitions} == set(range(BROKERS))
        for one in topic.partitions:
            producer.send_and_wait("outside", b"value", partition=one.partition)
        admin.delete_topic("outside")

"""A Spark session is started beside open clients: its JVM is a child that PySpark forks."""

from __future__ import annotations

from start_beside_clients import start_in_processes

from highwater.cli.local_cluster import LocalCluster
from highwater.client.blocking import Admin


def test_spark_starts_beside_busy_clients_of_every_kind(cluster: LocalCluster, admin: Admin) -> None:
    admin.create_topic("t", 2, 1)
    try:
        assert start_in_processes(cluster.bootstrap, 3) == []
    finally:
        admin.delete_topic("t")

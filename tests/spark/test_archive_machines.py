"""Archives whose directory is not the same on all machines: refused before anything counts as archived."""

from __future__ import annotations

from pathlib import Path

import pytest
from archived import produce_all_kinds
from conftest import FOREVER
from machines import can_have_disks_of_their_own, two_machines
from pipeline_process import pipeline_process

from highwater.cli.local_cluster import LocalCluster
from highwater.client.blocking import Admin

SAID = {
    "delta": "driver and tasks do not see the same in",
    "parquet": "and the driver sees 0 there: it must be on a file system that all machines share",
}


@pytest.mark.timeout(900)
@pytest.mark.skipif(not can_have_disks_of_their_own(), reason="needs root, or the right to make mount namespaces")
@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_two_machines_without_a_directory_in_common(
    cluster: LocalCluster, admin: Admin, topic: str, tmp_path: Path, kind: str
) -> None:
    admin.create_topic(topic, 3, 1, FOREVER)
    produce_all_kinds(cluster.bootstrap, topic, range(600))
    data = tmp_path / "data"
    data.mkdir()
    arguments = ["--to", str(data / "archive"), "--checkpoint", str(data / "checkpoint"), "--format", kind]
    arguments += ["--topic", topic, "--bootstrap", cluster.bootstrap, *two_machines(data, tmp_path)]
    arguments += ["--conf", "spark.sql.shuffle.partitions=2"]
    with pipeline_process("archive", tmp_path) as process:
        for _ in range(2):
            process.start(arguments)
            process.end(status=1)
            assert SAID[kind] in process.said()
    assert not list((data / "checkpoint" / "commits").glob("[0-9]*"))

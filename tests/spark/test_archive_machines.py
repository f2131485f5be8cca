"""Archives whose directory is not the same on all machines: refused before anything counts as archived."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from archived import produce_all_kinds
from conftest import FOREVER, kill_group
from machines import can_have_disks_of_their_own, two_machines

from highwater.cli.local_cluster import LocalCluster
from highwater.client.blocking import Admin

JOB = Path(__file__).with_name("machines_job.py")
SAID = {
    "delta": "driver and tasks do not see the same in",
    "parquet": "and the driver sees 0 there: it must be on a file system that all machines share",
}


@pytest.mark.timeout(900)
@pytest.mark.skipif(not can_have_disks_of_their_own(), reason="needs root, or the right to make mount namespaces")
def test_two_machines_without_a_directory_in_common(
    cluster: LocalCluster, admin: Admin, topic: str, tmp_path: Path
) -> None:
    """At the first start and at the next one."""
    admin.create_topic(topic, 3, 1, FOREVER)
    produce_all_kinds(cluster.bootstrap, topic, range(600))
    data, log = tmp_path / "data", tmp_path / "log"
    data.mkdir()
    arguments = [cluster.bootstrap, topic, str(data), *two_machines(data, tmp_path), "spark.sql.shuffle.partitions=2"]
    with log.open("wb") as errors:
        job = subprocess.Popen(
            [sys.executable, str(JOB), *arguments], stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )
        try:
            told, _ = job.communicate(timeout=600)
        finally:
            kill_group(job)
    assert job.returncode == 0, log.read_text()[-4000:]
    found = [json.loads(line) for line in told.splitlines() if line.startswith(b"[")]
    assert [kind for kind, _ in found] == ["delta", "delta", "parquet", "parquet"]
    assert all(SAID[kind] in said for kind, said in found), found
    assert not list(data.glob("*/checkpoint/commits/[0-9]*"))

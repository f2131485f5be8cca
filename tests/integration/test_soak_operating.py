"""The soak of operating: a short run of it, and that its checks find what they are for."""

from __future__ import annotations

import subprocess
import sys
from math import inf
from pathlib import Path

import pytest
import soak
from soak.operating.disturbances import RECOVERY_S, Disturbances
from soak.operating.guests import check_records
from soak.operating.permission import HEARD_S, Change, Permission

pytestmark = pytest.mark.alone

_SECONDS = 15


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_cluster_is_operated_while_it_is_broken() -> None:
    program = Path(soak.__file__).parent
    done = subprocess.run(
        [sys.executable, str(program), "--operating", "--seconds", str(_SECONDS), "--seed", "1"],
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    for what in (" acl,", " quota", "alice while denied", " strangers", "records acknowledged"):
        assert what in done.stdout, what


def denied(disturbances: Disturbances, begun: float, done: float) -> tuple[Permission, Change]:
    permission = Permission("alice", disturbances)
    change = permission.change(False, begun)
    change.done = done
    return permission, change


def test_who_is_let_in_after_a_denial_is_found() -> None:
    permission, change = denied(Disturbances(), 10, 11)
    assert permission.tried(9, 9.5, allowed=True) == ""
    assert "refused" in permission.tried(8, 9.5, allowed=False)
    assert permission.tried(9, 10.5, allowed=False) == ""  # it was sent before, and answered after
    assert permission.tried(11 + HEARD_S - 0.1, 20, allowed=True) == ""
    assert change.seen == inf
    assert permission.tried(12, 12.5, allowed=False) == ""
    assert change.seen == 12.5
    assert "let in" in permission.tried(11 + HEARD_S + 0.1, 20, allowed=True)
    again = permission.change(True, 30)
    assert permission.tried(29, 31, allowed=True) == ""  # acknowledged or not
    again.done = 31
    assert "refused 4.0 s after" in permission.tried(35, 36, allowed=False)


def test_faults_excuse_what_they_explain() -> None:
    disturbances = Disturbances()
    controllers = disturbances.begin({"controller"}, 10)
    permission, change = denied(disturbances, 10, 11)
    assert permission.due(change) == 11 + HEARD_S  # it is not the controllers who hear of it
    fault = disturbances.begin({"broker-1"}, 12)
    assert permission.due(change) == inf
    assert permission.tried(50, 51, allowed=True) == ""
    fault.ended = controllers.ended = 20
    assert permission.due(change) == 20 + RECOVERY_S + HEARD_S
    assert "let in" in permission.tried(50, 51, allowed=True)


def test_a_lease_is_excused_by_faults_of_its_own_broker_and_of_etcd_alone() -> None:
    disturbances = Disturbances()
    disturbances.begin({"broker-1"}, 10).ended = 12
    own, others = ("etcd", "broker-1"), ("etcd", "broker-2")
    assert disturbances.between(11, 30, own)
    assert disturbances.between(12 + RECOVERY_S, 30, own)
    assert not disturbances.between(12.1 + RECOVERY_S, 30, own)
    assert not disturbances.between(0, 9, own)
    assert not disturbances.between(11, 30, others)
    disturbances.begin({"etcd"}, 29)
    assert disturbances.between(20, 30, others)


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ([0, 1, 2, 4], ""),
        ([0, 1, 2, 3, 4], ""),  # refused at its second try only
        ([0, 2, 4], "1 acknowledged records are lost, 1 first"),
        ([0, 1, 1, 2, 4], "records are doubled, or out of order"),
        ([0, 2, 1, 4], "records are doubled, or out of order"),
        ([0, 1, 2, 4, 5], "1 records that nobody sent, 5 first"),
    ],
)
def test_lost_doubled_and_stolen_records_are_found(found: list[int], problem: str) -> None:
    told = check_records(found, acked={0, 1, 2, 4}, refused={3})
    assert "".join(told) == problem

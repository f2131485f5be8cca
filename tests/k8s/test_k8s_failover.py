"""How long partitions take nothing when a broker dies, and how long it takes to be back."""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Callable

import pytest
from kubernetes_cluster import Release, RunningLoad, gigabyte_of_records, kill_pod, record, until

from highwater.kube.chaos.deck import Fault, Kind, Victim
from highwater.kube.chaos.injection import Injection
from highwater.kube.release import BROKER, SERVICES

_GENEROUS_S = 30.0
_BACK_S = 180.0
_CUT_S = 20.0
_NOTICED_S = 10.0  # until what is gone is not ready
_OUT_OF_SYNC = """
import sys
from highwater.client.blocking import Admin
with Admin(sys.argv[1]) as admin:
    for topic in admin.describe_topics():
        for p in topic.partitions:
            if len(p.isr) < len(p.replicas):
                print(f"{topic.topic}-{p.partition}: ISR {p.isr} of {p.replicas}")
"""


def out_of_sync(release: Release) -> list[str]:
    """The partitions that lack somebody in their ISR."""
    return release.execute(release.pod("broker", 0), "python", "-c", _OUT_OF_SYNC, release.bootstrap).splitlines()


Fail = Callable[[Release, RunningLoad, int], None]


def kill_containers(release: Release, load: RunningLoad, broker: int) -> None:
    load.begin_round()
    Injection(release.installed, print).signal(release.pod("broker", broker), SERVICES, signal.SIGKILL)
    time.sleep(_NOTICED_S)


def delete_pod(release: Release, load: RunningLoad, broker: int) -> None:
    load.begin_round()
    release.installed.delete_pod(release.pod("broker", broker))
    time.sleep(_NOTICED_S)


def cut_off(release: Release, load: RunningLoad, broker: int) -> None:
    def begun(said: str) -> None:
        print(said)
        load.begin_round()

    fault = Fault(
        Kind.NETWORK, (Victim(BROKER, broker),), container="", gracefully=False, seconds=_CUT_S, pause_s=0, node=0
    )
    Injection(release.installed, begun).inject(fault)


@pytest.mark.parametrize(("how", "fail"), [("container", kill_containers), ("pod", delete_pod), ("network", cut_off)])
def test_others_lead_soon(how: str, fail: Fail, running: Release, image: str) -> None:
    load = RunningLoad.start(running, image, seconds=1200)
    load.wait_until_it_writes()
    for broker in range(3):
        fail(running, load, broker)
        until(running.installed.all_ready, f"broker {broker} is back", _BACK_S)
        # A broker that was cut off says that it is ready until it hears that it is not.
        until(lambda: not out_of_sync(running), "all are in their ISRs", _BACK_S)
    load.stop()
    found = load.finish(300)
    seconds = found["rounds"][1:]
    assert len(seconds) == 3
    print(f"k8s_failover_{how}: {seconds} s, one of each broker; {found}")
    record(**{f"k8s_failover_{how}": statistics.median(seconds)})
    assert max(seconds) < _GENEROUS_S


def test_a_killed_broker_is_soon_back_with_a_gigabyte(running: Release) -> None:
    pod, topic, bootstrap = running.pod("broker", 1), "gigabyte", running.bootstrap
    other = running.pod("broker", 0)
    print(f"1 GB was acknowledged after {gigabyte_of_records(running, topic):.1f} s")
    until(lambda: not out_of_sync(running), "all three have it", _BACK_S)
    before = running.installed.pod(pod)
    assert before is not None
    began = time.monotonic()
    kill_pod(running, pod)

    def is_back() -> bool:
        now = running.installed.pod(pod)
        return now is not None and now.uid != before.uid and running.installed.is_ready(pod)

    until(is_back, f"{pod} is ready: in all of its ISRs", _BACK_S)
    record(k8s_rejoin=time.monotonic() - began)
    # What clients are told of ISRs follows some seconds later (RULES 2.5).
    until(lambda: not out_of_sync(running), "metadata says so, too", 15)
    running.execute(other, "highwater", "topics", "delete", topic, f"--bootstrap={bootstrap}")

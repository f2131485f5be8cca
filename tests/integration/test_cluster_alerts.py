"""The chart's alerts over a real cluster's metrics: as it should be, without a broker, mended, without a controller."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from chart_alerts import rules
from promql import STALE, Alert, Recording, seconds
from replica_manager_cluster import eventually
from running_cluster import deployment, running_cluster

from highwater.cli.local_cluster import LocalCluster
from highwater.cli.watching.exposition import NotServedError, Sample, parse, scrape

STEP_S = 15.0
# A busy machine of tests is what it says; and what it says of etcd and volumes others tell.
LEFT_OUT = {"HighwaterBusy", "HighwaterVolumeFillsUp"}


class Prometheus:
    """Scrapes every process, and evaluates the rules, in a time of its own: what was scraped stays for minutes."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._recording = Recording()
        self._now_s = 0.0
        self._there: dict[str, Sequence[Sample]] = {}  # by process, at the last scrape
        self._alerts = [
            Alert(rule["alert"], rule["expr"], seconds(rule["for"]))
            for rule in rules()
            if "needs" not in rule and rule["alert"] not in LEFT_OUT
        ]

    def firing_after(self, minutes: int) -> set[str]:
        """Scrapes now; those that fire when all has been so for that long."""
        found = {name: self.scraped(address) for name, address in self._cluster.metrics_addresses.items()}
        firing: set[str] = set()
        for _ in range(int(minutes * 60 / STEP_S)):
            for process, samples in found.items():
                gone = {(each.name, *sorted(each.labels.items())) for each in samples}
                for sample in self._there.get(process, ()):
                    if (sample.name, *sorted(sample.labels.items())) not in gone:
                        self._add(process, sample, STALE)
                for sample in samples:
                    self._add(process, sample, sample.value)
            self._there = found
            firing = {alert.name for alert in self._alerts if alert.look(self._recording, self._now_s)}
            self._now_s += STEP_S
        return firing

    def scraped(self, address: str) -> Sequence[Sample]:
        try:
            samples = parse(scrape(address))
        except NotServedError:
            return ()
        asked = ("_ready", "_partitions", "_total", "_brokers", "_active", "_logs", "_dirs", "_acls")
        return [each for each in samples if each.name.startswith("highwater_") and each.name.endswith(asked)]

    def _add(self, process: str, sample: Sample, value: object) -> None:
        labels = {**sample.labels, "__name__": sample.name, "namespace": "here", "pod": f"hw-{process}"}
        self._recording.add(self._now_s, labels, value)


async def test_alerts_fire_for_what_is_lost_and_are_silent_before_and_after(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        async with deployment(cluster) as deployed:
            await deployed.create_topic("all", [[1, 2, 3], [3, 1, 2]], min_insync_replicas=3)
            await deployed.create_topic("alone", [[3]], min_insync_replicas=1)
            await deployed.healed("all", 2)
            await deployed.healed("alone", 1, 1)
            prometheus = Prometheus(cluster)

            async def settled(leaderless: int, under_min_isr: int) -> bool:
                """By the processes' own metrics: the controller's gauge, and those of leaders together."""
                found = [
                    each
                    for name, address in cluster.metrics_addresses.items()
                    if name.startswith(("controller", "replica-manager")) and cluster.processes[name].running
                    for each in await asyncio.to_thread(prometheus.scraped, address)
                ]
                sums = {
                    name: sum(each.value for each in found if each.name == name)
                    for name in (
                        "highwater_controller_offline_partitions",
                        "highwater_replica_manager_under_min_isr_partitions",
                    )
                }
                ready = [each.value for each in found if each.name == "highwater_replica_manager_ready"]
                return all(ready) and list(sums.values()) == [leaderless, under_min_isr]

            await eventually(lambda: settled(0, 0), "the cluster is as it should be", 60)
            assert await asyncio.to_thread(prometheus.firing_after, 20) == set()

            cluster.kill_broker(3)
            await eventually(lambda: settled(1, 2), "the broker is missed", 60)
            assert await asyncio.to_thread(prometheus.firing_after, 45) == {
                "HighwaterPartitionsWithoutLeader",
                "HighwaterUnderMinIsr",
                "HighwaterUnderReplicated",
                "HighwaterBrokersMissing",
            }

            cluster.start_broker(3)
            await deployed.healed("all", 2)
            await eventually(lambda: settled(0, 0), "the cluster is as it was", 60)
            assert await asyncio.to_thread(prometheus.firing_after, 45) == set()

            cluster.processes["controller"].kill()
            assert await asyncio.to_thread(prometheus.firing_after, 5) == {"HighwaterNoActiveController"}

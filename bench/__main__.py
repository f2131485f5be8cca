"""Runs the measurements, on Highwater alone or on Highwater and Kafka in alternation."""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from bench.groups.highwater import HighwaterGroups
from bench.groups.sizes import GroupSizes
from bench.highwater_side import HighwaterSide, three_brokers
from bench.kafka_peer import NO_PEER, peer_script
from bench.results import AIMS, publish, results
from bench.work import Work

MEASURES = (
    "startup",
    "idle_rss",
    "produce_table",
    "consume_arrow",
    "consume_records",
    "produce_send",
    "latency",
    "failover",
    "group_rebalance",
    "group_failover",
    "group_join_gap",
    "commit_p50",
    "group_consume",
    "group_idle",
)


def measure(side: HighwaterSide, groups: HighwaterGroups, kind: str, number: int) -> dict[str, float]:
    """One measurement, under the names of its results. `produce_table` makes the topic that the consumers read; those
    of groups make their own."""
    if kind.startswith("group_") or kind == "commit_p50":
        found: dict[str, float] = getattr(groups, kind)(f"bench-{kind.replace('_', '-')}-{number}")
        return found
    table_topic = f"bench-table-{number}"
    if kind in ("startup", "idle_rss"):
        return {kind: getattr(side, kind)()}
    if kind == "produce_table":
        side.create(table_topic)
    if kind in ("produce_table", "consume_arrow", "consume_records"):
        return {kind: getattr(side, kind)(table_topic)}
    topic = f"bench-{kind.replace('_', '-')}-{number}"
    side.create(topic)
    if kind == "latency":
        p50, p99 = side.latency(topic)
        return {"latency_p50": p50, "latency_p99": p99}
    if kind == "failover":
        return {kind: statistics.median(side.failover(topic) for _ in range(side.work.failovers))}
    return {kind: getattr(side, kind)(topic)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kafka", action="store_true", help="run Apache Kafka beside it (HIGHWATER_KAFKA_PEER)")
    parser.add_argument("--only", default="", help=f"some of {','.join(MEASURES)}; startup always runs")
    parser.add_argument("--rounds", type=int, default=1, help="medians over so many")
    arguments = parser.parse_args()
    wanted = ["startup", *(kind for kind in MEASURES[1:] if not arguments.only or kind in arguments.only.split(","))]
    work = Work(rounds=arguments.rounds)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # by way of what stops the clusters
    with tempfile.TemporaryDirectory(prefix="highwater-bench-") as data:
        side = HighwaterSide(three_brokers(Path(data) / "highwater"), work)
        sides = [(side, HighwaterGroups(side, Path(data), GroupSizes()))]
        if arguments.kafka:
            if (script := peer_script()) is None:
                print(NO_PEER, file=sys.stderr)
                return 1
            # confluent-kafka is needed by this side alone
            from bench.groups.kafka import KafkaGroups  # noqa: PLC0415
            from bench.kafka_side import KafkaSide  # noqa: PLC0415

            peer = KafkaSide(script, work)
            sides.append((peer, KafkaGroups(peer, GroupSizes())))  # type: ignore[arg-type]
        taken: dict[str, dict[str, list[float]]] = {side.name: defaultdict(list) for side, _ in sides}
        try:
            for kind in wanted:
                for number in range(1 if kind in ("startup", "idle_rss") else work.rounds):
                    for side, groups in sides:
                        print(f"{side.name}: {kind} …", file=sys.stderr, flush=True)
                        for name, value in measure(side, groups, kind, number).items():
                            taken[side.name][name].append(value)
        finally:
            for side, _ in sides:
                side.stop()
    medians = {
        side: {name: statistics.median(values) for name, values in found.items()} for side, found in taken.items()
    }
    ours = {name: medians["Highwater"][name] for name in AIMS if name in medians["Highwater"]}
    publish(results(ours, "Kafka" if arguments.kafka else None, medians.get("Kafka")))
    return 0


if __name__ == "__main__":
    sys.exit(main())

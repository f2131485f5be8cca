"""The figures of `bench.scale` on Highwater."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import grpc

from bench.highwater_side import HighwaterSide, last_served
from bench.scale.bent import cores_taken, standing_still, whole_again
from bench.scale.cluster import ScaleCluster
from bench.scale.many_clients import ClientLoad, work_of_many
from bench.scale.progress import say, say_failed_over, say_grown
from bench.scale.samples import total
from bench.scale.sizes import BROKERS, REPLICATION_FACTOR, WHOLE_TIMEOUT_S, Sizes, growth, new_topics
from bench.scale.usage import cpu_and_memory, memory_mb, most_of_each
from bench.scale.waiting import until
from bench.work import FAILOVER_TIMEOUT_S, TOPIC_CONFIG, Work, percentile
from highwater.client import Admin, Producer, TopicPartition
from highwater.v1.broker_pb2 import MetadataRequest
from highwater.v1.broker_pb2_grpc import BrokerStub

_STOPPED_S = 10.0
_STARVED_S = 15.0
_ASK_S = 0.02  # between two questions for the controller
_PASSES = 3
_SENDS_PER_PASS = 10  # tables
_MANAGER = "highwater_replica_manager_"


class HighwaterScale:
    """A cluster of three brokers that idle topics are added to; each method is one figure."""

    name = "Highwater"

    def __init__(self, data: Path, sizes: Sizes, *, observed: bool = False) -> None:
        self.cluster = ScaleCluster(data, observed=observed)
        self._side = HighwaterSide(self.cluster, Work(tables=_SENDS_PER_PASS))
        self._sizes = sizes
        self._partitions = 0  # of all topics
        self._idle = 0  # of those that stand idle
        self._creations: list[float] = []  # seconds of each idle topic's
        self._killed: int | None = None  # a broker

    def start(self) -> None:
        """The first topic makes what only the first one makes: connections from the controller to its brokers."""
        self._side.startup()
        self._create("warm-up", 1)

    def stop(self) -> None:
        """Kills everything first: the data is thrown away, and thousands of logs take long to close."""
        self.cluster.kill()
        self._side.stop()

    def seen(self) -> str:
        delay_s, process = self.cluster.longest_delay()
        return f"the longest delay of an event loop was {1000 * delay_s:.0f} ms, of {process or 'none'}"

    # Figures

    def scale_latency(self) -> dict[str, float]:
        """p50 of lone records at 200 a second, as `latency` measures it, on a topic of six partitions: before any idle
        partition is made, and beside them."""
        assert not self._idle, "idle partitions were made before"
        self._create("lone", 6)
        alone, _ = self._side.latency("lone")
        self.grow_to(self._sizes.partitions["scale_latency"])
        beside, _ = self._side.latency("lone")
        return {"scale_latency": beside / alone, "scale_latency_p50": beside, "scale_latency_alone": alone}

    def scale_create(self) -> dict[str, float]:
        """Seconds from the request to make a topic of 100 partitions until its leaders are known to a broker, one topic
        after the other: the last ones (median of three) over the first ones."""
        self.grow_to(self._sizes.partitions["scale_create"])
        first, last = growth(self._creations)
        return {"scale_create": last / first, "scale_create_last": last}

    def scale_idle(self) -> dict[str, float]:
        """CPU of a broker's three processes over the window, in per cent of a core, and their resident memory after it:
        of the broker that has most."""
        self.grow_to(self._sizes.partitions["scale_idle"])
        pids = {f"broker-{broker}": self.cluster.pids(broker) for broker in range(1, BROKERS + 1)}
        cpu, memory = most_of_each(cpu_and_memory(pids, self._sizes.window_s))
        return {"scale_idle_cpu": cpu, "scale_idle_memory": memory}

    def scale_failover(self) -> dict[str, float]:
        """Seconds from the SIGKILL of the three processes of the broker that leads most until other brokers lead all
        of its partitions and each of these has acknowledged a record, sent when all were led."""
        self.grow_to(self._sizes.partitions["scale_failover"])
        return self._side.run(self._failover())

    async def _failover(self) -> dict[str, float]:
        victim = max(range(1, BROKERS + 1), key=self._led_by)
        async with Admin(self.cluster.bootstrap) as admin, Producer(self.cluster.bootstrap, linger_ms=0) as producer:
            led = [
                TopicPartition(topic.topic, partition.partition)
                for topic in await admin.describe_topics()
                for partition in topic.partitions
                if partition.leader == victim
            ]
            before = await last_served(producer, led, time.perf_counter())
            self._kill(victim)
            killed = time.perf_counter()
            await asyncio.to_thread(until, self._without_leader, FAILOVER_TIMEOUT_S)
            all_led = time.perf_counter() - killed
            served = await last_served(producer, led, killed)
        say_failed_over(len(led), all_led, served, before)
        return {"scale_failover": served, "scale_failover_led": all_led}

    def scale_restart(self) -> dict[str, float]:
        """Seconds from the start of the three processes of a broker that was killed until it is in the ISR of every
        partition."""
        self.grow_to(self._sizes.partitions["scale_restart"])
        if self._killed is None:
            self._kill(BROKERS)
            until(self._without_leader, FAILOVER_TIMEOUT_S)
        broker, self._killed = self._killed, None
        assert broker is not None
        began = time.perf_counter()
        self.cluster.start_broker(broker)
        until(self._not_whole, WHOLE_TIMEOUT_S)
        return {"scale_restart": time.perf_counter() - began}

    def scale_controller(self) -> dict[str, float]:
        """Seconds from the SIGKILL of the controller until a broker names the next one as its controller, as it does
        from the first instruction on that it has of it."""
        self.grow_to(self._sizes.partitions["scale_controller"])
        acting = [name for name in self.cluster.controllers() if self._acts(name)]
        if len(acting) != 1:
            raise RuntimeError(f"{len(acting)} controllers act, where it should be one that is killed")
        active = acting[0]
        channels = [grpc.insecure_channel(address) for address in self.cluster.bootstrap.split(",")]
        try:
            stubs = [BrokerStub(channel) for channel in channels]
            former = {_controller_of(stub) for stub in stubs}
            self.cluster.processes[active].kill()
            killed = time.perf_counter()
            told: dict[int, float] = {}

            def untold() -> str:
                for number, stub in enumerate(stubs):
                    if number not in told and _controller_of(stub) not in former:
                        told[number] = time.perf_counter() - killed
                return (
                    "" if len(told) == len(stubs) else f"{len(told)} of {len(stubs)} brokers heard of a new controller"
                )

            until(untold, FAILOVER_TIMEOUT_S, _ASK_S)
        finally:
            for channel in channels:
                channel.close()
            self.cluster.processes[active].start()
        say(f"all brokers had heard of the next controller after {max(told.values()):.2f} s")
        return {"scale_controller": min(told.values())}

    def scale_stopped(self) -> dict[str, float]:
        """Seconds from the SIGCONT of all brokers' processes, after a SIGSTOP of 10 s in which they lose their leases,
        until etcd has a registered leader and a full ISR for each partition, and each of these has then acknowledged
        a record."""
        pids = [pid for broker in range(1, BROKERS + 1) for pid in self.cluster.pids(broker)]
        return self._bent("scale_stopped", lambda: standing_still(pids), _STOPPED_S)

    def scale_starved(self) -> dict[str, float]:
        """The same from the end of busy loops, one more than there are cores, that run for 15 s."""
        return self._bent("scale_starved", cores_taken, _STARVED_S)

    def _bent(self, figure: str, cause: Callable[[], AbstractContextManager[None]], bent_s: float) -> dict[str, float]:
        """The longest of all rounds."""
        self.grow_to(self._sizes.partitions[figure])
        found: list[tuple[float, float]] = []
        for number in range(1, self._sizes.bent_rounds + 1):
            with cause():
                time.sleep(bent_s)
            gone = time.perf_counter()
            led, served = self._side.run(whole_again(self.cluster.etcd, self.cluster.bootstrap, self._partitions, gone))
            found.append((served, led))
            if self._sizes.bent_rounds > 1:
                say(f"round {number}: whole after {led:.1f} s, a record for each after {served:.1f} s")
        return {figure: max(served for served, _ in found), f"{figure}_led": max(led for _, led in found)}

    def scale_produce(self) -> dict[str, float]:
        """Records a second of `produce_table` over so many partitions, in per cent of those over six: first over six
        while there are no others, then over topics of 100, each table in equal slices to all of them. Medians of three
        passes of 2 M records."""
        self._create("six", 6)
        few = statistics.median(self._side.produce_table("six") for _ in range(_PASSES))
        topics = self.grow_to(self._sizes.partitions["scale_produce"])
        many = statistics.median(self._side.produce_table(*topics) for _ in range(_PASSES))
        return {"scale_produce": 100 * many / few, "scale_produce_rate": many}

    def scale_clients(self) -> dict[str, float]:
        """Milliseconds from the moment at which a record was due (each producer sends 20 a second, whatever became of
        those before) to its acknowledgement and to its arrival at a consumer that reads the producer's partition, p99;
        the share of the records that were acknowledged at all; resident memory of the broker that has most, when they
        have ended."""
        topics = self.grow_to(self._sizes.partitions["scale_clients"])
        partitions = self._side.run(self._partitions_of(topics))
        load = ClientLoad(self.cluster.bootstrap, partitions, self._sizes.window_s)
        found = work_of_many(load)
        if found.failures:
            say(f"clients met {', '.join(f'{number:,} × {error}' for error, number in found.failures.items())}")
        if not found.acknowledged or not found.read:
            acknowledged, read = len(found.acknowledged), len(found.read)
            raise TimeoutError(f"of {load.due:,} records {acknowledged:,} were acknowledged and {read:,} read")
        return {
            "scale_clients_p99": percentile(found.acknowledged, 99),
            "scale_clients_read_p99": percentile(found.read, 99),
            "scale_clients_share": 100 * len(found.acknowledged) / load.due,
            "scale_clients_memory": max(memory_mb(self.cluster.pids(broker)) for broker in range(1, BROKERS + 1)),
        }

    async def _partitions_of(self, topics: Sequence[str]) -> list[TopicPartition]:
        async with Admin(self.cluster.bootstrap) as admin:
            return [
                TopicPartition(topic.topic, partition.partition)
                for topic in await admin.describe_topics(topics)
                for partition in topic.partitions
            ]

    # Partitions

    def grow_to(self, partitions: int) -> list[str]:
        """Makes idle topics until they hold so many partitions, waits until all replicas are in sync, and lets what
        that began settle. Returns the topics made."""
        wanted = new_topics(self._idle, partitions)
        if wanted:
            self._side.run(self._make(wanted))
            until(self._not_whole, WHOLE_TIMEOUT_S)
            time.sleep(self._sizes.settle_s)
        return [topic for topic, _ in wanted]

    async def _make(self, topics: Sequence[tuple[str, int]]) -> None:
        async with Admin(self.cluster.bootstrap) as admin:
            for topic, partitions in topics:
                began = time.perf_counter()
                await admin.create_topic(topic, partitions, REPLICATION_FACTOR, TOPIC_CONFIG)
                self._creations.append(time.perf_counter() - began)
                self._idle += partitions
                self._partitions += partitions
                say_grown(self._idle, partitions, self._creations)

    def _create(self, topic: str, partitions: int) -> None:
        self._side.create(topic, partitions)
        self._partitions += partitions

    # State

    def _kill(self, broker: int) -> None:
        self.cluster.kill_broker(broker)
        self._killed = broker

    def _live(self) -> list[int]:
        return [broker for broker in range(1, BROKERS + 1) if broker != self._killed]

    def _acts(self, controller: str) -> bool:
        return total(self.cluster.metrics(controller), "highwater_controller_active") == 1

    def _led_by(self, broker: int) -> int:
        return self._gauge(broker, "leader_partitions")

    def _gauge(self, broker: int, name: str) -> int:
        return int(total(self.cluster.metrics(f"replica-manager-{broker}"), _MANAGER + name))

    def _without_leader(self) -> str:
        """How many partitions no live broker leads, in words; nothing: every one is led."""
        led = sum(self._led_by(broker) for broker in self._live())
        return "" if led >= self._partitions else f"{self._partitions - led:,} of {self._partitions:,} have no leader"

    def _not_whole(self) -> str:
        """How many partitions are not led, or have replicas outside their ISRs, in words."""
        try:
            missing = self._without_leader()
            behind = sum(self._gauge(broker, "under_replicated_partitions") for broker in self._live())
        except ConnectionError as error:
            return str(error)
        return missing or (f"{behind:,} of {self._partitions:,} have replicas outside their ISRs" if behind else "")


def _controller_of(stub: BrokerStub) -> int:
    return int(stub.Metadata(MetadataRequest(), timeout=30).controller_id)

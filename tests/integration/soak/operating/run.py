"""One run: who there is, what they do, what the operator does, what breaks, and the checks at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from time import monotonic

from running_cluster import Deployment, deployment
from secured_broker import acl

from highwater.client import ConfigResource, Consumer, ConsumerRecord, TopicPartition
from highwater.client.admin.configs import ConfigSource
from soak import workload
from soak.checks import check
from soak.cluster import SoakCluster
from soak.episodes import Episodes
from soak.faults import Fault, Faults
from soak.flush_modes import FlushModes
from soak.operating.certificates import Certificates, Tokens
from soak.operating.configurations import Configurations
from soak.operating.etcd_certificates import EtcdCertificates
from soak.operating.guests import TOPICS, Writer, guests
from soak.operating.principals import AUDITOR, KEEPER, MAKER, USERS, WRITERS, Identities
from soak.operating.processes import Processes
from soak.operating.report import summary
from soak.operating.state import Operating
from soak.operating.strangers import Strangers
from soak.run import make_topics, under_way
from soak.state import COMPACTED, NUMBERED, NUMBERED_REPLICAS, SETTLE_S, Soak

SETTINGS = {
    "log.retention.check.interval.ms": "2000",
    "offsets.topic.num.partitions": "3",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.heartbeat.interval.ms": "1000",
}
ANSWER_S = 10.0  # of etcd: all the clients are in this process
RESTS_S = (0.0, 2.0, 5.0, 10.0)  # between episodes: changes are noticed where nothing is broken


class NotedFaults(Faults):
    """Notes when a machine is disturbed."""

    def __init__(self, soak: Soak, cluster: SoakCluster, deployed: Deployment, operating: Operating) -> None:
        super().__init__(soak, cluster, deployed)
        self._disturbances = operating.disturbances
        self._etcd_is_kept = operating.etcd_is_kept

    def draw(self, kind: str) -> Fault:
        fault = super().draw(kind)

        async def work() -> None:
            async with self._etcd_is_kept if "etcd" in fault.machines else nullcontext():
                await noted()

        async def noted() -> None:
            disturbance = self._disturbances.begin(fault.machines, monotonic())
            try:
                await fault.work()
            finally:
                disturbance.ended = monotonic()

        return replace(fault, work=work)


async def run(
    soak: Soak, cluster: SoakCluster, identities: Identities, flushing: FlushModes, seconds: float, kinds: Sequence[str]
) -> None:
    async with deployment(cluster) as deployed:
        operating = Operating(soak, cluster, deployed, identities, cluster.settings.data)
        certificates = Certificates(operating)
        certificates.issue_to_clients()
        await make_topics(deployed, flushing)
        for topic in TOPICS.values():
            await deployed.create_topic(topic, NUMBERED_REPLICAS[:1])
        await deployed.admin.create_acls(acl(f"allow {user.user} {words}") for user in USERS for words in user.acls)
        before = await _configured(deployed)
        try:
            await _operate(operating, certificates, Configurations(operating, before), seconds, kinds)
        finally:
            print(f"\n{summary(operating)}", flush=True)


async def _configured(deployed: Deployment) -> dict[ConfigResource, dict[str, str]]:
    found = {}
    for topic in (NUMBERED, COMPACTED):
        entries = await deployed.admin.describe_configs(ConfigResource.topic(topic))
        found[ConfigResource.topic(topic)] = {
            each.key: each.value for each in entries if each.source is ConfigSource.DYNAMIC_TOPIC and each.value
        }
    return found


async def _operate(
    operating: Operating,
    certificates: Certificates,
    configurations: Configurations,
    seconds: float,
    kinds: Sequence[str],
) -> None:
    soak, deployed, options = operating.soak, operating.deployed, operating.identities.options
    all_guests = guests(operating)
    processes, strangers = Processes(operating), Strangers(operating)
    begun = monotonic()
    written = asyncio.Event()
    following = asyncio.create_task(workload.read_numbers(soak, written, **options(AUDITOR)))
    work = [
        *(
            workload.write_numbers(soak, range(number, len(NUMBERED_REPLICAS), len(WRITERS)), **options(writer))
            for number, writer in enumerate(WRITERS)
        ),
        workload.write_keys(soak, **options(KEEPER)),
        workload.churn_topics(soak, **options(MAKER)),
        *(each.run() for each in all_guests),
        *(each.be_managed() for each in all_guests),
        strangers.run(),
        strangers.persist(),
        configurations.run(),
        certificates.rotate(),
        EtcdCertificates(operating).rotate(),
        Tokens(operating).rotate(),
        processes.watch(),
        processes.keep_time(),
    ]
    try:
        async with under_way(soak, *work):
            faults = NotedFaults(soak, operating.cluster, deployed, operating)
            await Episodes(soak, deployed, faults, kinds, rests_s=RESTS_S, answer_s=ANSWER_S).run(seconds)
        soak.episode = ()
        written.set()
        async with asyncio.timeout(SETTLE_S):
            await following
        await asyncio.to_thread(processes.note_throttled)
        processes.check_logs(monotonic() - begun)
        await configurations.check(deployed.admin)
        await check(soak, deployed)
        await _check_again(soak, [guest for guest in all_guests if isinstance(guest, Writer)])
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def _check_again(soak: Soak, writers: Sequence[Writer]) -> None:
    """From the first record on: none was taken back, or deleted by a retention that was set meanwhile."""
    found: dict[int, int] = dict.fromkeys(range(len(NUMBERED_REPLICAS)), 0)
    async for record in _all_records(soak, NUMBERED, len(found)):
        number = int((record.value or b"").split(b":")[1])
        if (number, record.offset) != (found[record.partition], found[record.partition]):
            soak.problem(f"partition {record.partition} has {number} at offset {record.offset}")
        found[record.partition] += 1
    if found != soak.acked:
        soak.problem(f"{NUMBERED} has {found} records, acknowledged were {dict(soak.acked)}")
    for writer in writers:
        writer.check([int(record.value or b"-1") async for record in _all_records(soak, writer.topic, 1)])


async def _all_records(soak: Soak, topic: str, partitions: int) -> AsyncIterator[ConsumerRecord]:
    wanted = [TopicPartition(topic, number) for number in range(partitions)]
    async with Consumer(bootstrap=soak.bootstrap, auto_offset_reset="error") as consumer:
        ends = await consumer.end_offsets(wanted)
        consumer.assign(wanted)
        for partition in wanted:
            consumer.seek(partition, 0)
        read_by = monotonic() + SETTLE_S
        while any([await consumer.position(partition) < ends[partition] for partition in wanted]):
            assert monotonic() < read_by, f"{topic} cannot be read to its end"
            for record in await consumer.poll(500, max_records=5000):
                yield record

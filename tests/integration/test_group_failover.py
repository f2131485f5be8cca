"""The coordinator of a group is lost: another broker replays its log, and nobody else's partitions change hands."""

from __future__ import annotations

from pathlib import Path

from group_members import Member, commit, committed, coordinator, create_topic, group_cluster, offset
from replica_manager_cluster import eventually

from highwater.errors import ErrorCode
from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.keys import Keys
from highwater.metadata.store.store import Store

GROUP = "readers"


async def test_another_broker_takes_the_groups_over(etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path) -> None:
    async with group_cluster(etcd, store, keys, tmp_path, brokers=3) as cluster:
        await create_topic(cluster, "orders", 4)
        broker = await coordinator(cluster, GROUP)
        first, second = Member(GROUP, 1, ("orders",)), Member(GROUP, 2, ("orders",))
        await first.open(broker)
        await first.owns(range(4))
        await second.open(broker)
        await second.owns_some(2)
        await first.owns_some(2)
        mine, theirs = first.owned, second.owned
        offsets = [offset("orders", partition, 10 + partition) for partition in sorted(mine)]
        assert await commit(broker, GROUP, offsets, first.member_id, first.epoch) == [ErrorCode.NONE] * 2

        assert broker.replica_manager is not None
        dead, broker.replica_manager = broker.replica_manager, None
        await dead.stop(deregister=False)  # as a killed process leaves it
        epochs = first.epoch, second.epoch
        await first.back(cluster)
        await second.back(cluster)
        await first.owns(mine)
        await second.owns(theirs)
        assert (first.epoch, second.epoch) == epochs
        successor = await coordinator(cluster, GROUP)
        assert successor is not broker
        assert await committed(successor, GROUP) == {("orders", partition): 10 + partition for partition in mine}
        await second.leave()
        await first.owns(range(4))
        await first.vanish()


async def test_without_enough_replicas_nothing_is_decided(
    etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path
) -> None:
    settings = {"min.insync.replicas": "2", "replica.lag.time.max.ms": "1000"}
    async with group_cluster(etcd, store, keys, tmp_path, brokers=2, **settings) as cluster:
        await create_topic(cluster, "orders", 4)
        broker = await coordinator(cluster, GROUP)
        member = Member(GROUP, 1, ("orders",))
        await member.open(broker)
        await member.owns(range(4))
        assert await commit(broker, GROUP, [offset("orders", 0, 7)], member.member_id, member.epoch) == [ErrorCode.NONE]
        (other,) = [trio for trio in cluster.trios.values() if trio is not broker]
        await other.stop_fetcher()
        refused = await commit(broker, GROUP, [offset("orders", 0, 8)], member.member_id, member.epoch)
        assert refused == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        assert await member.refused() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        await other.start_fetcher()
        await member.back(cluster)
        await member.owns(range(4))

        async def commits() -> bool:
            return await commit(broker, GROUP, [offset("orders", 0, 9)], member.member_id, member.epoch) == [
                ErrorCode.NONE
            ]

        await eventually(commits, "offsets are committed again")
        assert await committed(broker, GROUP) == {("orders", 0): 9}
        await member.vanish()

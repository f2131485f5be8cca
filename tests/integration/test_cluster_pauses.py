"""A broker that the kernel does not run for a while, and that comes back believing what is no longer so."""

from __future__ import annotations

from replica_manager_cluster import rows
from running_cluster import Deployment, paused, traffic

from highwater.client import Consumer, TopicPartition
from highwater.errors import ErrorCode
from highwater.rpc.connections.channel import open_channel
from highwater.rpc.errors import from_proto
from highwater.v1 import broker_pb2, broker_pb2_grpc, common_pb2


def produce_request(key: common_pb2.PartitionKey, acks: int, value: bytes) -> broker_pb2.ProduceRequest:
    part = broker_pb2.ProducePartition(partition=key, records=rows(value))
    return broker_pb2.ProduceRequest(acks=acks, timeout_ms=10_000, partitions=[part])


async def test_a_leader_that_was_paused_past_its_lease_acknowledges_nothing(deployed: Deployment) -> None:
    """RULES 8.1, 5.7. Requests wait at the paused leader and are the first thing it sees when it runs again."""
    await deployed.create_topic("zombie", [[1, 2, 3]])
    await deployed.preferred_lead("zombie")
    topic_id = (await deployed.admin.describe_topics(["zombie"]))[0].topic_id
    key = common_pb2.PartitionKey(topic_id=topic_id, partition=0)
    zombie = deployed.cluster.processes["replica-manager-1"]
    reader = Consumer("zombie", bootstrap=deployed.cluster.bootstrap, auto_offset_reset="earliest", max_poll_records=50)
    async with reader, traffic(deployed.cluster.bootstrap, "zombie") as flow:
        seen = [record.offset for record in await reader.poll()]
        async with open_channel(deployed.cluster.addresses["replica-manager-1"]) as channel:
            stub = broker_pb2_grpc.BrokerStub(channel)
            await channel.channel_ready()
            with paused(zombie.pid):
                await deployed.replaced(1, "zombie")
                await flow.until_acked(200)
                (state,) = await deployed.states("zombie")
                assert 1 not in state.isr
                end = (await reader.end_offsets([TopicPartition("zombie", 0)]))[TopicPartition("zombie", 0)]
                beyond = broker_pb2.FetchPartition(
                    partition=key, leader_epoch=state.leader_epoch, fetch_offset=end, max_bytes=1 << 20
                )
                produces, fetches = stub.ProduceStream(), stub.FetchStream()
                for acks in (-1, 1, 0):
                    await produces.write(produce_request(key, acks, b"from the past"))
                await fetches.write(broker_pb2.FetchRequest(consumer=broker_pb2.ConsumerRole(), partitions=[beyond]))
            for _ in range(3):
                (result,) = (await produces.read()).results
                assert from_proto(result.error) is not ErrorCode.NONE
            (fetched,) = (await fetches.read()).results
            produces.cancel()
            fetches.cancel()
            # It has not heard of this leader epoch; its log end, short as it is, is no reason to reset a consumer.
            assert from_proto(fetched.error) not in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE)
        await deployed.healed("zombie")
        await flow.until_acked(100)
        while seen[-1] < end:
            seen += [record.offset for record in await reader.poll()]
        assert seen == list(range(len(seen))), "a consumer was reset"

"""A batch that brokers take and no reader can expand: what is damaged stands in the blocks of an lz4 frame that hold
values alone, which the check of an append does not expand (docs/limits.md)."""

from __future__ import annotations

import struct

import grpc

from highwater.client.blocking import Admin
from highwater.records import Codec, encode_lists
from highwater.records.header import crc32c
from highwater.v1 import broker_pb2, broker_pb2_grpc, common_pb2

RECORDS = 8_000


def poisoned_batch() -> bytes:
    values = [b"%d, and so on. " % number * 60 for number in range(RECORDS)]
    sound = encode_lists([1_767_225_600_000] * RECORDS, None, values, codec=Codec.LZ4)
    middle = len(sound) // 2
    batch = sound[:middle] + bytes(300) + sound[middle + 300 :]
    return batch[:17] + struct.pack(">I", crc32c(batch[21:])) + batch[21:]


def append_poisoned(admin: Admin, topic: str) -> tuple[int, int]:
    """To partition 0, as a producer that means harm does; its first and last offset."""
    (found,) = admin.describe_topics([topic])
    key = common_pb2.PartitionKey(topic_id=found.topic_id, partition=0)
    addresses = {each.broker_id: each.address for each in admin.describe_cluster().brokers}
    partition = broker_pb2.ProducePartition(partition=key, records=poisoned_batch())
    request = broker_pb2.ProduceRequest(acks=-1, timeout_ms=10_000, partitions=[partition])
    with grpc.insecure_channel(addresses[found.partitions[0].leader]) as channel:
        (result,) = broker_pb2_grpc.BrokerStub(channel).Produce(request, timeout=20).results
    assert result.error.code == 0, result
    return result.base_offset, result.last_offset

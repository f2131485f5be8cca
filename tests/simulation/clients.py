"""Clients: idempotent producers with the SDK's own `PartitionQueue`, producers that ask for `acks=1`, and consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from highwater.client.producer.delivery import BatchDelivery
from highwater.client.producer.partition_queue import PartitionQueue, ProduceAnswer, ProducerBatch, RetryPolicy
from highwater.errors import ErrorCode
from highwater.model.partition import PartitionKey

from .network import Stream
from .replica_manager import Produced, ReplicaManagerProcess
from .scheduler import Process
from .storage import Batch

if TYPE_CHECKING:
    from .world import World

CLIENT = 300  # their place
REQUEST_TIMEOUT_MS = 1500
GIVE_UP_MS = 1_000_000


class LeaderFinder:
    """Where a client believes the leader to be. It never goes back to a lower leader epoch (RULES 5.7)."""

    def __init__(self, owner: Process, world: World, key: PartitionKey) -> None:
        self.owner = owner
        self.world = world
        self.key = key
        self.leader = -1
        self.leader_epoch = -1
        self._asking = False

    def refresh(self) -> None:
        if not self._asking:
            self._asking = True
            self.owner.spawn(self._refresh())

    async def _refresh(self) -> None:
        await self.owner.sleep(20)
        world = self.world
        node = world.nodes[1 + int(world.scheduler.random.random() * len(world.nodes))]
        answer = await world.network.call(
            self.owner, node.broker_id, node.server, "on_metadata", self.key, timeout_ms=500
        )
        self._asking = False
        if answer is not None and answer[1] >= self.leader_epoch and answer[0] >= 0:
            self.leader, self.leader_epoch = answer


class Producer(Process):
    """One partition's idempotent producer. `wanted` batches are sent in all; when all are acknowledged it is done."""

    def __init__(self, world: World, key: PartitionKey, producer_id: int, acks: int) -> None:
        super().__init__(world.scheduler, CLIENT, f"producer {producer_id}")
        self.world = world
        self.key = key
        self.producer_id = producer_id
        self.acks = acks
        self.sent: list[int] = []  # payloads, in the order in which they were sent
        self.acknowledged: dict[int, int] = {}  # payload -> base offset
        self._random = world.scheduler.random.random
        self._finder = LeaderFinder(self, world, key)
        self._queue = PartitionQueue(
            "t",
            key.partition,
            idempotent=acks == -1,
            max_in_flight=5,
            retry=RetryPolicy(30, 400, GIVE_UP_MS),
            random=self._random,
        )
        if acks == -1:
            self._queue.renew(producer_id, 0)
        self._payloads: dict[ProducerBatch, int] = {}
        self._streams: dict[int, tuple[Stream, ReplicaManagerProcess, dict[int, ProducerBatch]]] = {}
        self._next_request = 0

    @property
    def idle(self) -> bool:
        return self._queue.idle

    def send_one(self) -> None:
        payload = self.world.count()
        batch = ProducerBatch(
            BatchDelivery("t", self.key.partition), 1 + int(self._random() * 3), self.now_ms, payload=b"x"
        )
        self._payloads[batch] = payload
        self.sent.append(payload)
        self._queue.add(batch)
        self.drive()

    def drive(self) -> None:
        """Sends what may go; to be called when anything has changed, and every now and then."""
        while self._finder.leader >= 0:
            batch = self._queue.next_to_send(self.now_ms)
            if batch is None:
                return
            self._transmit(batch)
        self._finder.refresh()

    def _transmit(self, batch: ProducerBatch) -> None:
        queue = self._queue
        record = Batch(self._payloads[batch], batch.records)
        if self.acks == -1:
            record = Batch(record.payload, record.records, queue.producer_id, queue.producer_epoch, batch.wire_sequence)
        node = self.world.nodes[self._finder.leader]
        stream = self._stream(self._finder.leader)
        if stream is None:
            self.after(2, self._answered, batch, ErrorCode.NETWORK_EXCEPTION, -1)
            return
        connection, manager, waiting = stream
        self._next_request += 1
        request = self._next_request
        waiting[request] = batch

        def answer(produced: Produced) -> None:
            connection.to_client(self._received, waiting, request, produced)

        timeout_ms = self.world.settings.produce_timeout_ms
        connection.to_server(manager.on_produce, answer, self.key, self.acks, record, timeout_ms)
        self.after(REQUEST_TIMEOUT_MS, self._timed_out, node.broker_id, connection, waiting, request)

    def _stream(self, leader: int) -> tuple[Stream, ReplicaManagerProcess, dict[int, ProducerBatch]] | None:
        found = self._streams.get(leader)
        if found is None:
            manager = self.world.nodes[leader].server()
            if manager is None:
                return None
            waiting: dict[int, ProducerBatch] = {}
            stream = Stream(self.world.network, self, manager, lambda: self._closed(leader, waiting), lambda: None)
            found = self._streams[leader] = (stream, manager, waiting)
        return found

    def _received(self, waiting: dict[int, ProducerBatch], request: int, produced: Produced) -> None:
        batch = waiting.pop(request, None)
        if batch is not None:
            self._answered(batch, produced.error, produced.base_offset)

    def _timed_out(self, leader: int, stream: Stream, waiting: dict[int, ProducerBatch], request: int) -> None:
        """A stream that does not answer is given up with all that is on it."""
        if request in waiting:
            stream.close(0)
            self._closed(leader, waiting)

    def _closed(self, leader: int, waiting: dict[int, ProducerBatch]) -> None:
        found = self._streams.get(leader)
        if found is not None and found[2] is waiting:
            del self._streams[leader]
        batches = list(waiting.values())
        waiting.clear()
        for batch in batches:
            self._answered(batch, ErrorCode.NETWORK_EXCEPTION, -1)

    def _answered(self, batch: ProducerBatch, error: ErrorCode, base_offset: int) -> None:
        settled = self._queue.answered(batch, ProduceAnswer(error, base_offset=base_offset), self.now_ms)
        if settled:
            payload = self._payloads.pop(batch)
            if error is ErrorCode.NONE:
                self.acknowledged[payload] = base_offset
            else:
                self.world.note("producer", self.producer_id, "gave up", payload, error)
        elif error is not ErrorCode.NONE:
            self._finder.refresh()
            self.after(max(1, int(self._queue.retry_at_ms - self.now_ms) + 1), self.drive)
        self.drive()


class Consumer(Process):
    """Reads one partition from the start, wherever its leader is."""

    def __init__(self, world: World, key: PartitionKey) -> None:
        super().__init__(world.scheduler, CLIENT, f"consumer {key}")
        self.world = world
        self.key = key
        self.offset = 0
        self._finder = LeaderFinder(self, world, key)
        self.spawn(self._run())

    async def _run(self) -> None:
        world = self.world
        while True:
            if self._finder.leader < 0:
                self._finder.refresh()
                await self.sleep(100)
                continue
            node = world.nodes[self._finder.leader]
            epoch = self._finder.leader_epoch
            answer: Any = await world.network.call(
                self, node.broker_id, node.server, "on_consume", self.key, epoch, self.offset, timeout_ms=500
            )
            if answer is None or answer[0] is not ErrorCode.NONE:
                if answer is not None and answer[0] is ErrorCode.OFFSET_OUT_OF_RANGE:
                    world.history.consumer_reset(self.key, self.offset, epoch)
                    self.offset = 0
                self._finder.refresh()
                await self.sleep(world.settings.consume_pause_ms)
                continue
            for batch in answer[1]:
                self.offset = max(self.offset, batch.next_offset)
            if not answer[1]:
                latest = await world.network.call(
                    self, node.broker_id, node.server, "on_latest", self.key, timeout_ms=500
                )
                del latest  # checked where it is answered
                await self.sleep(world.settings.consume_pause_ms)

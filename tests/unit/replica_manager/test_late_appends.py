"""Appends whose outcome is not known and which land after the fence that settled them (RULES 3.4): the leader learns of
what they wrote, every produce is answered once, and no slot is kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.errors import ErrorCode
from highwater.log_storage_client.values import Append, AppendAnswer
from highwater.metadata.schema.models import PartitionState, VersionedState
from highwater.model.fence_role import Role
from highwater.model.log_state import LogState
from highwater.model.partition import PartitionKey
from highwater.records import Codec, Record, encode_rows, read_header
from highwater.replica_manager.partition.actions import (
    Fence,
    FenceAnswer,
    FetchSession,
    FollowerFetch,
    Instruction,
    LiveBrokers,
    PartitionSettings,
)
from highwater.replica_manager.partition.answers import ACKS_ALL
from highwater.replica_manager.replicas.hosted_partition import HostedPartition
from highwater.replica_manager.replicas.metrics import ReplicaManagerMetrics
from highwater.replica_manager.replicas.purgatory import Purgatory
from highwater.replica_manager.replicas.replica_manager import ReplicaManager
from highwater.replica_manager.requests.produce import ProduceHandler, ProducePart, ProduceResult
from highwater.replica_manager.storage.append_pipeline import AppendPipeline
from highwater.telemetry.metrics import Metrics

KEY = PartitionKey(b"t" * 16, 0)
EPOCH = 5
Answered = Callable[[AppendAnswer | None], None]
COUNTED = ReplicaManagerMetrics(Metrics("test"))


class Log:
    """log-storage behind an append stream: answers in order, one `answer_next` at a time. What was on a stream that
    broke lands when the test says so. A batch that it has is a duplicate."""

    def __init__(self) -> None:
        self.log_end_offset = 0
        self.batches: dict[bytes, int] = {}  # and where each begins
        self.sent: deque[tuple[Append, Answered]] = deque()
        self.late: deque[Append] = deque()
        self.refusing: dict[bytes, ErrorCode] = {}
        self.offline = False

    def send(self, append: Append, answered: Answered) -> None:
        self.sent.append((append, answered))

    def answer_next(self) -> None:
        append, answered = self.sent.popleft()
        answered(self._append(append))

    def answer_all(self) -> None:
        while self.sent:
            self.answer_next()

    def break_stream(self) -> None:
        """Nothing is answered; what was sent may still land."""
        sent, self.sent = self.sent, deque()
        self.late += (append for append, _ in sent)
        for _, answered in sent:
            answered(None)

    def land_next(self) -> None:
        self._append(self.late.popleft())

    def _append(self, append: Append) -> AppendAnswer:
        records = bytes(append.records)
        count = read_header(records).last_offset_delta + 1
        error, base, duplicate = self.refusing.get(records, ErrorCode.NONE), -1, False
        if self.offline:
            error = ErrorCode.LOG_STORAGE_ERROR
        elif append.expected_offset != self.log_end_offset:
            error = ErrorCode.OFFSET_MISMATCH
        elif records in self.batches:
            base, duplicate = self.batches[records], True
        elif error is ErrorCode.NONE:
            base = self.batches[records] = self.log_end_offset
            self.log_end_offset += count
        last = base + count - 1 if error is ErrorCode.NONE else -1
        state = LogState(self.log_end_offset, EPOCH, 0, -1)
        return AppendAnswer(error, "", base, last, duplicate, -1, state, "storage-1", offline=self.offline)


class Leader:
    """Broker 1, which leads the one partition; broker 2 follows. Fences are answered when the test says so."""

    def __init__(
        self, log: Log, *, min_insync_replicas: int = 2, max_waits: int = 100, max_requests: int = 1_000
    ) -> None:
        self.log = log
        self.now_ms = 0
        self.fences: deque[Fence] = deque()
        storage: Any = self
        self.replica_manager = ReplicaManager(
            1,
            PartitionSettings(min_insync_replicas=min_insync_replicas),
            storage,
            log,
            storage,
            storage,
            incarnation="rm",
            tail_cache_bytes=1 << 20,
            purgatory=Purgatory(max_produces=max_waits, max_fetches=100),
            message_max_bytes=1 << 20,
            lease_confirmed=lambda: True,
            register_anew=lambda: None,
            report_offline_logs=lambda: None,
            now_ms=lambda: self.now_ms,
        )
        self.replica_manager._publish_soon = lambda: None  # type: ignore[method-assign]
        self.produce_handler = ProduceHandler(
            self.replica_manager, COUNTED, max_requests=max_requests, max_bytes=1 << 30
        )
        self.answers: dict[bytes, list[ProduceResult]] = {}
        self.hosted: HostedPartition = self.replica_manager.host(KEY, "t", {})
        self.hosted.partition.brokers_changed(LiveBrokers({1: 101, 2: 102}), 0)
        state = VersionedState(PartitionState(1, EPOCH, 101, (1, 2)), 10)
        self._perform(self.hosted.partition.instruct(Instruction(state, (1, 2)), 0).actions)
        self.answer_fence()

    # Where log-storage's client, the fencer and what carries ISR changes to etcd stand

    def submit(self, key: PartitionKey, fence: Fence, answered: Any) -> Any:
        self.fences.append(fence)

    async def committed(self, topic: str, partition: int) -> PartitionState | None:
        return None

    # What happens

    def answer_fence(self) -> None:
        fence = self.fences.popleft()
        answer = FenceAnswer(
            Role.LEADER, fence.leader_epoch, log_end_offset=self.log.log_end_offset, incarnation="storage-1"
        )
        self._perform(self.hosted.partition.fenced(answer, self.now_ms))

    def produce(self, records: bytes, timeout_ms: int = 1_000, acks: int = ACKS_ALL) -> None:
        answers = self.answers.setdefault(records, [])

        def done(results: Sequence[ProduceResult]) -> None:
            answers.extend(results)

        self.produce_handler.submit(acks, timeout_ms, [ProducePart(KEY, records)], done)

    def follower_copies_everything(self) -> None:
        """Up to where the leader lets it read."""
        end = self.hosted.partition.log_end_offset
        if self.hosted.partition.leadership is not None:
            verdict = self.hosted.partition.fetched(
                FollowerFetch(FetchSession(2, 102, 0, 1), EPOCH, end, end, EPOCH if end else -1), self.now_ms
            )
            self._perform(verdict.actions)

    def time_passes(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        self.replica_manager.tick()

    def errors(self, records: bytes) -> list[ErrorCode]:
        return [answer.error for answer in self.answers[records]]

    @property
    def slots(self) -> tuple[int, int]:
        return self.produce_handler.room.requests, self.produce_handler.room.size

    def _perform(self, actions: Sequence[Any]) -> None:
        self.replica_manager.perform(self.hosted, actions)


def batch(number: int, records: int = 1) -> bytes:
    return encode_rows([Record(i, 1000, None, b"%d" % number, ()) for i in range(records)], codec=Codec.NONE)


def test_a_mismatch_that_ends_where_the_append_would_have_ended_is_sent_again() -> None:
    """The late append is as long as the one that is refused: the log ends where the next in flight expects it."""
    log, ended = Log(), []
    pipeline = AppendPipeline(
        KEY,
        EPOCH,
        0,
        send=log.send,
        log_ended=lambda answer: ended.append(answer.log.log_end_offset),
        interrupted=lambda: pytest.fail("leadership goes on"),
        log_failed=lambda: pytest.fail("the log is sound"),
    )
    log.late.append(Append(KEY, EPOCH, 0, batch(0)))
    log.land_next()
    answers: list[tuple[int, ErrorCode, int]] = []

    def append(number: int) -> None:
        pipeline.append(batch(number), 1, lambda answer: answers.append((number, answer.error, answer.base_offset)))

    append(1)
    append(2)
    log.answer_next()
    append(3)  # waits for 1 to be sent again
    log.answer_all()
    assert answers == [(2, ErrorCode.NONE, 1), (1, ErrorCode.NONE, 2), (3, ErrorCode.NONE, 3)]
    assert pipeline.outstanding == 0
    assert ended[0] == 1  # told by the refusal already


def test_what_a_duplicate_tells_of_the_log_end_is_what_followers_may_read() -> None:
    """Nobody else appends: the retry of what landed late is the only answer that there is."""
    leader = Leader(log := Log())
    leader.produce(batch(0, records=3))
    log.break_stream()
    assert leader.errors(batch(0, records=3)) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    leader.answer_fence()
    log.land_next()
    leader.produce(batch(0, records=3))
    log.answer_all()
    assert leader.hosted.partition.log_end_offset == log.log_end_offset == 3
    leader.follower_copies_everything()
    assert leader.errors(batch(0, records=3))[1:] == [ErrorCode.NONE]
    assert leader.slots == (0, 0)


def test_a_refused_append_tells_the_log_end_too() -> None:
    leader = Leader(log := Log())
    leader.produce(batch(0))
    log.break_stream()
    leader.answer_fence()
    log.land_next()
    log.refusing[batch(1)] = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    leader.produce(batch(1))
    log.answer_all()
    assert leader.errors(batch(1)) == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
    assert leader.hosted.partition.log_end_offset == 1


def test_what_landed_late_is_not_served_from_the_tail_cache() -> None:
    leader = Leader(log := Log())
    leader.produce(batch(0))
    log.break_stream()
    leader.answer_fence()
    log.land_next()
    leader.produce(batch(1))
    log.answer_all()
    assert leader.hosted.cached(0, 2, 1 << 20) is None
    found = leader.hosted.cached(1, 2, 1 << 20)
    assert found is not None
    assert b"".join(map(bytes, found)).endswith(batch(1)[61:])


# Every outcome gives the slot back


def committed(leader: Leader) -> None:
    leader.log.answer_all()
    leader.follower_copies_everything()


def out_of_time(leader: Leader) -> None:
    leader.log.answer_all()
    leader.time_passes(1_001)


def broken_stream(leader: Leader) -> None:
    leader.log.break_stream()


def interrupted_while_it_waits(leader: Leader) -> None:
    leader.log.answer_all()
    leader._perform(leader.hosted.partition.registration_lost())


def offline(leader: Leader) -> None:
    leader.log.offline = True
    leader.log.answer_all()


def refused(leader: Leader) -> None:
    leader.log.refusing[batch(1)] = ErrorCode.STORAGE_FULL
    leader.log.answer_all()


def evicted(leader: Leader) -> None:
    leader.replica_manager.evict(KEY)


@pytest.mark.parametrize("acks", [0, 1, ACKS_ALL])
@pytest.mark.parametrize(
    "outcome", [committed, out_of_time, broken_stream, interrupted_while_it_waits, offline, refused, evicted]
)
def test_every_outcome_gives_slot_and_bytes_back(outcome: Callable[[Leader], None], acks: int) -> None:
    leader = Leader(Log())
    leader.produce(batch(1), acks=acks)
    assert leader.slots == (1, len(batch(1)))
    outcome(leader)
    assert leader.slots == (0, 0)
    assert len(leader.answers[batch(1)]) == 1


def test_what_log_storage_has_answered_is_not_under_way_any_more() -> None:
    """It waits for followers, without its records: a thousand producers do, in normal work."""
    leader = Leader(log := Log(), max_waits=3)
    for number in (1, 2, 3):
        leader.produce(batch(number))
    assert leader.slots == (3, 3 * len(batch(1)))
    log.answer_all()
    assert leader.slots == (0, 0)
    assert leader.answers == {batch(1): [], batch(2): [], batch(3): []}


def test_what_cannot_wait_for_followers_is_not_written() -> None:
    leader = Leader(log := Log(), max_waits=2)
    leader.produce(batch(1))
    log.answer_all()
    key = PartitionKey(b"u" * 16, 0)
    answers: list[ProduceResult] = []
    leader.produce_handler.submit(
        ACKS_ALL, 1_000, [ProducePart(KEY, batch(2)), ProducePart(key, batch(2))], answers.extend
    )
    assert [answer.error for answer in answers] == [ErrorCode.OVERLOADED] * 2
    assert not log.sent
    leader.produce(batch(3), acks=1)  # waits for nobody
    log.answer_all()
    leader.follower_copies_everything()
    leader.produce(batch(4))
    log.answer_all()
    leader.follower_copies_everything()
    assert [leader.errors(batch(number)) for number in (1, 3, 4)] == [[ErrorCode.NONE]] * 3


def test_no_room_to_wait_for_followers_gives_slot_and_bytes_back() -> None:
    leader = Leader(log := Log(), max_waits=0)
    leader.produce(batch(1))
    log.answer_all()
    assert leader.errors(batch(1)) == [ErrorCode.OVERLOADED]
    assert leader.slots == (0, 0)


def test_an_answer_that_cannot_be_given_gives_slot_and_bytes_back() -> None:
    leader = Leader(log := Log())

    def done(_: Sequence[ProduceResult]) -> None:
        raise ConnectionResetError("the producer has gone")

    leader.produce_handler.submit(1, 1_000, [ProducePart(KEY, batch(1))], done)
    with pytest.raises(ConnectionResetError):
        log.answer_all()
    assert leader.slots == (0, 0)


def test_what_is_refused_at_once_takes_no_slot() -> None:
    leader = Leader(Log())
    leader.produce(b"no batch")
    leader.produce(batch(1), acks=7)
    leader.produce_handler.submit(
        ACKS_ALL, 1_000, [ProducePart(PartitionKey(b"u" * 16, 0), batch(1))], lambda results: None
    )
    assert leader.slots == (0, 0)


STEPS = st.sampled_from(["produce", "retry", "answer", "answer", "break", "fence", "land", "copy", "tick"])


@given(st.lists(STEPS, max_size=60), st.data())
def test_every_produce_is_answered_once_and_the_leader_ends_where_its_log_does(
    steps: list[str], data: st.DataObject
) -> None:
    leader = Leader(log := Log())
    produced: list[bytes] = []
    submitted: dict[bytes, int] = {}

    def submit(records: bytes) -> None:
        submitted[records] = submitted.get(records, 0) + 1
        leader.produce(records)

    for step in steps:
        if step == "produce":
            produced.append(batch(len(produced), data.draw(st.integers(1, 3))))
            submit(produced[-1])
        elif step == "retry" and produced:
            submit(data.draw(st.sampled_from(produced)))
        elif step == "answer" and log.sent:
            log.answer_next()
        elif step == "break":
            log.break_stream()
        elif step == "fence" and leader.fences:
            leader.answer_fence()
        elif step == "land" and log.late:
            log.land_next()
        elif step == "copy":
            leader.follower_copies_everything()
        elif step == "tick":
            leader.time_passes(200)
    while log.late:
        log.land_next()
    while leader.fences:
        leader.answer_fence()
    submit(batch(99))  # somebody appends once more
    log.answer_all()
    while leader.fences:  # too many misses in a row: settled once more
        leader.answer_fence()
    leader.follower_copies_everything()
    leader.time_passes(1_001)
    assert {records: len(answers) for records, answers in leader.answers.items()} == submitted
    assert leader.slots == (0, 0)
    assert leader.hosted.pipeline is not None
    assert leader.hosted.pipeline.outstanding == 0
    assert len(leader.replica_manager.purgatory.produces) == 0
    assert leader.hosted.partition.log_end_offset == log.log_end_offset

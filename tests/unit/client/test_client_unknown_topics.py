"""Topics that nobody has made are refused when the controller says so, and no others are (RULES 9.5)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from cluster_double import BrokerDouble, ClusterDouble

from highwater.client import Admin, ClientClosedError, Consumer, Producer, UnknownTopicError
from highwater.client.cluster.absent_topics import MAX_NAMES
from highwater.client.cluster.cluster import Cluster
from highwater.client.exceptions import LeaderNotAvailableError
from highwater.client.topic_partition import TopicPartition
from highwater.errors import ErrorCode
from highwater.rpc.errors import to_proto
from highwater.v1 import broker_pb2

PATIENCE_S = 10.0
PROMPT_S = 5.0  # on a machine however busy
SHORT_S = 2.0  # the patience where it is waited for


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("highwater.client.cluster.cluster.UNKNOWN_TOPIC_PATIENCE_S", PATIENCE_S)


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch, patience: None) -> None:
    monkeypatch.setattr("highwater.client.cluster.cluster.UNKNOWN_TOPIC_PATIENCE_S", SHORT_S)


@asynccontextmanager
async def client(double: ClusterDouble, *, allow_auto_topic_creation: bool = False) -> AsyncIterator[Cluster]:
    cluster = Cluster(
        double.bootstrap,
        client_id="test",
        request_timeout_ms=5_000,
        allow_auto_topic_creation=allow_auto_topic_creation,
    )
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.close()


def answers(broker: BrokerDouble, code: ErrorCode) -> None:
    """Its metadata has this error for every topic."""

    def view(response: broker_pb2.MetadataResponse) -> None:
        for topic in response.topics:
            topic.CopyFrom(broker_pb2.TopicMetadata(topic=topic.topic, error=to_proto(code)))

    broker.metadata_view = view


def lags(broker: BrokerDouble) -> None:
    answers(broker, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def has_heard(broker: BrokerDouble) -> None:
    broker.metadata_view = lambda response: None


def fails_once(broker: BrokerDouble) -> None:
    def view(response: broker_pb2.MetadataResponse) -> None:
        has_heard(broker)
        raise RuntimeError

    broker.metadata_view = view


async def refused(cluster: Cluster, name: str) -> float:
    """The seconds after which it was."""
    began = time.monotonic()
    with pytest.raises(UnknownTopicError, match=f"{name!r} does not exist"):
        await cluster.topic(name, 10)
    return time.monotonic() - began


@pytest.mark.parametrize("allowed", [False, True])
async def test_what_the_controller_does_not_know_is_refused_at_once(allowed: bool) -> None:
    """Where creation is allowed, too: the brokers do not create."""
    async with ClusterDouble(brokers=3) as double, client(double, allow_auto_topic_creation=allowed) as cluster:
        assert await refused(cluster, "nope") < PROMPT_S
        assert double.described == [["nope"]]


async def send(bootstrap: list[str]) -> None:
    async with Producer(bootstrap) as producer:
        await producer.send("nope", b"v")


async def subscribe(bootstrap: list[str]) -> None:
    async with Consumer(bootstrap=bootstrap) as consumer:
        await consumer.subscribe(["nope"])


async def describe(bootstrap: list[str]) -> None:
    async with Admin(bootstrap) as admin:
        await admin.describe_topics(["nope"])


async def list_offsets(bootstrap: list[str]) -> None:
    async with Admin(bootstrap) as admin:
        await admin.list_offsets([TopicPartition("nope", 0)])


async def verify(bootstrap: list[str]) -> None:
    async with Admin(bootstrap) as admin:
        await admin.verify_replicas("nope", 0)


async def move(bootstrap: list[str]) -> None:
    async with Admin(bootstrap) as admin:
        await admin.alter_replica_log_dirs({(("nope", 0), 1): "/elsewhere"})


@pytest.mark.parametrize("call", [send, subscribe, describe, list_offsets, verify, move])
async def test_every_client_is_refused_at_once(call: Callable[[list[str]], Awaitable[None]]) -> None:
    async with ClusterDouble(brokers=2) as double:
        began = time.monotonic()
        with pytest.raises(UnknownTopicError, match="'nope' does not exist"):
            await call(double.bootstrap)
        assert time.monotonic() - began < PROMPT_S


@pytest.mark.parametrize("allowed", [False, True])
async def test_a_topic_that_brokers_have_not_heard_of_is_found(allowed: bool) -> None:
    async with ClusterDouble(brokers=3) as double, client(double, allow_auto_topic_creation=allowed) as cluster:
        double.create("t")
        for broker in double.brokers.values():
            lags(broker)
        finding = asyncio.create_task(cluster.topic("t", 10))
        await double.until(lambda: double.described == [["t"]])
        await asyncio.sleep(0.3)
        assert not finding.done()
        has_heard(double.brokers[2])
        assert (await finding).topic == "t"


def no_controller(double: ClusterDouble) -> None:
    double.acts = False


def older_controller(double: ClusterDouble) -> None:
    double.reads_etcd = False


def silent_controller(double: ClusterDouble) -> None:
    double.before_described = lambda: asyncio.sleep(3 * SHORT_S)


def failing_controller(double: ClusterDouble) -> None:
    async def fail() -> None:
        raise RuntimeError

    double.before_described = fail


@pytest.mark.parametrize("as_it_is", [no_controller, older_controller, silent_controller, failing_controller])
async def test_it_is_looked_for_where_no_controller_says_so(
    as_it_is: Callable[[ClusterDouble], None], short_patience: None
) -> None:
    async with ClusterDouble(brokers=2) as double, client(double) as cluster:
        as_it_is(double)
        looking = asyncio.create_task(refused(cluster, "nope"))
        finding = asyncio.create_task(cluster.topic("t", 10))
        begun = time.monotonic()
        await double.until(lambda: sum(broker.metadata_requests for broker in double.brokers.values()) >= 5)
        assert time.monotonic() - begun < SHORT_S, "refreshes wait for the controller"
        double.create("t")
        assert (await finding).topic == "t"
        assert await looking >= SHORT_S


async def test_a_controller_that_takes_office_meanwhile_is_asked() -> None:
    """A broker's connection to a former controller fails one question; and for a time nobody is in office."""
    async with ClusterDouble(brokers=2) as double, client(double) as cluster:
        double.acts = False
        looking = asyncio.create_task(refused(cluster, "nope"))
        await double.until(lambda: len(double.described) == 2)
        double.acts = True
        assert await looking < PROMPT_S
        assert len(double.described) == 3


async def test_a_topic_that_the_controller_knows_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long brokers lag: it was made before the look-up began."""
    monkeypatch.setattr("highwater.client.cluster.cluster.UNKNOWN_TOPIC_PATIENCE_S", 0.3)
    async with ClusterDouble(brokers=2) as double, client(double) as cluster:
        double.create("t")
        for broker in double.brokers.values():
            lags(broker)
        finding = asyncio.create_task(cluster.topic("t", 10))
        with pytest.raises(LeaderNotAvailableError, match="no broker knows it yet"):
            await cluster.topic("t", 1)
        assert not finding.done()
        has_heard(double.brokers[1])
        assert (await finding).topic == "t"


async def test_a_topic_is_not_refused_while_no_broker_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that lags said once that it does not know it; since then there is silence, the controller's too."""
    monkeypatch.setattr("highwater.client.cluster.cluster.UNKNOWN_TOPIC_PATIENCE_S", 0.9)
    monkeypatch.setattr("highwater.client.cluster.cluster.ABSENCE_TIMEOUT_S", 0.3)
    async with ClusterDouble(brokers=1) as double, client(double) as cluster:
        (broker,) = double.brokers.values()
        double.create("t")
        lags(broker)
        silent_controller(double)
        finding = asyncio.create_task(cluster.topic("t", 10))
        await double.until(lambda: double.described == [["t"]])
        broker.awake.clear()
        await asyncio.sleep(1.5)
        assert not finding.done()
        has_heard(broker)
        broker.awake.set()
        assert (await finding).topic == "t"


async def test_it_is_looked_for_where_brokers_do_not_forward(short_patience: None) -> None:
    async with ClusterDouble(brokers=2, forwards=False) as double, client(double) as cluster:
        assert await refused(cluster, "nope") >= SHORT_S
        assert not double.described


async def test_an_answer_is_not_for_those_who_came_after_its_question() -> None:
    """One look-up begins before the topic is made and the other one after it; brokers have not heard of it."""
    release = asyncio.Event()
    async with ClusterDouble(brokers=2) as double, client(double) as cluster:
        double.before_described = release.wait
        before = asyncio.create_task(refused(cluster, "t"))
        await double.until(lambda: double.described == [["t"]])
        double.create("t")
        for broker in double.brokers.values():
            lags(broker)
        after = asyncio.create_task(cluster.topic("t", 10))
        seen = sum(broker.metadata_requests for broker in double.brokers.values())
        await double.until(lambda: sum(broker.metadata_requests for broker in double.brokers.values()) >= seen + 3)
        assert double.described == [["t"]]  # one at a time
        release.set()
        await before
        await double.until(lambda: len(double.described) > 1)
        await asyncio.sleep(0.3)
        assert not after.done()
        has_heard(double.brokers[1])
        assert (await after).topic == "t"


async def test_many_names_are_few_questions_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("highwater.client.cluster.cluster.ABSENCE_TIMEOUT_S", PATIENCE_S)
    under_way = most = 0

    async def count() -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.002)
        under_way -= 1

    async with ClusterDouble(brokers=2) as double, client(double) as cluster:
        double.before_described = count
        names = [f"nope-{number}" for number in range(1000)]
        await asyncio.gather(*(refused(cluster, name) for name in names for _ in range(2)))
        assert most == 1
        assert max(map(len, double.described)) <= MAX_NAMES
        assert sorted(name for each in double.described for name in each) == sorted(names)


async def test_nothing_is_asked_for_those_who_have_left(short_patience: None) -> None:
    """A controller that is slow to answer has no more to answer when it is back."""
    async with ClusterDouble(brokers=2) as double, client(double) as cluster:
        silent_controller(double)
        looking = [asyncio.create_task(refused(cluster, f"nope-{number}")) for number in range(5 * MAX_NAMES)]
        await double.until(lambda: len(double.described) == 1)
        for each in looking[:-MAX_NAMES]:
            each.cancel()
        await asyncio.gather(*looking, return_exceptions=True)
        double.before_described = None
        await refused(cluster, "another")
        names = {name for each in double.described[1:] for name in each}
        assert names == {f"nope-{number}" for number in range(4 * MAX_NAMES, 5 * MAX_NAMES)} | {"another"}


async def test_a_fault_of_the_question_ends_neither_it_nor_the_look_up(
    monkeypatch: pytest.MonkeyPatch, short_patience: None
) -> None:
    async with ClusterDouble(brokers=2) as double, client(double) as cluster:
        with monkeypatch.context() as patched:
            patched.setattr("highwater.client.cluster.cluster.read_absent_topics", None)
            assert await refused(cluster, "nope") >= SHORT_S
        assert await refused(cluster, "nope") < PROMPT_S


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.15])
async def test_a_client_that_is_closed_refuses_those_who_wait_for_an_answer(after_s: float) -> None:
    async with ClusterDouble(brokers=2) as double, client(double) as cluster, asyncio.timeout(5):
        silent_controller(double)
        looking = [asyncio.create_task(cluster.topic(f"nope-{number}", 10)) for number in range(2 * MAX_NAMES)]
        await double.until(lambda: len(double.described) == 1)
        await asyncio.sleep(after_s)
        await cluster.close()
        outcomes = await asyncio.gather(*looking, return_exceptions=True)
        assert {type(each) for each in outcomes} == {ClientClosedError}


# Creation by brokers


async def test_a_topic_that_a_broker_makes_is_waited_for() -> None:
    """Some brokers create topics and some do not: those have not heard of it yet."""
    async with ClusterDouble(brokers=2) as double, client(double, allow_auto_topic_creation=True) as cluster:
        first, second = double.brokers.values()
        answers(first, ErrorCode.LEADER_NOT_AVAILABLE)
        asked_before = first.metadata_requests
        finding = asyncio.create_task(cluster.topic("t", 10))
        await double.until(lambda: first.metadata_requests > asked_before and second.metadata_requests > 2)
        assert not finding.done()
        assert not double.described
        double.create("t")
        assert (await finding).topic == "t"


async def test_a_broker_that_does_not_answer_may_be_making_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("highwater.client.cluster.cluster.METADATA_PATIENCE_S", 0.05)
    async with ClusterDouble(brokers=2) as double, client(double, allow_auto_topic_creation=True) as cluster:
        first, second = double.brokers.values()  # asked in this order
        first.awake.clear()
        asked_before = first.metadata_requests
        finding = asyncio.create_task(cluster.topic("t", 10))
        await double.until(lambda: second.metadata_requests > 2)
        assert first.metadata_requests > asked_before
        await asyncio.sleep(0.2)
        assert not finding.done()
        assert not double.described
        double.create("t")
        assert (await finding).topic == "t"
        first.awake.set()


async def test_a_broker_that_fails_and_then_says_that_there_is_none_does_not_make_it() -> None:
    """As one that has just begun, and refuses until a controller has told it of all topics (RULES 9.4)."""
    async with ClusterDouble(brokers=2) as double, client(double, allow_auto_topic_creation=True) as cluster:
        for broker in double.brokers.values():
            fails_once(broker)
        assert await refused(cluster, "nope") < PROMPT_S
        assert double.described == [["nope"]]


async def test_a_request_under_way_may_make_it() -> None:
    """The first broker makes no topics, the second does; it was asked after the controller was."""
    release = asyncio.Event()
    async with ClusterDouble(brokers=2) as double, client(double, allow_auto_topic_creation=True) as cluster:
        first, second = double.brokers.values()
        double.before_described = release.wait
        asked_before = first.metadata_requests
        finding = asyncio.create_task(cluster.topic("t", 10))
        await double.until(lambda: double.described == [["t"]])
        assert first.metadata_requests > asked_before
        second.awake.clear()
        seen = second.metadata_requests
        await double.until(lambda: second.metadata_requests > seen)
        release.set()
        await asyncio.sleep(0.2)
        assert not finding.done()
        double.create("t")
        second.awake.set()
        assert (await finding).topic == "t"


async def test_names_that_are_not_there_are_not_kept() -> None:
    async with ClusterDouble() as double, client(double) as cluster:
        for number in range(3):
            await refused(cluster, f"none-{number}")
        assert not cluster.metadata.missing

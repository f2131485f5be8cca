"""Open streams whose token is removed or expires, at a real broker, over real sockets."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import jwt
import pytest
from controller_world import new_topic, only
from cryptography.hazmat.primitives.asymmetric import rsa
from replica_manager_cluster import eventually, fetch_request
from secured_broker import SecuredBroker, secured_broker

from highwater.client import AuthenticationError, Consumer, Producer, TopicPartition
from highwater.errors import ErrorCode
from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.keys import Keys
from highwater.metadata.store.store import Store
from highwater.model.partition import PartitionKey
from highwater.rpc.errors import from_proto
from highwater.security.principal import user
from highwater.security.token_watch import TICK_S
from highwater.security.tokens import make_token
from highwater.v1 import broker_pb2, group_pb2

AT_MOST_S = 2 * TICK_S + 2.0  # on a busy machine
EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]


@pytest.fixture
async def secured(etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path) -> AsyncIterator[SecuredBroker]:
    async with secured_broker(etcd, store, keys, tmp_path) as made:
        yield made


async def created(secured: SecuredBroker, name: str) -> PartitionKey:
    request = new_topic(name, 1, 1, config={"min.insync.replicas": "1"})
    response = await secured.as_user("admin").controller.CreateTopics(request)
    assert only(response) is ErrorCode.NONE, response
    return PartitionKey(response.results[0].topic_id, 0)


async def joined(caller: Any) -> Any:
    """The stream of a new member of group `g`, once it is one."""
    await caller.groups.FindCoordinator(group_pb2.FindCoordinatorRequest(groups=["g"]))  # makes the topic of offsets
    word = group_pb2.SessionRequest(group="g", member_id=str(uuid.uuid4()))
    word.subscription.topics.append("orders")
    word.subscription.rebalance_timeout_ms = 60_000  # it acknowledges nothing
    word.owned.SetInParent()

    async def member() -> Any:
        session = caller.groups.Session()
        await session.write(word)
        response = await session.read()
        return session if response is not EOF and from_proto(response.error) is ErrorCode.NONE else None

    return await eventually(member, "it is a member")


async def opened(caller: Any, key: PartitionKey) -> dict[str, Any]:
    """A stream whose handler hands out its answers, one whose handler writes them and waits for data, and a member's,
    whose handler waits for what it may never be told."""
    fetch = fetch_request(key, 0, 60_000)
    fetch.consumer.SetInParent()
    fetching = caller.broker.FetchStream()
    await fetching.write(fetch)
    return {"Session": await joined(caller), "ProduceStream": await producing(caller), "FetchStream": fetching}


async def producing(caller: Any) -> Any:
    stream = caller.broker.ProduceStream()
    await goes_on(stream)
    return stream


async def goes_on(stream: Any) -> None:
    await stream.write(broker_pb2.ProduceRequest(acks=1, timeout_ms=1_000))
    assert await stream.read() is not EOF


async def ends(stream: Any) -> grpc.aio.AioRpcError:
    """The error that a stream ends with, after what is still told by it."""
    try:
        while await stream.read() is not EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error
    metadata = grpc.aio.Metadata(), await stream.trailing_metadata()
    return grpc.aio.AioRpcError(await stream.code(), *metadata, await stream.details())


async def replace_tokens(secured: SecuredBroker, *lines: str) -> None:
    replaced = secured.tokens_file.with_name("replaced")
    await asyncio.to_thread(replaced.write_text, "".join(f"{line}\n" for line in lines))
    await asyncio.to_thread(replaced.replace, secured.tokens_file)


async def test_streams_end_with_their_token(secured: SecuredBroker) -> None:
    """And nobody else's do."""
    orders = await created(secured, "orders")
    await secured.allow("allow * all topic orders", "allow * read group g")
    manager = secured.trio.replica_manager
    assert manager is not None
    watch = manager._identification._watch
    of_alice = await opened(secured.as_user("alice"), orders)
    of_bob = await producing(secured.as_user("bob"))

    async def all_open() -> bool:
        return len(watch) == 4

    await eventually(all_open, "every stream is open at the broker")
    text = await asyncio.to_thread(secured.tokens_file.read_text)
    await replace_tokens(secured, *(line for line in text.splitlines() if not line.endswith("User:alice")))
    async with asyncio.timeout(AT_MOST_S):
        for name, stream in of_alice.items():
            ended = await ends(stream)
            assert ended.code() is grpc.StatusCode.UNAUTHENTICATED, name
            assert "counts no more" in (ended.details() or ""), name
            assert "highwater-token-ended" in dict(ended.trailing_metadata() or ()), name
    assert len(watch) == 1
    await goes_on(of_bob)


async def test_a_stream_ends_when_its_token_expires(etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    published: Any = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    jwks = tmp_path / "jwks.json"
    jwks.write_text(json.dumps({"keys": [{**published, "kid": "one"}]}))
    settings = {
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{jwks}",
        "sasl.oauthbearer.expected.audience": "highwater",
        "sasl.oauthbearer.clock.skew.seconds": "1",
    }
    async with secured_broker(etcd, store, keys, tmp_path, settings) as secured:
        orders = await created(secured, "orders")
        await secured.allow("allow * all topic orders", "allow * read group g")
        expires_s = time.time() + 10

        def token(until_s: float) -> str:
            claims = {"sub": "carol", "aud": "highwater", "exp": until_s}
            return jwt.encode(claims, key, algorithm="RS256", headers={"kid": "one"})

        secured.tokens = {"carol": token(expires_s), "later": token(expires_s + 3_600)}
        streams = await opened(secured.as_user("carol"), orders)
        later = await producing(secured.as_user("later"))
        async with asyncio.timeout(11 + AT_MOST_S):
            for name, stream in streams.items():
                assert (await ends(stream)).code() is grpc.StatusCode.UNAUTHENTICATED, name
        assert time.time() >= expires_s + 1  # what the clocks may differ by
        await goes_on(later)


async def test_clients_go_on_with_the_token_that_their_file_has_then(secured: SecuredBroker, tmp_path: Path) -> None:
    await created(secured, "orders")
    await secured.allow("allow alice all topic orders")
    token_file = tmp_path / "alice.token"
    await asyncio.to_thread(token_file.write_text, secured.tokens["alice"])
    manager = secured.trio.replica_manager
    assert manager is not None
    watch = manager._identification._watch

    async def all_ended() -> bool:
        return not len(watch)

    async with (
        Producer(secured.address, token_file=token_file) as producer,
        Consumer(bootstrap=secured.address, token_file=token_file, auto_offset_reset="earliest") as consumer,
    ):
        consumer.assign([TopicPartition("orders", 0)])
        found: list[bytes | None] = []

        async def read(count: int) -> None:
            async with asyncio.timeout(20):
                while len(found) < count:
                    found.extend(record.value for record in await consumer.poll(timeout_ms=100))

        await producer.send("orders", b"first")
        await read(1)
        token, line = make_token(user("alice"))
        await asyncio.to_thread(token_file.write_text, token)
        await replace_tokens(secured, line)
        await eventually(all_ended, "the streams of the removed token have ended")
        await producer.send("orders", b"second")
        await read(2)
        assert found == [b"first", b"second"]
        await replace_tokens(secured, "# none")
        with pytest.raises(AuthenticationError):
            await read(3)


async def test_a_member_goes_on_with_the_token_that_its_file_has_then(secured: SecuredBroker, tmp_path: Path) -> None:
    """It keeps its partitions where that is there in time; else it is told, and goes on once there is one."""
    await created(secured, "orders")
    await secured.allow("allow alice all topic orders", "allow alice read group g")
    token_file = tmp_path / "alice.token"
    await asyncio.to_thread(token_file.write_text, secured.tokens["alice"])
    admin = next(line for line in secured.tokens_file.read_text().splitlines() if line.endswith("User:admin"))
    found: list[bytes | None] = []
    lost: list[TopicPartition] = []

    async def read(count: int) -> None:
        async with asyncio.timeout(20):
            while len(found) < count:
                found.extend(record.value for record in await consumer.poll(timeout_ms=100))

    async with (
        Producer(secured.address, token=secured.tokens["admin"]) as producer,
        Consumer(
            "orders",
            bootstrap=secured.address,
            group="g",
            token_file=token_file,
            auto_offset_reset="earliest",
            on_lost=lost.extend,
        ) as consumer,
    ):
        await producer.send("orders", b"first")
        await read(1)
        token, line = make_token(user("alice"))
        await asyncio.to_thread(token_file.write_text, token)
        before = consumer._group._member.epoch  # type: ignore[union-attr]
        await replace_tokens(secured, line, admin)
        await producer.send("orders", b"second")
        await read(2)
        assert (consumer._group._member.epoch, lost) == (before, [])  # type: ignore[union-attr]
        token, line = make_token(user("alice"))
        await replace_tokens(secured, admin)
        told = ""
        async with asyncio.timeout(20):
            while "group 'g'" not in told:  # fetches are refused, too
                with pytest.raises(AuthenticationError) as refused:
                    await read(3)
                told = str(refused.value)
        assert lost == [TopicPartition("orders", 0)]
        await replace_tokens(secured, line, admin)
        await asyncio.to_thread(token_file.write_text, token)
        await producer.send("orders", b"third")
        async with asyncio.timeout(20):
            while len(found) < 3:
                with suppress(AuthenticationError):  # of an attempt before
                    await read(3)
        assert found[:2] == [b"first", b"second"]
        assert found[-1] == b"third"

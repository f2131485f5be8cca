"""The SDK and the command line at a broker that asks who they are, and what they may do."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from secured_broker import SecuredBroker, acl, secured_broker

from highwater.client import (
    Admin,
    AuthenticationError,
    AuthorizationError,
    Consumer,
    InvalidRequestError,
    NewTopic,
    Producer,
    TopicPartition,
)
from highwater.errors import ErrorCode
from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.keys import Keys
from highwater.metadata.store.store import Store
from highwater.security.acls import AclFilter, Operation, PatternType

HIGHWATER = str(Path(sys.executable).with_name("highwater"))


@pytest.fixture
async def secured(etcd: LocalEtcd, store: Store, keys: Keys, tmp_path: Path) -> AsyncIterator[SecuredBroker]:
    async with secured_broker(etcd, store, keys, tmp_path) as made:
        async with Admin(made.address, token=made.tokens["admin"]) as admin:
            await admin.create_topics([NewTopic(name, 1, 1, {"min.insync.replicas": "1"}) for name in ("open", "shut")])
        yield made


async def test_a_producer_and_a_consumer_by_their_tokens(secured: SecuredBroker, tmp_path: Path) -> None:
    await secured.allow(
        "allow alice write topic open", "allow bob read topic open", "allow bob read group g", "allow bob read topic x*"
    )
    token_file = tmp_path / "alice.token"
    await asyncio.to_thread(token_file.write_text, f"{secured.tokens['alice']}\n")
    async with Producer(secured.address, token_file=token_file) as producer:
        await producer.send("open", b"v")
        with pytest.raises(AuthorizationError, match="shut") as refused:
            await producer.send("shut", b"v")
        assert refused.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        await producer.send("open", b"w")  # and goes on
    async with Consumer(
        "open", bootstrap=secured.address, group="g", auto_offset_reset="earliest", token=secured.tokens["bob"]
    ) as consumer:
        found: list[bytes | None] = []
        async with asyncio.timeout(30):
            while len(found) < 2:
                found += [record.value for record in await consumer.poll()]
        assert found == [b"v", b"w"]


async def test_a_producer_hears_of_a_revocation_and_of_its_end(secured: SecuredBroker) -> None:
    """With WRITE it loses DESCRIBE: the topic goes from its metadata, which it asks for where a leader is late."""
    await secured.allow("allow alice write topic open")
    async with Producer(secured.address, token=secured.tokens["alice"]) as producer:
        await producer.send_and_wait("open", b"v")
        await secured.revoke("allow alice write topic open")
        await secured.decided()
        for _ in range(2):
            with pytest.raises(AuthorizationError) as refused:
                await asyncio.wait_for(producer.send_and_wait("open", b"no"), 5)
            assert refused.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
            await producer._cluster.refresh()
        await secured.allow("allow alice write topic open")
        assert (await asyncio.wait_for(producer.send_and_wait("open", b"w"), 5)).offset == 1


@pytest.mark.parametrize("by", ["records", "tables", "one by one"])
async def test_a_consumer_hears_of_a_revocation_and_of_its_end(secured: SecuredBroker, by: str) -> None:
    async def polled() -> list[bytes | None]:
        if by == "records":
            return [record.value for record in await consumer.poll(timeout_ms=100)]
        if by == "tables":
            table = await consumer.poll_table(timeout_ms=100)
            return table.column("value").to_pylist()
        async for record in consumer:
            return [record.value]
        return []

    async def polled_for_ever() -> None:
        while True:
            await polled()

    await secured.allow("allow bob read topic open")
    async with Consumer(
        bootstrap=secured.address, auto_offset_reset="earliest", token=secured.tokens["bob"]
    ) as consumer:
        consumer.assign([TopicPartition("open", 0)])
        await consumer.poll(timeout_ms=100)
        await secured.revoke("allow bob read topic open")
        for _ in range(2):
            with pytest.raises(AuthorizationError, match="open-0 .* may not READ the topic"):
                await asyncio.wait_for(polled_for_ever(), 5)
        await secured.allow("allow bob read topic open")
        async with Producer(secured.address, token=secured.tokens["admin"]) as producer:
            await producer.send("open", b"v")
        found: list[bytes | None] = []
        async with asyncio.timeout(5):
            while not found:
                with suppress(AuthorizationError):  # of a fetch before
                    found = await polled()
        assert found == [b"v"]


async def test_a_member_hears_of_a_refusal_and_of_its_end(secured: SecuredBroker) -> None:
    """Before it has joined, and while it is a member."""
    found: list[bytes | None] = []

    async def polled(count: int) -> None:
        while len(found) < count:
            found.extend([record.value for record in await consumer.poll(timeout_ms=100)])

    async def refused() -> None:
        for _ in range(2):
            with pytest.raises(AuthorizationError, match="group 'g'") as told:
                await asyncio.wait_for(polled(1_000), 10)
            assert told.value.code is ErrorCode.GROUP_AUTHORIZATION_FAILED
            assert str(told.value).count("group 'g'") == 1

    async def allowed(count: int) -> None:
        await secured.allow("allow bob read group g")
        async with Producer(secured.address, token=secured.tokens["admin"]) as producer:
            await producer.send("open", b"%d" % count)
        async with asyncio.timeout(20):
            while len(found) < count:
                with suppress(AuthorizationError):  # of an attempt before
                    await polled(count)

    await secured.allow("allow bob read topic open")
    lost: list[TopicPartition] = []
    async with Consumer(
        "open",
        bootstrap=secured.address,
        group="g",
        auto_offset_reset="earliest",
        token=secured.tokens["bob"],
        on_lost=lost.extend,
    ) as consumer:
        await refused()
        await allowed(1)
        await consumer.commit()
        assert not lost
        await secured.revoke("allow bob read group g")
        await refused()
        assert lost == [TopicPartition("open", 0)]
        await allowed(2)
        assert found == [b"1", b"2"]


async def test_a_client_that_is_nobody_is_told_so(secured: SecuredBroker) -> None:
    with pytest.raises(AuthenticationError, match="none that this broker knows"):
        async with Producer(secured.address, token="nonsense") as producer:
            await producer.send("open", b"v")
    async with Producer(secured.address, max_block_ms=5_000) as anonymous:
        with pytest.raises(AuthorizationError):
            await anonymous.send("open", b"v")


async def test_the_admin_client_adds_lists_and_removes_acls(secured: SecuredBroker) -> None:
    wanted = [acl("allow alice read topic orders"), acl("deny bob all topic or*")]
    async with Admin(secured.address, token=secured.tokens["admin"]) as admin:
        await admin.create_acls(wanted)
        await admin.create_acls(wanted)
        assert set(await admin.describe_acls()) == set(wanted)
        assert await admin.describe_acls(AclFilter(name="orders")) == wanted[:1]
        match = AclFilter(name="orders", pattern_type=PatternType.MATCH)
        assert set(await admin.delete_acls([match, match])) == set(wanted)
        assert not await admin.describe_acls()
        with pytest.raises(InvalidRequestError, match="no operation of a GROUP"):
            await admin.create_acls([acl("allow alice read group g")._replace(operation=Operation.WRITE)])
    async with Admin(secured.address, token=secured.tokens["alice"]) as nobody:
        with pytest.raises(AuthorizationError, match="may not ALTER the cluster"):
            await nobody.create_acls(wanted)


async def highwater(secured: SecuredBroker, user: str, *words: str) -> tuple[int, str]:
    """A command of the user's, and what it printed."""
    environment = {
        **os.environ,
        "HIGHWATER_TOKEN": secured.tokens[user],
        "HIGHWATER_BOOTSTRAP": secured.address,
    }
    process = await asyncio.create_subprocess_exec(
        HIGHWATER, *words, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def test_acls_on_the_command_line(secured: SecuredBroker) -> None:
    status, output = await highwater(
        secured, "admin", "acls", "add", "--allow-principal", "User:alice", "--producer", "--topic", "open"
    )
    assert (status, len(output.splitlines())) == (0, 3), output
    status, output = await highwater(secured, "admin", "acls", "list", "--topic", "open", "--json")
    assert (status, len(output.splitlines())) == (0, 3), output
    status, output = await highwater(secured, "admin", "acls", "list", "--topic", "other", "--json")
    assert (status, output) == (0, "")
    status, output = await highwater(secured, "alice", "acls", "list")
    assert status != 0
    assert "User:alice may not DESCRIBE the cluster" in output
    status, output = await highwater(
        secured, "admin", "acls", "remove", "--topic", "open", "--allow-principal", "User:alice"
    )
    assert status == 0
    assert "3 ACLs removed" in output
    status, output = await highwater(secured, "admin", "acls", "remove")
    assert status != 0
    assert "name what the ACLs are for" in output

"""The open calls of a server, and of one caller; over a real server, whose callers are told apart by their tokens."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import jwt
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from highwater.rpc.server import LIVE, RpcServer, ServerLimits
from highwater.security.call_identity import IdentifyCalls, Verify
from highwater.security.call_shares import INSTRUCTIONS, CallShares, OpenCalls, part_of_one
from highwater.security.caller import UNIX, caller_of, caller_with_part, current_caller, host_of
from highwater.security.mapping_rules import MappingRules
from highwater.security.oidc import Jwks, OidcSettings, OidcTokens
from highwater.security.principal import user
from highwater.security.tokens import ShownToken, is_jwt

Call = Callable[..., Any]
CLIENTS, OWN = "test.Clients", INSTRUCTIONS.strip("/")


class Handlers:
    """Calls that last until they are let go."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        self.begun = 0

    async def unary(self, request: bytes, context: Any) -> bytes:
        self.begun += 1
        await self.let_go.wait()
        return b"answer"

    async def generated(self, requests: Any, context: Any) -> AsyncIterator[bytes]:
        self.begun += 1
        yield b"begun"
        await self.let_go.wait()

    async def written(self, requests: Any, context: Any) -> None:
        self.begun += 1
        await context.write(b"begun")
        await self.let_go.wait()

    async def failing(self, request: bytes, context: Any) -> bytes:
        raise RuntimeError("a bug")


class Server:
    def __init__(self, handlers: Handlers, shares: CallShares, channel: grpc.aio.Channel) -> None:
        self.handlers = handlers
        self.shares = shares
        self.channel = channel
        self.refused = 0

    def unary(self, who: str, service: str = CLIENTS, method: str = "unary") -> asyncio.Future[Any]:
        call: Any = self.channel.unary_unary(f"/{service}/{method}")
        return asyncio.ensure_future(_awaited(call(b"", metadata=_token(who), timeout=20)))

    def stream(self, who: str, method: str) -> Any:
        call: Any = self.channel.stream_stream(f"/{CLIENTS}/{method}")
        return call(metadata=_token(who), timeout=20)

    def watch_health(self) -> Any:
        return health_pb2_grpc.HealthStub(self.channel).Watch(health_pb2.HealthCheckRequest(service=LIVE), timeout=20)


async def _awaited(call: Any) -> Any:
    return await call


def _token(who: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {who}"),) if who else ()


async def _verify(token: str) -> Any:
    return ShownToken(user(token), lambda: True)


@asynccontextmanager
async def serving(most: int, most_of_one: int, verify: Verify = _verify) -> AsyncIterator[Server]:
    handlers = Handlers()
    refused: list[None] = []
    shares = CallShares(most, most_of_one, lambda: refused.append(None))
    rpc = RpcServer(
        ["127.0.0.1:0"],
        interceptors=[IdentifyCalls(MappingRules("DEFAULT"), verify), shares],
        limits=ServerLimits(max_calls=most),
    )
    methods = {
        "unary": grpc.unary_unary_rpc_method_handler(handlers.unary),
        "failing": grpc.unary_unary_rpc_method_handler(handlers.failing),
        "generated": grpc.stream_stream_rpc_method_handler(handlers.generated),
        "written": grpc.stream_stream_rpc_method_handler(handlers.written),
    }
    for service in (CLIENTS, OWN):
        rpc.grpc.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
    await rpc.start([])
    try:
        async with grpc.aio.insecure_channel(rpc.addresses[0]) as channel:
            yield Server(handlers, shares, channel)
            handlers.let_go.set()
    finally:
        await rpc.stop()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while True:
            if condition():
                return
            await asyncio.sleep(0.001)


async def refused(call: Awaitable[Any]) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await asyncio.wait_for(call, 10)
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    return raised.value.details() or ""


async def read(stream: Any) -> Any:
    return await stream.read()


async def test_one_caller_has_its_part_whatever_it_calls_and_others_are_served() -> None:
    async with serving(100, 3) as server:
        streams = [server.stream("mallory", method) for method in ("generated", "written")]
        assert [await stream.read() for stream in streams] == [b"begun"] * 2
        call = server.unary("mallory")
        await until(lambda: server.handlers.begun == 3)
        assert "OVERLOADED: User:mallory has 3 calls open" in await refused(server.unary("mallory"))
        for method in ("generated", "written"):
            assert "User:mallory" in await refused(read(server.stream("mallory", method)))
        other = server.unary("alice")
        await until(lambda: server.shares.calls.by_caller == {"User:mallory": 3, "User:alice": 1})
        server.handlers.let_go.set()
        assert await asyncio.gather(call, other) == [b"answer"] * 2
        await until(lambda: server.shares.calls.open == 0)
        assert not server.shares.calls.by_caller, "who holds nothing is forgotten"


async def test_who_shows_no_token_is_told_apart_by_the_host() -> None:
    async with serving(100, 1) as server:
        call = server.unary("")
        await until(lambda: server.handlers.begun == 1)
        assert "host 127.0.0.1 has 1 calls open" in await refused(server.unary(""))
        other = server.unary("alice")
        await until(lambda: server.handlers.begun == 2)
        server.handlers.let_go.set()
        assert await asyncio.gather(call, other) == [b"answer"] * 2


async def test_a_client_with_and_without_its_token_leaves_others_their_places() -> None:
    async with serving(60, part_of_one(60)) as server:
        calls = [server.unary(each) for each in ("mallory", "") for _ in range(20)]
        await until(lambda: server.handlers.begun == 40)
        for each in ("mallory", ""):
            assert "has 20 calls open" in await refused(server.unary(each))
        calls.append(server.unary("alice"))
        await until(lambda: server.handlers.begun == 41)
        server.handlers.let_go.set()
        await asyncio.gather(*calls)


async def test_instructions_have_places_of_their_own() -> None:
    async with serving(80, 2) as server:
        calls = [server.unary(f"user {number // 2}") for number in range(76)]
        await until(lambda: server.handlers.begun == 76)
        assert "76 calls are open here" in await refused(server.unary("one more"))
        own = [server.unary("user 1", OWN) for _ in range(2)]
        await until(lambda: server.handlers.begun == 78)
        assert "as a controller, User:user 1 has 2 calls open" in await refused(server.unary("user 1", OWN))
        own += [server.unary("user 2", OWN) for _ in range(2)]
        await until(lambda: server.handlers.begun == 80)
        assert await refused(server.unary("user 3", OWN)), "gRPC lets in no more"
        server.handlers.let_go.set()
        await asyncio.gather(*calls, *own)
        await until(lambda: server.shares.calls.open == 0)


async def test_who_asks_about_health_keeps_out_neither_others_nor_the_controller() -> None:
    """As streams, and without a token: gRPC lets in no more calls than there may be of all kinds together."""
    async with serving(80, 40) as server:
        calls = [server.unary("") for _ in range(20)]
        await until(lambda: server.handlers.begun == 20)
        asking: list[Any] = [server.watch_health() for _ in range(20)]
        for each in asking:
            await each.read()
        assert "host 127.0.0.1 has 40 calls open" in await refused(read(server.watch_health()))
        others = [server.unary("alice"), server.unary("", OWN)]
        await until(lambda: server.handlers.begun == 22)
        calls += [server.unary(f"user {number}") for number in range(34)]
        await until(lambda: server.handlers.begun == 56)
        assert "76 calls are open here" in await refused(server.unary("one more"))
        for each in asking:
            each.cancel()
        server.handlers.let_go.set()
        await asyncio.gather(*calls, *others)
        await until(lambda: server.shares.calls.open == 0)


async def test_health_is_told_where_clients_have_all_that_they_may_have() -> None:
    async with serving(80, 80) as server:
        calls = [server.unary("alice") for _ in range(76)]
        await until(lambda: server.handlers.begun == 76)
        asking = [server.watch_health() for _ in range(2)]
        for each in asking:
            await each.read()
        assert "78 calls are open here" in await refused(read(server.watch_health()))
        own = server.unary("", OWN)
        await until(lambda: server.handlers.begun == 77)
        for each in asking:
            each.cancel()
        server.handlers.let_go.set()
        await asyncio.gather(*calls, own)


async def test_a_unary_call_counts_before_its_request_has_come() -> None:
    async with serving(100, 2) as server:
        silent: Any = [server.channel.stream_unary(f"/{CLIENTS}/unary")(metadata=_token("mallory")) for _ in range(2)]
        await until(lambda: server.shares.calls.open == 2)
        assert "User:mallory has 2 calls open" in await refused(server.unary("mallory"))
        server.handlers.let_go.set()
        assert await server.unary("alice") == b"answer"
        silent[0].cancel()
        await silent[1].done_writing()  # without any request
        with pytest.raises(grpc.aio.AioRpcError, match="before its request came"):
            await silent[1]
        await until(lambda: server.shares.calls.open == 0)


@pytest.mark.parametrize("method", ["generated", "written", "unary"])
async def test_a_call_that_its_client_gives_up_has_ended(method: str) -> None:
    async with serving(100, 2) as server:
        for number in range(1, 20):
            if method == "unary":
                call: Any = server.channel.unary_unary(f"/{CLIENTS}/unary")(b"", metadata=_token("a"))
            else:
                call = server.stream("a", method)
            await until(lambda number=number: server.handlers.begun == number)  # type: ignore[misc]
            call.cancel()
            await until(lambda: server.shares.calls.open == 0)


async def test_a_call_that_fails_has_ended() -> None:
    async with serving(100, 1) as server:
        for _ in range(3):
            with pytest.raises(grpc.aio.AioRpcError, match="a bug"):
                await server.unary("a", method="failing")
        assert server.shares.calls.open == 0


def test_who_comes_by_a_unix_socket_is_bounded_as_all_are() -> None:
    calls = OpenCalls(3, 1)
    assert [calls.begin(UNIX) for _ in range(3)] == [""] * 3
    assert "3 calls are open here" in calls.begin(UNIX)


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.0.0.7:4711", "host 10.0.0.7"),
        ("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:4711", "host 2001:db8:1:2::/64"),
        ("ipv6:[2001:db8:1:2:ffff::1]:4711", "host 2001:db8:1:2::/64"),
        ("ipv6:%5B::ffff:10.0.0.7%5D:4711", "host 10.0.0.7"),
        ("ipv6:%5Bfe80::1%25eth0%5D:4711", "host fe80::/64"),
        ("ipv6:nonsense", "host "),
        ("unix:", UNIX),
        ("unix:/run/x", UNIX),
        ("", "host "),
    ],
)
def test_hosts(peer: str, host: str) -> None:
    assert host_of(peer) == host
    assert caller_of(SimpleNamespace(peer=lambda: peer)) == host


def test_clients_of_a_unix_socket_have_no_part_of_their_own() -> None:
    for caller, part in (("User:alice", "User:alice"), ("host 10.0.0.7", "host 10.0.0.7"), (UNIX, ""), ("", "")):
        before = current_caller.set(caller)
        assert caller_with_part() == part
        current_caller.reset(before)


async def test_who_waits_for_an_issuer_keeps_nobody_out() -> None:
    """Nobody counts such a call as its caller's, as nobody knows whose it is: a token that names no key holds none."""
    answered = threading.Event()

    def fetch(url: str) -> bytes:
        assert answered.wait(10)
        return b"{}"

    tokens = OidcTokens(OidcSettings("https://issuer"), Jwks("https://issuer/jwks", 3600.0, fetch, max_waiting=2))
    unknown = jwt.encode({"exp": 1}, "secret" * 8, headers={"kid": "nobody's"})

    async def verify(token: str) -> Any:
        return await (tokens.shown(token) if is_jwt(token) else _verify(token))

    async with serving(40, 20, verify) as server:
        try:
            mallory = [server.unary(unknown) for _ in range(39)]
            await until(lambda: sum(each.done() for each in mallory) == 37)
            server.handlers.let_go.set()
            assert await asyncio.gather(*(server.unary("alice") for _ in range(20))) == [b"answer"] * 20
        finally:
            answered.set()
        ended: list[Any] = await asyncio.gather(*mallory, return_exceptions=True)
        assert Counter(each.code() for each in ended) == {
            grpc.StatusCode.UNAVAILABLE: 37,
            grpc.StatusCode.UNAUTHENTICATED: 2,
        }

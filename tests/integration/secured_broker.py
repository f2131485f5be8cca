"""One broker with an authorizer, a controller, and tokens for some users."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from controller_world import World, acts
from replica_manager_cluster import Trio, eventually

from highwater.errors import ErrorCode
from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.keys import Keys
from highwater.metadata.state.acls import read_acls
from highwater.metadata.store.store import Store
from highwater.rpc.connections.channel import open_channel
from highwater.rpc.errors import from_proto
from highwater.security.acl_messages import from_acl
from highwater.security.acls import Acl, parse_acl
from highwater.security.principal import parse_principal
from highwater.security.tokens import make_token
from highwater.v1 import broker_pb2_grpc, controller_pb2, controller_pb2_grpc, group_pb2_grpc

USERS = ("admin", "alice", "bob", "mallory")


def acl(text: str) -> Acl:
    """`allow alice read topic orders`; a name that ends with `*` is a prefix."""
    permission, principal, operation, resource_type, name = text.split()
    prefixed = name.endswith("*") and len(name) > 1
    return parse_acl(
        resource_type,
        "prefixed" if prefixed else "literal",
        name.rstrip("*") if prefixed else name,
        f"User:{principal}",
        operation,
        permission,
    )


class SecuredBroker:
    """`as_user` calls by the client listener with a user's token; `admin` is the only super user."""

    def __init__(self, world: World, trio: Trio, tokens_file: Path, tokens: Mapping[str, str]) -> None:
        self.world = world
        self.trio = trio
        self.tokens_file = tokens_file
        self.tokens = tokens
        self.channel = open_channel(trio.client_address)

    @property
    def address(self) -> str:
        return self.trio.client_address

    def as_user(self, user: str | None) -> Caller:
        """None: without a token."""
        return Caller(self.channel, self.tokens.get(user or ""))

    async def allow(self, *texts: str) -> None:
        """Adds ACLs, as the super user, and waits until the broker decides by them."""
        request = controller_pb2.CreateAclsRequest(acls=[from_acl(acl(text)) for text in texts])
        response = await self.as_user("admin").controller.CreateAcls(request)
        assert from_proto(response.error) is ErrorCode.NONE, response
        assert all(from_proto(each.error) is ErrorCode.NONE for each in response.results), response
        await self.decided()

    async def revoke(self, *texts: str) -> None:
        filters = [
            controller_pb2.AclFilter(
                resource_type=each.resource_type,
                pattern_type=each.pattern_type,
                name=each.name,
                principal=each.principal,
                operation=each.operation,
                permission=each.permission,
            )
            for each in (from_acl(acl(text)) for text in texts)
        ]
        response = await self.as_user("admin").controller.DeleteAcls(controller_pb2.DeleteAclsRequest(filters=filters))
        assert all(len(each.acls) == 1 for each in response.results), response

    async def decided(self) -> None:
        """Waits until the broker decides by the ACLs that are in etcd now."""
        wanted = (await read_acls(self.world.store, self.world.keys)).acls
        manager = self.trio.replica_manager
        assert manager is not None
        authorization = manager.authorization
        assert authorization is not None

        async def knows() -> bool:
            return authorization.authorizer.loaded and authorization.authorizer.acls == wanted

        await eventually(knows, "the broker decides by the ACLs of etcd")


class Caller:
    """The stubs of one user. Their calls carry its token."""

    def __init__(self, channel: grpc.aio.Channel, token: str | None) -> None:
        self.metadata = None if token is None else (("authorization", f"Bearer {token}"),)
        self.broker: Any = _WithMetadata(broker_pb2_grpc.BrokerStub(channel), self.metadata)
        self.controller: Any = _WithMetadata(controller_pb2_grpc.ControllerStub(channel), self.metadata)
        self.groups: Any = _WithMetadata(group_pb2_grpc.GroupCoordinatorStub(channel), self.metadata)


class _WithMetadata:
    def __init__(self, stub: Any, metadata: Any) -> None:
        self._stub = stub
        self._metadata = metadata

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._stub, name)
        return lambda *request: method(*request, metadata=self._metadata, timeout=20)


@asynccontextmanager
async def secured_broker(
    etcd: LocalEtcd, store: Store, keys: Keys, directory: Path, settings: Mapping[str, str] | None = None
) -> AsyncIterator[SecuredBroker]:
    made = {name: make_token(parse_principal(f"User:{name}")) for name in USERS}
    tokens_file = directory / "tokens"
    await asyncio.to_thread(tokens_file.write_text, "".join(f"{line}\n" for _, line in made.values()))
    trio = Trio(
        0,
        directory / "b0",
        etcd.address,
        keys.cluster,
        {
            "authorizer.class.name": "acls",
            "super.users": "User:admin",
            "tokens.file": str(tokens_file),
            "offsets.topic.num.partitions": "1",
            **(settings or {}),
        },
    )
    async with World(etcd, store, keys) as world:
        try:
            await acts(await world.controller())
            await trio.start()
            secured = SecuredBroker(world, trio, tokens_file, {name: token for name, (token, _) in made.items()})
            await secured.decided()
            yield secured
            await secured.channel.close(None)
        finally:
            await trio.stop()

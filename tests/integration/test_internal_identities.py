"""Highwater's own processes by real certificates: one broker with all its services over mutual TLS, and whoever comes
with another's certificate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import trustme
from controller_world import acts, new_topic, only
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass
from replica_manager_cluster import eventually, fetch_request, rows, to_key

from highwater.controller.service import ControllerService
from highwater.controller.settings import ControllerSettings
from highwater.errors import ErrorCode, UserError
from highwater.fetcher.service import FetcherService
from highwater.fetcher.settings import FetcherSettings
from highwater.log_storage.service import LogStorageService
from highwater.log_storage.settings import LogStorageSettings
from highwater.metadata.local import LocalEtcd
from highwater.metadata.schema.keys import Keys
from highwater.model.partition import PartitionKey
from highwater.replica_manager.service import ReplicaManagerService
from highwater.replica_manager.settings import ReplicaManagerSettings
from highwater.rpc.connections.channel import open_channel
from highwater.rpc.errors import from_proto
from highwater.rpc.settings import load
from highwater.v1 import (
    broker_pb2,
    broker_pb2_grpc,
    controller_pb2,
    controller_pb2_grpc,
    fetcher_pb2,
    log_storage_pb2,
    replica_control_pb2,
)

pytestmark = pytest.mark.alone

# What stands behind the common name in a certificate of trustme's is no part of who it is.
RULES = r"RULE:^(.*,)?CN=([^,]+)(,.*)?$/$2/"
IDENTITIES = {
    "ssl.principal.mapping.rules": RULES,
    "broker.principal": "User:broker-{id}",
    "controller.principals": "User:controller",
    "super.users": "User:admin",
}
LOCALHOST = "127.0.0.1"
SERVICES: tuple[tuple[str, ServiceDescriptor], ...] = (
    ("broker", replica_control_pb2.DESCRIPTOR.services_by_name["ReplicaControl"]),
    ("log-storage", log_storage_pb2.DESCRIPTOR.services_by_name["LogStorage"]),
    ("fetcher", fetcher_pb2.DESCRIPTOR.services_by_name["Fetcher"]),
    ("controller", controller_pb2.DESCRIPTOR.services_by_name["Controller"]),
)


@dataclass
class Secured:
    """`addresses` of the internal servers, by name, and of the listener of clients."""

    directory: Path
    authority: trustme.CA
    addresses: dict[str, str] = field(default_factory=dict)
    channels: AsyncExitStack = field(default_factory=AsyncExitStack)

    def files(self, name: str) -> dict[str, str]:
        """A certificate for a name, in files."""
        folder = self.directory / name
        folder.mkdir(exist_ok=True)
        authority, certificate, key = folder / "ca.pem", folder / "tls.pem", folder / "key.pem"
        if not key.exists():
            issued = self.authority.issue_cert(LOCALHOST, "localhost", common_name=name)
            self.authority.cert_pem.write_to_path(authority)
            issued.cert_chain_pems[0].write_to_path(certificate)
            issued.private_key_pem.write_to_path(key)
        return {"ssl.ca.file": str(authority), "ssl.certificate.file": str(certificate), "ssl.key.file": str(key)}

    async def channel(self, server: str, name: str) -> grpc.aio.Channel:
        """A connection to a server by the certificate of a name."""
        files = await asyncio.to_thread(self.files, name)
        pems = [await asyncio.to_thread(Path(path).read_bytes) for path in files.values()]
        credentials = grpc.ssl_channel_credentials(pems[0], pems[2], pems[1])
        address = self.addresses[server].removeprefix("ssl:")
        return await self.channels.enter_async_context(grpc.aio.secure_channel(address, credentials))


@asynccontextmanager
async def secured(etcd: LocalEtcd, keys: Keys, directory: Path) -> AsyncIterator[Secured]:
    made = Secured(directory, trustme.CA())
    tcp = f"ssl:{LOCALHOST}:0"
    async with AsyncExitStack() as stack:
        stack.push_async_exit(made.channels)
        controller = ControllerService(
            load(
                ControllerSettings,
                {
                    "controller.id": "0",
                    "cluster": keys.cluster,
                    "listen": tcp,
                    "advertised.listener": tcp,
                    "etcd": etcd.address,
                    "ssl.client.auth": "required",
                    "controller.session.timeout.ms": "1000",
                    **made.files("controller"),
                    **IDENTITIES,
                },
            )
        )
        await controller.start()
        stack.push_async_callback(controller.stop)
        await acts(controller)
        made.addresses["controller"] = controller.address
        of_broker = {"broker.id": "0", **made.files("broker-0"), **IDENTITIES}
        log_storage = LogStorageService(
            load(
                LogStorageSettings,
                {"listen": tcp, "log.dirs": str(directory / "logs"), "ssl.client.auth": "required", **of_broker},
            )
        )
        await log_storage.start()
        stack.push_async_callback(log_storage.stop)
        made.addresses["log-storage"] = log_storage.addresses[0]
        broker = ReplicaManagerService(
            load(
                ReplicaManagerSettings,
                {
                    "cluster": keys.cluster,
                    "listeners": f"INTERNAL://{LOCALHOST}:0,CLIENT://unix:{directory}/c",
                    "inter.broker.listener.name": "INTERNAL",
                    "listener.security.protocol.map": "INTERNAL:SSL",
                    "ssl.client.auth": "INTERNAL:required",
                    "etcd": etcd.address,
                    "log.storage": _tls(made.addresses["log-storage"]),
                    "broker.session.timeout.ms": "2000",
                    "controlled.shutdown.max.wait.ms": "0",
                    **of_broker,
                },
            )
        )
        await broker.start()
        stack.push_async_callback(broker.stop)
        made.addresses |= {"broker": broker.addresses["INTERNAL"], "client": broker.addresses["CLIENT"]}
        fetcher = FetcherService(
            load(
                FetcherSettings,
                {
                    "listen": tcp,
                    "replica.manager": _tls(made.addresses["broker"]),
                    "log.storage": _tls(made.addresses["log-storage"]),
                    "ssl.client.auth": "required",
                    **of_broker,
                },
            )
        )
        await fetcher.start()
        stack.push_async_callback(fetcher.stop)
        made.addresses["fetcher"] = fetcher.addresses[0]

        async def registered() -> bool:
            return broker.replica_manager.broker_epoch is not None

        await eventually(registered, "the broker registers")
        yield made


def _tls(address: str) -> str:
    return address if address.startswith("ssl:") else f"ssl:{address}"


async def called(channel: grpc.aio.Channel, service: ServiceDescriptor, method: Any) -> grpc.StatusCode:
    """The status of an empty call."""
    make = getattr(
        channel,
        f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}",
    )
    response = GetMessageClass(method.output_type)
    request = GetMessageClass(method.input_type)()
    call = make(
        f"/{service.full_name}/{method.name}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=response.FromString,
    )
    try:
        if method.client_streaming:
            stream = call(timeout=10)
            await stream.write(request)
            await stream.read()
        elif method.server_streaming:
            stream = call(request, timeout=10)
            await stream.read()
        else:
            await call(request, timeout=10)
            return grpc.StatusCode.OK
    except grpc.aio.AioRpcError as error:
        return error.code()
    code = stream.code() if stream.done() else None
    stream.cancel()
    return grpc.StatusCode.OK if code is None else await code


async def test_every_internal_rpc_refuses_whoever_it_is_not_for(etcd: LocalEtcd, keys: Keys, tmp_path: Path) -> None:
    async with secured(etcd, keys, tmp_path) as cluster:
        let_in = []
        for server, service in SERVICES:
            # A user's certificate, and that of another broker, which may call a controller alone.
            for name in ("mallory", "broker-1")[: 1 if server == "controller" else 2]:
                channel = await cluster.channel(server, name)
                for method in service.methods:
                    status = await called(channel, service, method)
                    if status is not grpc.StatusCode.PERMISSION_DENIED:
                        let_in.append((name, method.full_name, status))
        assert not let_in


async def test_the_services_themselves_get_on(etcd: LocalEtcd, keys: Keys, tmp_path: Path) -> None:
    """Instructions from the controller, appends into log-storage, and what people ask."""
    async with secured(etcd, keys, tmp_path) as cluster:
        async with open_channel(cluster.addresses["client"]) as client:
            controller: Any = controller_pb2_grpc.ControllerStub(client)
            created = await controller.CreateTopics(new_topic("t"), timeout=20)
            assert only(created) is ErrorCode.NONE, created
            key = PartitionKey(created.results[0].topic_id, 0)
            broker: Any = broker_pb2_grpc.BrokerStub(client)
            produce = broker_pb2.ProduceRequest(
                acks=-1,
                timeout_ms=5_000,
                partitions=[broker_pb2.ProducePartition(partition=to_key(key), records=rows(b"v"))],
            )
            (result,) = (await broker.Produce(produce, timeout=10)).results
            assert from_proto(result.error) is ErrorCode.NONE, result
        for server, service in SERVICES[2:]:
            (describe,) = [each for each in service.methods if each.name in ("Describe", "DescribeCluster")]
            assert await called(await cluster.channel(server, "admin"), service, describe) is grpc.StatusCode.OK
        watch = SERVICES[0][1].methods_by_name["WatchFollowing"]
        channel = await cluster.channel("broker", "broker-0")
        assert await called(channel, SERVICES[0][1], watch) is grpc.StatusCode.OK


async def test_what_is_set_while_they_run_reaches_the_services(etcd: LocalEtcd, keys: Keys, tmp_path: Path) -> None:
    """The controller asks the broker, the fetcher and log-storage hear of it from the broker."""
    async with secured(etcd, keys, tmp_path) as cluster, open_channel(cluster.addresses["client"]) as client:
        controller: Any = controller_pb2_grpc.ControllerStub(client)
        resource = controller_pb2.ConfigResource(type=controller_pb2.CONFIG_RESOURCE_TYPE_BROKER, name="0")

        async def all_have_told() -> bool:
            request = controller_pb2.DescribeConfigsRequest(resources=[resource])
            (described,) = (await controller.DescribeConfigs(request, timeout=20)).configs
            told = {entry.service for entry in described.entries}
            return not described.HasField("error") and {"replica-manager", "fetcher", "log-storage"} <= told

        await eventually(all_have_told, "the controller has heard how each service was started")


async def test_a_replica_is_the_broker_of_its_certificate(etcd: LocalEtcd, keys: Keys, tmp_path: Path) -> None:
    async with secured(etcd, keys, tmp_path) as cluster:
        request = fetch_request(PartitionKey(bytes(16), 0), 0)
        request.replica.broker_id = 1
        request.replica.broker_epoch = 5

        async def fetched(name: str) -> tuple[ErrorCode, str]:
            stub: Any = broker_pb2_grpc.BrokerStub(await cluster.channel("broker", name))
            stream = stub.FetchStream(timeout=10)
            await stream.write(request)
            response = await stream.read()
            stream.cancel()
            return from_proto(response.error), response.error.message

        for name in ("broker-0", "broker-11", "controller", "admin", "mallory"):
            error, message = await fetched(name)
            assert error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED, name
            assert f"User:{name} is not broker 1" in message
        assert (await fetched("broker-1"))[0] is ErrorCode.NONE
        stub: Any = broker_pb2_grpc.BrokerStub(await cluster.channel("broker", "mallory"))
        listed = await stub.ListOffsets(
            broker_pb2.ListOffsetsRequest(
                replica_id=1,
                partitions=[
                    broker_pb2.ListOffsetsPartition(partition=request.partitions[0].partition, leader_epoch=-1)
                ],
            ),
            timeout=10,
        )
        assert "is not broker 1" in listed.results[0].error.message
        assert from_proto(listed.results[0].error) is ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def test_a_broker_asks_a_controller_about_itself_alone(etcd: LocalEtcd, keys: Keys, tmp_path: Path) -> None:
    """Another broker's certificate stops no broker, and does not tell it that it is ready."""
    async with secured(etcd, keys, tmp_path) as cluster:

        async def asked(name: str, broker_id: int) -> list[grpc.StatusCode]:
            stub: Any = controller_pb2_grpc.ControllerStub(await cluster.channel("controller", name))
            statuses = []
            for call, request in (
                (stub.ControlledShutdown, controller_pb2.ControlledShutdownRequest(broker_id=broker_id)),
                (stub.DescribeReadiness, controller_pb2.DescribeReadinessRequest(broker_id=broker_id)),
            ):
                try:
                    answer = await call(request, timeout=10)
                    assert from_proto(answer.error) is ErrorCode.STALE_BROKER_EPOCH, answer
                    statuses.append(grpc.StatusCode.OK)
                except grpc.aio.AioRpcError as error:
                    statuses.append(error.code())
            return statuses

        for name in ("broker-1", "broker-00", "controller", "mallory"):
            assert await asked(name, 0) == [grpc.StatusCode.PERMISSION_DENIED] * 2, name
        for name in ("broker-0", "admin"):
            assert await asked(name, 0) == [grpc.StatusCode.OK] * 2, name


async def test_the_debug_role_lists_offsets_where_replicas_are_told_apart(
    etcd: LocalEtcd, keys: Keys, tmp_path: Path
) -> None:
    """As it fetches: without an authorizer nobody is asked."""
    async with secured(etcd, keys, tmp_path) as cluster:
        stub: Any = broker_pb2_grpc.BrokerStub(await cluster.channel("broker", "admin"))
        part = broker_pb2.ListOffsetsPartition(partition=to_key(PartitionKey(bytes(16), 0)), leader_epoch=-1)
        listed = await stub.ListOffsets(broker_pb2.ListOffsetsRequest(replica_id=-2, partitions=[part]), timeout=10)
        error = from_proto(listed.results[0].error)
        assert error not in (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.INVALID_REQUEST), listed


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"controller.principals": ""}, "broker.principal is set without controller.principals"),
        ({"broker.principal": ""}, "controller.principals is set without broker.principal"),
        ({"broker.principal": "User:broker"}, r"write \{id\}"),
        ({"broker.principal": "broker-{id}"}, "write User:name"),
        ({"ssl.principal.mapping.rules": "RULE:(/x/"}, "mapping rule"),
        ({"super.users": "admin"}, "write User:name"),
        ({"listen": "127.0.0.1:0", "ssl.client.auth": "none"}, "asks for none"),
    ],
)
async def test_half_of_it_is_refused_at_the_start(tmp_path: Path, changed: dict[str, str], said: str) -> None:
    files = Secured(tmp_path, trustme.CA()).files("controller")
    settings = {
        "controller.id": "0",
        "listen": f"ssl:{LOCALHOST}:0",
        "advertised.listener": f"ssl:{LOCALHOST}:0",
        "etcd": "127.0.0.1:1",
        "ssl.client.auth": "required",
        **files,
        **IDENTITIES,
        **changed,
    }
    if not changed.get("listen", "ssl:").startswith("ssl:"):
        settings["advertised.listener"] = changed["listen"]
    with pytest.raises(UserError, match=said):
        ControllerService(load(ControllerSettings, settings))

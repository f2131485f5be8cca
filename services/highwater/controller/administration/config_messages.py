"""Configurations in the words of the contract: resources become entities, entries become messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from highwater.configuration.entities import (
    CLUSTER,
    BrokerEntity,
    ClientEntity,
    ConfigEntity,
    EntityKind,
    UserClientEntity,
    UserEntity,
    problem_with_name,
)
from highwater.controller.administration.administration import Administration
from highwater.controller.administration.configuration import ConfigEntry
from highwater.controller.administration.entity_configuration import EntityEntry, Source
from highwater.controller.topics.topic_admin import Refusal
from highwater.errors import ErrorCode
from highwater.metadata.schema.reading import MAX_BROKER_ID
from highwater.rpc.errors import to_proto
from highwater.v1 import controller_pb2

MOST_BROKERS = 100  # of one DescribeConfigs: each is asked

SERVED_TYPES = frozenset(controller_pb2.ConfigResourceType.values()) - {controller_pb2.CONFIG_RESOURCE_TYPE_UNSPECIFIED}
_SOURCES = {
    Source.TOPIC: controller_pb2.CONFIG_SOURCE_DYNAMIC_TOPIC,
    Source.BROKER: controller_pb2.CONFIG_SOURCE_DYNAMIC_BROKER,
    Source.DEFAULT_BROKER: controller_pb2.CONFIG_SOURCE_DYNAMIC_DEFAULT_BROKER,
    Source.CLUSTER: controller_pb2.CONFIG_SOURCE_CLUSTER,
    Source.CLIENT: controller_pb2.CONFIG_SOURCE_DYNAMIC_CLIENT,
    Source.USER: controller_pb2.CONFIG_SOURCE_DYNAMIC_USER,
    Source.STATIC: controller_pb2.CONFIG_SOURCE_STATIC,
    Source.DEFAULT: controller_pb2.CONFIG_SOURCE_DEFAULT,
}


def to_entity(resource: controller_pb2.ConfigResource) -> ConfigEntity | Refusal | None:
    """None: a topic. A refusal where nobody may have the name."""
    kind, name = resource.type, resource.name
    if kind == controller_pb2.CONFIG_RESOURCE_TYPE_TOPIC:
        return None
    if kind == controller_pb2.CONFIG_RESOURCE_TYPE_CLUSTER:
        return CLUSTER if not name else Refusal(ErrorCode.INVALID_REQUEST, "the cluster has no name here: leave it out")
    if kind == controller_pb2.CONFIG_RESOURCE_TYPE_BROKER:
        if name and not (name.isascii() and name.isdecimal() and len(name) < 11 and int(name) <= MAX_BROKER_ID):
            return Refusal(ErrorCode.INVALID_REQUEST, f"{name[:100]!r} is no broker id: give a number, or none for all")
        return BrokerEntity(int(name) if name else None)
    for each in (name, resource.client_id):
        if each and (problem := problem_with_name(each)):
            return Refusal(ErrorCode.INVALID_REQUEST, f"the name {each[:100]!r} {problem}")
    if kind == controller_pb2.CONFIG_RESOURCE_TYPE_CLIENT:
        return ClientEntity(name or None)
    if kind == controller_pb2.CONFIG_RESOURCE_TYPE_USER:
        return UserEntity(name or None)
    return UserClientEntity(name or None, resource.client_id or None)


def to_resource(entity: ConfigEntity) -> controller_pb2.ConfigResource:
    match entity:
        case ClientEntity(name):
            return controller_pb2.ConfigResource(type=controller_pb2.CONFIG_RESOURCE_TYPE_CLIENT, name=name or "")
        case UserEntity(name):
            return controller_pb2.ConfigResource(type=controller_pb2.CONFIG_RESOURCE_TYPE_USER, name=name or "")
        case UserClientEntity(user, client_id):
            kind = controller_pb2.CONFIG_RESOURCE_TYPE_USER_CLIENT_PAIR
            return controller_pb2.ConfigResource(type=kind, name=user or "", client_id=client_id or "")
    raise AssertionError(f"{entity} is named by who asks")


async def described(
    administration: Administration,
    request: controller_pb2.DescribeConfigsRequest,
    entities: Sequence[ConfigEntity | Refusal | None],
) -> controller_pb2.DescribeConfigsResponse:
    """The answer; `entities` are those of the request's resources."""
    brokers = sum(isinstance(each, BrokerEntity) for each in entities)
    if brokers > MOST_BROKERS:
        message = f"a request with {brokers} brokers: {MOST_BROKERS} are the most, send several"
        return controller_pb2.DescribeConfigsResponse(error=to_proto(ErrorCode.INVALID_REQUEST, message))
    if request.all_of_kind:
        return await _all_of(administration, request)
    response = controller_pb2.DescribeConfigsResponse()
    names = {resource.name for resource, each in zip(request.resources, entities, strict=True) if each is None}
    topics = await administration.configuration.describe_topics(names) if names else {}
    asked = {each for each in entities if each is not None and not isinstance(each, Refusal)}
    answers = dict(
        zip(asked, await asyncio.gather(*map(administration.entity_configuration.describe, asked)), strict=True)
    )
    for resource, entity in zip(request.resources, entities, strict=True):
        config = response.configs.add(resource=resource)
        if isinstance(entity, Refusal):
            config.error.CopyFrom(to_proto(*entity))
        elif entity is None:
            found = topics[resource.name]
            if isinstance(found, Refusal):
                config.error.CopyFrom(to_proto(*found))
                config.absent_in_etcd = found.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                config.entries.extend(map(_topic_entry, found))
        else:
            entries, refusal = answers[entity]
            config.entries.extend(map(_entry, entries))
            if refusal is not None:
                config.error.CopyFrom(to_proto(*refusal))
    return response


async def _all_of(
    administration: Administration, request: controller_pb2.DescribeConfigsRequest
) -> controller_pb2.DescribeConfigsResponse:
    kinds = {
        controller_pb2.CONFIG_RESOURCE_TYPE_CLIENT: EntityKind.CLIENTS,
        controller_pb2.CONFIG_RESOURCE_TYPE_USER: EntityKind.USERS,
        controller_pb2.CONFIG_RESOURCE_TYPE_USER_CLIENT_PAIR: EntityKind.USERS,
    }
    response = controller_pb2.DescribeConfigsResponse()
    for asked in sorted({resource.type for resource in request.resources}):
        if asked not in kinds:
            message = "all of a kind are described of clients and users alone: name the others"
            return controller_pb2.DescribeConfigsResponse(error=to_proto(ErrorCode.INVALID_REQUEST, message))
        pairs = asked == controller_pb2.CONFIG_RESOURCE_TYPE_USER_CLIENT_PAIR
        for number, entity in enumerate(administration.entity_configuration.all_of(kinds[asked], pairs=pairs)):
            if number % 100 == 0:
                await asyncio.sleep(0)  # others are served meanwhile
            entries, _ = await administration.entity_configuration.describe(entity)
            response.configs.add(resource=to_resource(entity), entries=map(_entry, entries))
    return response


def _entry(entry: EntityEntry) -> controller_pb2.ConfigEntry:
    return controller_pb2.ConfigEntry(
        key=entry.key,
        value=entry.value,
        is_default=entry.source in (Source.STATIC, Source.DEFAULT),
        read_only=entry.read_only,
        config_source=_SOURCES[entry.source],
        service=entry.service,
    )


def _topic_entry(entry: ConfigEntry) -> controller_pb2.ConfigEntry:
    return controller_pb2.ConfigEntry(
        key=entry.key,
        value=entry.value,
        is_default=entry.is_default,
        source=entry.source,
        config_source=_SOURCES[entry.config_source],
    )

"""Tries of all brokers at the addresses that a client is told: a wrong `advertised.listeners` shows nowhere else than
where a client is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from highwater.client.admin.descriptions import BrokerDescription, BrokerReach, ClusterDescription
from highwater.client.cluster.connection import Connection, NotServedError
from highwater.client.exceptions import HighwaterError, RequestTimedOutError
from highwater.v1 import broker_pb2

_AT_ONCE = 32


async def check_brokers(
    described: ClusterDescription, timeout_s: float, connect: Callable[[str], Connection] = Connection
) -> list[BrokerReach]:
    """Outcomes by broker. Each is asked over a connection of its own."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def one(broker: BrokerDescription) -> BrokerReach:
        async with slots:
            began = monotonic()
            problem = await _problem(broker, described.cluster_id, timeout_s, connect)
            return BrokerReach(broker.broker_id, broker.address, None if problem else monotonic() - began, problem)

    return list(await asyncio.gather(*(one(broker) for broker in described.brokers)))


async def _problem(
    broker: BrokerDescription, cluster_id: str, timeout_s: float, connect: Callable[[str], Connection]
) -> str | None:
    if not broker.address:
        return "it does not have the listener that this client came in by: give every broker the same listeners"
    connection = connect(broker.address)
    try:
        answer = await connection.call(connection.stub.Metadata, broker_pb2.MetadataRequest(), timeout_s)
    except NotServedError:
        return "what listens there is no broker's listener for clients"
    except RequestTimedOutError:
        return f"nothing answers there within {timeout_s:g} s: a firewall, or an address of another network"
    except HighwaterError as error:
        return str(error)
    finally:
        await connection.close()
    if answer.cluster_id != cluster_id:
        return f"a broker of another cluster answers there, {answer.cluster_id}"
    if answer.HasField("broker_id") and answer.broker_id != broker.broker_id:
        return f"broker {answer.broker_id} answers there"
    return None

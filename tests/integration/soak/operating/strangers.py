"""Those who are never allowed anything, and try everything."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from secured_broker import acl

from highwater.cli.local_authority import LocalAuthority
from highwater.client import (
    Admin,
    AuthenticationError,
    AuthorizationError,
    ConfigResource,
    Consumer,
    HighwaterError,
    NewTopic,
    Producer,
    SslAuthenticationError,
)
from highwater.client.cluster.tls_options import VARIABLES
from soak.operating.guests import TOPICS
from soak.operating.principals import MALLORY, NOBODY, TRUDY
from soak.operating.state import Operating
from soak.state import NUMBERED

STOLEN = b"nobody may send this"
_PATIENCE_MS = 5_000
_PATIENCE_S = 15.0
_REFUSED = (AuthorizationError, AuthenticationError, SslAuthenticationError)


@contextmanager
def without_environment() -> Iterator[None]:
    """Its variables have the certificate of a super user, for clients that are given none."""
    kept = {name: os.environ.pop(name) for name in VARIABLES if name in os.environ}
    try:
        yield
    finally:
        os.environ |= kept


class Strangers:
    def __init__(self, operating: Operating) -> None:
        self._operating = operating
        self._soak = operating.soak
        self._identities = operating.identities
        self._other = LocalAuthority(operating.data / "other-authority")
        self._other.issue("client", ["127.0.0.1"])  # a super user's name

    async def run(self) -> None:
        random = self._soak.random("strangers")
        while not self._soak.stopped.is_set():
            who, what = random.choice(list(self._whose())), random.choice(list(self._deeds()))
            await self._try(who, what)
            await self._soak.pause(random.uniform(0.1, 1))

    async def persist(self) -> None:
        """One of them keeps its streams open, through all that changes."""
        options = self._identities.options(MALLORY)
        while not self._soak.stopped.is_set():
            try:
                async with Producer(self._soak.bootstrap, max_block_ms=_PATIENCE_MS, **options) as producer:
                    while not self._soak.stopped.is_set():
                        await self._refused("mallory goes on", self._send(producer))
                        await asyncio.sleep(0.1)
            except HighwaterError:
                await asyncio.sleep(1)

    def _whose(self) -> dict[str, Callable[[], dict[str, Any]]]:
        """Options of clients. Of those without a certificate that counts the listener takes no connection."""
        identities = self._identities
        nobody = identities.certificate(NOBODY)
        foreign = self._other.files("client")
        found: dict[str, Callable[[], dict[str, Any]]] = {
            "mallory": lambda: identities.options(MALLORY),
            "trudy": lambda: identities.options(TRUDY),
            "nobody": lambda: nobody,
            "a wrong token": lambda: {**nobody, "token": "0123456789abcdef.nonsense"},
            "no certificate": lambda: {"security_protocol": "SSL", "ssl_ca_file": nobody["ssl_ca_file"]},
            "another authority's": lambda: {
                **nobody,
                "ssl_certificate_file": foreign.certificate_file,
                "ssl_key_file": foreign.key_file,
            },
            "an old token": lambda: {**nobody, "token": identities.retired[-1] if identities.retired else "none"},
        }
        return found

    def _deeds(self) -> dict[str, Callable[[dict[str, Any]], Awaitable[None]]]:
        async def produce(options: dict[str, Any]) -> None:
            with without_environment():
                sender = Producer(self._soak.bootstrap, max_block_ms=_PATIENCE_MS, **options)
            async with sender as producer:
                await self._send(producer)

        async def read(options: dict[str, Any]) -> None:
            with without_environment():
                reader = Consumer(
                    bootstrap=self._soak.bootstrap,
                    auto_offset_reset="earliest",
                    max_block_ms=_PATIENCE_MS,
                    **options,
                )
            async with reader as consumer:
                consumer.assign([(NUMBERED, 0)])
                while not await consumer.poll(1000):
                    pass

        def administer(ask: Callable[[Admin], Awaitable[Any]]) -> Callable[[dict[str, Any]], Awaitable[None]]:
            async def deed(options: dict[str, Any]) -> None:
                with without_environment():
                    client = Admin(self._soak.bootstrap, max_block_ms=_PATIENCE_MS, **options)
                async with client as admin:
                    await ask(admin)

            return deed

        allow = acl("allow CN=mallory all topic num*")
        return {
            "produce": produce,
            "read": read,
            "add ACLs": administer(lambda admin: admin.create_acls([allow])),
            "see ACLs": administer(lambda admin: admin.describe_acls()),
            "configure": administer(
                lambda admin: admin.alter_configs(ConfigResource.topic(NUMBERED), {"retention.ms": "1"})
            ),
            "set quotas": administer(
                lambda admin: admin.alter_configs(ConfigResource.user(), {"producer_byte_rate": "1"})
            ),
            "make topics": administer(self._make_topic),
            "delete topics": administer(lambda admin: admin.delete_topic(TOPICS["alice"])),
        }

    @staticmethod
    async def _make_topic(admin: Admin) -> None:
        (made,) = await admin.create_topics([NewTopic("mallorys", 1, 1)])
        if made.error is not None:
            raise made.error

    @staticmethod
    async def _send(producer: Producer) -> None:
        await producer.send_and_wait(NUMBERED, STOLEN, partition=0)

    async def _try(self, who: str, what: str) -> None:
        await self._refused(f"{who}: {what}", self._deeds()[what](self._whose()[who]()))

    async def _refused(self, what: str, deed: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await deed
        except _REFUSED:
            self._operating.refusals["strangers"] += 1
        except (HighwaterError, TimeoutError) as error:
            self._operating.refusals["strangers, no answer"] += 1
            self._soak.say(f"stranger, {what}: no answer, {type(error).__name__} {error}")
        else:
            self._soak.problem(f"a stranger was let in: {what}")

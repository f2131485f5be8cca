"""Addresses and named listeners: how they are written, and which make sense together. Pure.

An address is `host:port`, `unix:/path`, or `ssl:host:port` where TLS is spoken there.

A listener is written `NAME://host:port` or `NAME://unix:/path`. Names are upper-cased, as in Kafka. One of them is the
internal one, for brokers and the controller; all others are for clients. The security protocol of each stands in a map
of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
_MAX_SOCKET_PATH = 100  # characters
_WILDCARDS = frozenset({"0.0.0.0", "::", "[::]", "*"})


PLAINTEXT, SSL = "PLAINTEXT", "SSL"
PROTOCOLS = (PLAINTEXT, SSL)
_SSL = "ssl:"


def speaks_tls(address: str) -> bool:
    """Tells `ssl:host:port` from `host:port`, of which the host may be called ssl."""
    return address.startswith(_SSL) and ":" in address.removeprefix(_SSL)


def with_tls(address: str) -> str:
    """The address of one that speaks TLS at `host:port`."""
    return f"{_SSL}{address}"


def without_tls(address: str) -> str:
    """The `host:port` of an `ssl:host:port`; any other address as it is."""
    return address.removeprefix(_SSL) if speaks_tls(address) else address


class Listener(NamedTuple):
    """By which a call came in."""

    name: str
    internal: str  # the internal listener's name

    @property
    def is_internal(self) -> bool:
        return self.name == self.internal

    def refusal(self, what: str) -> str:
        """The sentence that refuses what belongs on the internal listener; empty: this is it."""
        if self.is_internal:
            return ""
        return (
            f"{what} is refused on listener {self.name}, which is for clients: "
            f"connect to the brokers' internal listener, {self.internal} (inter.broker.listener.name)"
        )


def parse_listeners(text: str) -> dict[str, str]:
    """`NAME://address,...` as addresses by name, in order. Raises `ValueError`."""
    found: dict[str, str] = {}
    for part in (part.strip() for part in text.split(",")):
        if not part:
            continue
        written, separator, address = part.partition("://")
        name = written.upper()
        if not separator or not _NAME.fullmatch(name):
            raise ValueError(f"{part!r} is not a listener: write NAME://host:port or NAME://unix:/path")
        if name in found:
            raise ValueError(f"there are two listeners {name}: give every listener a name of its own")
        if speaks_tls(address):
            raise ValueError(
                f"{part!r} says ssl: in its address: write {name}://{without_tls(address)}, and {name}:SSL in "
                "listener.security.protocol.map"
            )
        check_address(address)
        found[name] = address
    return found


def check_address(address: str) -> None:
    """Raises `ValueError` where it is neither `host:port` nor `ssl:host:port` nor `unix:/path`."""
    if speaks_tls(address):
        address = without_tls(address)
        if address.startswith("unix:"):
            raise ValueError(f"nobody speaks TLS over a Unix socket: write {address}, without ssl:")
    if address.startswith("unix:"):
        if len(address) - len("unix:") > _MAX_SOCKET_PATH:
            raise ValueError(
                f"the socket path {address!r} is longer than the {_MAX_SOCKET_PATH} characters a Unix socket may have"
            )
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"{address!r} is not an address: write host:port or unix:/path")


def parse_by_listener(text: str) -> dict[str, str]:
    """`NAME:value,...` as values by listener, in upper and lower case as they are written. Raises `ValueError`."""
    found: dict[str, str] = {}
    for part in (part.strip() for part in text.split(",")):
        if not part:
            continue
        name, colon, value = (each.strip() for each in part.partition(":"))
        if not colon or not _NAME.fullmatch(name.upper()) or not value:
            raise ValueError(f"{part!r} does not say what holds for a listener: write NAME:VALUE")
        if name.upper() in found:
            raise ValueError(f"listener {name.upper()} stands there twice: say once what holds for it")
        found[name.upper()] = value
    return found


def check_listener_name(name: str, listeners: Mapping[str, str]) -> None:
    """Raises `ValueError` where there is none of that name."""
    if name not in listeners:
        raise ValueError(f"there is no listener {name}: name those of listeners ({', '.join(listeners)})")


def check_protocols(listeners: Mapping[str, str], protocols: Mapping[str, str]) -> None:
    """Raises `ValueError` where the map names no protocol, or one that a listener cannot speak."""
    for name, protocol in protocols.items():
        if protocol.upper() not in PROTOCOLS:
            instead = SSL if "SSL" in protocol.upper() else PLAINTEXT
            raise ValueError(f"listener {name} is to speak {protocol}, which nobody here does: write {name}:{instead}")
        if protocol.upper() == SSL and listeners.get(name, "").startswith("unix:"):
            raise ValueError(f"listener {name} is a Unix socket, over which nobody speaks TLS: write {name}:PLAINTEXT")


def tls_listeners(listeners: Mapping[str, str], protocols: Mapping[str, str]) -> frozenset[str]:
    """The names of those that speak TLS: so the map says, or, where it says nothing, the name itself is SSL."""
    return frozenset(
        name for name in listeners if protocols.get(name, SSL if name == SSL else PLAINTEXT).upper() == SSL
    )


def check_advertised(listeners: Mapping[str, str], advertised: Mapping[str, str]) -> None:
    """Every listener must have one address of its own that others can connect to. Raises `ValueError`."""
    for name in advertised:
        check_listener_name(name, listeners)
    taken: dict[str, str] = {}
    for name, bound in listeners.items():
        address = advertised.get(name, bound)
        host, _, port = address.rpartition(":")
        if not address.startswith("unix:") and host in _WILDCARDS:
            raise ValueError(
                f"nobody can connect to {address}: give the address of listener {name} "
                f"that others are to use, {name}://host:port"
            )
        if port == "0" and not address.startswith("unix:"):
            continue  # any free port: another for each
        if address in taken:
            raise ValueError(
                f"listeners {taken[address]} and {name} both have the address {address}: give each one of its own"
            )
        taken[address] = name


def check_inter_broker_name(listeners: Mapping[str, str], name: str) -> None:
    """Raises `ValueError` where it does not say which listener is the internal one."""
    if not name and len(listeners) > 1:
        raise ValueError(f"say which listener brokers and the controller use: one of {', '.join(listeners)}")
    if name and name.upper() not in listeners:
        raise ValueError(f"there is no listener {name.upper()}: name one of listeners ({', '.join(listeners)})")


def inter_broker_name(listeners: Mapping[str, str], name: str) -> str:
    """The internal listener's name; `name` may be empty where there is one listener."""
    return name.upper() if name else next(iter(listeners))


def advertised_addresses(
    listeners: Mapping[str, str], advertised: Mapping[str, str], bound: Mapping[str, str]
) -> dict[str, str]:
    """The addresses that others are told, by listener. A port of 0 stands for the one that was bound."""
    found = {}
    for name, wanted in listeners.items():
        address = advertised.get(name, wanted)
        if not address.startswith("unix:") and address.endswith(":0"):
            address = f"{address.rpartition(':')[0]}:{bound[name].rpartition(':')[2]}"
        found[name] = address
    return found

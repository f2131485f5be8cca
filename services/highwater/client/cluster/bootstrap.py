"""Addresses at which a client finds a cluster: some of its brokers."""

from __future__ import annotations

from collections.abc import Sequence

from highwater.client.exceptions import InvalidRequestError

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"

_MAX_PORT = 65535


def bootstrap_addresses(bootstrap: str | Sequence[str]) -> list[str]:
    """Addresses of `host:port`, `unix:/path`, a comma-separated string or a list of them. Raises `InvalidRequestError`
    for what can be no address."""
    parts = bootstrap.split(",") if isinstance(bootstrap, str) else list(bootstrap)
    addresses = [part.strip() for part in parts if part.strip()]
    for address in addresses:
        problem = _impossible(address)
        if problem:
            raise InvalidRequestError(f"bootstrap address {address!r} {problem}")
    if not addresses:
        raise InvalidRequestError("no bootstrap address was given; name at least one broker as host:port")
    return addresses


def _impossible(address: str) -> str:
    """Says why nothing can listen at an address; empty where something can."""
    if address.startswith("unix:"):
        return ""
    scheme, colon, _ = address.partition("://")
    if colon:
        return f"is a URL; write host:port, without {scheme}://"
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return "is neither host:port nor unix:/path"
    if not 1 <= int(port) <= _MAX_PORT:
        return f"has the port {port}; ports go from 1 to {_MAX_PORT}"
    bracketed = host.startswith("[") and host.endswith("]")
    if not bracketed and ":" in host:
        return "has an IPv6 address without brackets; write [::1]:9092"
    if any(character in "/?#@[]" or character.isspace() for character in host.strip("[]")):
        return "has a character that no host's name has"
    return ""

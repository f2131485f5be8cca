"""The caller that a server's shares are counted by: whoever shows a token or a certificate by its principal, all others
by their hosts."""

from __future__ import annotations

import ipaddress
from contextvars import ContextVar
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from highwater.security.principal import ANONYMOUS, principal_of

UNIX = "unix:"
"""Everybody who comes by a Unix socket: gRPC tells nothing more of them."""
_V6_NETWORK = 64  # bits: of IPv6 one host may have so many addresses


current_caller: ContextVar[str] = ContextVar("highwater_caller", default="")
"""Of the call that the running task serves; empty: its server has not put it down."""


def caller_of(context: Any) -> str:
    """`User:alice`, or `host 10.0.0.7`, of the call that the running task serves."""
    if caller := current_caller.get():
        return caller
    principal = principal_of(context)
    return str(principal) if principal != ANONYMOUS else host_of(context.peer() or "")


def caller_with_part() -> str:
    """The same, for what has a part for each caller; empty: there is none for this one, as clients of a Unix socket
    cannot be told apart."""
    caller = current_caller.get()
    return "" if caller == UNIX else caller


@lru_cache(maxsize=4_096)
def host_of(peer: str) -> str:
    """By gRPC's name of a connection, `ipv4:10.0.0.7:4711`. Of IPv6 the network, of which one host may have all."""
    if peer.startswith(UNIX):
        return UNIX
    family, _, rest = peer.partition(":")
    host = unquote(rest.rpartition(":")[0]).strip("[]").partition("%")[0]
    if family == "ipv6":
        try:
            address = ipaddress.IPv6Address(host)
        except ValueError:
            return f"host {host}"
        if address.ipv4_mapped is not None:
            return f"host {address.ipv4_mapped}"
        network = ipaddress.IPv6Network((address, _V6_NETWORK), strict=False)
        return f"host {network}"
    return f"host {host or peer}"

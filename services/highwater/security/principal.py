"""The principal of a call.

A call is told apart by a token in its metadata (`authorization: Bearer …`), else by the certificate of its connection,
whose distinguished name goes through mapping rules. Whoever shows neither is `User:ANONYMOUS`.

The interceptor `call_identity.IdentifyCalls` puts down for each call what its server goes by. Where a server has none,
nothing is looked at, and everybody is anonymous.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

from highwater.security.mapping_rules import MappingRules

USER = "User"
_SUBJECT = "x509_subject"  # as gRPC names it: the distinguished name as RFC 2253 writes it
_COMMON_NAME = "x509_common_name"


class Principal(NamedTuple):
    """A user, or whatever else calls; the only `kind` is `User`. Written `User:alice`."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal(USER, "ANONYMOUS")


def user(name: str) -> Principal:
    return Principal(USER, name)


def parse_principal(text: str) -> Principal:
    """`User:alice`. Raises `ValueError`."""
    kind, colon, name = text.strip().partition(":")
    if kind != USER or not colon or not name:
        raise ValueError(f"{text!r} is no principal: write User:name")
    return Principal(kind, name)


class HasAuthContext(Protocol):
    """The part of a gRPC server context that is looked at."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]: ...


class CallIdentity(NamedTuple):
    """The makings of the principal of one call."""

    rules: MappingRules
    by_token: Principal | None = None  # None: it has shown no token


current_call: ContextVar[CallIdentity | None] = ContextVar("highwater_call_identity", default=None)
"""Of the call that the running task serves, and the tasks that it has made. None: its server identifies nobody."""


def principal_of(context: HasAuthContext | Any) -> Principal:
    """The principal of the call that the running task serves. `context`: the call's own, as gRPC hands it to a
    servicer. For a stream, ask once: it does not change."""
    identity = current_call.get()
    if identity is None:
        return ANONYMOUS
    return identity.by_token or certificate_principal(identity.rules, context.auth_context())


def certificate_principal(rules: MappingRules, auth_context: Mapping[str, Iterable[bytes]]) -> Principal:
    """The principal of a connection. ANONYMOUS where it showed no certificate, or one that no rule is for."""
    distinguished_name = _text(auth_context, _SUBJECT)
    if not distinguished_name and (common_name := _text(auth_context, _COMMON_NAME)):
        distinguished_name = f"CN={common_name}"
    name = rules.name_of(distinguished_name) if distinguished_name else None
    return ANONYMOUS if not name else user(name)


def _text(auth_context: Mapping[str, Iterable[bytes]], key: str) -> str:
    return next(iter(auth_context.get(key) or ()), b"").decode("utf-8", "replace")

"""The callers of this broker, told apart and held to what they may do: wired together of the settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from highwater.errors import UserError
from highwater.replica_manager.replicas.replica_manager import ReplicaManager
from highwater.replica_manager.settings import ReplicaManagerSettings
from highwater.rpc.listeners import with_tls
from highwater.security.access import Authorization
from highwater.security.authorizer import Authorizer
from highwater.security.call_identity import IdentifyCalls
from highwater.security.guard_calls import GuardCalls, ReplicaIdentity
from highwater.security.mapping_rules import MappingRules
from highwater.security.settings import check_certificates_shown
from highwater.security.token_watch import TokenWatch
from highwater.security.tokens import InvalidTokenError, ShownToken, TokenFile, is_jwt
from highwater.telemetry.log import get_logger

if TYPE_CHECKING:
    import grpc.aio

    from highwater.security.oidc import OidcTokens

    Interceptor = grpc.aio.ServerInterceptor[Any, Any]

logger = get_logger("replica_manager.callers")

REPLICA_CONTROL = "/highwater.v1.ReplicaControl/"
_WAITING_PART = 100  # one in so many of the calls that may be open waits for an issuer's keys


def authorization_of(settings: ReplicaManagerSettings, replica_manager: ReplicaManager) -> Authorization | None:
    """None where everybody may do everything. Raises `UserError` where half of security is set up."""
    if not settings.authorizes:
        if settings.allow_everyone_if_no_acl_found or (settings.super_users and not settings.broker_principal):
            raise UserError(
                "super.users and allow.everyone.if.no.acl.found are for an authorizer, and there is none: set "
                "authorizer.class.name=acls, or leave them out"
            )
        return None
    if not settings.broker_principal and not settings.listeners[settings.internal_listener].startswith("unix:"):
        logger.warning(
            "whoever reaches listener %s is taken for the broker or controller that it says it is: keep clients away "
            "from it, or set broker.principal",
            settings.internal_listener,
        )
    if len(settings.listeners) == 1 and not settings.broker_principal:
        raise UserError(
            "with authorizer.class.name clients need a listener of their own: by the only one that there is whoever "
            "reaches it could also speak as a broker or a controller; give listeners a second one, and name the other "
            "in inter.broker.listener.name, or say in broker.principal by which certificates brokers are known"
        )
    authorizer = Authorizer(
        settings.super_users, allow_everyone_if_no_acl_found=settings.allow_everyone_if_no_acl_found
    )
    metadata = replica_manager.metadata

    def topic_of(topic_id: bytes) -> str | None:
        known = metadata.by_id(topic_id)
        return None if known is None else known.topic

    return Authorization(authorizer, topic_of)


class Identification:
    """Identifies the callers of each listener. Raises `UserError` where half of it is set up."""

    def __init__(self, settings: ReplicaManagerSettings, authorization: Authorization | None) -> None:
        self._settings = settings
        self._authorization = authorization
        self._tokens = TokenFile(Path(settings.tokens_file)) if settings.tokens_file else None
        self._rules = MappingRules(settings.ssl_principal_mapping_rules)
        self._peers = settings.internal_peers(settings.broker_id)
        internal = settings.internal_listener
        if self._peers is not None:
            address = settings.listeners[internal]
            check_certificates_shown(
                [with_tls(address) if internal in settings.tls_listeners else address],
                requires_certificates=settings.requires_certificates(internal),
            )
        self._oidc = _oidc_of(settings)
        self._watch = TokenWatch(self._tokens_revision)
        if self._verifies and not any(map(self._takes_tokens, settings.listeners)):
            raise UserError(
                "tokens are to be taken, and every listener is plain text, on which others would read them: give one "
                "TLS, or set tokens.allow.plaintext=true where nobody listens on the way"
            )

    def interceptors(self, listener: str) -> Sequence[Interceptor]:
        """None where nobody is told apart: that costs nothing."""
        identifying = self._identifying(listener)
        if self._peers is None or listener != self._settings.internal_listener:
            return identifying
        return (*identifying, GuardCalls(self._peers, self._rules, lambda method: method.startswith(REPLICA_CONTROL)))

    def replicas(self, listener: str) -> ReplicaIdentity | None:
        """None where who fetches as a replica is believed."""
        if self._peers is None or listener != self._settings.internal_listener:
            return None
        return ReplicaIdentity(self._peers, self._rules)

    def _identifying(self, listener: str) -> Sequence[Interceptor]:
        if not self.identifies:
            return ()
        ready = self._ready if listener != self._settings.internal_listener else _always
        if not self._verifies:
            return (IdentifyCalls(self._rules, None, no_tokens="this broker takes no tokens", ready=ready),)
        if not self._takes_tokens(listener):
            sentence = (
                f"listener {listener} is plain text and takes no tokens, as others could read them: connect by TLS, "
                "or set tokens.allow.plaintext"
            )
            return (IdentifyCalls(self._rules, None, no_tokens=sentence, ready=ready),)
        return (IdentifyCalls(self._rules, self._verify, ready=ready, watch=self._watch),)

    @property
    def identifies(self) -> bool:
        """Tells whether callers are told apart, for whatever reason: ACLs, tokens or their certificates."""
        settings = self._settings
        return (
            self._authorization is not None
            or self._verifies
            or any(settings.requires_certificates(name) for name in settings.tls_listeners)
        )

    def _ready(self) -> bool:
        """Tells whether it is known what clients may do."""
        return self._authorization is None or self._authorization.authorizer.loaded

    def _takes_tokens(self, listener: str) -> bool:
        """By TLS, and by sockets of this host, which nobody else hears."""
        settings = self._settings
        by_socket = settings.listeners[listener].startswith("unix:")
        return settings.tokens_allow_plaintext or by_socket or listener in settings.tls_listeners

    @property
    def _verifies(self) -> bool:
        """Tells whether any tokens count here."""
        return self._tokens is not None or self._oidc is not None

    async def _verify(self, token: str) -> ShownToken:
        if self._oidc is not None and is_jwt(token):
            return await self._oidc.shown(token)
        shown = None if self._tokens is None else self._tokens.shown(token)
        if shown is None:
            raise InvalidTokenError("the token is none that this broker knows: ask who runs the cluster for another")
        return shown

    def _tokens_revision(self) -> int:
        """Grows when other tokens count."""
        if self._tokens is not None:
            self._tokens.refresh()
        of_file = 0 if self._tokens is None else self._tokens.revision
        return of_file + (0 if self._oidc is None else self._oidc.revision)


def _oidc_of(settings: ReplicaManagerSettings) -> OidcTokens | None:
    """None: no tokens of OpenID Connect are taken. Raises `UserError` where half of it is set up."""
    url = settings.sasl_oauthbearer_jwks_endpoint_url
    if not url:
        return None
    if not url.startswith(("https://", "http://", "file:///")):
        raise UserError(f"sasl.oauthbearer.jwks.endpoint.url is {url!r}: write https://… or file:///…")
    if not settings.sasl_oauthbearer_expected_issuer and not settings.sasl_oauthbearer_expected_audience:
        raise UserError(
            "sasl.oauthbearer.jwks.endpoint.url is set, and neither sasl.oauthbearer.expected.audience nor "
            "sasl.oauthbearer.expected.issuer: every token by these keys would count, for whatever service it was "
            "made: set the audience that stands for this cluster"
        )
    from highwater.security.oidc import (  # noqa: PLC0415  it loads a library of signatures
        MAX_WAITING,
        Jwks,
        OidcSettings,
        OidcTokens,
    )

    oidc = OidcSettings(
        settings.sasl_oauthbearer_expected_issuer,
        settings.sasl_oauthbearer_expected_audience,
        settings.sasl_oauthbearer_sub_claim_name,
        settings.sasl_oauthbearer_clock_skew_seconds,
    )
    refresh_s = settings.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000
    waiting = min(MAX_WAITING, max(1, settings.max_open_calls // _WAITING_PART))
    return OidcTokens(oidc, Jwks(url, refresh_s, max_waiting=waiting))


def _always() -> bool:
    return True

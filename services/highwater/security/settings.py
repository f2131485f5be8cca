"""The settings of security, for the services that have listeners of their own."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator
from pydantic_settings import NoDecode

from highwater.errors import UserError
from highwater.rpc.listeners import speaks_tls
from highwater.rpc.settings import InternalServiceSettings, ServiceSettings
from highwater.security.guard_calls import GuardCalls
from highwater.security.internal_peers import InternalPeers
from highwater.security.mapping_rules import DEFAULT, MappingRules
from highwater.security.principal import Principal, parse_principal

ACLS = "acls"
_KAFKA_AUTHORIZERS = (
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "kafka.security.authorizer.AclAuthorizer",
)


def _check_rules(text: str) -> str:
    MappingRules(text)
    return text


def _principals(value: Any) -> Any:
    """Separated by `;`, as in Kafka: a distinguished name has commas."""
    if not isinstance(value, str):
        return value
    return tuple(parse_principal(part) for part in value.split(";") if part.strip())


def _names(value: Any) -> Any:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _authorizer(value: Any) -> Any:
    if value in ("", ACLS):
        return value
    if value in _KAFKA_AUTHORIZERS:
        return ACLS
    raise ValueError(f"{value!r} is no authorizer: write {ACLS}, or nothing for none")


Principals = Annotated[tuple[Principal, ...], NoDecode, BeforeValidator(_principals)]
NameList = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_names)]
Rules = Annotated[str, AfterValidator(_check_rules)]


class PrincipalSettings(ServiceSettings):
    """Of every service whose callers are told apart by their certificates."""

    ssl_principal_mapping_rules: Rules = DEFAULT
    super_users: Principals = ()
    broker_principal: str = ""
    """The principal of each broker, with `{id}` for its id. Empty: whoever reaches an internal listener is taken for
    what it says."""
    controller_principals: Principals = Field((), validate_default=True)

    @field_validator("broker_principal")
    @classmethod
    def _names_brokers(cls, value: str) -> str:
        if value:
            InternalPeers(value, (), ())
        return value

    @field_validator("controller_principals")
    @classmethod
    def _both_or_neither(cls, value: tuple[Principal, ...], info: ValidationInfo) -> tuple[Principal, ...]:
        if bool(value) != bool(info.data.get("broker_principal", value)):
            one, other = ("controller.principals", "broker.principal")
            one, other = (one, other) if value else (other, one)
            raise ValueError(f"{one} is set without {other}: set both, or neither")
        return value

    def internal_peers(self, own_broker: int | None = None) -> InternalPeers | None:
        """None: internal callers are not told apart."""
        if not self.broker_principal:
            return None
        return InternalPeers(self.broker_principal, self.controller_principals, self.super_users, own_broker)


class InternalPrincipalSettings(InternalServiceSettings, PrincipalSettings):
    """Of a service whose callers are all Highwater's own processes."""

    def guard(self, own_broker: int | None = None) -> list[GuardCalls]:
        """The interceptors of its server; none where internal callers are not told apart. Raises `UserError` where
        they could not show who they are."""
        peers = self.internal_peers(own_broker)
        if peers is None:
            return []
        check_certificates_shown(self.listen, requires_certificates=self.requires_certificates)
        return [GuardCalls(peers, MappingRules(self.ssl_principal_mapping_rules))]


def check_certificates_shown(addresses: Collection[str], *, requires_certificates: bool) -> None:
    """Raises `UserError` where somebody may call an internal address without a certificate, and is to show one."""
    for address in addresses:
        if not address.startswith("unix:") and not (speaks_tls(address) and requires_certificates):
            raise UserError(
                f"broker.principal says by which certificates internal callers are known, and {address} asks for none: "
                "have it speak TLS with ssl.client.auth=required, or leave broker.principal out"
            )


class AuthorizerSettings(PrincipalSettings):
    """Of the service that clients call."""

    authorizer_class_name: Annotated[str, BeforeValidator(_authorizer)] = ""
    """`acls`: what clients may do is decided by ACLs. Empty: everybody may everything."""
    allow_everyone_if_no_acl_found: bool = False
    tokens_file: str = ""
    """Static tokens, as salted hashes; empty: no such tokens are taken."""
    tokens_allow_plaintext: bool = False
    """Takes tokens by listeners without TLS, too: whoever listens on the way may use them."""

    sasl_oauthbearer_jwks_endpoint_url: str = ""
    """Where the keys are that sign OpenID Connect's tokens: `https://…` or `file:///…`. Empty: no such tokens are
    taken."""
    sasl_oauthbearer_expected_issuer: str = ""
    sasl_oauthbearer_expected_audience: NameList = ()
    sasl_oauthbearer_sub_claim_name: str = Field("sub", min_length=1)
    sasl_oauthbearer_clock_skew_seconds: int = Field(30, ge=0)
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = Field(3_600_000, ge=10_000)

    @property
    def authorizes(self) -> bool:
        return self.authorizer_class_name == ACLS

"""The options of TLS that every client has, and the variables of the environment that hold their defaults."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal, TypedDict

SecurityProtocol = Literal["PLAINTEXT", "SSL"]
FilePath = str | os.PathLike[str]

PROTOCOL_VARIABLE = "HIGHWATER_SECURITY_PROTOCOL"
CA_VARIABLE = "HIGHWATER_SSL_CA_FILE"
CERTIFICATE_VARIABLE = "HIGHWATER_SSL_CERTIFICATE_FILE"
KEY_VARIABLE = "HIGHWATER_SSL_KEY_FILE"
VARIABLES = (PROTOCOL_VARIABLE, CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE)


def options_of_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The options that the environment holds, by the names of `TlsOptions`; none where it does not ask for TLS."""
    if environment.get(PROTOCOL_VARIABLE) != "SSL":
        return {}
    names = zip(TlsOptions.__annotations__, VARIABLES, strict=True)
    return {name: environment[variable] for name, variable in names if environment.get(variable)}


class TlsOptions(TypedDict, total=False):
    """The options of every client."""

    security_protocol: SecurityProtocol | None
    ssl_ca_file: FilePath | None
    ssl_certificate_file: FilePath | None
    ssl_key_file: FilePath | None

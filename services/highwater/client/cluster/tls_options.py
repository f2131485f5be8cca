"""The options of TLS that every client has, and the variables of the environment that hold their defaults."""

from __future__ import annotations

import os
from typing import Literal, TypedDict

SecurityProtocol = Literal["PLAINTEXT", "SSL"]
FilePath = str | os.PathLike[str]

PROTOCOL_VARIABLE = "HIGHWATER_SECURITY_PROTOCOL"
CA_VARIABLE = "HIGHWATER_SSL_CA_FILE"
CERTIFICATE_VARIABLE = "HIGHWATER_SSL_CERTIFICATE_FILE"
KEY_VARIABLE = "HIGHWATER_SSL_KEY_FILE"
VARIABLES = (PROTOCOL_VARIABLE, CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE)


class TlsOptions(TypedDict, total=False):
    """The options of every client."""

    security_protocol: SecurityProtocol | None
    ssl_ca_file: FilePath | None
    ssl_certificate_file: FilePath | None
    ssl_key_file: FilePath | None

"""The options by which a client shows who it is, and the variables of the environment that hold their defaults."""

from __future__ import annotations

from typing import TypedDict

from highwater.client.cluster.tls_options import FilePath, TlsOptions

TOKEN_VARIABLE = "HIGHWATER_TOKEN"
TOKEN_FILE_VARIABLE = "HIGHWATER_TOKEN_FILE"
TOKEN_VARIABLES = (TOKEN_VARIABLE, TOKEN_FILE_VARIABLE)


class TokenOptions(TypedDict, total=False):
    """The options of every client."""

    token: str | None
    token_file: FilePath | None


class SecurityOptions(TlsOptions, TokenOptions, total=False):
    """Those of TLS, and these."""

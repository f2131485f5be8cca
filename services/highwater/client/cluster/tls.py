"""TLS of a client: the options of its constructor, else those of the environment."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import get_args

from highwater.client.cluster.tls_options import VARIABLES, SecurityProtocol, TlsOptions
from highwater.client.exceptions import InvalidRequestError
from highwater.errors import UserError
from highwater.rpc.connections.tls import Certificates, TlsFiles, TlsNames
from highwater.rpc.connections.tls_diagnosis import diagnose
from highwater.rpc.listeners import with_tls, without_tls

CLIENT = TlsNames(
    "ssl_ca_file",
    "ssl_certificate_file",
    "ssl_key_file",
    peers="the brokers",
    owner="this client",
    use="TLS",
    to_turn_on="set security_protocol to SSL, and ssl_ca_file to the authority that signed the brokers' certificates",
    to_turn_off="set security_protocol to PLAINTEXT, or name a listener that speaks TLS",
    to_name_peers="in bootstrap, and in the brokers' advertised.listeners, name them as their certificates do",
    peers_authority="the brokers' ssl.ca.file",
)


def client_certificates(
    options: Mapping[str, object], environment: Mapping[str, str] = os.environ
) -> Certificates | None:
    """Reads the files of a client that speaks TLS; None: it does not. `options` holds those of `TlsOptions`, None where
    they were not given; others may be there, too. Raises `InvalidRequestError`, which names the option and the cure.

    The environment's files count where TLS is spoken: a service's shell may have them for other reasons."""
    protocol = options["security_protocol"] or environment.get(VARIABLES[0]) or "PLAINTEXT"
    if protocol not in get_args(SecurityProtocol):
        raise InvalidRequestError(f"security_protocol is {protocol!r}; it can be PLAINTEXT or SSL")
    names = (CLIENT.authority, CLIENT.certificate, CLIENT.key)
    if protocol == "PLAINTEXT":
        if useless := [name for name in names if options[name]]:
            raise InvalidRequestError(
                f"{useless[0]} is set, and security_protocol is PLAINTEXT: set that to SSL, or leave the file out"
            )
        return None
    given = (options[name] or environment.get(variable) for name, variable in zip(names, VARIABLES[1:], strict=True))
    try:
        return Certificates(TlsFiles(*(Path(str(each)) if each else None for each in given), names=CLIENT))
    except UserError as error:
        raise InvalidRequestError(str(error)) from None


def environment_certificates() -> Certificates | None:
    """Those of a client that is given no options. Raises `InvalidRequestError`."""
    return client_certificates(dict.fromkeys(TlsOptions.__annotations__))


def target(address: str, certificates: Certificates | None) -> str:
    """The address as `open_channel` takes it."""
    bare = without_tls(address)
    return bare if certificates is None or bare.startswith("unix:") else with_tls(bare)


async def tls_problem(addresses: Iterable[str], certificates: Certificates | None) -> str:
    """Says in a sentence why TLS does not come about with one of these brokers, and the cure; empty where that is not
    why they cannot be reached."""
    files = None if certificates is None else certificates.files
    asked = [address for address in addresses if not address.startswith("unix:")]
    found = await asyncio.gather(*(diagnose(address, files, CLIENT) for address in asked))
    return next((each for each in found if each), "")

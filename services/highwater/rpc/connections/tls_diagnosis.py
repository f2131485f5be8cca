"""The reason why TLS does not come about with a server. gRPC keeps it to itself: a handshake of our own tells it."""

from __future__ import annotations

import asyncio
import ssl

from highwater.errors import UserError
from highwater.rpc.connections.tls import HTTP2, TlsFiles, TlsNames, plain_reason

DIAGNOSIS_S = 1.0
# And empty SETTINGS, which every server of HTTP/2 answers.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"


async def diagnose(endpoint: str, files: TlsFiles | None, names: TlsNames) -> str:
    """Says in a sentence why TLS does not come about with the server at `host:port`, and the cure; empty where that is
    not the cause. Without `files` this end speaks no TLS."""
    try:
        async with asyncio.timeout(DIAGNOSIS_S):
            return await (_diagnose_plain(endpoint, names) if files is None else _diagnose_tls(endpoint, files))
    except UserError as error:  # the files have been replaced by others
        return str(error)
    except (OSError, ValueError, TimeoutError):
        return ""


async def _diagnose_plain(endpoint: str, names: TlsNames) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols([HTTP2])
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        await _first_answer(endpoint, context)
    except ssl.SSLError as error:
        if "ALERT" not in (error.reason or ""):
            return ""
    return f"{endpoint} speaks TLS: {names.to_turn_on}"


async def _diagnose_tls(endpoint: str, files: TlsFiles) -> str:
    try:
        if await _first_answer(endpoint, files.context()):
            return ""
        # gRPC's servers end a connection without a word where the client's certificate is not what they want.
        if files.certificate_file is None:
            return _certificate_wanted(endpoint, files.names)
        return _certificate_refused(endpoint, files, "the connection ends when it is shown")
    except ssl.SSLError as error:
        if "ALERT" in (error.reason or "") or isinstance(error, ssl.SSLCertVerificationError):
            return _explained(endpoint, files, error)
        failed = _explained(endpoint, files, error)
    except ConnectionResetError:
        failed = ""
    if await _first_answer(endpoint, None):
        return f"{endpoint} does not speak TLS: {files.names.to_turn_off}"
    return failed


async def _first_answer(endpoint: str, context: ssl.SSLContext | None) -> bytes:
    """The first words of a server to a client of HTTP/2; only after it is a client's certificate known to be good (from
    TLS 1.3 on the handshake ends before that is looked at). Raises `OSError`, `ssl.SSLError` among them."""
    host, _, port = endpoint.rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=context)
    try:
        writer.write(_PREFACE)
        return await reader.read(1)
    finally:
        writer.transport.abort()


def _explained(endpoint: str, files: TlsFiles, error: ssl.SSLError) -> str:
    names = files.names
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message.rstrip(".")
        if "match" in why or "mismatch" in why.lower():
            return f"{why} in the certificate of {endpoint}: {names.to_name_peers}"
        if "expired" in why or "not yet valid" in why:
            return f"the certificate of {endpoint} does not count ({why}): renew it, or set the clock"
        if files.ca_file is None:
            return (
                f"the certificate of {endpoint} is signed by no public authority ({why}): set {names.authority} to the "
                "one that signed it"
            )
        return (
            f"the certificate of {endpoint} is not signed by an authority in {names.authority} {files.ca_file} "
            f"({why}): put the certificate of the one that signed it there"
        )
    if "ALERT" in reason and files.certificate_file is None:
        return _certificate_wanted(endpoint, names)
    if "ALERT" in reason:
        return _certificate_refused(endpoint, files, plain_reason(error))
    return f"TLS with {endpoint} fails: {plain_reason(error)}"


def _certificate_refused(endpoint: str, files: TlsFiles, why: str) -> str:
    names = files.names
    return (
        f"{endpoint} refuses {names.certificate} {files.certificate_file} ({why}): give one that is in force, for "
        f"clients, and signed by the authority in {names.peers_authority}"
    )


def _certificate_wanted(endpoint: str, names: TlsNames) -> str:
    return f"{endpoint} wants a certificate of its clients: set {names.certificate} and {names.key}"

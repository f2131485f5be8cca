"""Static tokens: secrets that the operator gives out, kept as salted hashes in a file.

A token is `<id>.<secret>`. Each line of the file is one:

    # id              salt              SHA-256 of salt and secret        principal
    3f9a2c1b77d0e1aa  9b1d…             5c0e…                             User:alice

A secret has 256 random bits, which nobody guesses: one round of SHA-256 hides it as well as a thousand would, and costs
a call a microsecond. A user may have several tokens at once, so that one is replaced without a break.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from highwater.errors import UserError
from highwater.security.principal import Principal, parse_principal
from highwater.telemetry.log import get_logger

_log = get_logger(__name__)

MAX_TOKENS = 10_000
MAX_FILE_BYTES = 8 << 20
MAX_TOKEN = 6 << 10  # characters: of 8 KiB of metadata and more gRPC refuses some calls at random
_ID_BYTES, _SALT_BYTES, _SECRET_BYTES = 8, 16, 32
_LINE = re.compile(r"([0-9a-f]{16})\s+([0-9a-f]{32})\s+([0-9a-f]{64})\s+(\S.*)")


class InvalidTokenError(Exception):
    """The call is not who it says; the sentence goes to its sender."""


class TokensBusyError(Exception):
    """It cannot be told now whether a token counts; the sentence goes to its sender, who may try again."""


class ShownToken(NamedTuple):
    """A token that counted when it was shown."""

    principal: Principal
    counts: Callable[[], bool]
    """Tells whether it is still one of those that count, whatever the time."""
    until_s: float = math.inf
    """Of the wall clock: from then on it does not count."""


class KeptToken(NamedTuple):
    """The part of a token that is kept."""

    salt: bytes
    digest: bytes
    principal: Principal


def parse_line(line: str) -> tuple[str, KeptToken] | None:
    """A token's id and what is kept of it; None: the line is empty or a comment. Raises `ValueError`."""
    text = line.strip()
    if not text or text.startswith("#"):
        return None
    match = _LINE.fullmatch(text)
    if match is None:
        raise ValueError("it is not `id salt hash User:name`")
    return match[1], KeptToken(bytes.fromhex(match[2]), bytes.fromhex(match[3]), parse_principal(match[4]))


def make_token(principal: Principal) -> tuple[str, str]:
    """A new token, and the line of it."""
    token_id, salt = secrets.token_hex(_ID_BYTES), secrets.token_bytes(_SALT_BYTES)
    secret = secrets.token_urlsafe(_SECRET_BYTES)
    return f"{token_id}.{secret}", f"{token_id} {salt.hex()} {_digest(salt, secret).hex()} {principal}"


def _digest(salt: bytes, secret: str) -> bytes:
    return hashlib.sha256(salt + secret.encode(errors="surrogateescape")).digest()


class TokenFile:
    """The tokens of a file, read again when it has been replaced. Where it is gone, no token counts."""

    def __init__(self, path: Path) -> None:
        """Raises `UserError` where it cannot be read."""
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._kept: Mapping[str, KeptToken] = {}
        self.revision = 0
        """Counts the times that other tokens were found."""
        try:
            self._seen = self._stamp()
            self._kept = self._read()
        except OSError as error:
            raise UserError(f"cannot read the tokens.file {path}: {error.strerror}") from None

    def principal_of(self, token: str) -> Principal | None:
        """None: it is no token of this file."""
        shown = self.shown(token)
        return None if shown is None else shown.principal

    def shown(self, token: str) -> ShownToken | None:
        """None: it is no token of this file."""
        self.refresh()
        token_id, _, secret = token.partition(".")
        kept = self._kept.get(token_id)
        if kept is None or not hmac.compare_digest(kept.digest, _digest(kept.salt, secret)):
            return None
        return ShownToken(kept.principal, lambda: self._kept.get(token_id) == kept)

    def refresh(self) -> None:
        """Reads the file again where it is another."""
        try:
            stamp = self._stamp()
            if stamp == self._seen:
                return
            kept = self._read()
        except OSError as error:
            if self._seen is not None:
                _log.error(
                    "the tokens.file cannot be read, and no token counts until it can, file=%s: %s", self._path, error
                )
                self.revision += 1
            self._seen, self._kept = None, {}
            return
        self._seen, self._kept = stamp, kept
        self.revision += 1
        _log.info("the tokens.file has been read again, file=%s tokens=%d", self._path, len(kept))

    def _stamp(self) -> tuple[int, int, int]:
        found = self._path.stat()
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _read(self) -> dict[str, KeptToken]:
        with self._path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
        lines = text[:MAX_FILE_BYTES].decode(errors="replace").splitlines()
        kept: dict[str, KeptToken] = {}
        for number, line in enumerate(lines, 1):
            try:
                read = parse_line(line)
                if read is not None and len(kept) >= MAX_TOKENS:
                    raise ValueError(f"there are {MAX_TOKENS} before it, which is the most")
            except ValueError as error:
                _log.error("a line of the tokens.file does not count, file=%s line=%d: %s", self._path, number, error)
                continue
            if read is not None:
                kept[read[0]] = read[1]
        return kept


def is_jwt(token: str) -> bool:
    """Tells a JWT, of three parts, from a static token, of two."""
    return token.count(".") == 2

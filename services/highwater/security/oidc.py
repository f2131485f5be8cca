"""Tokens of OpenID Connect: JWTs that an issuer signs, verified by the keys that it publishes (JWKS)."""

from __future__ import annotations

import asyncio
import hashlib
import time
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jwt

from highwater.security.principal import Principal, user
from highwater.security.tokens import InvalidTokenError, ShownToken, TokensBusyError
from highwater.telemetry.log import get_logger

_log = get_logger(__name__)

# By public keys alone: whoever may verify cannot sign. Of each type of key: a token chooses its key, and its algorithm
# has to be one of that key's.
ALGORITHMS = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
}
FETCH_TIMEOUT_S = 5.0  # of one wait for the issuer
LONGEST_FETCH_S = 15.0  # in all
_PIECE_BYTES = 1 << 16
MAX_JWKS_BYTES = 1 << 20
FETCH_AGAIN_S = 10.0  # a key that nobody knows has the keys read again, so often at most
MAX_REMEMBERED = 10_000  # verified tokens
MAX_WAITING = 100  # calls that an answer of the issuer is waited for: nobody knows yet whose they are
MAX_NAME = 500


class OidcSettings(NamedTuple):
    """The settings `sasl.oauthbearer.…`. Empty `issuer` and `audience`: any."""

    issuer: str = ""
    audience: tuple[str, ...] = ()
    sub_claim: str = "sub"
    clock_skew_s: int = 30


Fetch = Callable[[str], bytes]


def fetch_jwks(url: str) -> bytes:
    """Blocking. Raises `OSError`, `ValueError`."""
    give_up_s = time.monotonic() + LONGEST_FETCH_S
    content = b""
    with urllib.request.urlopen(url, timeout=FETCH_TIMEOUT_S) as response:  # the operator's own URL
        while piece := response.read1(_PIECE_BYTES):
            content += piece
            if len(content) > MAX_JWKS_BYTES:
                raise ValueError(f"it has more than {MAX_JWKS_BYTES} bytes")
            if time.monotonic() > give_up_s:
                raise TimeoutError(f"it takes more than {LONGEST_FETCH_S:.0f} s")
    return content


class Jwks:
    """The keys of an issuer, by id, read in a thread, one time after the other: a slow issuer takes one thread at most.
    While they cannot be read those that were known count."""

    def __init__(
        self,
        url: str,
        refresh_s: float,
        fetch: Fetch = fetch_jwks,
        now_s: Callable[[], float] = time.monotonic,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self._url = url
        self._max_waiting = max_waiting
        self._waiting = 0
        self._refresh_s = refresh_s
        self._fetch = fetch
        self._now_s = now_s
        self._keys: Mapping[str, jwt.PyJWK] = {}
        self.revision = 0
        """Counts the times that they were read."""
        self._read_s = float("-inf")
        self._tried_s = float("-inf")
        self._reading: asyncio.Future[bytes] | None = None

    def holds(self, key_id: str, key: jwt.PyJWK) -> bool:
        """Tells whether the issuer still publishes the key, as far as is known."""
        return self._keys.get(key_id) is key

    def refresh(self, *, unknown: bool = False) -> None:
        """Has the keys read again where it is time. `unknown`: somebody wants a key that is not there."""
        now_s = self._now_s()
        stale = now_s - self._read_s >= self._refresh_s
        reading = self._reading is not None and not self._reading.done()
        if not reading and (stale or unknown) and now_s - self._tried_s >= FETCH_AGAIN_S:
            self._tried_s = now_s
            self._reading = asyncio.get_running_loop().run_in_executor(None, self._fetch, self._url)
            self._reading.add_done_callback(self._read)

    async def key(self, key_id: str) -> jwt.PyJWK | None:
        """Waits for the issuer where it may be a new one. Raises `TokensBusyError` where too many do: a token that
        names any key would hold a call for as long as the issuer is slow, and no share of its sender's counts that."""
        self.refresh(unknown=key_id not in self._keys)
        if key_id not in self._keys and self._reading is not None and not self._reading.done():
            if self._waiting >= self._max_waiting:
                raise TokensBusyError(
                    "the token is signed by a key that is not known yet, and many wait for its issuer: retry after a "
                    "short pause"
                )
            self._waiting += 1
            try:
                await asyncio.wait((self._reading,), timeout=LONGEST_FETCH_S)
            finally:
                self._waiting -= 1
        return self._keys.get(key_id)

    def _read(self, reading: asyncio.Future[bytes]) -> None:
        try:
            found = jwt.PyJWKSet.from_json(reading.result().decode())
        except (OSError, ValueError, jwt.PyJWTError, asyncio.CancelledError) as error:
            _log.error("the issuer's keys cannot be read, and those known count on, url=%s: %r", self._url, error)
            return
        known = self._keys
        self._keys = {
            key.key_id: before if (before := known.get(key.key_id)) is not None and _same(before, key) else key
            for key in found.keys
            if key.key_id and isinstance(key.key_id, str) and key.public_key_use in (None, "sig")
        }
        self.revision += 1
        self._read_s = self._tried_s


def _same(one: jwt.PyJWK, other: jwt.PyJWK) -> bool:
    return one.key_type == other.key_type and bool(one.key == other.key)


class _Verified(NamedTuple):
    principal: Principal
    until_s: float  # of the wall clock
    key_id: str
    key: jwt.PyJWK  # as long as it is the one that the issuer publishes


class OidcTokens:
    """`wall_s` is the wall clock, by which tokens expire."""

    def __init__(self, settings: OidcSettings, jwks: Jwks, wall_s: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._jwks = jwks
        self._wall_s = wall_s
        self._verified: dict[bytes, _Verified] = {}

    @property
    def revision(self) -> int:
        """Counts the times that the keys were read, which it has done again where it is time."""
        self._jwks.refresh()
        return self._jwks.revision

    async def principal_of(self, token: str) -> Principal:
        """As `shown`."""
        return (await self.shown(token)).principal

    async def shown(self, token: str) -> ShownToken:
        """Raises `InvalidTokenError` and `TokensBusyError`, whose sentences its sender may hear."""
        digest = hashlib.sha256(token.encode(errors="surrogateescape")).digest()
        known = self._verified.get(digest)
        if known is not None and self._wall_s() < known.until_s and await self._jwks.key(known.key_id) is known.key:
            return self._shown(known)
        key_id, key, claims = await self._claims(token)
        name = claims.get(self._settings.sub_claim)
        if not isinstance(name, str) or not name or len(name) > MAX_NAME or not name.isprintable():
            raise InvalidTokenError(f"the token names nobody in its claim {self._settings.sub_claim}")
        if len(self._verified) >= MAX_REMEMBERED:
            self._verified.clear()
        until_s = float(claims["exp"]) + self._settings.clock_skew_s
        self._verified[digest] = verified = _Verified(user(name), until_s, key_id, key)
        return self._shown(verified)

    def _shown(self, verified: _Verified) -> ShownToken:
        return ShownToken(verified.principal, lambda: self._jwks.holds(verified.key_id, verified.key), verified.until_s)

    async def _claims(self, token: str) -> tuple[str, jwt.PyJWK, dict[str, Any]]:
        """With the key by which they are verified, and its id."""
        settings = self._settings
        try:
            header = jwt.get_unverified_header(token)
            key_id = str(header.get("kid", ""))
            key = await self._jwks.key(key_id)
            if key is None:
                raise InvalidTokenError("the token is signed by a key that its issuer does not publish")
            algorithm = header.get("alg")
            if algorithm not in ALGORITHMS.get(key.key_type or "", ()):
                raise InvalidTokenError("the token names an algorithm that is not for its key, or counts nowhere")
            claims = jwt.decode(
                token,
                key.key,
                algorithms=[algorithm],
                audience=list(settings.audience) or None,
                issuer=settings.issuer or None,
                leeway=settings.clock_skew_s,
                options={"require": ["exp"], "verify_aud": bool(settings.audience)},
            )
        except (jwt.PyJWTError, ValueError) as error:
            raise InvalidTokenError(f"the token does not count: {error}") from None
        return key_id, key, claims

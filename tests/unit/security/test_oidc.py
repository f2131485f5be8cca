"""Tokens of OpenID Connect: what counts, what does not, and when an issuer's keys are read."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
import urllib.request
from typing import Any, Self

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from highwater.security.oidc import MAX_JWKS_BYTES, Jwks, OidcSettings, OidcTokens, fetch_jwks
from highwater.security.principal import user
from highwater.security.tokens import InvalidTokenError, TokensBusyError, is_jwt

RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
OTHER_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
SETTINGS = OidcSettings("https://issuer", ("highwater",))
CLAIMS = {"sub": "alice", "iss": "https://issuer", "aud": "highwater"}


def published(**keys: Any) -> bytes:
    found = []
    for key_id, key in keys.items():
        algorithm: Any = (
            jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
        )
        found.append(algorithm.to_jwk(key.public_key(), as_dict=True) | {"kid": key_id})
    return json.dumps({"keys": found}).encode()


class Issuer:
    """Its keys, and how often they were asked for. `now_s` is a clock that the test moves."""

    def __init__(self, **keys: Any) -> None:
        self.keys: bytes | Exception = published(**keys)
        self.asked = 0
        self.now_s = 1_000.0
        self.jwks = Jwks("https://issuer/jwks", 3600.0, self.fetch, lambda: self.now_s)
        self.tokens = OidcTokens(SETTINGS, self.jwks)

    def fetch(self, url: str) -> bytes:
        self.asked += 1
        if isinstance(self.keys, Exception):
            raise self.keys
        return self.keys


def signed(key: Any = RSA_KEY, algorithm: str = "RS256", key_id: str = "one", **claims: object) -> str:
    wanted = {"exp": time.time() + 60, **CLAIMS, **claims}
    return jwt.encode(
        {name: value for name, value in wanted.items() if value is not None},
        key,
        algorithm=algorithm,
        headers={"kid": key_id},
    )


async def test_a_signed_token_is_its_subjects() -> None:
    issuer = Issuer(one=RSA_KEY, two=EC_KEY)
    assert await issuer.tokens.principal_of(signed()) == user("alice")
    assert await issuer.tokens.principal_of(signed(EC_KEY, "ES256", "two", sub="bob")) == user("bob")
    assert issuer.asked == 1


@pytest.mark.parametrize(
    ("token", "said"),
    [
        (lambda: signed(OTHER_KEY), "Signature"),
        (lambda: signed(exp=time.time() - 60), "expired"),
        (lambda: signed(exp=None), "exp"),
        (lambda: signed(nbf=time.time() + 600), "not yet valid"),
        (lambda: signed(iss="https://other"), "issuer"),
        (lambda: signed(aud="other"), "[Aa]udience"),
        (lambda: signed(aud=None), "aud"),
        (lambda: signed(sub=None), "names nobody"),
        (lambda: signed(sub="x" * 501), "names nobody"),
        (lambda: signed(sub="a\nb"), "names nobody"),
        (lambda: signed(key_id="nobody's"), "does not publish"),
        (lambda: signed(EC_KEY, "ES256"), "not for its key"),
        (lambda: signed(key_id="elliptic"), "not for its key"),
        (lambda: jwt.encode(CLAIMS | {"exp": time.time() + 60}, "", algorithm="none", headers={"kid": "one"}), "count"),
        (lambda: jwt.encode(CLAIMS | {"exp": time.time() + 60}, "s" * 32, "HS256", headers={"kid": "one"}), "count"),
        (lambda: "a.b.c", "count"),
        (lambda: signed()[:-4] + "AAAA", "count"),
    ],
)
async def test_what_is_not_signed_for_us_does_not_count(token: Any, said: str) -> None:
    with pytest.raises(InvalidTokenError, match=said):
        await Issuer(one=RSA_KEY, elliptic=EC_KEY).tokens.principal_of(token())


async def test_a_verified_token_is_not_verified_again_until_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = time.time()
    issuer = Issuer(one=RSA_KEY)
    issuer.tokens = OidcTokens(SETTINGS, issuer.jwks, lambda: now_s)
    token = signed()
    await issuer.tokens.principal_of(token)
    monkeypatch.setattr(jwt, "decode", lambda *_, **__: pytest.fail("verified again"))
    assert await issuer.tokens.principal_of(token) == user("alice")
    now_s += 60 + SETTINGS.clock_skew_s + 1
    with pytest.raises(BaseException, match="verified again"):
        await issuer.tokens.principal_of(token)


async def test_a_new_key_is_looked_for_and_unknown_ones_do_no_harm() -> None:
    issuer = Issuer(one=RSA_KEY)
    await issuer.tokens.principal_of(signed())
    issuer.keys = published(one=RSA_KEY, new=OTHER_KEY)
    for _ in range(5):
        with pytest.raises(InvalidTokenError, match="does not publish"):
            await issuer.tokens.principal_of(signed(OTHER_KEY, key_id="new"))
    assert issuer.asked == 1  # read a moment before
    issuer.now_s += 11
    assert await issuer.tokens.principal_of(signed(OTHER_KEY, key_id="new")) == user("alice")
    assert issuer.asked == 2


async def test_keys_count_on_while_the_issuer_is_away(caplog: pytest.LogCaptureFixture) -> None:
    issuer = Issuer(one=RSA_KEY)
    await issuer.tokens.principal_of(signed())
    for broken in (OSError("gone"), b"nonsense", b'{"keys": []}'):
        issuer.keys = broken  # type: ignore[assignment]
        issuer.now_s += 4_000
        assert await issuer.tokens.principal_of(signed(jti=str(issuer.now_s))) == user("alice")
        await issuer.jwks.key("unknown")  # once it is read
    assert caplog.text.count("cannot be read") == 3
    assert issuer.asked == 4


async def test_a_key_that_the_issuer_takes_back_verifies_nothing_more() -> None:
    issuer = Issuer(one=RSA_KEY, stolen=OTHER_KEY)
    token = signed(OTHER_KEY, key_id="stolen")
    assert await issuer.tokens.principal_of(token) == user("alice")
    issuer.keys = published(one=RSA_KEY)
    issuer.now_s += 3_601
    await issuer.tokens.principal_of(token)  # by what was known; the keys are read meanwhile
    await issuer.jwks.key("unknown")  # once they are read
    with pytest.raises(InvalidTokenError, match="does not publish"):
        await issuer.tokens.principal_of(token)


async def test_a_slow_issuer_takes_one_thread() -> None:
    answer = threading.Event()
    issuer = Issuer(one=RSA_KEY)

    def fetch(url: str) -> bytes:
        content = issuer.fetch(url)
        answer.wait(10)
        return content

    issuer.jwks = Jwks("https://issuer/jwks", 3600.0, fetch, lambda: issuer.now_s)
    waiting = []
    try:
        for _ in range(5):
            waiting.append(asyncio.create_task(issuer.jwks.key("one")))
            await asyncio.sleep(0)
            issuer.now_s += 11
        assert issuer.asked <= 1
    finally:
        answer.set()
    assert all([await each is not None for each in waiting])
    assert issuer.asked == 1


async def test_few_wait_for_a_slow_issuer() -> None:
    """Nobody knows whose these calls are, and none has proved anything."""
    answered = threading.Event()

    def fetch(url: str) -> bytes:
        assert answered.wait(10)
        return published(one=RSA_KEY, two=EC_KEY)

    jwks = Jwks("https://issuer/jwks", 3600.0, fetch, max_waiting=3)
    tokens = OidcTokens(SETTINGS, jwks)
    waiting = [asyncio.ensure_future(tokens.shown(signed(key_id=f"none {number}"))) for number in range(3)]
    await asyncio.sleep(0)
    for _ in range(10):
        with pytest.raises(TokensBusyError, match="retry"):
            await asyncio.wait_for(tokens.shown(signed(EC_KEY, "ES256", "two")), 5)
    waiting[0].cancel()
    await asyncio.sleep(0)
    honest = asyncio.ensure_future(tokens.shown(signed()))
    await asyncio.sleep(0)
    answered.set()
    assert (await honest).principal == user("alice")
    assert [type(each) for each in await asyncio.gather(*waiting, return_exceptions=True)] == [
        asyncio.CancelledError,
        InvalidTokenError,
        InvalidTokenError,
    ]
    assert (await tokens.shown(signed(EC_KEY, "ES256", "two"))).principal == user("alice")


def test_an_answer_that_drips_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dripping:
        pieces = 0

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def read1(self, most: int) -> bytes:
            self.pieces += 1
            return b"x"

    dripping = Dripping()
    times = itertools.count(0.0, 4.0)
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: dripping)
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    with pytest.raises(TimeoutError, match="more than 15 s"):
        fetch_jwks("https://issuer/jwks")
    assert dripping.pieces == 4


def test_an_endless_answer_is_not_read(tmp_path: Any) -> None:
    path = tmp_path / "jwks"
    path.write_bytes(b"x" * (MAX_JWKS_BYTES + 1))
    with pytest.raises(ValueError, match="more than"):
        fetch_jwks(path.as_uri())
    path.write_bytes(published(one=RSA_KEY))
    assert fetch_jwks(path.as_uri()) == published(one=RSA_KEY)


def test_a_jwt_has_three_parts() -> None:
    assert is_jwt(signed())
    assert not is_jwt("3f9a2c1b77d0e1aa.secret")


async def test_what_was_shown_counts_as_long_as_its_key_is_published() -> None:
    issuer = Issuer(one=RSA_KEY)
    shown = await issuer.tokens.shown(signed())
    again = await issuer.tokens.shown(signed(sub="bob"))
    before = issuer.tokens.revision

    async def read_again() -> int:
        issuer.now_s += 3_600
        asked, known = issuer.asked, issuer.tokens.revision
        await read_since(issuer, known)
        assert issuer.asked == asked + 1  # though nobody calls
        return issuer.tokens.revision

    assert await read_again() > before
    assert shown.counts()  # the same key, read again
    assert again.counts()
    issuer.keys = published(one=OTHER_KEY)
    await read_again()
    assert not shown.counts()
    issuer.keys = published(one=RSA_KEY)
    await read_again()
    assert not again.counts()  # it may not have been the same all along


async def test_a_key_that_is_none_keeps_nobody_out_who_has_another() -> None:
    issuer = Issuer(one=RSA_KEY)
    (sound,) = json.loads(published(one=RSA_KEY))["keys"]
    for unsound in (5, {}, {**sound, "kid": ["a"]}, {**sound, "kid": {}}, {**sound, "kid": "b", "n": "*"}):
        issuer.now_s += 3_600
        issuer.keys = json.dumps({"keys": [unsound, sound]}).encode()
        known = issuer.tokens.revision
        await read_since(issuer, known)
        assert await issuer.tokens.principal_of(signed()) == user("alice")


async def read_since(issuer: Issuer, revision: int) -> None:
    """Waits until the keys have been read again, in their thread."""
    async with asyncio.timeout(10):
        while issuer.tokens.revision == revision:  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.001)

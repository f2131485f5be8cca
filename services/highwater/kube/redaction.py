"""Takes secrets out of what leaves the cluster: by the names of keys, and by what values look like. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

REDACTED = "[redacted]"

_NAME = r"passw(?:or)?d|passphrase|secret|token|credential|private[._-]?key|api[._-]?key|access[._-]?key|authorization"
_NAME += r"|(?<=_)(?:pass|pwd)(?![a-z])"  # DB_PASS, MYSQL_PWD
_NAME += r"|otlp[._-]?headers"  # of telemetry's collector, tokens among them
_SECRET = re.compile(_NAME, re.I)
# Kubernetes' own fields with such names: references and switches.
_NO_SECRETS = frozenset(
    {
        "automountServiceAccountToken",
        "imagePullSecrets",
        "secretName",
        "secretKeyRef",
        "secretRef",
        "serviceAccountToken",
        "secret",  # of a volume: which Secret, and its keys' paths; a scalar of this name is redacted
    }
)
_LEFT_OUT = frozenset({"managedFields", "kubectl.kubernetes.io/last-applied-configuration"})
_PEM = re.compile(r"-----BEGIN ([A-Z0-9 ]*PRIVATE KEY[A-Z0-9 ]*)-----.*?(?:-----END \1-----|\Z)", re.S)
_USER = re.compile(r"""(://)[^\s/"'<>]+@""")  # a token stands there alone, too
_BEARER = re.compile(r"\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}", re.I)
_JWT = re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
# key=value, key: value and "key": "value", where a part of the key is such a name. What stands before that part in the
# key is not looked for, and what comes after it is bounded: a line of a million letters takes no longer than others.
_ASSIGNED = re.compile(
    rf"""(?P<key>(?:{_NAME})[\w.-]{{0,100}}+["']?\s{{0,20}}+[=:]\s{{0,20}}+)"""
    r"""(?P<value>"(?:[^"\\]|\\.)*"|'[^']*'|[^\s,;&]+)""",
    re.I,
)
_OPTION = re.compile(rf"(?<![\w-])--?[\w.-]{{0,100}}?(?:{_NAME})[\w.-]{{0,100}}+\Z", re.I)
_OPTION_AND_VALUE = re.compile(
    rf"(?P<option>(?<![\w-])--[\w.-]{{0,100}}?(?:{_NAME})[\w.-]{{0,100}}+[ \t]{{1,20}}+)(?P<value>[^\s-]\S*)", re.I
)

# All of them, as they are separated by commas.
_HEADERS = re.compile(r"""(otlp[._-]?headers["']?\s{0,20}+[=:]\s{0,20}+)("[^"]*"|'[^']*'|\S+)""", re.I)


def redact(value: Any) -> Any:
    """A JSON value without its secrets; text in it as `redact_text` leaves it."""
    match value:
        case str():
            return redact_text(value)
        case list():
            # ["--password", "its value"]
            secret = [isinstance(one, str) and _OPTION.match(one) is not None for one in value]
            return [
                REDACTED if option and isinstance(one, str) and not one.startswith("-") else redact(one)
                for option, one in zip([False, *secret], value, strict=False)
            ]
        case dict():
            return _redact_object(value)
    return value


def _redact_object(found: Mapping[str, Any]) -> dict[str, Any]:
    named = found.get("name")
    if isinstance(named, str) and "value" in found and _SECRET.search(named):  # a variable of an environment
        return {**{key: redact(value) for key, value in found.items()}, "value": REDACTED}
    return {key: _redact_field(key, value) for key, value in found.items() if key not in _LEFT_OUT}


def _redact_field(key: str, value: Any) -> Any:
    if not _SECRET.search(key) or isinstance(value, bool) or value is None:
        return redact(value)
    if key in _NO_SECRETS and (key != "secret" or not isinstance(value, (str, int, float))):
        return redact(value)
    return REDACTED


def redact_text(text: str) -> str:
    """Lines of a log, settings or the like without private keys, passwords in URLs, and values of keys that are named
    as secrets are."""
    text = _PEM.sub(REDACTED, text)
    text = _HEADERS.sub(rf"\1{REDACTED}", text)
    text = _USER.sub(rf"\1{REDACTED}@", text)
    text = _BEARER.sub(rf"\1 {REDACTED}", text)
    text = _JWT.sub(REDACTED, text)
    text = _OPTION_AND_VALUE.sub(rf"\g<option>{REDACTED}", text)
    return _ASSIGNED.sub(rf"\g<key>{REDACTED}", text)

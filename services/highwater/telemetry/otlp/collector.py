"""The collector that telemetry is sent to: its address, and how a message gets there."""

from __future__ import annotations

import http.client
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urlsplit

from highwater.telemetry.tracing import DEFAULT_SAMPLE_RATIO

DEFAULT_ENDPOINT = "http://127.0.0.1:4318"
TRACES = "/v1/traces"
METRICS = "/v1/metrics"
TIMEOUT_S = 5.0  # for the collector to take a message

_CONTENT_TYPE = "application/x-protobuf"
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class NotTakenError(Exception):
    """The collector did not take a message: nobody answered, or it refused."""


@dataclass(frozen=True, slots=True)
class Collector:
    """`endpoint` is `http://host:port` or `https://host:port`, with a path where the collector is behind one.
    `headers` go with each message: a token, say. Raises `ValueError`."""

    endpoint: str = DEFAULT_ENDPOINT
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        url = urlsplit(self.endpoint)
        if url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment:
            raise ValueError(f"{self.endpoint!r} is no OTLP endpoint: write http://host:4318 or https://host:4318")
        try:
            _ = url.port
        except ValueError:
            raise ValueError(f"{self.endpoint!r} has no port from 1 to 65535") from None


@dataclass(frozen=True, slots=True)
class Tracing:
    """A client's option `tracing`: the collector that spans go to, by its `endpoint`, with `headers`, and the share of
    the requests that are traced, from 0 to 1. Raises `ValueError`."""

    endpoint: str = DEFAULT_ENDPOINT
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    sample_ratio: float = DEFAULT_SAMPLE_RATIO

    def __post_init__(self) -> None:
        _ = self.collector
        if not 0 <= self.sample_ratio <= 1:
            raise ValueError(f"the sample ratio is {self.sample_ratio}: it is a share, from 0 to 1")

    @property
    def collector(self) -> Collector:
        return Collector(self.endpoint, self.headers)


def parse_headers(text: str) -> dict[str, str]:
    """`name=value,other=value`, the values percent-encoded, as OpenTelemetry's own variables have them. Raises
    `ValueError`."""
    headers = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        value = unquote(value)
        # Not told: what was meant for a header is a secret.
        if not equals or not _HEADER.fullmatch(name) or not value.isprintable() or not value.isascii():
            raise ValueError("a header is name=value, several are separated by commas, and values are percent-encoded")
        headers[name.lower()] = value
    return headers


def tracing_from_environment(environment: Mapping[str, str] = os.environ) -> Tracing | None:
    """A client's tracing, of the variables `HIGHWATER_TRACING_ENABLED`, `HIGHWATER_TRACING_SAMPLE_RATIO`,
    `HIGHWATER_OTLP_ENDPOINT` and `HIGHWATER_OTLP_HEADERS`, as the services' settings have them. None: it is off. Raises
    `ValueError`."""
    if environment.get("HIGHWATER_TRACING_ENABLED", "").strip().lower() not in ("1", "true", "yes", "on"):
        return None
    ratio = environment.get("HIGHWATER_TRACING_SAMPLE_RATIO", str(DEFAULT_SAMPLE_RATIO))
    try:
        sample_ratio = float(ratio)
    except ValueError:
        raise ValueError(f"HIGHWATER_TRACING_SAMPLE_RATIO is {ratio!r}: it is a share, from 0 to 1") from None
    return Tracing(
        environment.get("HIGHWATER_OTLP_ENDPOINT") or DEFAULT_ENDPOINT,
        parse_headers(environment.get("HIGHWATER_OTLP_HEADERS", "")),
        sample_ratio,
    )


class Connection:
    """One connection to a collector, opened when it is needed. Of one thread."""

    def __init__(self, collector: Collector, *, timeout_s: float = TIMEOUT_S) -> None:
        self._url: SplitResult = urlsplit(collector.endpoint)
        self._headers = {**collector.headers, "Content-Type": _CONTENT_TYPE}
        self._timeout_s = timeout_s
        self._http: http.client.HTTPConnection | None = None

    def post(self, path: str, body: bytes) -> None:
        """Sends one message. Raises `NotTakenError`; then it is not sent again from here."""
        for kept in (self._http is not None, False):  # one that was kept may have been closed meanwhile
            try:
                status, reason = self._exchange(path, body)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if not kept:
                    raise NotTakenError(f"{type(error).__name__}: {error}") from error
                continue
            if status >= 300:
                raise NotTakenError(f"status {status} {reason}")
            return

    def _exchange(self, path: str, body: bytes) -> tuple[int, str]:
        if self._http is None:
            self._http = self._connect()
        self._http.request("POST", self._url.path.rstrip("/") + path, body, self._headers)
        response = self._http.getresponse()
        response.read(1 << 20)  # what is said beyond that is not waited for
        if not response.isclosed():
            self.close()
        return response.status, response.reason

    def _connect(self) -> http.client.HTTPConnection:
        assert self._url.hostname is not None
        if self._url.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(
                self._url.hostname, self._url.port or 4318, timeout=self._timeout_s, context=context
            )
        return http.client.HTTPConnection(self._url.hostname, self._url.port or 4318, timeout=self._timeout_s)

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None

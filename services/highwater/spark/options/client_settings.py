"""`highwater.*` and `kafka.*` options as settings of the SDK's clients. Pure.

`highwater.fetch.max.bytes` is `fetch_max_bytes` of the `Consumer`. Kafka's names are taken where the SDK has the same
thing. What would change the meaning of a job if it were dropped (SASL, isolation) is refused; what only tunes a
part of Kafka's client that does not exist here is dropped.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from inspect import signature
from typing import Any, Literal, get_args

from highwater.client.cluster.tls_options import options_of_environment
from highwater.spark.errors import OptionError

PREFIXES = ("highwater.", "kafka.", "kafkaconsumer.", "fetchoffset.")

_BOOTSTRAP = "bootstrap.servers"
_KAFKA_NAMES = {
    "compression_type": "compression",
    "max_in_flight_requests_per_connection": "max_in_flight",
}
_INSTEAD = {
    "group": "commitOffsetsToGroup, or startingOffsets",
    "auto_offset_reset": "startingOffsets",
    "include_headers": "includeHeaders",
    "on_corrupt": "onCorrupt",
    "max_poll_records": "maxRecordsPerPartition",
}
_DROPPED = frozenset(
    {
        "group_id",
        "client_rack",
        "session_timeout_ms",
        "heartbeat_interval_ms",
        "max_poll_interval_ms",
        "connections_max_idle_ms",
        "reconnect_backoff_ms",
        "reconnect_backoff_max_ms",
        "receive_buffer_bytes",
        "send_buffer_bytes",
        "retries",
        "default_api_timeout_ms",
    }
)
# A task reads the ranges that it is told, and is in no group.
_OF_GROUPS = frozenset(
    {
        "group",
        "instance_id",
        "assignor",
        "pattern",
        "client_rack",
        "enable_auto_commit",
        "auto_commit_interval_ms",
        "max_poll_interval_ms",
        "on_assigned",
        "on_revoked",
        "on_lost",
    }
)
_PROTOCOLS = ("PLAINTEXT", "SSL")
Client = Literal["Consumer", "Producer", "Admin"]


def check_client_settings(options: Mapping[str, str]) -> None:
    """Raises `OptionError` for a setting that no client of the SDK knows, or that the data source sets itself."""
    named = _named(options)
    if not named:
        return
    known = {name for client in get_args(Client) for name in _parameters(client)}
    for option, name in named.items():
        if name in _INSTEAD:
            raise OptionError(f"option {option} cannot be set: use {_INSTEAD[name]}")
        if name not in known and name not in _DROPPED:
            raise OptionError(f"option {option} has no counterpart in Highwater: remove it")
        if name == "security_protocol" and options[option].strip() not in _PROTOCOLS:
            raise OptionError(f"option {option} is {options[option]!r}; it can be PLAINTEXT or SSL")


def client_settings(
    options: Mapping[str, str], client: Client, environment: Mapping[str, str] = os.environ
) -> dict[str, Any]:
    """Keyword arguments for a client: those of the options that it knows, and where they do not say how TLS is spoken,
    what this process's environment says: the executors' may not have it."""
    named = _named(options)
    parameters = _parameters(client) if named else {}
    spoken = {} if "security_protocol" in named.values() else options_of_environment(environment)
    return spoken | {
        name: _converted(option, options[option], parameters[name])
        for option, name in named.items()
        if name in parameters
    }


def _named(options: Mapping[str, str]) -> dict[str, str]:
    """Option to parameter, Kafka's first: where both are given, Highwater's own counts."""
    found = {}
    for prefix in ("kafka.", "highwater."):
        for option in options:
            if option.startswith(prefix) and option != prefix + _BOOTSTRAP:
                name = option.removeprefix(prefix).replace(".", "_")
                found[option] = _KAFKA_NAMES.get(name, name)
    return found


def _parameters(client: Client) -> dict[str, Any]:
    """Keyword parameters of the client and their defaults."""
    # Imported here: most queries set none, and the Python processes of their planning need no client.
    parameters = signature(getattr(import_module("highwater.client"), client)).parameters.values()
    own = _OF_GROUPS | {"bootstrap"}
    return {one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY and one.name not in own}


def _converted(option: str, text: str, default: Any) -> Any:
    """The text as what the parameter's default is."""
    lower = text.strip().lower()
    if isinstance(default, bool) or (default is None and lower in ("true", "false")):
        if lower not in ("true", "false"):
            raise OptionError(f"option {option} is {text!r}; it can be true or false")
        return lower == "true"
    if isinstance(default, int | float):
        try:
            return int(lower)
        except ValueError:
            raise OptionError(f"option {option} is {text!r}; it is a whole number") from None
    if option.endswith(".acks") and lower != "all":
        try:
            return int(lower)
        except ValueError:
            raise OptionError(f"option {option} is {text!r}; it can be all, 1 or 0") from None
    return text.strip()

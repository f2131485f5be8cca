"""Options of a consumer, checked where it is made: what comes of a wrong one later would not say which it is. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

from highwater.client.exceptions import InvalidRequestError

# The least that each may be.
_WHOLE_NUMBERS = {
    "fetch_min_bytes": 0,
    "fetch_max_wait_ms": 0,
    "fetch_max_bytes": 1,
    "max_partition_fetch_bytes": 1,
    "max_poll_records": 1,
    "max_poll_interval_ms": 1,
}
_TIMES_MS = (
    "max_block_ms",
    "request_timeout_ms",
    "retry_backoff_ms",
    "retry_backoff_max_ms",
    "metadata_max_age_ms",
    "auto_commit_interval_ms",
)
_NAMES = ("client_id", "group", "instance_id", "assignor", "pattern", "client_rack")
_SWITCHES = ("check_crcs", "include_headers", "enable_auto_commit")
_CALLBACKS = ("on_assigned", "on_revoked", "on_lost")
_OF_A_GROUP = ("instance_id", "pattern", "assignor", "client_rack")


def check_options(options: Mapping[str, Any]) -> None:
    """Raises `InvalidRequestError` for one that is of a wrong type, or out of its range; others may be in the mapping,
    too."""
    for name, least in _WHOLE_NUMBERS.items():
        value = options[name]
        if not _is_number(value, Integral) or not least <= value < 1 << 31:
            raise InvalidRequestError(f"{name} is {value!r}; it is a whole number from {least} to 2147483647")
    for name in _TIMES_MS:
        value = options[name]
        if not _is_number(value, Real) or not value >= 0:
            raise InvalidRequestError(f"{name} is {value!r}; it is a number of ms, at least 0")
    for name in _NAMES:
        value = options[name]
        if value is None and name != "client_id":
            continue
        if not isinstance(value, str) or not value:
            raise InvalidRequestError(f"{name} is {value!r}; it is a str that is not empty")
        if options["group"] is None and name in _OF_A_GROUP:
            raise InvalidRequestError(f"{name} is of a consumer with a group: Consumer(..., group=...)")
    for name in _SWITCHES:
        if not isinstance(options[name], bool):
            raise InvalidRequestError(f"{name} is {options[name]!r}; it is True or False")
    for name in _CALLBACKS:
        if options[name] is not None and not callable(options[name]):
            raise InvalidRequestError(f"{name} is {options[name]!r}; it is a function of a list of partitions")


def _is_number(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)

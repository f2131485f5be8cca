"""Settings that are changed while a service runs: its own of the start, with what etcd has in their place."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from highwater.configuration.dynamic_keys import BROKER_KEYS, CLUSTER_KEYS
from highwater.rpc.settings import ServiceSettings
from highwater.security.principal import Principal
from highwater.telemetry.log import get_logger
from highwater.v1 import common_pb2

_log = get_logger(__name__)
HIDDEN = "[hidden]"
_SECRET = ("headers", "password", "secret")

Settings = TypeVar("Settings", bound=ServiceSettings)


def with_dynamic(static: Settings, values: Mapping[str, str]) -> Settings:
    """The settings with these values of dynamic keys in place of those that the service was started with. Keys of other
    services are passed over, and so are values that the field does not take, with a line in the log."""
    changed: dict[str, Any] = {}
    for key, value in values.items():
        name = key.replace(".", "_")
        field = type(static).model_fields.get(name)
        if field is None or (key not in BROKER_KEYS and key not in CLUSTER_KEYS):
            continue
        kind: Any = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
        try:
            changed[name] = TypeAdapter(kind).validate_python(value)
        except ValidationError:
            _log.error("the dynamic %s=%r is none that this service takes: it is left out", key, value[:100])
    return static.model_copy(update=changed)


def take_log_level(settings: ServiceSettings) -> None:
    """The level of the process's log is that of the settings from now on."""
    logging.getLogger().setLevel(settings.log_level.upper())


def static_settings(settings: ServiceSettings, service: str) -> list[common_pb2.StaticSetting]:
    """All settings of a service as it was started with them, by key."""
    return [
        common_pb2.StaticSetting(
            key=name.replace("_", "."),
            value=_text(name, getattr(settings, name)),
            is_default=name not in settings.model_fields_set,
            service=service,
        )
        for name in sorted(type(settings).model_fields)
    ]


def _text(name: str, value: Any) -> str:
    """The value as an operator writes it."""
    if value is None or value == "":
        return ""
    if any(word in name for word in _SECRET):
        return HIDDEN
    match value:
        case bool():
            return str(value).lower()
        case dict():
            between = ":" if name == "listener_security_protocol_map" else "://"
            return ",".join(f"{each}{between}{what}" for each, what in value.items())
        case [Principal(), *_]:
            return ";".join(map(str, value))
        case list() | tuple():
            return ",".join(map(str, value))
        case _:
            return str(value)

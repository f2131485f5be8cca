"""The settings of each service, under Kafka's names.

`log.segment.bytes` is the field `log_segment_bytes`. A value comes, in falling order, from `--set log.segment.bytes=…`,
the environment (`HIGHWATER_LOG_SEGMENT_BYTES`), a properties file (`--config FILE`, `key=value` lines) and the
default. Lists are separated by commas. An unknown key is an error that names it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from highwater.errors import UserError
from highwater.rpc.listeners import (
    check_address,
    check_advertised,
    check_inter_broker_name,
    inter_broker_name,
    parse_listeners,
)
from highwater.validation import problem


def _check_policies(value: str) -> str:
    if sorted({policy.strip() for policy in value.split(",")}) not in (["compact"], ["delete"], ["compact", "delete"]):
        raise ValueError(f"{value!r} is no cleanup policy: write delete, compact, or compact,delete")
    return value


ETCD_BINARY_VARIABLE = "HIGHWATER_ETCD_BINARY"
"""Names the program, for those that start one (`metadata/local.py`); `HIGHWATER_ETCD` is the setting `etcd`."""

AddressList = Annotated[list[str], NoDecode]
PathList = Annotated[list[Path], NoDecode]
ListenerMap = Annotated[dict[str, str], NoDecode]
CleanupPolicy = Annotated[str, AfterValidator(_check_policies)]


class ServiceSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="HIGHWATER_", extra="forbid", frozen=True)

    metrics_listen: str = ""
    """`host:port` of the Prometheus endpoint; empty: none."""
    health_listen: str = ""
    """An address for health checks and reflection alone, which every other one answers too; empty: none."""
    log_level: str = "INFO"

    @field_validator("listen", "etcd", "log_dirs", mode="before", check_fields=False)
    @classmethod
    def _split(cls, value: Any) -> Any:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value

    @field_validator("listen", "etcd", check_fields=False)
    @classmethod
    def _addresses(cls, value: list[str]) -> list[str]:
        for address in value:
            check_address(address)
        return value

    @field_validator("log_storage", "replica_manager", "advertised_listener", check_fields=False)
    @classmethod
    def _address(cls, value: str) -> str:
        check_address(value)
        return value

    @field_validator("health_listen")
    @classmethod
    def _optional_address(cls, value: str) -> str:
        if value:
            check_address(value)
        return value


class InternalServiceSettings(ServiceSettings):
    """Of a service that Highwater's own processes call, and no client has to."""

    listen: AddressList
    """Addresses to listen on: `host:port` or `unix:/path`."""


class EtcdSettings(ServiceSettings):
    """Of the services that keep their metadata in etcd."""

    etcd: AddressList
    etcd_ca_file: str = ""
    etcd_certificate_file: str = ""
    etcd_key_file: str = ""

    @field_validator("etcd", mode="before")
    @classmethod
    def _no_binary(cls, value: Any) -> Any:
        if isinstance(value, str) and os.path.isfile(value):
            raise ValueError(
                f"{value} is a file, and etcd names the members' addresses, each host:port; the variable for an etcd "
                f"binary is {ETCD_BINARY_VARIABLE}"
            )
        return value


class LogStorageSettings(InternalServiceSettings):
    broker_id: int = Field(ge=0)
    log_dirs: PathList
    log_segment_bytes: int = Field(1 << 30, ge=1024, le=2**31 - 1)
    log_index_interval_bytes: int = Field(4096, ge=0)
    log_index_size_max_bytes: int = Field(10 << 20, ge=12)
    log_roll_ms: int = Field(7 * 24 * 3600 * 1000, ge=1)
    log_roll_jitter_ms: int = Field(0, ge=0)
    flush_messages: int = Field(2**63 - 1, ge=1)
    log_flush_interval_messages: int | None = Field(None, ge=1)
    log_flush_interval_ms: int = Field(2**63 - 1, ge=0)
    log_flush_scheduler_interval_ms: int = Field(1_000, ge=1)
    log_flush_offset_checkpoint_interval_ms: int = Field(60_000, ge=1)
    replica_high_watermark_checkpoint_interval_ms: int = Field(5_000, ge=1)
    producer_id_expiration_ms: int = Field(86_400_000, ge=1)
    message_max_bytes: int = Field(1_048_588, ge=1024)
    num_recovery_threads_per_data_dir: int = Field(1, ge=1)
    log_close_max_wait_ms: int = Field(20_000, ge=0)
    file_delete_delay_ms: int = Field(60_000, ge=0)
    log_retention_ms: int | None = Field(None, ge=-1)
    log_retention_minutes: int | None = Field(None, ge=-1)
    log_retention_hours: int = Field(168, ge=-1)
    log_retention_bytes: int = Field(-1, ge=-1)
    log_retention_check_interval_ms: int = Field(300_000, ge=1)
    log_cleanup_policy: CleanupPolicy = "delete"
    replica_alter_log_dirs_io_max_bytes_per_second: float = Field(sys.float_info.max, gt=0)
    log_scrub_bytes_per_second: float = Field(4 << 20, ge=0)
    log_scrub_interval_ms: int = Field(7 * 24 * 3_600_000, ge=1)
    log_cleaner_enable: bool = True
    log_cleaner_threads: int = Field(1, ge=1)
    log_cleaner_io_max_bytes_per_second: float = Field(sys.float_info.max, gt=0)
    log_cleaner_dedupe_buffer_size: int = Field(128 << 20, ge=1024)
    log_cleaner_io_buffer_size: int = Field(512 << 10, ge=1024)
    log_cleaner_io_buffer_load_factor: float = Field(0.9, gt=0, le=0.99)
    log_cleaner_backoff_ms: int = Field(15_000, ge=1)
    log_cleaner_min_cleanable_ratio: float = Field(0.5, ge=0, le=1)
    log_cleaner_min_compaction_lag_ms: int = Field(0, ge=0)
    log_cleaner_max_compaction_lag_ms: int = Field(2**63 - 1, ge=1)
    log_cleaner_delete_retention_ms: int = Field(86_400_000, ge=0)

    @property
    def flush_after_messages(self) -> int:
        """Kafka's name for the setting goes first."""
        return self.flush_messages if self.log_flush_interval_messages is None else self.log_flush_interval_messages

    @property
    def retention_ms(self) -> int:
        """The finest of the three that is given; -1: unlimited."""
        if self.log_retention_ms is not None:
            return self.log_retention_ms
        minutes = self.log_retention_hours * 60
        if self.log_retention_minutes is not None:
            minutes = self.log_retention_minutes
        return minutes * 60_000 if minutes >= 0 else -1


class ReplicaManagerSettings(EtcdSettings):
    broker_id: int = Field(ge=0)
    cluster: str = "highwater"
    listeners: ListenerMap
    """The address that each listener is bound to, by name; written `NAME://host:port` or `NAME://unix:/path`."""
    advertised_listeners: ListenerMap = Field({}, validate_default=True)
    """The addresses that others use for the listeners, where they differ from those that are bound."""
    inter_broker_listener_name: str = Field("", validate_default=True)
    """The internal listener: of other brokers, the controller and the broker's own fetcher. Empty: the only one."""
    host_address: str = ""
    """The internal listener by the host's own address, where the advertised one may be somebody else's; empty: it is
    not."""
    rack: str = ""
    log_storage: str
    broker_session_timeout_ms: int = Field(4_000, ge=1_000)
    """Of this, half a second of etcd's and the elections is made what a lost node costs (RULES 8.9)."""
    replica_lag_time_max_ms: int = Field(10_000, ge=1)
    min_insync_replicas: int = Field(1, ge=1)
    queued_max_requests: int = Field(500, ge=1)
    queued_max_request_bytes: int = Field(256 << 20, ge=1 << 20)
    tail_cache_bytes: int = Field(64 << 20, ge=0)
    message_max_bytes: int = Field(1_048_588, ge=1024)
    log_cleanup_policy: CleanupPolicy = "delete"
    fetch_max_bytes: int = Field(55 << 20, ge=1024)
    auto_create_topics_enable: bool = False
    controlled_shutdown_max_wait_ms: int = Field(20_000, ge=0)
    ready_max_wait_ms: int = Field(600_000, ge=0)
    replica_high_watermark_checkpoint_interval_ms: int = Field(5_000, ge=1)

    @field_validator("host_address")
    @classmethod
    def _own_address(cls, value: str) -> str:
        if value:
            check_address(value)
        return value

    @field_validator("listeners", "advertised_listeners", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return parse_listeners(value) if isinstance(value, str) else value

    @field_validator("listeners")
    @classmethod
    def _some(cls, value: dict[str, str]) -> dict[str, str]:
        if not value:
            raise ValueError("there is none: write NAME://host:port or NAME://unix:/path")
        return value

    @field_validator("advertised_listeners")
    @classmethod
    def _reachable(cls, value: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        if "listeners" in info.data:  # else that is what is wrong
            check_advertised(info.data["listeners"], value)
        return value

    @field_validator("inter_broker_listener_name")
    @classmethod
    def _known(cls, value: str, info: ValidationInfo) -> str:
        if "listeners" in info.data:
            check_inter_broker_name(info.data["listeners"], value)
        return value

    @property
    def internal_listener(self) -> str:
        """The name of the listener that brokers and the controller use."""
        return inter_broker_name(self.listeners, self.inter_broker_listener_name)


class FetcherSettings(InternalServiceSettings):
    broker_id: int = Field(ge=0)
    replica_manager: str
    log_storage: str
    num_replica_fetchers: int = Field(1, ge=1)
    replica_fetch_max_bytes: int = Field(1 << 20, ge=1)
    replica_fetch_response_max_bytes: int = Field(10 << 20, ge=1)
    replica_fetch_wait_max_ms: int = Field(500, ge=1)
    replica_fetch_min_bytes: int = Field(1, ge=1)
    replica_fetch_backoff_ms: int = Field(1_000, ge=1)
    replica_socket_timeout_ms: int = Field(30_000, ge=1)


class ControllerSettings(InternalServiceSettings, EtcdSettings):
    controller_id: int = Field(ge=0)
    cluster: str = "highwater"
    advertised_listener: str
    num_partitions: int = Field(1, ge=1)
    default_replication_factor: int = Field(1, ge=1)
    min_insync_replicas: int = Field(1, ge=1)
    unclean_leader_election_enable: bool = False
    auto_leader_rebalance_enable: bool = True
    leader_imbalance_check_interval_seconds: int = Field(300, ge=1)
    leader_imbalance_per_broker_percentage: int = Field(10, ge=0)
    controller_session_timeout_ms: int = Field(3_000, ge=1_000)


Settings = TypeVar("Settings", bound=ServiceSettings)


def load(kind: type[Settings], values: dict[str, str] | None = None, configs: Sequence[Path] = ()) -> Settings:
    """Settings from properties files, the later before the earlier, and `values` (Kafka's names or field names) before
    all of them.

    Raises `UserError` with every bad key and what is wrong with it."""
    merged: dict[str, str] = {}
    for config in configs:
        merged |= read_properties(config)
    merged_fields = {_field(key): value for key, value in merged.items()}
    merged_fields |= {_field(key): value for key, value in (values or {}).items()}
    try:
        # A file's values rank below the environment's, those given by `values` above it.
        from_environment = {
            name for name in kind.model_fields if f"HIGHWATER_{name.upper()}" in _environment_names()
        } - {_field(key) for key in values or {}}
        given: dict[str, Any] = {name: v for name, v in merged_fields.items() if name not in from_environment}
        return kind(**given)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in one['loc']).replace('_', '.')}: {problem(one)}" for one in error.errors()
        )
        raise UserError(f"bad settings: {problems}") from None


def _program() -> str | None:
    """`python -m highwater.log_storage`, where that was run; None: what argparse makes of the command line."""
    module = getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", "").removesuffix(".__main__")
    return f"python -m {module}" if module.startswith("highwater.") else None


def _environment_names() -> set[str]:
    return {name.upper() for name in os.environ}


def _field(key: str) -> str:
    return key.strip().replace(".", "_").replace("-", "_")


def read_properties(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise UserError(f"cannot read the settings file {path}: {error.strerror}") from None
    found = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        key, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"{path}, line {number}: {text!r} is not key=value")
        found[key.strip()] = value.strip()
    return found


def from_command_line(kind: type[Settings], arguments: Sequence[str] | None = None) -> Settings:
    """Settings of a service's process from any number of `--config FILE` and `--set key=value`."""
    parser = argparse.ArgumentParser(prog=_program())
    parser.add_argument(
        "--config",
        action="append",
        type=Path,
        default=[],
        metavar="FILE",
        help="properties file with key=value lines; may be repeated: a later one goes before an earlier one",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="one setting, under Kafka's name"
    )
    parsed = parser.parse_args(arguments)
    values = {}
    for item in parsed.set:
        key, equals, value = item.partition("=")
        if not equals:
            parser.error(f"--set {item}: write key=value")
        values[key] = value
    try:
        return load(kind, values, parsed.config)
    except UserError as error:
        parser.exit(1, f"{error}\n")

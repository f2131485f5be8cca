"""The sources of settings, and the settings that several services have, under Kafka's names.
What one service alone has stands in its own `settings.py`.

`log.segment.bytes` is the field `log_segment_bytes`. A value comes, in falling order, from `--set log.segment.bytes=…`,
the environment (`HIGHWATER_LOG_SEGMENT_BYTES`), a properties file (`--config FILE`, `key=value` lines) and the
default. Lists are separated by commas. An unknown key is an error that names it; one of Kafka's that means nothing here
is left out, with a line that says what to use.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from highwater.configuration.kafka_keys import MEANINGLESS_KEYS
from highwater.errors import UserError
from highwater.rpc.connections.tls import Certificates, TlsFiles
from highwater.rpc.listeners import check_address, speaks_tls
from highwater.telemetry.log import get_logger
from highwater.telemetry.otlp.collector import DEFAULT_ENDPOINT, Collector, Tracing, parse_headers
from highwater.validation import problem

_log = get_logger(__name__)


def _split(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


_PREFIXED = ("kafka.metrics.", "kafka.csv.metrics.")
_KAFKA_REPORTERS = {"kafka.metrics.KafkaCSVMetricsReporter": "csv"}


def _split_reporters(value: Any) -> Any:
    names = _split(value)
    return [_KAFKA_REPORTERS.get(name, name) for name in names] if isinstance(names, list) else names


def _check_address(value: str) -> str:
    check_address(value)
    return value


def _check_addresses(values: list[str]) -> list[str]:
    for value in values:
        check_address(value)
    return values


def _check_headers(value: str) -> str:
    parse_headers(value)
    return value


def _check_policies(value: str) -> str:
    if sorted({policy.strip() for policy in value.split(",")}) not in (["compact"], ["delete"], ["compact", "delete"]):
        raise ValueError(f"{value!r} is no cleanup policy: write delete, compact, or compact,delete")
    return value


ETCD_BINARY_VARIABLE = "HIGHWATER_ETCD_BINARY"
"""Names the program, for those that start one (`metadata/local.py`); `HIGHWATER_ETCD` is the setting `etcd`."""

Address = Annotated[str, AfterValidator(_check_address)]
"""`host:port`, `ssl:host:port` or `unix:/path`."""
OptionalAddress = Annotated[str, AfterValidator(lambda value: value and _check_address(value))]
AddressList = Annotated[list[str], NoDecode, BeforeValidator(_split), AfterValidator(_check_addresses)]
PathList = Annotated[list[Path], NoDecode, BeforeValidator(_split)]
ReporterList = Annotated[list[Literal["console", "log", "csv", "otlp"]], NoDecode, BeforeValidator(_split_reporters)]
OtlpEndpoint = Annotated[str, AfterValidator(lambda value: Collector(value).endpoint)]
OtlpHeaders = Annotated[str, AfterValidator(_check_headers)]
CleanupPolicy = Annotated[str, AfterValidator(_check_policies)]


class ServiceSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="HIGHWATER_", extra="forbid", frozen=True)

    metrics_listen: str = ""
    """`host:port` of the Prometheus endpoint; empty: none."""
    metrics_reporters: ReporterList = []
    """Any of console, log, csv and otlp; the seeds' class name of csv is taken for it."""
    metrics_reporter_interval_ms: int = Field(10_000, ge=100)
    metrics_polling_interval_secs: int | None = Field(None, ge=1)
    """Kafka's name for the interval; it goes first."""
    csv_metrics_dir: str = "metrics"
    csv_metrics_reporter_enabled: bool = True
    """False: the reporter csv writes nothing."""
    health_listen: OptionalAddress = ""
    """An address for health checks and reflection alone, which every other one answers too; empty: none."""
    log_level: str = "INFO"
    log_format: Literal["text", "json"] = "text"

    otlp_endpoint: OtlpEndpoint = DEFAULT_ENDPOINT
    """The collector that spans, and metrics of the reporter otlp, are sent to: `http://host:port`, or https."""
    otlp_headers: OtlpHeaders = ""
    """`name=value,…`, sent with each message; may hold a secret."""

    @property
    def collector(self) -> Collector:
        return Collector(self.otlp_endpoint, parse_headers(self.otlp_headers))

    @property
    def metrics_interval_s(self) -> float:
        """Between two reports."""
        if self.metrics_polling_interval_secs is not None:
            return self.metrics_polling_interval_secs
        return self.metrics_reporter_interval_ms / 1000


NO_CERTIFICATES, CERTIFICATES_REQUIRED = "none", "required"


def check_client_auth(value: str) -> str:
    """Raises `ValueError` where it does not say whether clients have to show a certificate."""
    if value.lower() == "requested":
        raise ValueError(
            "a certificate that is asked for and may be missing is not possible: write required, or none, and make two "
            "listeners where some clients have one"
        )
    if value.lower() not in (NO_CERTIFICATES, CERTIFICATES_REQUIRED):
        raise ValueError(f"{value!r} is neither none nor required")
    return value.lower()


class TlsServiceSettings(ServiceSettings):
    """Of a service that may speak TLS where it listens, and to the others. Files in PEM."""

    ssl_ca_file: str = ""
    """The authorities that signed the certificates of the other services and of the clients."""
    ssl_certificate_file: str = ""
    """Shown to whoever connects, and to those that this service connects to."""
    ssl_key_file: str = Field("", validate_default=True)

    @field_validator("ssl_key_file")
    @classmethod
    def _a_pair(cls, value: str, info: ValidationInfo) -> str:
        if bool(value) != bool(info.data.get("ssl_certificate_file", value)):
            one, other = ("key", "certificate") if value else ("certificate", "key")
            raise ValueError(f"ssl.{one}.file is set without ssl.{other}.file: set both, or neither")
        return value

    def certificates(self) -> Certificates | None:
        """Reads the files; None: none is set. Raises `UserError`, which names the file and the cure."""
        files = (self.ssl_ca_file, self.ssl_certificate_file, self.ssl_key_file)
        return Certificates(TlsFiles(*(Path(each) if each else None for each in files))) if any(files) else None


def check_tls_listener(name: str, auth: str, given: Mapping[str, Any]) -> None:
    """Raises `ValueError` where a listener that is to speak TLS lacks a file. `given`: the service's settings."""
    if not given.get("ssl_certificate_file") or not given.get("ssl_key_file"):
        raise ValueError(
            f"{name} is to speak TLS, and there is no certificate: set ssl.certificate.file and ssl.key.file"
        )
    if auth == CERTIFICATES_REQUIRED and not given.get("ssl_ca_file"):
        raise ValueError(
            f"clients of {name} have to show a certificate, and nobody says whose to trust: set ssl.ca.file to the "
            "authority that signed theirs"
        )


class InternalServiceSettings(TlsServiceSettings):
    """Of a service that Highwater's own processes call, and no client has to."""

    ssl_client_auth: Annotated[str, AfterValidator(check_client_auth)] = NO_CERTIFICATES
    listen: AddressList
    """Addresses to listen on: `host:port`, `ssl:host:port` or `unix:/path`."""

    @field_validator("listen")
    @classmethod
    def _certified(cls, value: list[str], info: ValidationInfo) -> list[str]:
        auth = info.data.get("ssl_client_auth", NO_CERTIFICATES)
        secured = [address for address in value if speaks_tls(address)]
        for address in secured:
            check_tls_listener(address, auth, info.data)
        if auth == CERTIFICATES_REQUIRED and not secured:
            raise ValueError("ssl.client.auth is required, and no address speaks TLS: write ssl:host:port, or none")
        return value

    @property
    def requires_certificates(self) -> bool:
        return self.ssl_client_auth == CERTIFICATES_REQUIRED


class EtcdSettings(ServiceSettings):
    """Of the services that keep their metadata in etcd, under the cluster's name."""

    cluster: str = "highwater"
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


class ReplicationSettings(EtcdSettings):
    """Of the services that decide who leads and what is committed."""

    min_insync_replicas: int = Field(1, ge=1)


class BrokerSettings(ServiceSettings):
    """Of the three services of a broker."""

    broker_id: int = Field(ge=0)
    metrics_topics: int = Field(1_000, ge=0)
    """So many topics at most have metrics of their own; the others are told together."""
    metrics_partitions: int = Field(0, ge=0)
    """The same of partitions; the others are left out."""
    tracing_enabled: bool = False
    """Whether spans are made of requests that are part of a trace."""

    @property
    def tracing(self) -> Tracing | None:
        """None: off. How many requests are traced is the clients' to say."""
        collector = self.collector
        return Tracing(collector.endpoint, collector.headers) if self.tracing_enabled else None


class LogStorageUserSettings(BrokerSettings):
    """Of the services that use the broker's log-storage."""

    log_storage: Address


class LogDefaultsSettings(BrokerSettings):
    """Of the service that has the broker's logs, and of the one that answers for them: what a topic may set otherwise,
    and how often high watermarks are written."""

    message_max_bytes: int = Field(1_048_588, ge=1024)
    log_cleanup_policy: CleanupPolicy = "delete"
    replica_high_watermark_checkpoint_interval_ms: int = Field(5_000, ge=1)


Settings = TypeVar("Settings", bound=ServiceSettings)


def load(kind: type[Settings], values: dict[str, str] | None = None, configs: Sequence[Path] = ()) -> Settings:
    """Settings from properties files, the later before the earlier, and `values` (Kafka's names or field names) before
    all of them.

    Raises `UserError` with every bad key and what is wrong with it."""
    merged: dict[str, str] = {}
    for config in configs:
        merged |= read_properties(config)
    merged_fields = _of_ours(kind, merged)
    given_fields = _of_ours(kind, values or {})
    merged_fields |= given_fields
    try:
        # A file's values rank below the environment's, those given by `values` above it.
        from_environment = {
            name for name in kind.model_fields if f"HIGHWATER_{name.upper()}" in _environment_names()
        } - given_fields.keys()
        given: dict[str, Any] = {name: v for name, v in merged_fields.items() if name not in from_environment}
        return kind(**given)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in one['loc']).replace('_', '.')}: {problem(one)}" for one in error.errors()
        )
        raise UserError(f"bad settings: {problems}") from None


def _of_ours(kind: type[ServiceSettings], given: Mapping[str, str]) -> dict[str, str]:
    """The values by field. Kafka's settings that mean nothing here are left out, with a line that says what to use;
    `log.dir` is one of `log.dirs`."""
    fields: dict[str, str] = {}
    for key, value in given.items():
        name = field_name(key)
        instead = MEANINGLESS_KEYS.get(name.replace("_", "."))
        if instead is not None and name not in kind.model_fields:
            _log.warning("%s means nothing here, and is left out: %s", key, instead)
        elif name == "log_dir" and "log_dirs" in kind.model_fields:
            fields["log_dirs"] = ",".join(filter(None, (fields.get("log_dirs"), value)))
        elif name == "log_dirs":
            fields[name] = ",".join(filter(None, (fields.get(name), value)))
        else:
            fields[name] = value
    return fields


def _program() -> str | None:
    """`python -m highwater.log_storage`, where that was run; None: what argparse makes of the command line."""
    module = getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", "").removesuffix(".__main__")
    return f"python -m {module}" if module.startswith("highwater.") else None


def _environment_names() -> set[str]:
    return {name.upper() for name in os.environ}


def field_name(key: str) -> str:
    """`log_segment_bytes` for `log.segment.bytes`. Kafka's settings of metrics have a prefix that all others lack
    (`kafka.csv.metrics.dir`): it is left out."""
    key = key.strip()
    if key.startswith(_PREFIXED):
        key = key.removeprefix("kafka.")
    return key.replace(".", "_").replace("-", "_")


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

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from highwater.controller.settings import ControllerSettings
from highwater.errors import UserError
from highwater.fetcher.settings import FetcherSettings
from highwater.log_storage.settings import LogStorageSettings
from highwater.replica_manager.settings import ReplicaManagerSettings
from highwater.rpc.settings import load, read_properties

REQUIRED = {"broker.id": "1", "listen": "127.0.0.1:0", "log.dirs": "/tmp/a,/tmp/b"}


def test_a_dotted_name_is_a_field_and_lists_are_split_at_commas() -> None:
    settings = load(LogStorageSettings, {**REQUIRED, "log.segment.bytes": "4096"})
    assert settings.log_segment_bytes == 4096
    assert settings.log_dirs == [Path("/tmp/a"), Path("/tmp/b")]


def test_a_given_value_beats_the_environment_which_beats_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "broker.properties"
    config.write_text("# comment\nlog.segment.bytes = 2048\nlog.index.interval.bytes=1\n")
    monkeypatch.setenv("HIGHWATER_LOG_SEGMENT_BYTES", "3072")
    assert load(LogStorageSettings, REQUIRED, [config]).log_segment_bytes == 3072
    assert load(LogStorageSettings, REQUIRED, [config]).log_index_interval_bytes == 1
    assert load(LogStorageSettings, {**REQUIRED, "log.segment.bytes": "4096"}, [config]).log_segment_bytes == 4096


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("log.segment.bytes", "many", "log.segment.bytes"),
        ("nonsense", "1", "nonsense"),
        ("listen", "nowhere", "listen"),
        ("log.cleanup.policy", "keep", "log.cleanup.policy"),
        ("log.cleanup.policy", "", "log.cleanup.policy"),
    ],
)
def test_a_bad_setting_is_named(key: str, value: str, named: str) -> None:
    with pytest.raises(UserError, match=named):
        load(LogStorageSettings, {**REQUIRED, key: value})


BROKER = {"broker.id": "1", "listeners": "A://127.0.0.1:0", "etcd": "127.0.0.1:1", "log.storage": "127.0.0.1:2"}


@pytest.mark.parametrize(
    ("session_ms", "heartbeat_ms", "said"),
    [
        ("15000", None, None),
        ("14999", None, "of 14999: let that be 3 intervals or more"),  # of 5 s, the default
        (None, "15001", "each 15001 ms .* of 45000"),
        ("600", "200", None),
        ("499", "100", "timeout.ms: 499 is too small: it is 500 or more$"),
        ("600", "99", "interval.ms: 99 is too small: it is 100 or more$"),
    ],
)
def test_a_group_member_may_be_late_with_a_word(
    session_ms: str | None, heartbeat_ms: str | None, said: str | None
) -> None:
    """Two words of it at least, whichever of the two settings is the one that was changed."""
    given = {"session.timeout": session_ms, "heartbeat.interval": heartbeat_ms}
    settings = BROKER | {f"group.consumer.{name}.ms": value for name, value in given.items() if value is not None}
    if said is None:
        load(ReplicaManagerSettings, settings)
    else:
        with pytest.raises(UserError, match=said):
            load(ReplicaManagerSettings, settings)


def test_a_line_without_a_value_is_refused_with_its_number(tmp_path: Path) -> None:
    config = tmp_path / "x.properties"
    config.write_text("a=1\nb\n")
    with pytest.raises(UserError, match="line 2"):
        read_properties(config)


@pytest.mark.parametrize("address", ["broker-1", ":9092", "broker-1:", "broker-1:http"])
def test_an_advertised_listener_is_an_address(address: str) -> None:
    given = {"controller.id": "1", "listen": "127.0.0.1:0", "etcd": "127.0.0.1:1", "advertised.listener": address}
    with pytest.raises(UserError, match=r"advertised\.listener.*host:port or unix:/path"):
        load(ControllerSettings, given)


CONTROLLER = {"controller.id": "1", "listen": "127.0.0.1:0", "advertised.listener": "127.0.0.1:0"}


def test_the_variable_of_the_setting_etcd_holds_addresses_and_a_binary_in_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIGHWATER_ETCD_BINARY", "/usr/bin/etcd")
    monkeypatch.setenv("HIGHWATER_ETCD", "a:2379, b:2379")
    assert load(ControllerSettings, CONTROLLER).etcd == ["a:2379", "b:2379"]
    (tmp_path / "etcd").touch()
    monkeypatch.setenv("HIGHWATER_ETCD", str(tmp_path / "etcd"))
    with pytest.raises(UserError, match=r"etcd is a file, and .* each host:port; .* is HIGHWATER_ETCD_BINARY") as error:
        load(ControllerSettings, CONTROLLER)
    assert "\n" not in str(error.value)
    assert load(ControllerSettings, {**CONTROLLER, "etcd": "a:2379"}).etcd == ["a:2379"]  # as `highwater up` gives it


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("broker.id", "one", "broker.id: 'one' is no whole number"),
        ("broker.id", "1.5", "broker.id: '1.5' is no whole number"),
        ("broker.id", "-1", "broker.id: -1 is too small: it is 0 or more"),
        ("log.segment.bytes", "2147483648", "log.segment.bytes: 2147483648 is too large: it is 2147483647 or less"),
        ("log.cleaner.enable", "perhaps", "log.cleaner.enable: 'perhaps' is neither true nor false"),
        ("log.cleaner.io.max.bytes.per.second", "fast", "log.cleaner.io.max.bytes.per.second: 'fast' is no number"),
        (
            "log.cleaner.io.max.bytes.per.second",
            "0",
            "log.cleaner.io.max.bytes.per.second: 0 is too small: it is more than 0.0",
        ),
        ("no.such", "1", "no.such: there is no such key"),
        ("log.cleanup.policy", "keep", "log.cleanup.policy: 'keep' is no cleanup policy: write delete, compact, or"),
    ],
)
def test_what_is_wrong_with_a_value_is_said_in_our_words(key: str, value: str, sentence: str) -> None:
    with pytest.raises(UserError) as error:
        load(LogStorageSettings, {**REQUIRED, key: value})
    assert str(error.value).startswith(f"bad settings: {sentence}")


def test_every_bound_of_a_setting_has_a_sentence() -> None:
    """pydantic's own sentences ("Input should be …") do not reach users."""
    for kind in (LogStorageSettings, ReplicaManagerSettings, FetcherSettings, ControllerSettings):
        for value in ("", "-99", "x", "1e999", "99999999999999999999"):
            with pytest.raises(UserError) as error:
                load(kind, dict.fromkeys(kind.model_fields, value))
            assert "Input should" not in str(error.value)
            assert "Value error" not in str(error.value)


@pytest.mark.parametrize("service", ["log_storage", "replica_manager", "fetcher", "controller"])
def test_a_services_usage_names_it(service: str) -> None:
    line = [sys.executable, "-m", f"highwater.{service}", "--help"]
    done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith(f"usage: python -m highwater.{service} [-h] [--config FILE]")

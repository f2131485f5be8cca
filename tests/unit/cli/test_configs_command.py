"""`highwater configs`: whose configuration it is, and how it is shown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Self

import pytest
import typer
from typer.testing import CliRunner

import highwater.client.blocking
from highwater.cli.app import app
from highwater.cli.up import parse_settings
from highwater.client import ConfigEntry, ConfigResource, ConfigResourceType, ConfigSource

Calls = list[tuple[str, Any]]


class Admin:
    """Says what it was asked."""

    calls: Calls = []  # noqa: RUF012  (of each test anew, by the fixture)

    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def alter_configs(
        self, resource: ConfigResource, changed: Mapping[str, str], unset: Any = (), *, validate_only: bool = False
    ) -> None:
        self.calls.append(("alter", (resource, dict(changed), list(unset), validate_only)))

    def describe_configs(self, resource: ConfigResource) -> list[ConfigEntry]:
        self.calls.append(("describe", resource))
        return [
            ConfigEntry("log.roll.ms", "5", ConfigSource.DYNAMIC_BROKER),
            ConfigEntry("log.level", "INFO", ConfigSource.STATIC, service="fetcher"),
            ConfigEntry("rack", "", ConfigSource.DEFAULT, read_only=True),
            ConfigEntry("message.max.bytes", None, ConfigSource.STATIC),
        ]

    def list_configs(self, kind: ConfigResourceType) -> dict[ConfigResource, list[ConfigEntry]]:
        self.calls.append(("list", kind))
        entry = ConfigEntry("producer_byte_rate", "5", ConfigSource.DYNAMIC_USER)
        return {ConfigResource(kind, "anna", "app" if kind is ConfigResourceType.USER_CLIENT else ""): [entry]}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    monkeypatch.setattr(highwater.client.blocking, "Admin", Admin, raising=False)
    Admin.calls = []
    return Admin.calls


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["configs", *arguments])


@pytest.mark.parametrize(
    ("options", "resource"),
    [
        (["--topic", "t"], ConfigResource.topic("t")),
        (["--broker", "0"], ConfigResource.broker(0)),
        (["--broker-defaults"], ConfigResource.broker()),
        (["--client", "c"], ConfigResource.client("c")),
        (["--client-defaults"], ConfigResource.client()),
        (["--user", "u"], ConfigResource.user("u")),
        (["--user-defaults"], ConfigResource.user()),
        (["--user", "u", "--client", "c"], ConfigResource.user_client("u", "c")),
        (["--user-defaults", "--client", "c"], ConfigResource.user_client(None, "c")),
        (["--user", "u", "--client-defaults"], ConfigResource.user_client("u")),
        (["--cluster"], ConfigResource.cluster()),
    ],
)
def test_options_name_one_resource(calls: Calls, options: list[str], resource: ConfigResource) -> None:
    assert run("set", "a=b=c", "d=", *options).exit_code == 0
    assert calls == [("alter", (resource, {"a": "b=c", "d": ""}, [], False))]


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--topic", "t", "--cluster"],
        ["--broker", "1", "--broker-defaults"],
        ["--client", "c", "--client-defaults"],
        ["--user", "u", "--user-defaults"],
        ["--user", ""],
        ["--cluster", "--user", "u"],
    ],
)
def test_anything_else_is_refused_before_anybody_is_asked(calls: Calls, options: list[str]) -> None:
    for command in (["describe"], ["set", "a=b"], ["unset", "a"]):
        result = run(*command, *options)
        assert result.exit_code == 2
        assert "whose configuration" in result.output
    assert run("set", "a", "--cluster").exit_code == 2
    assert not calls


def test_unset_says_what_counts_now(calls: Calls) -> None:
    result = run("unset", "log.roll.ms", "--broker", "1")
    assert result.exit_code == 0
    assert "log.roll.ms is now 5 (DYNAMIC_BROKER)" in result.output
    assert calls[0] == ("alter", (ConfigResource.broker(1), {}, ["log.roll.ms"], False))
    assert "could be unset" in run("unset", "log.roll.ms", "--broker", "1", "--validate-only").output


def test_json_has_a_line_a_key(calls: Calls) -> None:
    lines = [json.loads(line) for line in run("describe", "--broker", "1", "--json").output.splitlines()]
    assert lines[0] == {
        "resource": "BROKER",
        "name": "1",
        "key": "log.roll.ms",
        "value": "5",
        "source": "DYNAMIC_BROKER",
        "read_only": False,
        "service": "",
    }
    assert [(each["key"], each["value"], each["service"]) for each in lines[1:]] == [
        ("log.level", "INFO", "fetcher"),
        ("rack", "", ""),
        ("message.max.bytes", None, ""),
    ]
    only = run("describe", "--broker", "1", "--json", "--set-only").output
    assert [json.loads(line)["key"] for line in only.splitlines()] == ["log.roll.ms"]


def test_a_table_says_what_cannot_be_changed(calls: Calls) -> None:
    output = run("describe", "--broker", "1").output
    assert "READ_ONLY" in output
    assert "log.level (fetcher)" in output
    assert "(each broker's own)" in output


def test_all_clients_and_users(calls: Calls) -> None:
    output = run("describe", "--users", "--clients", "--json").output
    assert [json.loads(line)["resource"] for line in output.splitlines()] == ["CLIENT", "USER", "USER_CLIENT"]
    assert "client app of user anna" in run("describe", "--users").output


def test_up_leaves_out_what_means_nothing_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_settings(["num.io.threads=8", "log.roll.ms=5"]) == {"log.roll.ms": "5"}
    assert "num.io.threads means nothing here, and is left out: each service is one event loop" in (
        " ".join(capsys.readouterr().err.split())
    )
    with pytest.raises(typer.BadParameter, match="no service has a setting named num.io.thread"):
        parse_settings(["num.io.thread=8"])
    with pytest.raises(typer.BadParameter, match=r"log\.dir is set by"):
        parse_settings(["log.dir=/data"])

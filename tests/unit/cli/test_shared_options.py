"""Options that several commands have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

import highwater.client.blocking
from highwater.cli.administration import acls
from highwater.cli.shared_options import with_shared_options


@dataclass(frozen=True)
class Place:
    city: Annotated[str, typer.Option("--city", help="where it is")] = "here"
    street: Annotated[list[str] | None, typer.Option("--street")] = None


def test_a_command_gets_its_shared_options_as_one_value() -> None:
    app, got = typer.Typer(), []

    @app.command()
    @with_shared_options
    def go(name: Annotated[str, typer.Argument()], place: Place, fast: bool = False) -> None:
        got.append((name, place, fast))

    runner = CliRunner()
    assert runner.invoke(app, ["a", "--street", "x", "--street", "y", "--fast"]).exit_code == 0
    assert runner.invoke(app, ["b", "--city", "there"]).exit_code == 0
    assert got == [("a", Place("here", ["x", "y"]), True), ("b", Place("there"), False)]
    assert "where it is" in runner.invoke(app, ["--help"]).output
    assert runner.invoke(app, ["b", "--place", "there"]).exit_code == 2


def test_acls_take_the_same_options_to_be_added_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    class Admin:
        def __init__(self, *_: object, **__: object) -> None: ...

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None: ...

        def create_acls(self, wanted: Any) -> None:
            calls.append([str(each) for each in wanted])

        def delete_acls(self, filters: Any) -> list[Any]:
            calls.append([(each.name, str(each.principal), each.operation.name) for each in filters])
            return []

    monkeypatch.setattr(highwater.client.blocking, "Admin", Admin, raising=False)
    options = ["--allow-principal", "User:a", "--operation", "read", "--topic", "t", "--topic", "u"]
    for command in ("add", "remove"):
        result = CliRunner().invoke(acls.app, [command, *options, "--resource-pattern-type", "prefixed"])
        assert result.exit_code == 0, result.output
    assert calls == [
        ["ALLOW User:a READ on TOPIC t*", "ALLOW User:a READ on TOPIC u*"],
        [("t", "User:a", "READ"), ("u", "User:a", "READ")],
    ]

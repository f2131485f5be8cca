"""`highwater cluster --check`."""

from __future__ import annotations

import json
from typing import Any, Self

import pytest

from highwater.cli.app import app
from highwater.client import blocking
from highwater.client.admin.descriptions import BrokerReach
from highwater.console.exit_status import exit_status


class AdminDouble:
    found: list[BrokerReach]

    def __init__(self, bootstrap: str, **_: Any) -> None:
        assert bootstrap == "here:1"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def check_brokers(self) -> list[BrokerReach]:
        return self.found


@pytest.mark.parametrize(("problem", "status"), [(None, 0), ("broker 2 answers there", 1)])
def test_the_exit_status_and_the_words_say_what_is_wrong(
    problem: str | None, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(blocking, "Admin", AdminDouble)
    AdminDouble.found = [BrokerReach(0, "a:1", 0.002, None), BrokerReach(1, "b:1", None if problem else 0.001, problem)]
    assert exit_status(app, ["cluster", "--check", "--bootstrap=here:1"]) == status
    said = capsys.readouterr().out
    assert "answers, after 2 ms" in said
    assert ("1 of 2 brokers cannot be used from here" in said) == bool(problem)
    assert problem is None or problem in said
    assert exit_status(app, ["cluster", "--check", "--bootstrap=here:1", "--json"]) == status
    assert [json.loads(line)["problem"] for line in capsys.readouterr().out.splitlines()] == [None, problem]

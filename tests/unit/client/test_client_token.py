"""The token of a client: options, environment, and a file that is replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from highwater.client.cluster.connection import Connection
from highwater.client.cluster.token import client_token
from highwater.client.exceptions import InvalidRequestError

NOTHING: dict[str, object] = {"token": None, "token_file": None}


def shown(environment: dict[str, str] | None = None, **options: object) -> Any:
    token = client_token(NOTHING | options, environment or {})
    return None if token is None else token.metadata


def bearer(token: str) -> Any:
    return (("authorization", f"Bearer {token}"),)


def test_an_option_goes_before_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from.file\n")
    assert shown() is None
    assert shown(token="a.b") == bearer("a.b")
    assert shown(token_file=file) == bearer("from.file")
    assert shown({"HIGHWATER_TOKEN": "e.e"}) == bearer("e.e")
    assert shown({"HIGHWATER_TOKEN_FILE": str(file)}) == bearer("from.file")
    assert shown({"HIGHWATER_TOKEN": "e.e"}, token_file=str(file)) == bearer("from.file")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"token": ""}, "holds no token"),
        ({"token": "two words"}, "holds no token"),
        ({"token": "ä"}, "holds no token"),
        ({"token": "a", "token_file": "b"}, "both set"),
        ({"token_file": "/nowhere/token"}, "cannot read the token_file"),
    ],
)
def test_what_is_no_token_is_refused_with_the_option(options: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        shown(**options)


def test_a_replaced_file_counts_for_the_next_call_and_a_broken_one_does_not(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first")
    token = client_token(NOTHING | {"token_file": file}, {})
    connection = Connection("h:1", token=token)
    assert connection.call_options == {"metadata": bearer("first")}
    file.write_text("second, and longer")
    assert connection.call_options == {"metadata": bearer("first")}  # it is no token
    file.write_text("second")
    assert connection.call_options == {"metadata": bearer("second")}
    file.unlink()
    assert connection.call_options == {"metadata": bearer("second")}


def test_without_a_token_a_call_carries_nothing() -> None:
    assert Connection("h:1").call_options == {}

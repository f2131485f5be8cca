"""Static tokens: made, found by their hashes, and read again when the file is replaced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from highwater.errors import UserError
from highwater.security.principal import user
from highwater.security.tokens import MAX_TOKENS, TokenFile, make_token, parse_line

ALICE = user("alice")


def test_a_token_stands_for_its_principal_and_nothing_like_it_does(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    token, line = make_token(ALICE)
    other, other_line = make_token(user("CN=bob,O=x y"))
    path.write_text(f"# whose\n\n{line}\n{other_line}\n")
    tokens = TokenFile(path)
    assert tokens.principal_of(token) == ALICE
    assert tokens.principal_of(other) == user("CN=bob,O=x y")
    token_id, _, secret = token.partition(".")
    for wrong in ("", ".", token_id, f"{token_id}.", f"{token}x", token[:-1], f"{other.partition('.')[0]}.{secret}"):
        assert tokens.principal_of(wrong) is None, wrong


def test_the_file_holds_no_secret(tmp_path: Path) -> None:
    token, line = make_token(ALICE)
    assert token.partition(".")[2] not in line
    assert make_token(ALICE)[0] != token
    assert parse_line(line) is not None
    assert len({make_token(ALICE)[1].split()[1] for _ in range(10)}) == 10  # a salt each


def test_a_replaced_file_counts_with_the_next_call(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    first, line = make_token(ALICE)
    path.write_text(f"{line}\n")
    tokens = TokenFile(path)
    second, line = make_token(ALICE)
    replaced = tmp_path / "new"
    replaced.write_text(f"{line}\n")
    replaced.replace(path)
    assert tokens.principal_of(second) == ALICE
    assert tokens.principal_of(first) is None


def test_no_token_counts_while_the_file_is_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tokens"
    token, line = make_token(ALICE)
    path.write_text(f"{line}\n")
    tokens = TokenFile(path)
    path.unlink()
    assert tokens.principal_of(token) is None
    assert tokens.principal_of(token) is None
    assert caplog.text.count("cannot be read") == 1  # said once
    path.write_text(f"{line}\n")
    assert tokens.principal_of(token) == ALICE


def test_a_line_that_is_none_does_not_count_and_the_others_do(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tokens"
    token, line = make_token(ALICE)
    path.write_bytes(f"nonsense\n{line[:-12]}\n{line.replace('User:', 'Group:')}\n{line}\n".encode() + b"\xff\xfe\n")
    assert TokenFile(path).principal_of(token) == ALICE
    assert caplog.text.count("does not count") == 4


def test_the_number_of_tokens_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("highwater.security.tokens.MAX_TOKENS", 2)
    path = tmp_path / "tokens"
    made = [make_token(ALICE) for _ in range(3)]
    path.write_text("".join(f"{line}\n" for _, line in made))
    tokens = TokenFile(path)
    assert [tokens.principal_of(token) is not None for token, _ in made] == [True, True, False]
    assert MAX_TOKENS == 10_000


def test_a_file_that_is_not_there_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read the tokens.file"):
        TokenFile(tmp_path / "nothing")


def test_an_unchanged_file_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokens"
    token, line = make_token(ALICE)
    path.write_text(f"{line}\n")
    tokens = TokenFile(path)
    monkeypatch.setattr(Path, "open", lambda *_: pytest.fail("read again"))
    for _ in range(3):
        assert tokens.principal_of(token) == ALICE
    os.utime(path, ns=(1, 1))  # as if it had been replaced
    with pytest.raises(BaseException, match="read again"):
        tokens.principal_of(token)

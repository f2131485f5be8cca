"""`highwater tokens add|list|remove`: the file of static tokens that brokers take (`tokens.file`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from highwater.atomic_file import replace_file
from highwater.console.counted import counted
from highwater.console.output import AsJson, errors, json_line, screen, table
from highwater.errors import UserError
from highwater.security.principal import parse_principal
from highwater.security.tokens import MAX_FILE_BYTES, MAX_TOKENS, KeptToken, make_token, parse_line

app = typer.Typer(no_args_is_help=True, help="Static tokens, by which users show brokers who they are.")

File = Annotated[Path, typer.Option("--file", help="the file that tokens.file of the brokers names")]


@app.command("add")
def add(
    principal: Annotated[str, typer.Argument(help="whose token it is: User:alice")],
    file: File,
) -> None:
    """Make a token: it is printed, and nobody can read it again. Its salted hash goes into the file, which brokers read
    again."""
    try:
        token, line = make_token(parse_principal(principal))
    except ValueError as error:
        raise UserError(str(error)) from None
    lines = _lines(file) if file.exists() else []
    if len(lines) >= MAX_TOKENS:
        raise UserError(f"{file} has {counted(len(lines), 'line')}, and {MAX_TOKENS} are the most: remove some")
    _write(file, [*lines, line])
    screen.print(token, soft_wrap=True)


@app.command("list")
def list_tokens(file: File, json: AsJson = False) -> None:
    """Show whose tokens are in a file, by id; the tokens themselves are not there."""
    found = [read for line in _lines(file) if (read := _read(line)) is not None]
    if json:
        for token_id, kept in found:
            json_line({"id": token_id, "principal": str(kept.principal)})
        return
    table("", ["id", "principal"], [[token_id, str(kept.principal)] for token_id, kept in found])


@app.command("remove")
def remove(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="what the token begins with, up to its dot")],
    file: File,
) -> None:
    """Take a token out of the file. Brokers refuse it from then on, and end streams that it has open."""
    lines = _lines(file)
    wanted = token_id.partition(".")[0]
    kept = [line for line in lines if (read := _read(line)) is None or read[0] != wanted]
    if len(kept) == len(lines):
        raise UserError(f"there is no token {wanted!r} in {file}: highwater tokens list says which there are")
    _write(file, kept)
    errors.print(f"token {wanted} removed")


def _read(line: str) -> tuple[str, KeptToken] | None:
    """None: it is no token's."""
    try:
        return parse_line(line)
    except ValueError:
        return None


def _lines(file: Path) -> list[str]:
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise UserError(f"{file} is larger than a file of tokens can be, {MAX_FILE_BYTES} bytes")
        return file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {file}: {error}") from None


def _write(file: Path, lines: list[str]) -> None:
    try:
        replace_file(file, "".join(f"{line}\n" for line in lines).encode())
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror}") from None

"""The token of a client: the options of its constructor, else those of the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from highwater.client.cluster.token_options import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE
from highwater.client.exceptions import InvalidRequestError

_AUTHORIZATION = "authorization"
Metadata = tuple[tuple[str, str], ...]


class Token:
    """`metadata` is what each call carries. A token of a file is read again when the file has been replaced: the next
    call, and the next stream, has the new one."""

    def __init__(self, token: str | None, file: Path | None) -> None:
        """One of the two. Raises `InvalidRequestError` where the file cannot be read, or holds no token."""
        self._file = file
        self._seen: tuple[int, int, int] | None = None
        self._metadata: Metadata = ()
        if file is None:
            self._take(token or "", "token")
        else:
            try:
                self._seen = _stamp(file)
                text = file.read_text()
            except (OSError, UnicodeDecodeError) as error:
                raise InvalidRequestError(f"cannot read the token_file {file}: {error}") from None
            self._take(text, f"the token_file {file}")

    @property
    def metadata(self) -> Metadata:
        """Of the next call. While the file cannot be read, or holds no token, the last one that it had."""
        if self._file is not None:
            try:
                stamp = _stamp(self._file)
                if stamp != self._seen:
                    self._take(self._file.read_text(), "the token_file")
                    self._seen = stamp
            except (OSError, UnicodeDecodeError, InvalidRequestError):
                return self._metadata  # it is being replaced
        return self._metadata

    def _take(self, text: str, what: str) -> None:
        token = text.strip()
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise InvalidRequestError(f"{what} holds no token: it is one word of printable ASCII characters")
        self._metadata = ((_AUTHORIZATION, f"Bearer {token}"),)


def client_token(options: Mapping[str, object], environment: Mapping[str, str] = os.environ) -> Token | None:
    """The token of a client; None: it shows none. `options` holds those of `TokenOptions`, None where they were not
    given; others may be there, too. Raises `InvalidRequestError`, which names the option and the cure."""
    token, file = options["token"], options["token_file"]
    if token is not None and file is not None:
        raise InvalidRequestError("token and token_file are both set: set one of them")
    if token is None and file is None:
        token, file = environment.get(TOKEN_VARIABLE) or None, environment.get(TOKEN_FILE_VARIABLE) or None
        if token and file:
            raise InvalidRequestError(f"{TOKEN_VARIABLE} and {TOKEN_FILE_VARIABLE} are both set: set one of them")
    if token is None and file is None:
        return None
    return Token(None if token is None else str(token), None if file is None else Path(str(file)))


def _stamp(file: Path) -> tuple[int, int, int]:
    found = file.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns

"""The entry point of `highwater`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from highwater.console import INTERRUPTED
from highwater.extras import MissingExtraError, needing
from highwater.rpc.process.entry import quiet_grpc


def main() -> None:
    """Runs a command; see `exit_status`. Without the extra `cli` only `health` and `--version` work, and whatever else
    says how to install it."""
    quiet_grpc()  # what went wrong is said in a sentence
    try:
        with _quietly_interrupted():
            if sys.argv[1:] == ["--version"]:
                from highwater import __version__

                print(f"highwater {__version__}")
                sys.exit()
            if sys.argv[1:2] == ["health"]:  # asked every few seconds: it loads none of the other commands
                from highwater.rpc import health

                sys.exit(health.main(sys.argv[2:]))
            with needing("cli", "highwater"):
                from highwater.cli.app import app
                from highwater.console.exit_status import exit_status
    except MissingExtraError as error:
        sys.exit(f"highwater: {error}")
    sys.exit(exit_status(app))


@contextmanager
def _quietly_interrupted() -> Iterator[None]:
    """Ctrl-C while modules are being imported prints no traceback of theirs."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # ignored, as in a shell's background
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)  # whatever is being imported may hold back an exception


if __name__ == "__main__":
    main()

"""The entry point of `highwater`."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from highwater.extras import MissingExtraError, needing

INTERRUPTED = 130  # the exit status of a program that Ctrl-C has ended


def main() -> None:
    """Runs a command; see `exit_status`. Without the extra `cli` only `health` and `--version` work, and whatever else
    says how to install it."""
    signal.signal(signal.SIGINT, _end)  # an interrupt while modules are being imported prints no traceback
    try:
        if sys.argv[1:] == ["--version"]:
            from highwater import __version__

            sys.exit(print(f"highwater {__version__}"))
        if sys.argv[1:2] == ["health"]:  # asked every few seconds: it loads none of the other commands
            from highwater.rpc import health

            sys.exit(health.main(sys.argv[2:]))
        with needing("cli", "highwater"):
            from highwater.cli.app import app
            from highwater.cli.exit_status import exit_status
    except MissingExtraError as error:
        sys.exit(f"highwater: {error}")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(exit_status(app))


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)  # whatever is being imported may hold back an exception


if __name__ == "__main__":
    main()

"""The entry point of `highwater`."""

from __future__ import annotations

import sys

from highwater.extras import MissingExtraError, needing


def main() -> None:
    """Runs a command; see `exit_status`. Without the extra `cli` only `health` works, and whatever else says how to
    install it."""
    try:
        if sys.argv[1:2] == ["health"]:  # asked every few seconds: it loads none of the other commands
            from highwater.rpc import health

            sys.exit(health.main(sys.argv[2:]))
        with needing("cli", "highwater"):
            from highwater.cli.app import app
            from highwater.cli.exit_status import exit_status
    except MissingExtraError as error:
        sys.exit(f"highwater: {error}")
    sys.exit(exit_status(app))


if __name__ == "__main__":
    main()

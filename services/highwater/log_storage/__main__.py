"""`python -m highwater.log_storage`: signals first, then the program, which takes a while to import."""

from __future__ import annotations

from highwater.rpc.process.entry import run_program

if __name__ == "__main__":
    run_program("highwater.log_storage.process")

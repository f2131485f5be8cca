"""`python -m highwater.fetcher`: signals first, then the program, which takes a while to import."""

from __future__ import annotations

from highwater.rpc.process.entry import run_program

if __name__ == "__main__":
    run_program("highwater.fetcher.process")

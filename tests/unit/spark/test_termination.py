"""SIGTERM of a command that heeds it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from threading import Thread

from highwater.spark.pipelines.command import termination

PROGRAM = """
import os, signal
from highwater.spark.pipelines.command import termination

with termination.heeded():
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)
        print(termination.asked(), flush=True)
"""


def test_the_first_one_is_noted() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with termination.heeded():
        assert not termination.asked()
        os.kill(os.getpid(), signal.SIGTERM)
        assert termination.asked(within_s=10)
    assert not termination.asked()
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_second_one_ends_the_process() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGTERM, "True\n", "")


def test_another_thread_gets_no_signals() -> None:
    found = []

    def work() -> None:
        with termination.heeded():
            found.append(termination.asked())

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False]

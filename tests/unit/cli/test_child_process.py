from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from highwater.cli.child_process import ChildProcess


def test_a_child_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(f"""
                import sys, threading
                from pathlib import Path
                from highwater.cli.child_process import ChildProcess
                child = ChildProcess("sleeper", ["sleep", "600"], Path({str(tmp_path)!r}) / "log")
                child.start()
                print(child.pid, flush=True)
                threading.Event().wait()
            """),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    watched = os.pidfd_open(pid)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    import select

    try:
        ended, _, _ = select.select([watched], [], [], 10)
        assert ended
    finally:
        os.close(watched)


def test_the_output_goes_to_the_log_and_the_status_is_told(tmp_path: Path) -> None:
    child = ChildProcess("speaker", ["sh", "-c", "echo one; echo two; exit 3"], tmp_path / "logs" / "speaker.log")
    child.start()
    assert child.wait(10)
    assert child.exit_status == 3
    assert child.last_words(1) == "two"
    child.start()
    assert child.wait(10)
    assert child.last_words() == "one\ntwo", "the last words of the earlier start are not its own"
    assert child.log_file.read_text() == "one\ntwo\none\ntwo\n"

"""The disks that the soak fails: what the launcher makes of a log-storage's calls."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from textwrap import dedent

import pytest
from soak import log_storage_launcher
from soak.disks import BrokerDisks

BEGIN = """
    import os, sys
    from pathlib import Path
    from log_storage_launcher import FaultyDisk
    FaultyDisk(Path(sys.argv[1])).install()
    log = Path(sys.argv[2], "log")
"""


@pytest.fixture
def disks(tmp_path: Path) -> BrokerDisks:
    directory = tmp_path / "logs"
    directory.mkdir()
    return BrokerDisks(tmp_path / "control", [directory])


def run(disks: BrokerDisks, code: str) -> str:
    """What the code prints, in a process whose disk is `disks`; `log` is a file of its directory."""
    done = subprocess.run(
        [sys.executable, "-c", dedent(BEGIN) + dedent(code), str(disks.control), str(disks.directories[0])],
        env={**os.environ, "PYTHONPATH": str(Path(log_storage_launcher.__file__).parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


WRITE = """
    file = os.open(log, os.O_RDWR | os.O_CREAT)
    os.write(file, b"synced")
    os.fdatasync(file)
    os.write(file, b" dirty")
"""
FAILING_SYNC = """
    file = os.open(log, os.O_RDWR)
    try:
        os.fdatasync(file)
    except OSError as error:
        print(error.errno)
"""


def test_a_killed_process_loses_nothing(disks: BrokerDisks) -> None:
    run(disks, WRITE)
    assert (disks.directories[0] / "log").read_bytes() == b"synced dirty"


@pytest.mark.parametrize("forget", [False, True])
def test_a_failed_sync_loses_what_was_not_synced_by_the_process_before_either(disks: BrokerDisks, forget: bool) -> None:
    run(disks, WRITE)
    disks.fail(disks.directories[0], ["fdatasync"], drop=True)
    assert run(disks, FAILING_SYNC) == f"{errno.EIO}\n"
    assert (disks.directories[0] / "log").read_bytes() == b"synced" + bytes(6)
    disks.mend()
    if forget:
        disks.forget_dropped()
        assert (disks.directories[0] / "log").read_bytes() == b"synced"
    assert run(disks, FAILING_SYNC) == ""


def test_what_another_process_has_synced_is_not_lost(disks: BrokerDisks) -> None:
    """As the cleaner's process has."""
    disks.fail(disks.directories[0], ["fdatasync"], drop=True, after=1)  # of each process
    told = run(
        disks,
        f"""
        import subprocess
        other = os.open(log.with_name("other"), os.O_RDWR | os.O_CREAT)
        os.fdatasync(other)
        subprocess.run([sys.executable, "-c", {dedent(BEGIN) + dedent(WRITE)!r}, *sys.argv[1:]], check=True)
        os.write(other, b"dirty")
        try:
            os.fdatasync(other)
        except OSError as error:
            print(error.errno)
        """,
    )
    assert told == f"{errno.EIO}\n"
    assert (disks.directories[0] / "log").read_bytes() == b"synced" + bytes(6)
    assert (disks.directories[0] / "other").read_bytes() == bytes(5)


def test_operations_fail_after_so_many_and_in_their_directory_only(disks: BrokerDisks) -> None:
    disks.fail(disks.directories[0], ["write", "open"], number=errno.ENOSPC, after=2)
    told = run(
        disks,
        """
        file = os.open(log, os.O_RDWR | os.O_CREAT)
        os.write(file, b"a")
        for path in (log, log.parent.parent / "elsewhere"):
            try:
                os.close(os.open(path, os.O_RDWR | os.O_CREAT))
                print("opened")
            except OSError as error:
                print(error.errno)
        """,
    )
    assert told == f"{errno.ENOSPC}\nopened\n"


def test_power_takes_what_was_not_synced_and_the_boot(disks: BrokerDisks) -> None:
    boot = (disks.control / "boot_id").read_text()
    run(disks, WRITE)
    disks.lose_power(Random(1))
    left = (disks.directories[0] / "log").read_bytes()
    assert left.startswith(b"synced")
    assert left != b"synced dirty"
    assert (disks.control / "boot_id").read_text() != boot


def test_an_inode_that_is_used_again_was_not_synced(disks: BrokerDisks) -> None:
    run(disks, dedent(WRITE) + 'os.unlink(log); os.close(file); log.write_bytes(b"short")')
    disks.lose_power(Random(1))
    assert (disks.directories[0] / "log").read_bytes() != b"short"

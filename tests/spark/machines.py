"""Executors on machines of their own, as far as one directory goes: each has a disk there that nobody else sees."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

_JAVA = """#!/bin/sh
exec unshare --mount sh -c 'mount -t tmpfs tmpfs "$0" && exec "$@"' "{directory}" "{java}" "$@"
"""


@cache
def can_have_disks_of_their_own() -> bool:
    """Whether this process may make mount namespaces."""
    tried = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs tmpfs /mnt"]
    return (
        shutil.which("unshare") is not None and subprocess.run(tried, capture_output=True, check=False).returncode == 0
    )


def two_machines(directory: Path, scratch: Path) -> list[str]:
    """A Spark master and settings (`NAME=VALUE`) by which its two executors have disks of their own in place of
    `directory`, which is there."""
    java = scratch / "java-home" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(_JAVA.format(directory=directory, java=shutil.which("java")))
    java.chmod(0o755)
    return [
        "local-cluster[2,1,1024]",
        f"spark.executorEnv.JAVA_HOME={java.parent.parent}",
        f"spark.executorEnv.PYTHONPATH={os.environ.get('PYTHONPATH', '')}",
        f"spark.executor.extraJavaOptions={os.environ.get('SPARK_SUBMIT_OPTS', '')}",
    ]

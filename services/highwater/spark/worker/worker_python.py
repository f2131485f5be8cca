"""Python processes of Spark that start in a third of the time, where Spark runs on this machine alone.

Spark names a zip of PySpark's sources before the installed PySpark, and Python compiles what it takes from a zip anew
in each process: a second and more, for each of the five that a streaming query starts, two of them before its first
micro-batch.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

_PYTHON = "HIGHWATER_WORKER_PYTHON"
_NAMES = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


def quick_workers() -> None:
    """Makes workers start quickly, for the sessions that this process makes from now on, with `local` as their master,
    and unless `PYSPARK_PYTHON` or `PYSPARK_DRIVER_PYTHON` is set to another Python than this one. They begin with the
    PySpark that is installed."""
    wanted = str(Path(__file__).with_name("worker_python.sh"))
    if (
        os.name == "posix"
        and os.access(wanted, os.X_OK)
        and _is_installed("pyspark")
        and all(os.environ.get(name, sys.executable) in (sys.executable, wanted) for name in _NAMES)
    ):
        os.environ.update(dict.fromkeys(_NAMES, wanted), **{_PYTHON: sys.executable})


def _is_installed(package: str) -> bool:
    """Tells whether this Python has the package as files, not in a zip."""
    spec = find_spec(package)
    return spec is not None and spec.origin is not None and Path(spec.origin).exists()

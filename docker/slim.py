"""Takes out of installed packages what no process of Highwater loads: `slim.py SITE_PACKAGES`; prints what that saved.

A unit test looks that no program has any of it loaded, and the build of the image ends by importing them all.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

UNUSED = {
    "of all: tests": ["*/**/tests"],
    "of all: C headers, static libraries, Cython and C sources": [
        *("pyarrow/include", "pyarrow/src", "numpy/_core/include", "grpc/_cython/_cygrpc"),
        *(f"**/*{suffix}" for suffix in (".a", ".c", ".h", ".pxd", ".pxi", ".pyx", ".pyx.pxi")),
    ],
    "of all: type stubs": ["**/*.pyi"],
    "pyarrow: Flight": ["pyarrow/*flight*"],
    "pyarrow: S3, Google's and Azure's stores, HDFS": [
        *("pyarrow/libarrow_s3.*", "pyarrow/_s3fs.*", "pyarrow/_gcsfs.*", "pyarrow/_azurefs.*", "pyarrow/_hdfs.*"),
    ],
    "pyarrow: copies of a library under the names that linkers look for": [
        *("pyarrow/libarrow_python*.so", "pyarrow/libarrow_python*.so.*.*.*"),
    ],
    "numpy: f2py and distutils": ["numpy/f2py", "numpy/distutils"],
    "zstandard: the backend for PyPy": ["zstandard/_cffi.*", "zstandard/backend_cffi.py"],
}


def size_bytes(path: Path) -> int:
    if path.is_dir() and not path.is_symlink():
        return sum(entry.lstat().st_size for entry in path.rglob("*") if not entry.is_dir())
    return path.lstat().st_size


def unused(packages: Path) -> dict[str, list[Path]]:
    """The files and directories of each entry of `UNUSED`."""
    return {what: sorted({path for one in globs for path in packages.glob(one)}) for what, globs in UNUSED.items()}


def slim(packages: Path) -> dict[str, int]:
    """Removes them; bytes saved by each entry."""
    saved = {}
    for what, paths in unused(packages).items():
        saved[what] = 0
        for path in paths:
            if path.exists():  # else it was within what has just gone
                saved[what] += size_bytes(path)
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    return saved


if __name__ == "__main__":
    site_packages = Path(sys.argv[1])
    for name, saved_bytes in slim(site_packages).items():
        print(f"{saved_bytes / 1e6:8.1f} MB  {name}")
    print("left:")
    left = sorted(((size_bytes(entry), entry.name) for entry in site_packages.iterdir()), reverse=True)
    for entry_bytes, name in left[:15]:
        print(f"{entry_bytes / 1e6:8.1f} MB  {name}")
    print(f"{sum(entry_bytes for entry_bytes, _ in left) / 1e6:8.1f} MB  in all")

"""The SHA-256 of each package that an image is made of, so that the same checkout makes the same image.

    hashes.py write constraints.txt pyspark==4.2.0 > docker/hashes.txt    asks the index (PIP_INDEX_URL, else PyPI's)
    hashes.py write docker/build.txt                                      the same, to write over it
    hashes.py check docker/hashes.txt DIRECTORY       of what pip has downloaded there, before it is installed

`write` takes lines and words `name==version`, and of each what a Linux with glibc on x86_64 or aarch64 installs: all
wheels for CPython 3.11 and later, or the source where there is none. The result is a requirements file for pip, too.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import urllib.request
from collections.abc import Iterable
from pathlib import Path

INDEX = "https://pypi.org/simple"
JSON = "application/vnd.pypi.simple.v1+json"
OLDEST_MINOR = 11  # of CPython 3
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def project_and_version(file_name: str) -> tuple[str, str]:
    """Of a wheel's or a source distribution's name."""
    if file_name.endswith(".whl"):
        name, version = file_name.split("-")[:2]
    else:
        name, _, version = file_name.removesuffix(".tar.gz").removesuffix(".zip").rpartition("-")
    return normalized(name), version


def _is_ours(wheel: str) -> bool:
    """Tells by its name whether CPython from 3.11 on takes it, on a Linux with glibc."""
    python, abi, platform = wheel.removesuffix(".whl").rsplit("-", 3)[1:]
    newer = re.fullmatch(r"cp3\d\d", python) is not None and int(python[3:]) >= OLDEST_MINOR
    return ((newer and abi == python) or abi == "abi3" or "py3" in python.split(".")) and (
        platform == "any" or ("manylinux" in platform and platform.endswith(("x86_64", "aarch64")))
    )


def wanted(files: Iterable[str]) -> list[str]:
    """Those of a version's files that an image may install."""
    names = sorted(files)
    wheels = [name for name in names if name.endswith(".whl") and _is_ours(name)]
    return wheels or [name for name in names if name.endswith(".tar.gz")]


def parse(text: str) -> dict[tuple[str, str], set[str]]:
    """The hashes of each (project, version) of a file that `write` has made."""
    found = {}
    for line in text.replace("\\\n", " ").splitlines():
        requirement, _, rest = line.strip().partition(" ")
        name, equals, version = requirement.partition("==")
        if equals:
            found[normalized(name), version] = set(_HASH.findall(rest))
    return found


def problems(hashes: dict[tuple[str, str], set[str]], directory: Path) -> list[str]:
    """One sentence for each file that is not what was written down."""
    found = []
    for path in sorted(directory.iterdir()):
        known = hashes.get(project_and_version(path.name))
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if known is None:
            found.append(f"{path.name}: this version has no hash: write the hashes anew, or pin the one that has")
        elif digest not in known:
            found.append(f"{path.name}: its hash {digest} is not among those written down: it is another file")
    return found


def _ask(name: str) -> dict[str, str]:
    """The SHA-256 of each file of a project."""
    index = os.environ.get("PIP_INDEX_URL", INDEX).rstrip("/")
    request = urllib.request.Request(f"{index}/{normalized(name)}/", headers={"Accept": JSON})
    with urllib.request.urlopen(request, timeout=60) as response:
        return {file["filename"]: file["hashes"]["sha256"] for file in json.load(response)["files"]}


def _write(requirements: Iterable[str]) -> None:
    for requirement in requirements:
        name, _, version = requirement.partition("==")
        files = _ask(name)
        ours = wanted(file for file in files if project_and_version(file) == (normalized(name), version))
        if not ours:
            raise SystemExit(f"the index has no file of {requirement} for Linux")
        print(f"{requirement} \\\n" + " \\\n".join(f"    --hash=sha256:{files[file]}" for file in ours))


def main(arguments: list[str]) -> None:
    match arguments:
        case ["write", *given] if given:
            lines = [line for one in given for line in ([one] if "==" in one else Path(one).read_text().splitlines())]
            _write([line.split()[0] for line in lines if re.match(r"[A-Za-z0-9]", line)])
        case ["check", hashes, directory]:
            if found := problems(parse(Path(hashes).read_text()), Path(directory)):
                raise SystemExit("\n".join(found))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])

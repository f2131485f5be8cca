"""Prints what Highwater with some extras needs, one requirement a line: `requirements.py pyproject.toml server,cli`.

The image installs that before Highwater itself, so that a change of the code makes a small layer anew and not this one.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def requirements(project: dict[str, Any], extras: Iterable[str]) -> list[str]:
    """Raises `SystemExit` for an extra that there is not."""
    optional: dict[str, list[str]] = project["optional-dependencies"]
    found: dict[str, None] = dict.fromkeys(project["dependencies"])
    for extra in extras:
        if extra not in optional:
            raise SystemExit(f"there is no extra {extra}: choose from {', '.join(optional)}")
        for requirement in optional[extra]:
            own = re.fullmatch(rf"{project['name']}\[(.+)\]", requirement)
            found |= dict.fromkeys(requirements(project, own[1].split(",")) if own else [requirement])
    return list(found)


if __name__ == "__main__":
    pyproject, wanted = sys.argv[1:]
    named = [extra.strip() for extra in wanted.split(",") if extra.strip()]
    print("\n".join(requirements(tomllib.loads(Path(pyproject).read_text())["project"], named)))

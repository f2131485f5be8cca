"""Versions of etcd that do not keep what all metadata needs: an answered write is there after a crash (RULES 2)."""

from __future__ import annotations

import re

_FIXED_IN = {(3, 4): 22, (3, 5): 6}
"""By minor version, the first patch without the two flaws below (etcd's own recomfixed minimum)."""
_CORRUPTING = frozenset({(3, 5, 0), (3, 5, 1), (3, 5, 2)})


def known_flaws(version: str) -> str:
    """Says in a sentence what an operator must know of etcd `version` ("3.5.1"); empty where there is nothing."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if found is None:
        return ""
    major, minor, patch = map(int, found.groups())
    fixed = _FIXED_IN.get((major, minor), 0)
    if (major, minor) > (3, 3) and patch >= fixed:
        return ""
    better = f"3.{minor}.{fixed}" if fixed else "3.5.6"
    # etcd-io/etcd issue 14370: a lone member answers while the write is still on its way to its log.
    flaws = "a cluster of one member may lose the last writes that it answered when it is killed"
    if (major, minor, patch) in _CORRUPTING:
        flaws += ", and a crash under load may corrupt its data"
    return f"etcd {version} is not for production: {flaws}. Use {better} or newer"

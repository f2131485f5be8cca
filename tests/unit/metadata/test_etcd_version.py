from __future__ import annotations

import pytest

from highwater.metadata.store.etcd_version import known_flaws


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("3.5.0", "corrupt"),
        ("3.5.2", "corrupt"),
        ("3.5.3", "Use 3.5.6 or newer"),
        ("3.5.5", "lose the last writes"),
        ("3.5.6", ""),
        ("3.5.16", ""),
        ("3.4.21", "Use 3.4.22 or newer"),
        ("3.4.22", ""),
        ("3.3.27", "Use 3.5.6 or newer"),
        ("3.6.0", ""),
        ("3.6.0-alpha.0", ""),
        ("4.0.0", ""),
        ("", ""),
        ("a build of ours", ""),
    ],
)
def test_versions_that_do_not_keep_answered_writes_are_told(version: str, told: str) -> None:
    flaws = known_flaws(version)
    assert bool(flaws) == bool(told)
    assert told in flaws
    assert "corrupt" in told or "corrupt" not in flaws

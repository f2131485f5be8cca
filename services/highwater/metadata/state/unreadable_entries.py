"""Entries of etcd that their reader cannot take: it serves the rest, and says which these are."""

from __future__ import annotations

from collections.abc import Collection

from highwater.telemetry.log import get_logger

_log = get_logger(__name__)

MOST_KEPT = 1_000  # keys; what is above is not said


class UnreadableEntries:
    """The keys of one reader: each is said once, for as long as it cannot be read. A key that a hand or a newer version
    has written does not keep others from what they need."""

    def __init__(self, *, quiet: bool = False) -> None:
        """`quiet`: the log says nothing, as another reader of the same says it."""
        self._quiet = quiet
        self._keys: set[str] = set()

    def __len__(self) -> int:
        return len(self._keys)

    def found(self, key: str, why: str) -> None:
        """Notes an entry that cannot be taken as it is."""
        if key not in self._keys and len(self._keys) < MOST_KEPT:
            self._keys.add(key)
            if self._quiet:
                return
            _log.error("%s; everything else is served", why)

    def read(self, key: str) -> None:
        """Notes that an entry was taken, or is gone."""
        if key in self._keys:
            self._keys.discard(key)
            _log.info("etcd's key %s can be read again", key)

    def listed(self, keys: Collection[str]) -> None:
        """Forgets those that are not there any more."""
        self._keys.intersection_update(keys)

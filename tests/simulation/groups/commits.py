"""Committed offsets as members see them: one value that is written and read, never lost, and never put back
(invariant 10, RULES 11.6).

A commit takes effect between its sending and its answer, or never; one without an answer may take effect at any time.
So a later read may show it, unless another one that began after its answer has been answered, too.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from highwater.model.partition import PartitionKey

from ..history import InvariantError

if TYPE_CHECKING:
    from .member import Member

NEVER_MS = 1 << 60


class Commit:
    __slots__ = ("ended_ms", "late", "member_id", "number", "offset", "over_ms", "refused", "sent_ms")

    def __init__(self, number: int, member_id: str, offset: int, sent_ms: int) -> None:
        self.number = number
        self.member_id = member_id
        self.offset = offset
        self.sent_ms = sent_ms
        self.ended_ms = NEVER_MS  # it has had its effect by then
        self.over_ms = NEVER_MS  # another one has taken its place by then
        self.refused = False
        self.late = False  # the next owner has begun without it

    def __repr__(self) -> str:
        return f"#{self.number} {self.offset} of {self.member_id}, {self.sent_ms} to {self.ended_ms}"


class Place:
    """One group's offset of one partition."""

    def __init__(self) -> None:
        self.by_number: dict[int, Commit] = {}
        self.open: list[Commit] = []  # neither refused nor replaced
        self.kept_ms = NEVER_MS  # something has been there since then
        self.removed_ms = -1
        self.owner: tuple[Member, int] | None = None  # who reads it, and since when it knows from where


class Commits:
    def __init__(self, dead: set[PartitionKey]) -> None:
        self.acknowledged = 0
        self._dead = dead
        self._numbers = 0
        self._places: dict[tuple[str, PartitionKey], Place] = defaultdict(Place)

    def sent(self, group: str, key: PartitionKey, member_id: str, offset: int, now_ms: int) -> Commit:
        self._numbers += 1
        commit = Commit(self._numbers, member_id, offset, now_ms)
        place = self._places[group, key]
        place.by_number[commit.number] = commit
        place.open.append(commit)
        return commit

    def known(self, group: str) -> list[PartitionKey]:
        """Partitions of topics that are there and that members of the group have committed offsets of."""
        return [key for name, key in self._places if name == group and key not in self._dead]

    def refused(self, group: str, key: PartitionKey, commit: Commit) -> None:
        """It has had no effect, and never will."""
        commit.refused = True
        place = self._places[group, key]
        if commit in place.open:
            place.open.remove(commit)

    def acked(self, group: str, key: PartitionKey, commit: Commit, now_ms: int) -> None:
        self.acknowledged += 1
        place = self._places[group, key]
        if place.owner is not None and key not in self._dead:
            owner, since_ms = place.owner
            other = commit.member_id not in ("", owner.member_id)
            if other and commit.sent_ms > since_ms and owner.owns(key):
                raise InvariantError(
                    "11.6 (another's)", f"{group} {key}: {commit} is kept, {owner.name} has it since {since_ms}"
                )
        self._effective(place, commit, now_ms)

    def read(
        self, group: str, key: PartitionKey, number: int | None, sent_ms: int, now_ms: int, owner: Member | None
    ) -> None:
        """A fetch that was sent then has shown that commit; None: none. `owner`: it begins to read there."""
        place = self._places[group, key]
        if key in self._dead:
            return
        if number is None:
            if place.kept_ms < sent_ms:
                raise InvariantError(
                    "10 (lost)", f"{group} {key} has no offset, since {place.kept_ms} it had: {place.open}"
                )
        else:
            commit = place.by_number[number]
            if commit.refused:
                raise InvariantError("11.6 (refused and kept)", f"{group} {key}: {commit}")
            if commit.over_ms < sent_ms:
                raise InvariantError(
                    "10 (goes back)", f"{group} {key} is {commit}, over since {commit.over_ms}: {place.open}"
                )
            if commit.late:
                raise InvariantError("11.6 (late)", f"{group} {key} is {commit}, another member has it: {place.owner}")
            self._effective(place, commit, now_ms)
        if owner is not None:
            for commit in place.open:
                # What is nobody's may be kept whenever the group is empty again.
                others = commit.member_id not in ("", owner.member_id) and commit.ended_ms == NEVER_MS
                commit.late = commit.late or (others and commit.number != number)
            place.owner = (owner, now_ms)

    def not_found(self, group: str, sent_ms: int) -> None:
        """A question that was sent then was told that there is no such group."""
        for (name, key), place in self._places.items():
            if name == group and key not in self._dead and place.kept_ms < sent_ms:
                raise InvariantError(
                    "10 (lost)", f"there is no {group}, of {key} it has had {place.open} since {place.kept_ms}"
                )

    def deleted(self, group: str, sent_ms: int, now_ms: int) -> None:
        """A deletion that was sent then is done: nobody is told any more what was there before."""
        for (name, _), place in self._places.items():
            for commit in list(place.open) if name == group else ():
                if commit.ended_ms < sent_ms:
                    commit.over_ms = min(commit.over_ms, now_ms)
                    place.open.remove(commit)

    def removed(self, group: str, key: PartitionKey, now_ms: int) -> None:
        """The coordinator removes what is there, as it may."""
        place = self._places[group, key]
        place.kept_ms, place.removed_ms = NEVER_MS, now_ms

    def _effective(self, place: Place, commit: Commit, now_ms: int) -> None:
        commit.ended_ms = min(commit.ended_ms, now_ms)
        if commit.sent_ms > place.removed_ms:
            place.kept_ms = min(place.kept_ms, commit.ended_ms)
        for other in list(place.open):
            if other.ended_ms < commit.sent_ms:
                other.over_ms = min(other.over_ms, commit.ended_ms)
                place.open.remove(other)
            elif commit.ended_ms < other.sent_ms and other.ended_ms != NEVER_MS:
                commit.over_ms = min(commit.over_ms, other.ended_ms)

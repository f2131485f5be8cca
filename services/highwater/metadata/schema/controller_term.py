"""The term of an elected controller, which every write of it compares. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from highwater.metadata.schema.keys import Keys
from highwater.metadata.store.transactions import Compare, created_at


@dataclass(frozen=True, slots=True)
class ControllerTerm:
    """One election won."""

    controller_id: int
    controller_epoch: int  # raised by each election (RULES 1.2)
    create_revision: int  # of the controller key

    def guard(self, keys: Keys) -> Compare:
        """Holds while this term lasts (RULES 2.2)."""
        return created_at(keys.controller, self.create_revision)

"""The ways to share the partitions of a group's topics out among its members: pure functions, `uniform` and `range`.

An assignor is given what each member subscribes to and had before, and answers with the whole target assignment: every
partition of every topic that somebody subscribes to exactly once, and to a subscriber (RULES 11.8).
"""

from highwater.groups.assignors.assignor import Assignor, Subscriber
from highwater.groups.assignors.range import assign_range
from highwater.groups.assignors.uniform import assign_uniform

ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}

__all__ = ["ASSIGNORS", "Assignor", "Subscriber"]

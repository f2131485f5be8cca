"""The role that a fence lets write to a log (RULES 3.1)."""

from __future__ import annotations

from enum import IntEnum


class Role(IntEnum):
    """The numbers are those of `Role` in `proto/highwater/v1/log_storage.proto`."""

    LEADER = 1
    FOLLOWER = 2

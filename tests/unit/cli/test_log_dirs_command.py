"""`highwater log-dirs move` waits for the end of a move, and not for one that cannot end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from highwater.cli.administration import log_dirs
from highwater.client.admin.descriptions import LogDirDescription, LogDirReplica
from highwater.errors import UserError

REPLICA = LogDirReplica("orders", 0, 100, is_future=False, offset_lag=0, error=None)
COPY = LogDirReplica("orders", 0, 40, is_future=True, offset_lag=6, error=None)
OTHER = LogDirReplica("orders", 1, 100, is_future=False, offset_lag=0, error=None)


class Describing:
    """Stands for an `Admin`: describes the directories a and b, each time with the next replicas in them."""

    def __init__(self, *answers: tuple[Sequence[LogDirReplica], Sequence[LogDirReplica]]) -> None:
        self._answers = iter(answers)

    def describe_log_dirs(self, brokers: list[int]) -> list[LogDirDescription]:
        return [
            LogDirDescription(brokers[0], f"/{name}", f"id-{name}", None, False, 1000, 500, tuple(replicas))
            for name, replicas in zip("ab", next(self._answers), strict=True)
        ]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_dirs, "_POLL_S", 0)


def test_it_waits_for_the_copy_to_take_the_replicas_place() -> None:
    admin: Any = Describing(([REPLICA, OTHER], [COPY]), ([REPLICA, OTHER], [COPY]), ([OTHER], [REPLICA]))
    assert log_dirs._follow(admin, "orders", 0, 1) == ("/b", "id-b")


def test_a_replica_that_is_deleted_meanwhile() -> None:
    admin: Any = Describing(([REPLICA, OTHER], [COPY]), ([OTHER], []))
    with pytest.raises(UserError, match="broker 1 has no replica of orders-0 any more"):
        log_dirs._follow(admin, "orders", 0, 1)

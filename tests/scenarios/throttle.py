"""The throttle of what a leader sends, of the partition of a scenario (RULES 4.14): the production role of a follower's
session, with the quota, around a partition that no replica-manager hosts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from highwater.quotas.replication_quota import ReplicationQuota
from highwater.quotas.throttled_replicas import NONE_THROTTLED, ThrottledReplicas, parse_throttled_replicas
from highwater.replica_manager.partition.actions import FetchSession
from highwater.replica_manager.requests.session_roles import Place, ReplicaRole
from highwater.replica_manager.responses.fetch_parts import FetchedPart, FetchPart

if TYPE_CHECKING:
    from runner import Runner


class Throttle:
    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._quota = ReplicationQuota()
        self._listed = NONE_THROTTLED

    def configure(self, rate: str, replicas: str) -> None:
        self._quota.set_rate(float(rate) if rate != "none" else None, self._runner.now_ms / 1000)
        self._listed = parse_throttled_replicas(replicas)

    def send(self, key: Any, session: FetchSession, size: int) -> str:
        """Sends so many bytes to a follower, unless they are held back."""
        role = ReplicaRole(self._broker(key, self._listed), session, _never)
        place = Place(1, FetchPart(key, self._runner.partition.leader_epoch, 0, 0))
        if role.is_held_back(place):
            return f"held back for {role.owed_s():g}s"
        part = FetchedPart(key, pieces=(bytes(size),))
        role.told(place, part)
        return "sent" + (", commits wait for it" if part.awaited else "")

    def _broker(self, key: Any, listed: ThrottledReplicas) -> Any:
        runner = self._runner
        config = SimpleNamespace(leader_throttled=listed, follower_throttled=ThrottledReplicas(everything=True))
        return SimpleNamespace(
            broker_id=1,
            now_ms=lambda: runner.now_ms,
            leader_quota=self._quota,
            hosted={key: SimpleNamespace(partition=runner.partition, config=config)},
        )


def _never(*_: object) -> Any:
    raise AssertionError("nothing is named here")

"""WatchFollowing, the replica-manager's end: the production `FollowingReader` behind a stream that lets a few messages
out before the fetcher has taken them. What changes while none may go is told as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from highwater.model.partition import PartitionKey
from highwater.replica_manager.replicas.following import Followed
from highwater.replica_manager.replicas.following_log import FollowingReader
from highwater.replica_manager.server.following_messages import to_following
from highwater.v1 import replica_control_pb2

from .network import Stream

if TYPE_CHECKING:
    from .replica_manager import ReplicaManagerProcess

WINDOW = 2  # messages that are sent and not taken yet

Deliver = Callable[[Stream, replica_control_pb2.Following, Mapping[PartitionKey, Followed]], None]


class FollowingStream:
    def __init__(self, owner: ReplicaManagerProcess, stream: Stream, deliver: Deliver, *, takes_changes: bool) -> None:
        """`deliver` is the fetcher's: it gets the message, and the whole that it should know then."""
        self._owner = owner
        self._stream = stream
        self._deliver = deliver
        self._reader = FollowingReader(owner.replica_manager.following.log, takes_changes=takes_changes)
        self._under_way = 0

    @property
    def is_over(self) -> bool:
        return self._stream.broken

    def changed(self) -> None:
        log = self._owner.replica_manager.following.log
        while self._under_way < WINDOW and not self._stream.broken:
            following = self._reader.take()
            if following is None:
                return
            self._under_way += 1
            message = to_following(self._owner.replica_manager.broker_id, following)
            self._stream.to_client(self._deliver, self._stream, message, log.followed())
            if self._owner.random() < self._owner.world.network.weather.stream_break:
                self._stream.break_(200)

    def taken(self) -> None:
        self._under_way -= 1
        self.changed()

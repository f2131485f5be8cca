"""Which fetcher follows what, through every change that WatchFollowing can bring (RULES 4.1, 4.9)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highwater.fetcher.fetcher_manager import ChangesOfAnotherError, FetcherManager
from highwater.fetcher.follower.actions import Action, Fence, FenceAnswer
from highwater.fetcher.follower.actions import Followed as FollowedHere
from highwater.fetcher.follower.follower import Follower, FollowerState
from highwater.fetcher.follower.following import (
    FetcherId,
    FollowedPartition,
    Following,
    LeaderEndpoint,
    Registration,
    fetcher_id_of,
)
from highwater.fetcher.wire import from_following
from highwater.model.log_state import LogState
from highwater.model.partition import PartitionKey
from highwater.replica_manager.replicas.following import Followed
from highwater.replica_manager.replicas.following_log import FollowingLog, FollowingReader
from highwater.replica_manager.server.following_messages import to_following

TOPIC_ID = uuid.UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8").bytes


class RecordingFetcher:
    """Stands where the connections would be: keeps what it was told."""

    def __init__(self, identity: FetcherId, leader: LeaderEndpoint) -> None:
        self.identity = identity
        self.leader = leader
        self.sessions: list[int] = []
        self.partitions: dict[PartitionKey, Follower] = {}
        self.performed: list[tuple[Follower, Action]] = []
        self.stopped = False

    def open_session(self, broker_epoch: int) -> None:
        self.sessions.append(broker_epoch)

    def add(self, follower: Follower) -> None:
        assert follower.key not in self.partitions
        self.partitions[follower.key] = follower

    def changed(self, follower: Follower) -> None:
        assert self.partitions[follower.key] is follower

    def remove(self, key: PartitionKey) -> None:
        del self.partitions[key]

    def perform(self, steps: Sequence[tuple[Follower, Action]]) -> None:
        assert all(self.partitions[follower.key] is follower for follower, _ in steps)
        self.performed += steps

    async def stop(self) -> None:
        self.stopped = True


class Managed:
    def __init__(self, fetchers: int = 1) -> None:
        self.opened: list[RecordingFetcher] = []
        self.manager = FetcherManager(self._open, fetchers, 1_000, lambda: 0)

    def _open(self, identity: FetcherId, leader: LeaderEndpoint) -> RecordingFetcher:
        self.opened.append(RecordingFetcher(identity, leader))
        return self.opened[-1]

    async def follow(
        self,
        *partitions: tuple[int, int, str],
        broker_epoch: int = 7,
        leader_epoch: int = 5,
        leader_broker_epoch: int = 3,
        changes: bool = False,
        removed: Sequence[int] = (),
    ) -> None:
        """`partitions` are (partition, leader, leader's address)."""
        await self.manager.apply(
            Following(
                3,
                Registration(broker_epoch, "a"),
                {
                    key(partition): FollowedPartition(
                        "flights",
                        LeaderEndpoint(address, leader_broker_epoch),
                        FollowedHere(leader, leader_epoch, -1, "a"),
                    )
                    for partition, leader, address in partitions
                },
                changes,
                tuple(map(key, removed)),
            )
        )

    def fence_all(self) -> None:
        """Lets every follower fetch, from offset 10."""
        for follower in self.manager.followers.values():
            follower.fenced(FenceAnswer(follower.generation, "a", LogState(10, 5, 0, 0)), 0)
            assert follower.state is FollowerState.FETCHING

    def placement(self) -> dict[int, set[int]]:
        return {
            identity.leader: {key.partition for key in fetcher.partitions}
            for identity, fetcher in self.manager.fetchers.items()
        }


def key(partition: int) -> PartitionKey:
    return PartitionKey(TOPIC_ID, partition)


async def test_partitions_of_one_leader_share_a_fetcher_and_its_fence_call() -> None:
    managed = Managed()
    await managed.follow((0, 1, "one"), (1, 2, "two"), (2, 1, "one"))
    assert managed.placement() == {1: {0, 2}, 2: {1}}
    one = managed.manager.fetchers[FetcherId(1, 0)]
    assert (one.leader.address, one.sessions) == ("one", [7])
    assert [type(action) for _, action in one.performed] == [Fence, Fence]


async def test_the_same_message_again_changes_nothing() -> None:
    managed = Managed()
    await managed.follow((0, 1, "one"))
    managed.fence_all()
    before = managed.manager.followers[key(0)].position()
    await managed.follow((0, 1, "one"))
    assert len(managed.opened) == 1
    assert managed.opened[0].sessions == [7]
    assert managed.manager.followers[key(0)].position() == before


async def test_a_partition_that_is_no_longer_named_is_dropped_and_an_idle_fetcher_stopped() -> None:
    managed = Managed()
    await managed.follow((0, 1, "one"), (1, 2, "two"))
    await managed.follow((1, 2, "two"))
    assert managed.placement() == {2: {1}}
    assert [fetcher.stopped for fetcher in managed.opened] == [True, False]
    assert key(0) not in managed.manager.followers


async def test_a_changed_address_replaces_the_fetcher_and_keeps_the_offsets() -> None:
    managed = Managed()
    await managed.follow((0, 1, "one"), (1, 1, "one"))
    managed.fence_all()
    followers = dict(managed.manager.followers)
    await managed.follow((0, 1, "elsewhere"), (1, 1, "elsewhere"))
    old, new = managed.opened
    assert old.stopped
    assert (new.leader.address, new.sessions, set(new.partitions)) == ("elsewhere", [7], {key(0), key(1)})
    assert new.performed == []  # nothing had to be asked again
    assert managed.manager.followers == followers
    assert all(follower.acked_offset == 10 for follower in new.partitions.values())


async def test_a_leader_that_registered_anew_is_connected_to_anew() -> None:
    """RULES 4.9. What its name leads to may be another host; the connection to the one before may seem to stand."""
    managed = Managed()
    await managed.follow((0, 1, "one"), (1, 2, "two"))
    managed.fence_all()
    await managed.follow((0, 1, "one"), leader_broker_epoch=8)
    assert [(fetcher.leader, fetcher.stopped) for fetcher in managed.opened] == [
        (LeaderEndpoint("one", 3), True),
        (LeaderEndpoint("two", 3), True),
        (LeaderEndpoint("one", 8), False),
    ]
    assert managed.manager.followers[key(0)].acked_offset == 10


async def test_a_changed_address_settles_what_was_under_way() -> None:
    managed = Managed()
    await managed.follow((0, 1, "one"))  # its fence is not answered yet
    await managed.follow((0, 1, "elsewhere"))
    ((_, action),) = managed.opened[1].performed
    assert isinstance(action, Fence)


async def test_a_changed_address_drops_what_is_no_longer_named() -> None:
    managed = Managed()
    await managed.follow((0, 1, "one"), (1, 1, "one"))
    await managed.follow((1, 1, "elsewhere"))
    assert managed.placement() == {1: {1}}


async def test_a_new_leader_takes_the_partition_to_its_fetcher_under_the_new_epoch() -> None:
    managed = Managed()
    await managed.follow((0, 1, "one"), (1, 2, "two"))
    managed.fence_all()
    await managed.follow((0, 2, "two"), (1, 2, "two"), leader_epoch=6)
    assert managed.placement() == {2: {0, 1}}
    assert managed.opened[0].stopped
    assert managed.manager.followers[key(0)].acked_offset is None  # RULES 4.1: nothing carries over an epoch
    epochs = [action.leader_epoch for _, action in managed.opened[1].performed if isinstance(action, Fence)]
    assert epochs == [5, 6, 6]


async def test_a_new_broker_epoch_reopens_every_session() -> None:
    managed = Managed()
    await managed.follow((0, 1, "one"), (1, 2, "two"))
    await managed.follow((0, 1, "one"), (1, 2, "two"), broker_epoch=9)
    assert [fetcher.sessions for fetcher in managed.opened] == [[7, 9], [7, 9]]
    assert managed.manager.broker_epoch == 9


async def test_after_a_new_broker_epoch_nothing_is_acknowledged_before_the_log_is_read_again() -> None:
    """The stream was broken while damage was cut: under the same leader epoch less is there by now (RULES 7.6)."""
    log = FollowingLog()
    followed = Followed("flights", 1, "one", 3, 5, -1)

    async def take(reader: FollowingReader) -> None:
        following = reader.take()
        assert following is not None
        await managed.manager.apply(from_following(to_following(3, following)))

    managed = Managed()
    log.publish(7, "a", {key(0): followed, key(1): followed})
    await take(FollowingReader(log, takes_changes=True))
    managed.fence_all()
    log.publish(9, "a", {key(0): None})  # it leaves the ISR, under another registration
    log.publish(9, "a", {key(0): followed})  # its log was cut from 10 to 4
    await take(FollowingReader(log, takes_changes=True))
    follower = managed.manager.followers[key(0)]
    assert follower.position() is None
    asked = {each.key: action for each, action in managed.opened[0].performed[-2:]}
    assert asked == {each.key: Fence(each.generation, 5) for each in managed.manager.followers.values()}
    follower.fenced(FenceAnswer(follower.generation, "a", LogState(4, 5, 0, 4)), 0)
    position = follower.position()
    assert position is not None
    assert (position.acked_offset, position.fetch_offset) == (4, 4)


async def test_changes_leave_what_they_do_not_name_as_it_is() -> None:
    managed = Managed()
    await managed.follow((0, 1, "one"), (1, 2, "two"), (2, 1, "one"))
    managed.fence_all()
    kept = managed.manager.followers[key(2)].position()
    await managed.follow((3, 2, "two"), changes=True, removed=[0, 77])
    assert managed.placement() == {1: {2}, 2: {1, 3}}
    assert managed.manager.followers[key(2)].position() == kept
    assert [fetcher.sessions for fetcher in managed.opened] == [[7], [7]]
    await managed.follow(changes=True, removed=[2])
    assert managed.placement() == {2: {1, 3}}
    assert managed.opened[0].stopped


async def test_a_partition_that_was_stopped_in_between_is_begun_anew() -> None:
    managed = Managed()
    await managed.follow((0, 1, "one"), (1, 1, "one"))
    managed.fence_all()
    before = managed.manager.followers[key(0)]
    await managed.follow((0, 1, "one"), changes=True, removed=[0])
    after = managed.manager.followers[key(0)]
    assert after is not before
    assert after.acked_offset is None
    assert managed.placement() == {1: {0, 1}}
    assert len(managed.opened) == 1


async def test_a_leader_that_registered_anew_takes_what_is_not_named_with_it() -> None:
    """A leader has one address; a connection to an earlier one would stay for ever."""
    managed = Managed()
    await managed.follow((0, 1, "one"), (1, 1, "one"), (2, 2, "two"))
    managed.fence_all()
    await managed.follow((0, 1, "one"), leader_broker_epoch=8, changes=True)
    assert managed.placement() == {1: {0, 1}, 2: {2}}
    assert [(fetcher.leader.broker_epoch, fetcher.stopped) for fetcher in managed.opened] == [
        (3, True),
        (3, False),
        (8, False),
    ]
    assert managed.manager.followers[key(1)].acked_offset == 10


async def test_changes_to_what_was_never_told_are_refused() -> None:
    """The stream that they come in is broken off, and the next begins with the whole (RULES 4.12)."""
    managed = Managed()
    with pytest.raises(ChangesOfAnotherError):
        await managed.follow((0, 1, "one"), changes=True)
    await managed.follow((0, 1, "one"))
    with pytest.raises(ChangesOfAnotherError):
        await managed.follow((1, 1, "one"), changes=True, broker_epoch=8)
    assert managed.placement() == {1: {0}}
    assert managed.manager.broker_epoch == 7


async def test_following_nothing_stops_everything() -> None:
    managed = Managed()
    await managed.follow((0, 1, "one"), (1, 2, "two"))
    await managed.follow()
    assert managed.placement() == {}
    assert all(fetcher.stopped for fetcher in managed.opened)


async def test_stop_stops_every_fetcher() -> None:
    managed = Managed()
    await managed.follow((0, 1, "one"), (1, 2, "two"))
    await managed.manager.stop()
    assert all(fetcher.stopped for fetcher in managed.opened)


def test_the_hash_is_kafkas() -> None:
    """Worked by hand from Java's UUID.hashCode of 6ba7b810-9dad-11d1-80b4-00c04fd430c8."""
    mixed = 0x6BA7B8109DAD11D1 ^ 0x80B400C04FD430C8
    hash_code = (mixed >> 32) ^ (mixed & 0xFFFFFFFF)
    value = (31 * hash_code + 4) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >> 31 else value
    assert fetcher_id_of(key(4), 1, 5) == FetcherId(1, abs(signed) % 5)


@given(topic_id=st.binary(min_size=16, max_size=16), fetchers=st.integers(1, 8))
def test_the_partitions_of_a_topic_are_spread_over_all_fetchers(topic_id: bytes, fetchers: int) -> None:
    ids = [fetcher_id_of(PartitionKey(topic_id, p), 1, fetchers).fetcher_id for p in range(4 * fetchers)]
    assert set(ids) <= set(range(fetchers))
    assert max(ids.count(i) for i in set(ids)) <= 8  # a change of sign within the run is the worst there is


async def test_partitions_are_spread_over_the_configured_number_of_fetchers() -> None:
    managed = Managed(fetchers=2)
    await managed.follow(*((partition, 1, "one") for partition in range(6)))
    assert sorted(len(fetcher.partitions) for fetcher in managed.opened) == [3, 3]
    for identity, fetcher in managed.manager.fetchers.items():
        assert all(fetcher_id_of(k, 1, 2) == identity for k in fetcher.partitions)


_LEADERS = st.dictionaries(st.integers(0, 5), st.tuples(st.integers(1, 3), st.sampled_from(["x", "y"])), max_size=6)


@given(messages=st.lists(st.tuples(st.booleans(), _LEADERS), max_size=8))
async def test_any_sequence_of_messages_ends_where_the_last_one_says(
    messages: list[tuple[bool, dict[int, tuple[int, str]]]],
) -> None:
    """Told as a whole, or as what has changed since the one before."""
    managed = Managed(fetchers=2)
    before: dict[int, tuple[int, str]] = {}
    for number, (whole, message) in enumerate(messages):
        # One leader has one address.
        addresses = dict(message.values())
        wanted = {partition: (leader, addresses[leader]) for partition, (leader, _) in message.items()}
        if whole or number == 0:
            await managed.follow(*((partition, *where) for partition, where in wanted.items()))
        else:
            await managed.follow(
                *((partition, *where) for partition, where in wanted.items() if before.get(partition) != where),
                changes=True,
                removed=sorted(before.keys() - wanted.keys()),
            )
        before = wanted
        placed = {
            (key.partition, identity.leader, fetcher.leader.address)
            for identity, fetcher in managed.manager.fetchers.items()
            for key in fetcher.partitions
        }
        assert placed == {(partition, *where) for partition, where in wanted.items()}
        assert managed.manager.followers.keys() == {key(partition) for partition in wanted}
        assert all(fetcher.partitions for fetcher in managed.manager.fetchers.values())
        assert {id(f) for f in managed.manager.fetchers.values()} == {id(f) for f in managed.opened if not f.stopped}

"""What watchers are told of what to follow (RULES 4.12): the whole first, then what has changed, merged."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from highwater.model.partition import PartitionKey
from highwater.replica_manager.partition.actions import Follow
from highwater.replica_manager.replicas.followed_partitions import FollowedPartitions
from highwater.replica_manager.replicas.following import Followed, Following
from highwater.replica_manager.replicas.following_log import FEW, FollowingLog, FollowingReader
from highwater.replica_manager.replicas.following_watch import FollowingWatch
from highwater.replica_manager.replicas.metadata_cache import Endpoint


def key(partition: int) -> PartitionKey:
    return PartitionKey(b"t" * 16, partition)


def followed(leader_epoch: int = 4, leader: int = 1) -> Followed:
    return Followed("orders", leader, f"b{leader}:1", 7, leader_epoch, -1)


@dataclass
class Watcher:
    """Keeps what it is told, as a fetcher does."""

    reader: FollowingReader
    told: dict[PartitionKey, Followed] = field(default_factory=dict)
    begun: list[PartitionKey] = field(default_factory=list)  # each time that one was begun

    def read(self) -> Following | None:
        following = self.reader.take()
        if following is not None:
            if not following.changes:
                assert following.removed == ()
                for gone in self.told.keys() - following.partitions.keys():
                    del self.told[gone]
            for gone in following.removed:
                self.told.pop(gone, None)
            self.begun += [each for each in following.partitions if each not in self.told]
            self.told.update(following.partitions)
        return following


def watcher(log: FollowingLog, *, takes_changes: bool = True) -> Watcher:
    return Watcher(FollowingReader(log, takes_changes=takes_changes))


def log_of(*partitions: int) -> FollowingLog:
    log = FollowingLog()
    log.publish(5, "a", {key(each): followed() for each in partitions})
    return log


def test_nothing_is_told_before_the_broker_is_registered() -> None:
    assert watcher(FollowingLog()).read() is None


def test_the_first_message_is_whole_and_later_ones_name_what_changed() -> None:
    log = log_of(0, 1, 2)
    fetcher = watcher(log)
    assert fetcher.read() == Following(5, "a", {key(each): followed() for each in (0, 1, 2)})
    assert fetcher.read() is None
    log.publish(5, "a", {key(1): followed(leader_epoch=9), key(2): None, key(3): followed()})
    assert fetcher.read() == Following(
        5, "a", {key(1): followed(leader_epoch=9), key(3): followed()}, changes=True, removed=(key(2),)
    )
    assert fetcher.read() is None


def test_a_change_to_what_is_so_already_is_none() -> None:
    log = log_of(0)
    fetcher = watcher(log)
    fetcher.read()
    log.publish(5, "a", {key(0): followed(), key(7): None})
    assert fetcher.read() is None


def test_changes_merge_to_the_latest_of_each_partition() -> None:
    log = log_of(0, 1)
    fetcher = watcher(log)
    fetcher.read()
    for epoch in range(5, 50):
        log.publish(5, "a", {key(0): followed(epoch)})
    log.publish(5, "a", {key(2): followed()})
    log.publish(5, "a", {key(2): None})
    assert fetcher.read() == Following(5, "a", {key(0): followed(49)}, changes=True, removed=(key(2),))


def test_a_partition_that_was_stopped_in_between_is_begun_anew() -> None:
    """Its log may be another by now, whatever else is the same."""
    log = log_of(0, 1)
    fetcher = watcher(log)
    fetcher.read()
    log.publish(5, "a", {key(0): None})
    log.publish(5, "a", {key(0): followed()})
    assert fetcher.read() == Following(5, "a", {key(0): followed()}, changes=True, removed=(key(0),))
    log.publish(5, "a", {key(0): followed(leader_epoch=9)})
    assert fetcher.read() == Following(5, "a", {key(0): followed(leader_epoch=9)}, changes=True)


def test_another_registration_is_a_whole() -> None:
    log = log_of(0, 1)
    fetcher = watcher(log)
    fetcher.read()
    log.publish(5, "a", {key(1): None})
    log.publish(6, "a", {})
    assert fetcher.read() == Following(6, "a", {key(0): followed()})
    log.publish(6, "b", {key(1): followed()})
    assert fetcher.read() == Following(6, "b", {key(0): followed(), key(1): followed()})


def test_a_fetcher_from_before_there_were_changes_is_told_wholes() -> None:
    log = log_of(0, 1)
    fetcher = watcher(log, takes_changes=False)
    fetcher.read()
    log.publish(5, "a", {key(1): None})
    assert fetcher.read() == Following(5, "a", {key(0): followed()})
    log.publish(5, "a", {key(2): followed()})
    assert fetcher.read() == Following(5, "a", {key(0): followed(), key(2): followed()})


def test_a_message_is_as_it_was_taken() -> None:
    log = log_of(0, 1)
    fetcher = watcher(log)
    whole = fetcher.read()
    log.publish(5, "a", {key(0): followed(leader_epoch=9)})
    change = fetcher.read()
    log.publish(5, "a", {key(0): None, key(1): None})
    assert whole == Following(5, "a", {key(0): followed(), key(1): followed()})
    assert change == Following(5, "a", {key(0): followed(leader_epoch=9)}, changes=True)


def test_removals_are_not_remembered_for_ever() -> None:
    """Whoever has not read them is told everything; whoever has is not."""
    log = log_of(0, 1)
    quick, slow = watcher(log), watcher(log)
    quick.read()
    slow.read()
    wholes = 0
    for number in range(2, 20 * FEW):
        log.publish(5, "a", {key(number): followed()})
        log.publish(5, "a", {key(number): None})
        told = quick.read()
        assert told is not None
        wholes += not told.changes
        assert len(log) <= 2 * FEW + 3
    assert wholes == 0
    told = slow.read()
    assert told is not None
    assert not told.changes
    assert slow.told == quick.told == log.followed()


_CHANGES = st.dictionaries(
    st.integers(0, 150).map(key), st.none() | st.builds(followed, st.integers(1, 3)), max_size=80
)


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("publish"), _CHANGES),
            st.tuples(st.just("register"), st.integers(5, 7)),
            st.tuples(st.just("read"), st.integers(0, 2)),
            st.tuples(st.just("reconnect"), st.integers(0, 2)),
        ),
        max_size=30,
    )
)
def test_whoever_reads_knows_all_whenever_it_reads(steps: list[tuple[str, object]]) -> None:
    log = log_of(0, 1)
    broker_epoch = 5
    watchers = [watcher(log), watcher(log, takes_changes=False), watcher(log)]
    stops: list[set[PartitionKey]] = [set(), set(), set()]  # followed no more since each has read last
    for what, argument in steps:
        match what, argument:
            case "publish", dict():
                for removed in [each for each, now in argument.items() if now is None and each in log.followed()]:
                    for stopped in stops:
                        stopped.add(removed)
                log.publish(broker_epoch, "a", argument)
            case "register", int():
                broker_epoch = argument
                log.publish(broker_epoch, "a", {})
            case "read", int():
                one, before = watchers[argument], dict(watchers[argument].told)
                one.begun.clear()
                told = one.read()
                assert one.told == log.followed()
                assert one.reader.take() is None
                if told is not None and told.changes:
                    assert stops[argument] & before.keys() & one.told.keys() <= set(one.begun)
                    new = {each for each, now in one.told.items() if before.get(each) != now}
                    assert new <= told.partitions.keys() <= new | set(one.begun) | before.keys()
                stops[argument].clear()
            case "reconnect", int():
                watchers[argument].reader = FollowingReader(log, takes_changes=argument != 1)
                stops[argument].clear()  # a whole follows
    for one in watchers:
        one.read()
        assert one.told == log.followed()


# Waiting


async def test_a_watch_that_is_between_two_reads_misses_nothing() -> None:
    watch = FollowingWatch()
    watch.publish(5, "a", {key(0): followed()})
    messages = watch.watch(takes_changes=True)
    assert await anext(messages) == Following(5, "a", {key(0): followed()})
    watch.publish(5, "a", {key(0): followed()})  # no change
    watch.publish(5, "a", {key(1): followed()})
    watch.publish(5, "a", {key(0): None})
    assert await anext(messages) == Following(5, "a", {key(1): followed()}, changes=True, removed=(key(0),))
    watch.publish(5, "a", {key(2): followed()})
    assert await anext(messages) == Following(5, "a", {key(2): followed()}, changes=True)


# Where leaders are


def endpoint(broker_id: int, broker_epoch: int = 7) -> Endpoint:
    return Endpoint(broker_id, broker_epoch, f"b{broker_id}:1", "")


def test_a_leader_that_registers_anew_changes_the_partitions_that_it_leads() -> None:
    partitions = FollowedPartitions()
    for number in range(4):
        partitions.follow(key(number), "orders", Follow(1 + number % 2, 4, -1))
    brokers = {1: endpoint(1), 2: endpoint(2)}
    assert partitions.take_changes(brokers) == {key(number): followed(4, 1 + number % 2) for number in range(4)}
    assert partitions.take_changes(brokers) == {}
    brokers[1] = endpoint(1, 8)
    changed = partitions.take_changes(brokers)
    assert {each: now and now.leader_broker_epoch for each, now in changed.items()} == {key(0): 8, key(2): 8}
    del brokers[2]
    assert partitions.take_changes(brokers) == {key(1): None, key(3): None}
    brokers[2] = endpoint(2)
    assert partitions.take_changes(brokers) == {key(1): followed(4, 2), key(3): followed(4, 2)}


def test_a_partition_goes_with_its_leader_and_may_stop() -> None:
    partitions = FollowedPartitions()
    brokers = {1: endpoint(1), 2: endpoint(2)}
    partitions.follow(key(0), "orders", Follow(1, 4, -1))
    partitions.take_changes(brokers)
    partitions.follow(key(0), "orders", Follow(2, 5, -1))
    assert partitions.take_changes(brokers) == {key(0): followed(5, 2)}
    assert partitions.take_changes({2: endpoint(2)}) == {}  # its former leader is none of its business
    assert partitions.stop(key(0))
    assert not partitions.stop(key(0))
    assert partitions.take_changes(brokers) == {key(0): None}


_EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("follow"), st.integers(0, 5), st.integers(1, 3)),
        st.tuples(st.just("stop"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("register"), st.integers(1, 3), st.integers(7, 9)),
        st.tuples(st.just("leave"), st.integers(1, 3), st.just(0)),
        st.tuples(st.just("publish"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@given(events=_EVENTS)
def test_what_changes_adds_up_to_all_that_is_followed(events: list[tuple[str, int, int]]) -> None:
    partitions, log = FollowedPartitions(), FollowingLog()
    brokers: dict[int, Endpoint] = {}
    follows: dict[PartitionKey, int] = {}
    for what, first, second in [*events, ("publish", 0, 0)]:
        match what:
            case "follow":
                partitions.follow(key(first), "orders", Follow(second, 4, -1))
                follows[key(first)] = second
            case "stop":
                partitions.stop(key(first))
                follows.pop(key(first), None)
            case "register":
                brokers[first] = endpoint(first, second)
            case "leave":
                brokers.pop(first, None)
            case "publish":
                log.publish(5, "a", partitions.take_changes(brokers))
                assert {each: (now.leader, now.leader_broker_epoch) for each, now in log.followed().items()} == {
                    each: (leader, brokers[leader].broker_epoch)
                    for each, leader in follows.items()
                    if leader in brokers
                }

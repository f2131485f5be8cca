"""What etcd is to hold once it was lost: of every topic that a volume or the backup knows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from highwater.errors import UserError
from highwater.kube.lost_etcd.backup_file import Backup
from highwater.kube.lost_etcd.inventory import BrokerInventory, Directory, Replica, from_json, from_lines
from highwater.kube.lost_etcd.plan import (
    LEADER_EPOCHS_UNSEEN,
    PRODUCER_IDS_UNSEEN,
    UNKNOWN_CONFIG,
    Plan,
    PlannedPartition,
    plan,
)
from highwater.metadata.schema.keys import Keys
from highwater.metadata.schema.models import NO_LEADER, PartitionState, TopicAssignment, config_to_json
from highwater.metadata.state.acls import ACL_VALUE
from highwater.model.leader_epochs import EpochEntry
from highwater.security.acls import parse_acl

CLUSTER_ID = "the-cluster"
ORDERS, OTHER = b"o" * 16, b"x" * 16
KEYS = Keys("highwater")


def log(
    partition: int = 0, end: int = 10, *, topic: str = "orders", topic_id: bytes = ORDERS, epoch: int = 1, **more: Any
) -> Replica:
    epochs = (EpochEntry(epoch, 0),) if end else ()
    found = Replica(topic, topic_id, partition, 0, end, 0, epochs, epoch if end else -1, epoch, -1)
    return replace(found, **more)


def inventory(broker: int, *logs: Replica, **more: Any) -> BrokerInventory:
    made = BrokerInventory(broker, CLUSTER_ID, (Directory("/data/0", f"dir-{broker}"),), logs)
    return replace(made, **more)


def backup(
    topics: Mapping[str, tuple[bytes, Sequence[Sequence[int]]]],
    configs: Mapping[str, Mapping[str, str]] | None = None,
    *,
    leader_epoch: int = 0,
    more: Mapping[str, bytes] | None = None,
) -> Backup:
    entries = {"/cluster_id": CLUSTER_ID.encode(), "/controller_epoch": b"7", **(more or {})}
    for name, (topic_id, assigned) in topics.items():
        replicas = tuple(map(tuple, assigned))
        entries[f"/brokers/topics/{name}"] = TopicAssignment(name, topic_id, replicas).to_json()
        config = (configs or {}).get(name, {})
        entries[f"/config/topics/{name}"] = config_to_json(config)
        for partition, members in enumerate(replicas):
            state = PartitionState(members[0], leader_epoch, 3, tuple(sorted(members)))
            entries[f"/brokers/topics/{name}/partitions/{partition}/state"] = state.to_json()
    return Backup("highwater", CLUSTER_ID, 99, 1_700_000_000_000, entries)


def only(made: Plan) -> PlannedPartition:
    [partition] = made.partitions
    return partition


def test_a_topic_of_the_volumes_alone() -> None:
    made = plan(
        [inventory(1, log(end=8, epoch=4), log(1)), inventory(2, log(end=9, epoch=4), log(1, end=3)), inventory(3)]
    )
    [topic] = made.topics
    assert topic.assignment == TopicAssignment("orders", ORDERS, ((1, 2), (2, 1)))
    assert topic.config == UNKNOWN_CONFIG
    assert [each.leader_log for each in topic.partitions] == [2, 1]
    assert topic.partitions[0].state == PartitionState(NO_LEADER, 5, 0, (2,))
    assert not made.doubtful
    assert made.cluster_id == CLUSTER_ID


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.integers(0, 9), st.integers(0, 12), st.integers(-1, 9), st.integers(-1, 5000)),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 30),
    st.booleans(),
)
def test_epochs_and_ids_are_above_all_that_is_known(
    found: list[tuple[int, int, int, int, int]], known_epoch: int, with_backup: bool
) -> None:
    logs = [
        log(0, end, epoch=epoch, fence_epoch=max(fence, led, epoch), led_epoch=led, highest_producer_id=producer_id)
        for end, epoch, fence, led, producer_id in found
    ]
    known = backup({"orders": (ORDERS, [[1, 2, 3, 4]])}, leader_epoch=known_epoch) if with_backup else None
    made = plan([inventory(broker, each) for broker, each in enumerate(logs, 1)], known)
    state = only(made).state
    assert all(state.leader_epoch > max(each.fence_epoch, each.last_epoch, each.led_epoch or 0) for each in logs)
    assert not with_backup or state.leader_epoch > known_epoch
    assert made.controller_epoch > 7
    assert made.next_producer_id > max(each.highest_producer_id for each in logs)
    assert state.leader == NO_LEADER
    assert set(state.isr) <= set(only(made).replicas)
    assert len(state.isr) == 1 or not any(each.log_end_offset for each in logs)
    assert state.unclean_epoch <= state.leader_epoch


def test_the_backup_tells_of_configurations_assignments_and_what_nobody_has_a_log_of() -> None:
    known = backup(
        {"orders": (ORDERS, [[2, 1], [1, 2]]), "idle": (OTHER, [[3, 1]])},
        {"orders": {"cleanup.policy": "compact"}, "idle": {"retention.ms": "5"}},
        more={"/producer_ids": json.dumps({"next": 8000}).encode(), "/brokers/tail/1": b"57"},
    )
    made = plan([inventory(1, log(), log(1)), inventory(2, log(), log(2)), inventory(3)], known)
    idle, orders = made.topics
    assert idle.assignment == TopicAssignment("idle", OTHER, ((3, 1),))
    assert only(replace(made, topics=(idle,))).state.isr == (1, 3)  # all of them hold the same, nothing
    assert (idle.config, orders.config) == ({"retention.ms": "5"}, {"cleanup.policy": "compact"})
    assert orders.assignment.replicas == ((2, 1), (1, 2), (2,))  # a partition was added since
    assert made.next_producer_id == 8000 + PRODUCER_IDS_UNSEEN
    # A broker epoch of the old etcd must not be taken for one of the new.
    assert not [key for key, _ in made.values(KEYS) if "/tail/" in key]


def test_what_was_set_while_services_ran_comes_back_before_any_topic() -> None:
    """A retention that was raised for all brokers is not to be missing when the first of them starts."""
    configs = {
        "/config/brokers/__default": b'{"log.retention.ms":"-1"}',
        "/config/clients/a%2Fb": b'{"producer_byte_rate":"5"}',
        "/config/cluster": b'{"min.insync.replicas":"2"}',
        "/config/users/anna/clients/__default": b'{"consumer_byte_rate":"5"}',
    }
    made = plan([inventory(1, log())], backup({"orders": (ORDERS, [[1]])}, more=configs))
    values = [(key.removeprefix(KEYS.prefix), value) for key, value in made.values(KEYS)]
    assert dict(values[: len(configs)]) == configs
    assert plan([inventory(1, log())]).entity_configs == ()


def test_topics_come_after_all_of_their_states() -> None:
    made = plan([inventory(1, log(), log(1))])
    assert [key.removeprefix(KEYS.prefix) for key, _ in (*made.values(KEYS), *made.topic_values(KEYS))] == [
        "/config/topics/orders",
        "/brokers/topics/orders/partitions/0/state",
        "/brokers/topics/orders/partitions/1/state",
        "/brokers/topics/orders",
    ]


def test_a_topic_made_again_since_the_backup_is_another_one() -> None:
    known = backup({"orders": (OTHER, [[1, 2]])}, {"orders": {"retention.ms": "5"}}, leader_epoch=40)
    made = plan([inventory(1, log()), inventory(2, log())], known)
    assert made.topics[0].assignment.topic_id == ORDERS
    assert made.topics[0].config == UNKNOWN_CONFIG
    assert only(made).state.leader_epoch == 2


def test_two_topics_of_one_name_are_decided_by_who_knows() -> None:
    volumes = [inventory(1, log()), inventory(2, log(topic_id=OTHER, end=3))]
    with pytest.raises(UserError, match="--topic orders=ID") as refused:
        plan(volumes)
    assert OTHER.hex() in str(refused.value)
    made = plan(volumes, topic_ids={"orders": OTHER})
    assert made.topics[0].assignment == TopicAssignment("orders", OTHER, ((2,),))
    with pytest.raises(UserError, match="no volume has"):
        plan(volumes, topic_ids={"orders": b"?" * 16})


def test_a_topic_that_was_being_deleted_stays_deleted() -> None:
    known = backup({"orders": (ORDERS, [[1]])}, more={"/admin/delete_topics/orders": ORDERS.hex().encode()})
    made = plan([inventory(1, log())], known)
    assert made.topics == ()
    assert any("was being deleted" in note for note in made.notes)
    [again] = plan([inventory(1, log(topic_id=OTHER))], known).topics
    assert again.assignment.topic_id == OTHER


def test_a_missing_broker_counts_against_what_the_configuration_promises() -> None:
    known = backup({"orders": (ORDERS, [[1, 2, 3]])})
    there = [inventory(1, log()), inventory(2, log(end=7))]
    made = plan(there, known, min_insync_replicas=2)
    assert not made.doubtful
    assert only(made).state.leader_epoch > LEADER_EPOCHS_UNSEEN  # what broker 3 was fenced under is not known
    assert only(plan(there, known, min_insync_replicas=1)).doubts
    assert only(plan(there[:1], known, min_insync_replicas=2)).doubts
    own = backup({"orders": (ORDERS, [[1, 2, 3]])}, {"orders": {"min.insync.replicas": "1"}})
    assert only(plan(there, own, min_insync_replicas=2)).doubts


def test_a_volume_in_the_place_of_another_one_counts_beside_a_missing_one() -> None:
    """It was used since, so it is whole, and has no log of the partition (RULES 7.2)."""
    known = backup({"orders": (ORDERS, [[1, 2, 3]])})
    made = plan([inventory(1, log()), inventory(2, tail_lost=True)], known, without=[3], min_insync_replicas=2)
    assert "what broker 2 wrote last may be gone" in only(made).doubts[0]
    others = plan([inventory(1, log()), inventory(4, tail_lost=True)], known, without=[2, 3], min_insync_replicas=3)
    assert not others.doubtful  # it has no replica


def test_a_directory_in_doubt_is_one_with_a_lost_tail() -> None:
    """Its broker is registered so (RULES 7.2), and the election is by log: broker 2 would win it."""
    logs = [
        log(end=3, epochs=(EpochEntry(1, 0),), last_epoch=1, fence_epoch=3, led_epoch=3),
        log(end=2, epochs=(EpochEntry(1, 0), EpochEntry(2, 1)), last_epoch=2, fence_epoch=2, led_epoch=2),
    ]
    volumes = [inventory(broker, each) for broker, each in enumerate(logs, 1)]
    known = backup({"orders": (ORDERS, [[1, 2]])}, more={"/brokers/doubted_dirs/dir-1": b""})
    assert only(plan(volumes, known, min_insync_replicas=2)).leader_log == 1
    assert "broker 2 would win it" in only(plan(volumes, known, min_insync_replicas=2)).doubts[0]
    assert not plan(volumes, backup({"orders": (ORDERS, [[1, 2]])}), min_insync_replicas=2).doubtful


def test_acls_are_those_of_the_backup() -> None:
    acl = parse_acl("topic", "prefixed", "or", "User:CN=a,O=b/c", "read", "deny")
    key = KEYS.acl(acl).removeprefix(KEYS.prefix)
    known = backup({"orders": (ORDERS, [[1, 2]])}, more={key: ACL_VALUE, "/acls/nonsense": b"{}"})
    volumes = [inventory(1, log()), inventory(2, log())]
    unreadable = KEYS.acls + "nonsense"
    assert plan(volumes, known).acls == (*KEYS.unreadable_acls(unreadable), acl)
    values = plan(volumes, known).values(KEYS)
    assert [each for each in values if each[0].startswith(KEYS.acls)] == [
        (unreadable, ACL_VALUE),
        (KEYS.acl(acl), ACL_VALUE),
    ]
    assert not plan(volumes).acls


def test_what_only_a_missing_broker_knows_is_a_doubt_until_it_is_gone_for_good() -> None:
    known = backup({"orders": (ORDERS, [[1, 2, 3]])})
    there = [inventory(1, log()), inventory(2, log())]
    [doubt] = plan(there, known, min_insync_replicas=2).doubts
    assert "--without-broker 3" in doubt
    assert not plan(there, known, without=[3], min_insync_replicas=2).doubts
    assert plan(there, brokers=[1, 2, 3, 4], without=[3]).doubts
    assert not plan([*there, inventory(3)], known).doubts


def test_of_a_topic_without_a_backup_a_missing_broker_may_have_had_the_only_copy() -> None:
    there = [inventory(1, log()), inventory(2, log())]
    assert not plan(there).doubtful
    made = plan(there, brokers=[1, 2, 3], min_insync_replicas=2)
    assert "broker 3" in only(made).doubts[0]
    assert only(made).state.unclean_epoch == only(made).state.leader_epoch


@pytest.mark.parametrize(
    "second",
    [
        inventory(2, log(failure="a disk error")),
        inventory(2, missing_directories=1),
        inventory(2, cluster_id="", tail_lost=True),  # an empty volume in the place of another one
        inventory(2, directories=(Directory("/data/0", "dir-2", "a disk error"),)),
        inventory(2, unidentified=(("orders", 0),)),
    ],
)
def test_what_cannot_be_read_counts_as_missing(second: BrokerInventory) -> None:
    assert only(plan([inventory(1, log()), second])).doubts
    assert not plan(
        [inventory(1, log()), second, inventory(3, log())],
        backup({"orders": (ORDERS, [[1, 2, 3]])}),
        min_insync_replicas=2,
    ).doubtful


def test_a_partition_that_nobody_can_read_is_no_empty_one() -> None:
    made = plan([inventory(1, log(failure="a disk error", fence_epoch=12))])
    assert "no replica could be read" in only(made).doubts[0]
    assert only(made).state.leader_epoch > 12


def test_a_partition_between_others_that_has_no_log_is_empty() -> None:
    made = plan([inventory(1, log(), log(2)), inventory(2, log(), log(2))])
    assert made.topics[0].assignment.replicas == ((1, 2), (2, 1), (1, 2))
    assert made.topics[0].partitions[1].state.isr == (1, 2)


def test_what_does_not_belong_together_is_refused() -> None:
    with pytest.raises(UserError, match="several clusters"):
        plan([inventory(1, log()), inventory(2, cluster_id="another")])
    with pytest.raises(UserError, match="two inventories of broker 1"):
        plan([inventory(1, log()), inventory(1)])
    with pytest.raises(UserError, match="no inventory"):
        plan([])
    with pytest.raises(UserError, match="nothing to rebuild"):
        plan([inventory(1, cluster_id="")])


def test_an_inventory_comes_back_from_its_json() -> None:
    made = inventory(1, log(highest_producer_id=4), log(1, led_epoch=None), unidentified=(("a", 3),), tail_lost=True)
    assert from_lines([made.to_json(), "", inventory(2).to_compressed()]) == [made, inventory(2)]
    for text in (
        "inventory:aa",
        made.to_compressed()[:-9],
        "",
        "{}",
        "[]",
        made.to_json().replace('"version":1', '"version":2'),
    ):
        with pytest.raises(UserError, match="no inventory"):
            from_json(text)

"""The bounds and forms of requests, checked before anything is decided. Each check answers None where all is
well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from highwater.errors import ErrorCode
from highwater.groups.assignors import ASSIGNORS
from highwater.groups.group import Group
from highwater.groups.patterns import MOST_MATCHED_BYTES, PatternError, compile_pattern
from highwater.groups.requests import Heartbeat, OffsetToCommit, Refusal, Subscription
from highwater.groups.topics import TopicImage
from highwater.model.topic_name import is_legal_topic_name

LONGEST_GROUP_ID = 32_767  # bytes: what an int16 of the records' keys can say
LONGEST_NAME = 255  # characters of a member id, instance id, rack and client id
MOST_TOPICS = 10_000  # that one member may subscribe to by name
MOST_NAMES = 50_000  # in the different subscriptions of a group's members: each change of the group looks at all
MOST_PATTERNS = 16  # of all members of a group: each is matched with every topic
MOST_METADATA_BYTES = 1 << 20  # of all offsets of a commit
MOST_ID_BYTES = 4 << 20  # of the group's id in the records of one request: it stands in the key of each


def check_group_id(group_id: str) -> Refusal | None:
    if not group_id:
        return Refusal(ErrorCode.INVALID_GROUP_ID, "the group's id is empty: give it a name")
    if len(group_id) > LONGEST_GROUP_ID // 4 and len(group_id.encode()) > LONGEST_GROUP_ID:
        return Refusal(ErrorCode.INVALID_GROUP_ID, f"the group's id has more than {LONGEST_GROUP_ID} bytes")
    return None


def check_heartbeat(request: Heartbeat) -> Refusal | None:
    names = {"member id": request.member_id, "instance id": request.instance_id, "host": request.client_host}
    if request.subscription is not None:
        names |= {"rack": request.subscription.rack, "client id": request.subscription.client_id}
    for what, name in names.items():
        if len(name) > LONGEST_NAME:
            return _invalid(f"the {what} has {len(name)} characters: {LONGEST_NAME} are the most")
    if not request.member_id:
        return _invalid("the member id is empty: make a UUID, and keep it")
    if request.member_epoch < -2:
        return _invalid(f"the member epoch is {request.member_epoch}: 0 joins, -1 and -2 leave")
    return check_subscription(request.subscription) if request.subscription is not None else None


def check_subscription(subscription: Subscription) -> Refusal | None:
    if len(subscription.topics) > MOST_TOPICS:
        return _invalid(f"a subscription to {len(subscription.topics)} topics: {MOST_TOPICS} are the most")
    for topic in subscription.topics:
        if not is_legal_topic_name(topic):
            return _invalid(f"a subscription to {topic!r}, a name that no topic may have")
    if not 1 <= subscription.rebalance_timeout_ms < 2**31:
        return _invalid(f"the rebalance timeout is {subscription.rebalance_timeout_ms} ms: 1 is the least")
    if subscription.assignor and subscription.assignor not in ASSIGNORS:
        known = " and ".join(ASSIGNORS)
        return Refusal(ErrorCode.UNSUPPORTED_ASSIGNOR, f"there is no assignor {subscription.assignor!r}: {known} are")
    if subscription.pattern:
        try:
            compile_pattern(subscription.pattern)
        except PatternError as error:
            return Refusal(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error))
    return None


def check_pattern_of(group: Group | None, image: TopicImage, pattern: str, former: str = "") -> Refusal | None:
    """Of a member of that group, or of one that comes to be with it. `former`: its pattern until now, or that of the
    member whose place it takes. A group that has more, from before there was a bound, may change them and add none."""
    patterns = group.pattern_subscribers if group is not None else Counter[str]()
    count = len(patterns) - (patterns[former] == 1)
    if not pattern or pattern in patterns:
        return None
    if count >= max(MOST_PATTERNS, len(patterns)):
        return _invalid(
            f"the group's members have {count} patterns: {MOST_PATTERNS} are the most, let some be the same"
        )
    return _check_matches(pattern, image)


def _check_matches(pattern: str, image: TopicImage) -> Refusal | None:
    if image.names_bytes <= MOST_MATCHED_BYTES:
        return None
    matched = image.matching(pattern)
    size = sum(map(len, matched))
    if size <= MOST_MATCHED_BYTES:
        return None
    return _invalid(
        f"the pattern {pattern!r} matches {len(matched)} topics with names of {size} bytes: {MOST_MATCHED_BYTES} are "
        "the most, use several that match less"
    )


def check_names_of(group: Group | None, topics: frozenset[str], former: frozenset[str] = frozenset()) -> Refusal | None:
    """As `check_pattern_of`, of the names of topics."""
    if group is None or not topics or topics in group.subscriptions:
        return None
    count = group.subscribed_names + len(topics) - (len(former) if group.subscriptions[former] == 1 else 0)
    if count <= max(MOST_NAMES, group.subscribed_names):
        return None
    return _invalid(
        f"the group's members would have {count} topics in different subscriptions: {MOST_NAMES} are the most, let "
        "some be the same, or use several groups"
    )


def check_count(group_id: str, count: int) -> Refusal | None:
    """Of the offsets that one request keeps or removes, where the id is a long one."""
    size = len(group_id.encode()) * count
    if size <= MOST_ID_BYTES:
        return None
    return _invalid(
        f"{count} offsets, each with the group's id of {size // count} bytes: {MOST_ID_BYTES} bytes are the most, "
        "send several"
    )


def check_offsets(group_id: str, offsets: Sequence[OffsetToCommit]) -> Refusal | None:
    """Of one commit; each is checked by itself besides."""
    if (refusal := check_count(group_id, len(offsets))) is not None:
        return refusal
    if len({(each.topic, each.partition) for each in offsets}) < len(offsets):
        return _invalid("a commit has a partition twice: one offset for each")
    size = sum(len(each.metadata.encode()) for each in offsets)
    if size > MOST_METADATA_BYTES:
        return _invalid(f"a commit has {size} bytes of metadata: {MOST_METADATA_BYTES} are the most, send several")
    return None


def check_offset(offset: OffsetToCommit, image: TopicImage, metadata_max_bytes: int) -> Refusal | None:
    place = f"{offset.topic}-{offset.partition}"
    topic = image.named(offset.topic)
    if topic is None or not 0 <= offset.partition < topic.partitions:
        return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {place}")
    if offset.topic_id and offset.topic_id != topic.topic_id:
        return Refusal(
            ErrorCode.UNKNOWN_TOPIC_ID, f"the topic of {place} has another id: it was deleted and made again"
        )
    if not 0 <= offset.offset < 2**63 or not -1 <= offset.leader_epoch < 2**31:
        return _invalid(f"offset {offset.offset}, leader epoch {offset.leader_epoch} of {place} are none")
    if len(offset.metadata.encode()) > metadata_max_bytes:
        return Refusal(
            ErrorCode.OFFSET_METADATA_TOO_LARGE,
            f"the metadata of {place} has more than {metadata_max_bytes} bytes (offset.metadata.max.bytes)",
        )
    return None


def _invalid(message: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, message)

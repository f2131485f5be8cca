"""The closed set of error codes, with Kafka's names, and whether a retry can help; and the error that a user can mend.

The numbers are those of `proto/highwater/v1/common.proto`; a unit test holds the two together. Decisions (the pure
objects) speak of `ErrorCode`; only the servers' edges turn it into a protobuf `Error`.
"""

from __future__ import annotations

from enum import IntEnum


class ErrorCode(IntEnum):
    NONE = 0
    UNKNOWN_SERVER_ERROR = 1
    OFFSET_OUT_OF_RANGE = 2
    CORRUPT_MESSAGE = 3
    UNKNOWN_TOPIC_OR_PARTITION = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    REPLICA_NOT_AVAILABLE = 8
    MESSAGE_TOO_LARGE = 9
    NETWORK_EXCEPTION = 10
    INVALID_TOPIC = 11
    NOT_ENOUGH_REPLICAS = 12
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 13
    INVALID_REQUIRED_ACKS = 14
    TOPIC_ALREADY_EXISTS = 15
    INVALID_PARTITIONS = 16
    INVALID_REPLICATION_FACTOR = 17
    INVALID_CONFIG = 18
    NOT_CONTROLLER = 19
    INVALID_REQUEST = 20
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 21
    OUT_OF_ORDER_SEQUENCE_NUMBER = 22
    DUPLICATE_SEQUENCE_NUMBER = 23
    INVALID_PRODUCER_EPOCH = 24
    UNKNOWN_PRODUCER_ID = 25
    FENCED_LEADER_EPOCH = 26
    UNKNOWN_LEADER_EPOCH = 27
    STALE_CONTROLLER_EPOCH = 28
    STALE_BROKER_EPOCH = 29
    OFFSET_NOT_AVAILABLE = 30
    LOG_STORAGE_ERROR = 31
    UNKNOWN_TOPIC_ID = 32
    INCONSISTENT_TOPIC_ID = 33
    POLICY_VIOLATION = 34
    THROTTLING_QUOTA_EXCEEDED = 35
    INVALID_TIMESTAMP = 36
    INVALID_RECORD = 37
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 38
    ELECTION_NOT_NEEDED = 39
    NO_REASSIGNMENT_IN_PROGRESS = 40
    REASSIGNMENT_IN_PROGRESS = 41
    COORDINATOR_NOT_AVAILABLE = 42
    NOT_COORDINATOR = 43
    UNKNOWN_MEMBER_ID = 44
    ILLEGAL_GENERATION = 45
    REBALANCE_IN_PROGRESS = 46
    INVALID_GROUP_ID = 47
    GROUP_AUTHORIZATION_FAILED = 48
    LISTENER_NOT_FOUND = 49
    COORDINATOR_LOAD_IN_PROGRESS = 50
    FENCED_MEMBER_EPOCH = 51
    STALE_MEMBER_EPOCH = 52
    UNRELEASED_INSTANCE_ID = 53
    UNSUPPORTED_ASSIGNOR = 54
    NON_EMPTY_GROUP = 55
    GROUP_ID_NOT_FOUND = 56
    GROUP_MAX_SIZE_REACHED = 57
    GROUP_SUBSCRIBED_TO_TOPIC = 58
    STORAGE_FULL = 59
    UNKNOWN_FENCE = 60
    STALE_FENCE = 61
    OFFSET_MISMATCH = 62
    TRUNCATION_BELOW_HIGH_WATERMARK = 63
    REPLICA_NOT_ASSIGNED = 64
    FETCH_SESSION_STALE = 65
    OVERLOADED = 66
    OFFSET_METADATA_TOO_LARGE = 67
    INVALID_REGULAR_EXPRESSION = 68
    UNSTABLE_OFFSET_COMMIT = 69
    FENCED_INSTANCE_ID = 70
    TOPIC_AUTHORIZATION_FAILED = 71
    CLUSTER_AUTHORIZATION_FAILED = 72
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 73
    SECURITY_DISABLED = 74

    @property
    def retriable(self) -> bool:
        """Tells whether the same request may succeed later, perhaps at another broker."""
        return self in _RETRIABLE

    @property
    def sentence(self) -> str:
        """Says what the code means and what to do, for an answer that knows no more than the code; empty for NONE."""
        return _SENTENCES.get(self, "")


_RETRIABLE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.LOG_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.STORAGE_FULL,
        ErrorCode.UNKNOWN_FENCE,
        ErrorCode.STALE_FENCE,
        ErrorCode.OFFSET_MISMATCH,
        ErrorCode.FETCH_SESSION_STALE,
        ErrorCode.OVERLOADED,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    }
)


_SENTENCES = {
    ErrorCode.UNKNOWN_SERVER_ERROR: "an error that this version does not know: the server's log says more",
    ErrorCode.OFFSET_OUT_OF_RANGE: "the offset is not in the log: go on at one between its start and its end",
    ErrorCode.CORRUPT_MESSAGE: "a batch is not what its CRC or its header says: make it again, and send that",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "there is no such topic or partition, or not yet: create it, or try again",
    ErrorCode.LEADER_NOT_AVAILABLE: "the partition has no leader now: try again in a moment",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "this broker does not lead the partition: ask for Metadata, and try its leader",
    ErrorCode.REQUEST_TIMED_OUT: "it was not done in time, and may be done yet: look, or try again",
    ErrorCode.REPLICA_NOT_AVAILABLE: "this broker has no replica of the partition: ask one that has",
    ErrorCode.MESSAGE_TOO_LARGE: "a batch is larger than the topic's max.message.bytes: send smaller ones",
    ErrorCode.NETWORK_EXCEPTION: "the connection broke, and what was asked may have been done: look, or try again",
    ErrorCode.INVALID_TOPIC: "no topic may have that name, or it is the cluster's own: take another one",
    ErrorCode.NOT_ENOUGH_REPLICAS: "too few replicas are in sync (min.insync.replicas), nothing was written: try again",
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "too few replicas are in sync, the records are in the log: try again",
    ErrorCode.INVALID_REQUIRED_ACKS: "acks is none of 0, 1 and -1 (all): take one of them",
    ErrorCode.TOPIC_ALREADY_EXISTS: "there is a topic of that name, or it is still being deleted: take another name",
    ErrorCode.INVALID_PARTITIONS: "a topic cannot have that number of partitions: take one from 1 to 10,000",
    ErrorCode.INVALID_REPLICATION_FACTOR: "there are not so many brokers, or it is below 1: take a number from 1 up",
    ErrorCode.INVALID_CONFIG: "a key is not known, or cannot have that value: DescribeConfigs names the keys",
    ErrorCode.NOT_CONTROLLER: "this controller is not the active one: ask the one that is, or any broker",
    ErrorCode.INVALID_REQUEST: "the request is malformed: docs/protocol.md says what it may hold",
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: "a batch has columns where rows are wanted: accept columns, or send rows",
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: "the sequence is not the producer's next one: send the missing batch first",
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: "the log has the batch, which stands behind a new one: send it by itself",
    ErrorCode.INVALID_PRODUCER_EPOCH: "the log knows a later epoch of this producer: ask for another producer id",
    ErrorCode.UNKNOWN_PRODUCER_ID: "the log knows nothing of this producer: begin at sequence 0 under a higher epoch",
    ErrorCode.FENCED_LEADER_EPOCH: "the leader epoch given is over: ask for Metadata, and try again with a newer one",
    ErrorCode.UNKNOWN_LEADER_EPOCH: "the leader epoch given is not known here yet: try again in a moment",
    ErrorCode.STALE_CONTROLLER_EPOCH: "a later controller has been elected: this one is to stand down",
    ErrorCode.STALE_BROKER_EPOCH: "another registration of the broker was meant: read the present one, and ask again",
    ErrorCode.OFFSET_NOT_AVAILABLE: "the new leader is still finding out what is committed: try again in a moment",
    ErrorCode.LOG_STORAGE_ERROR: "the log cannot be used now: try again, and if it stays so, see log-storage's log",
    ErrorCode.UNKNOWN_TOPIC_ID: "no topic of that id is known here: ask for Metadata, and take the id that it names",
    ErrorCode.INCONSISTENT_TOPIC_ID: "the log's directory is another topic's: delete that one first",
    ErrorCode.POLICY_VIOLATION: "a policy of the cluster forbids it: ask who runs the cluster",
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: "a quota is used up: try again later",
    ErrorCode.INVALID_TIMESTAMP: "a record's time is none, or too far from the broker's clock: send another one",
    ErrorCode.INVALID_RECORD: "the topic does not take such a record: on a compacted one each has a key",
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: "the preferred leader is not there or not in sync: try again later",
    ErrorCode.ELECTION_NOT_NEEDED: "the preferred leader leads already: nothing is to be done",
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS: "the partition is not being reassigned: nothing is to be done",
    ErrorCode.REASSIGNMENT_IN_PROGRESS: "the partition is being reassigned: wait for that, or cancel it",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "who has to answer this is not there now: try again in a moment",
    ErrorCode.NOT_COORDINATOR: "this broker does not coordinate the group: ask which one does",
    ErrorCode.UNKNOWN_MEMBER_ID: "the group has no such member: join it again",
    ErrorCode.ILLEGAL_GENERATION: "the group's partitions have been shared out anew: join it again",
    ErrorCode.REBALANCE_IN_PROGRESS: "the group's partitions are being shared out: join it again",
    ErrorCode.INVALID_GROUP_ID: "no group may have that id: take another one",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "the group is not open to this user: ask who runs the cluster for an ACL",
    ErrorCode.LISTENER_NOT_FOUND: "the leader lacks the listener of this connection: connect by one that all have",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "the coordinator still loads the group: try again in a moment",
    ErrorCode.FENCED_MEMBER_EPOCH: "the member was fenced: drop its partitions, and join the group again",
    ErrorCode.STALE_MEMBER_EPOCH: "the member epoch given is over: take the present one, and try again",
    ErrorCode.UNRELEASED_INSTANCE_ID: "another member has the instance id: let it leave, or take another one",
    ErrorCode.UNSUPPORTED_ASSIGNOR: "no assignor has that name: take uniform or range",
    ErrorCode.NON_EMPTY_GROUP: "the group has members: stop them first",
    ErrorCode.GROUP_ID_NOT_FOUND: "there is no group of that id: look for it in the list of groups",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "the group has group.consumer.max.size members: raise that, or stop some",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "members of the group subscribe to the topic: stop them first",
    ErrorCode.STORAGE_FULL: "the log directory has no space, nothing was written: try again when it has some",
    ErrorCode.UNKNOWN_FENCE: "the log has no fence and takes no writes yet: fence it first",
    ErrorCode.STALE_FENCE: "the log is fenced for another leader epoch, role or start: read the present state",
    ErrorCode.OFFSET_MISMATCH: "the log ends at another offset than expected, nothing was done: read its end again",
    ErrorCode.TRUNCATION_BELOW_HIGH_WATERMARK: "it would drop what is committed: a person has to look at this replica",
    ErrorCode.REPLICA_NOT_ASSIGNED: "the broker is not assigned to the partition: it is to stop following it",
    ErrorCode.FETCH_SESSION_STALE: "a newer stream of this session is open: go on by that one",
    ErrorCode.OVERLOADED: "too much is under way here: try again after a short pause",
    ErrorCode.OFFSET_METADATA_TOO_LARGE: "the note is above offset.metadata.max.bytes: write a shorter one",
    ErrorCode.INVALID_REGULAR_EXPRESSION: "it is none, has look-around or references, or is too large: mend it",
    ErrorCode.UNSTABLE_OFFSET_COMMIT: "a transaction with an offset of the partition is open: try again in a moment",
    ErrorCode.FENCED_INSTANCE_ID: "another member has the instance id now: run one process for each instance id",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "the topic is not open to this user: ask who runs the cluster for an ACL",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "this user may not do that with the cluster: ask who runs it for an ACL",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "the transactional id is not this user's: take another one",
    ErrorCode.SECURITY_DISABLED: "this broker has no authorizer, and no ACL counts: set authorizer.class.name",
}


class UserError(Exception):
    """Something the user can mend, told in one sentence: a data directory in use, a bad setting, etcd out of reach."""

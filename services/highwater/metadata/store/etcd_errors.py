"""Errors of the store, and the answers of etcd that they stand for."""

from __future__ import annotations

import re

import grpc

RETRY_PAUSE_S = 0.1  # before what failed in a way that may pass is done again


class StoreError(Exception):
    """Base of everything that `Store` raises by itself."""


class Unavailable(StoreError):  # noqa: N818
    """No etcd member could be reached, or none had a leader, within the deadline. Nothing was written."""


class StoreClosed(StoreError):  # noqa: N818
    """`Store.close` was called; what was in progress may have been done or not."""


class OutcomeUnknown(StoreError):  # noqa: N818
    """A write was sent and its answer did not come: it may have been done, may yet be done, or never (RULES 2.4).
    Only a re-read that shows a later revision, or another write that compares the same revision, settles it."""


class Compacted(StoreError):  # noqa: N818
    """The revision asked for is no longer kept: list again (RULES 8.4). `revision` is the oldest one kept, 0 where
    etcd does not say."""

    def __init__(self, revision: int) -> None:
        super().__init__(f"etcd compacted the revision asked for; the oldest one kept is {revision}")
        self.revision = revision


class LeaseNotFound(StoreError):  # noqa: N818
    """The lease expired or was revoked, and every key under it is gone."""


class Refused(StoreError):  # noqa: N818
    """etcd answered that it will not do it: no space left (its alarm NOSPACE), no permission, an expired token, a
    malformed request. Nothing was written. An operator may put that right, so whoever has to go on asks again; `Store`
    tells of refusals late while they go on, so that nobody who does can spin."""


class AnswerTooLarge(Refused):
    """etcd's answer has more bytes than this end takes: ask for less at a time."""


class GuardFailed(StoreError):  # noqa: N818
    """A compare of every transaction of a batch no longer holds: nothing more was written."""


class ControllerDeposed(GuardFailed):
    """Another controller was elected, or this one's session ended: it may write no more (RULES 2.2)."""


def may_pass(error: StoreError) -> bool:
    """True where what goes on for as long as its process waits this out and asks again: for all but a store that was
    closed and a guard that does not hold any more. An etcd that refuses is waited out too: it does so until an operator
    has freed space or given a permission back, and whoever had stopped asking by then would be missing for good."""
    return not isinstance(error, StoreClosed | GuardFailed)


# Answers that say that the request was not carried out, though their status code is that of a broken connection.
_NOT_DONE = ("etcdserver: no leader", "etcdserver: not capable", "etcdserver: too many requests")
_COMPACTED = "has been compacted"
_LEASE_NOT_FOUND = "lease not found"
_TOO_LARGE = "larger than max"
_AMBIGUOUS = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.ABORTED,
    }
)


def classify(error: grpc.RpcError, *, wrote: bool) -> StoreError:
    """The store's error for a failed call that had been sent. `Unavailable` may be tried again, at another member
    perhaps; for a read every ambiguous answer is that."""
    details = error.details() or error.code().name
    if _COMPACTED in details:
        found = re.search(r"\d+", details)
        return Compacted(int(found.group()) if found else 0)
    if _LEASE_NOT_FOUND in details:
        return LeaseNotFound(details)
    if details.startswith(_NOT_DONE):
        return Unavailable(f"etcd cannot serve now: {details}")
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE in details:
        return AnswerTooLarge(f"etcd's answer is too large: {details}")
    if error.code() in _AMBIGUOUS:
        if wrote:
            return OutcomeUnknown(f"the outcome of a write to etcd is not known: {details}")
        return Unavailable(f"etcd did not answer: {details}")
    return Refused(f"etcd refused the request: {details}")

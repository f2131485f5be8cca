from __future__ import annotations

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata

from highwater.metadata.store.connections import Connections
from highwater.metadata.store.etcd_errors import (
    AnswerTooLarge,
    Compacted,
    LeaseNotFound,
    OutcomeUnknown,
    Refused,
    StoreError,
    Unavailable,
    classify,
)
from highwater.metadata.store.tls import TlsSettings


def answer(code: grpc.StatusCode, details: str) -> AioRpcError:
    return AioRpcError(code, Metadata(), Metadata(), details)


@pytest.mark.parametrize(
    ("code", "details", "write", "read"),
    [
        (grpc.StatusCode.UNAVAILABLE, "Socket closed", OutcomeUnknown, Unavailable),
        (grpc.StatusCode.UNAVAILABLE, "etcdserver: request timed out", OutcomeUnknown, Unavailable),
        (grpc.StatusCode.UNAVAILABLE, "etcdserver: leader changed", OutcomeUnknown, Unavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", OutcomeUnknown, Unavailable),
        (grpc.StatusCode.UNAVAILABLE, "etcdserver: no leader", Unavailable, Unavailable),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: too many requests", Unavailable, Unavailable),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", Refused, Refused),
        (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "CLIENT: Received message larger than max (68 vs. 67)",
            AnswerTooLarge,
            AnswerTooLarge,
        ),
        (grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: too many operations", Refused, Refused),
        (grpc.StatusCode.NOT_FOUND, "etcdserver: requested lease not found", LeaseNotFound, LeaseNotFound),
        (grpc.StatusCode.OUT_OF_RANGE, "mvcc: required revision has been compacted", Compacted, Compacted),
    ],
)
def test_an_unanswered_write_is_of_unknown_outcome_and_an_unanswered_read_is_not(
    code: grpc.StatusCode, details: str, write: type[StoreError], read: type[StoreError]
) -> None:
    assert type(classify(answer(code, details), wrote=True)) is write
    assert type(classify(answer(code, details), wrote=False)) is read


def test_endpoints_may_be_urls() -> None:
    assert Connections(["http://a:1/", "b:2"], None).endpoints == ("a:1", "b:2")
    assert Connections(["b:2", "https://c:3/"], None).endpoints == ("b:2", "c:3")
    assert Connections(["http://a:1", "b:2"], None).tls is None
    assert Connections(["b:2", "https://c:3"], None).tls == TlsSettings()


def test_an_etcd_without_endpoints_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="no etcd endpoint"):
        Connections([], None)

"""Bytes that are no message: a line, whoever tells of them, and no traceback."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest
from google.protobuf.message import DecodeError

from highwater.rpc.connections.channel import open_channel
from highwater.rpc.server import RpcServer
from highwater.telemetry.undecodable import leave_out_undecodable
from highwater.v1 import broker_pb2, broker_pb2_grpc

NO_MESSAGE = b"\xff\xff\xff\x01garbage"


class Broker(broker_pb2_grpc.BrokerServicer):
    async def Produce(self, request: broker_pb2.ProduceRequest, context: object) -> broker_pb2.ProduceResponse:
        raise ValueError("a mistake of ours")

    async def FetchStream(
        self, request_iterator: AsyncIterator[broker_pb2.FetchRequest], context: object
    ) -> AsyncIterator[broker_pb2.FetchResponse]:
        async for _ in request_iterator:
            yield broker_pb2.FetchResponse()


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.refused = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        if "bytes that are no message were refused" in record.getMessage():
            self.refused.set()


@pytest.fixture
async def kept() -> AsyncIterator[Kept]:
    """A handler as a service's is."""
    handler = Kept()
    handler.addFilter(leave_out_undecodable)
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


async def test_a_client_that_sends_no_message_leaves_a_line_and_a_mistake_of_ours_its_traceback(
    kept: Kept,
) -> None:
    server = RpcServer(["127.0.0.1:0"])
    broker_pb2_grpc.add_BrokerServicer_to_server(Broker(), server.grpc)
    await server.start(["highwater.v1.Broker"])
    try:
        async with open_channel(server.addresses[0]) as channel:
            produce = channel.unary_unary("/highwater.v1.Broker/Produce")
            for _ in range(3):
                with pytest.raises(grpc.aio.AioRpcError):
                    await produce(NO_MESSAGE)
            with pytest.raises(grpc.aio.AioRpcError):
                async for _ in channel.stream_stream("/highwater.v1.Broker/FetchStream")(iter([NO_MESSAGE])):
                    pass
            await asyncio.wait_for(kept.refused.wait(), 5)
            assert not [record for record in kept.records if record.exc_info]
            with pytest.raises(grpc.aio.AioRpcError):
                await produce(b"")
    finally:
        await server.stop(0)
    assert [record.exc_info[0] for record in kept.records if record.exc_info] == [ValueError]


def test_of_several_errors_those_alone_that_are_all_of_such_bytes_are_left_out() -> None:
    def passed(error: BaseException) -> bool:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "failed", None, (type(error), error, None))
        return leave_out_undecodable(record)

    assert not passed(ExceptionGroup("", [DecodeError("a"), ExceptionGroup("", [DecodeError("b")])]))
    assert passed(ExceptionGroup("", [DecodeError("a"), ValueError("b")]))
    assert passed(ValueError("b"))


class ExecuteBatchError(Exception):
    """Of the name of gRPC's: nobody is there any more to be answered."""


def test_who_has_hung_up_cannot_be_told_that_it_was_refused() -> None:
    error = ExecuteBatchError("Failed")
    record = logging.LogRecord("x", logging.ERROR, "", 0, "failed", None, (type(error), error, None))
    assert not leave_out_undecodable(record)


def test_a_record_without_an_error_is_kept() -> None:
    assert leave_out_undecodable(logging.LogRecord("x", logging.ERROR, "", 0, "failed", None, None))

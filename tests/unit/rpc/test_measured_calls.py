"""Calls are measured by their names, whatever becomes of them; health checks and those named besides are not."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from highwater.rpc.connections.channel import open_channel
from highwater.rpc.measured_calls import MeasuredCalls
from highwater.rpc.server import RpcServer
from highwater.telemetry.metrics import Metrics
from highwater.telemetry.reporters import samples_of
from highwater.telemetry.request_times import RequestMetrics
from highwater.v1 import fetcher_pb2, fetcher_pb2_grpc


class Servicer(fetcher_pb2_grpc.FetcherServicer):
    async def Describe(self, request: Any, context: Any) -> fetcher_pb2.DescribeFetcherResponse:
        return fetcher_pb2.DescribeFetcherResponse(broker_id=7)

    async def SetThrottle(self, request: Any, context: Any) -> fetcher_pb2.SetThrottleResponse:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no")


@pytest.mark.parametrize(
    ("besides", "counted"),
    [(frozenset[str](), {"Describe": 2, "SetThrottle": 1}), (frozenset({"Describe"}), {"SetThrottle": 1})],
)
async def test_calls_are_counted(besides: frozenset[str], counted: dict[str, int]) -> None:
    metrics = Metrics("s")
    server = RpcServer(["127.0.0.1:0"], interceptors=[MeasuredCalls(RequestMetrics(metrics), besides)])
    fetcher_pb2_grpc.add_FetcherServicer_to_server(Servicer(), server.grpc)
    await server.start(["highwater.v1.Fetcher"])
    try:
        async with open_channel(server.addresses[0]) as channel:
            stub = fetcher_pb2_grpc.FetcherStub(channel)
            for _ in range(2):
                assert (await stub.Describe(fetcher_pb2.DescribeFetcherRequest())).broker_id == 7
            with pytest.raises(grpc.aio.AioRpcError):
                await stub.SetThrottle(fetcher_pb2.SetThrottleRequest())
            health = channel.unary_unary("/grpc.health.v1.Health/Check")
            await health(b"")
    finally:
        await server.stop()
    found = {
        sample.labels: int(sample.value)
        for sample in samples_of(metrics.registry)
        if sample.name == "highwater_s_request_seconds_count"
    }
    assert found == {f"request={name},phase=total": count for name, count in counted.items()}

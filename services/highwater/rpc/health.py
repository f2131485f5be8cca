"""`highwater health ADDRESS` and `python -m highwater.rpc.health ADDRESS`: the gRPC health of one service, for a probe.

Loads nothing but gRPC: a probe that runs in the container of a service takes its CPU.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence

from highwater.extras import MissingExtraError, needing

SERVING, NOT_SERVING, UNREACHABLE = 0, 1, 2
"""Exit statuses."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints one line and returns the exit status: 0 where the service is SERVING, 1 where it answers anything else, 2
    where nothing answers in time (or the command line is wrong: `SystemExit`)."""
    parser = argparse.ArgumentParser(
        prog="highwater health",
        description="Ask a service for its gRPC health.",
        epilog="Exit status: 0 SERVING; 1 it answers and is not serving that; 2 it cannot be reached.",
    )
    parser.add_argument("address", type=_address, help="host:port or unix:/path that the service listens on")
    parser.add_argument(
        "--service",
        default="",
        metavar="NAME",
        help="a health name, for example live, ready or highwater.v1.Broker; by default the server as a whole",
    )
    parser.add_argument(
        "--timeout", type=_seconds, default=1.0, metavar="SECONDS", help="how long to wait for the answer (default: 1)"
    )
    parsed = parser.parse_args(arguments)
    try:
        status, said = check(parsed.address, parsed.service, parsed.timeout)
    except MissingExtraError as error:
        status, said = UNREACHABLE, str(error)
    print(f"highwater: {said}" if status == UNREACHABLE else said, file=sys.stderr if status else sys.stdout)
    return status


def check(address: str, service: str, timeout_s: float) -> tuple[int, str]:
    """The exit status, and the line that says why. Raises `MissingExtraError`."""
    with needing("cli", "highwater health"):
        import grpc
        from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
        from grpc_health.v1.health_pb2_grpc import HealthStub
    from highwater.rpc.connections.channel import CHANNEL_OPTIONS

    asked = f"{address} {service}" if service else address
    with grpc.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        try:
            answer = HealthStub(channel).Check(HealthCheckRequest(service=service), timeout=timeout_s)
        except grpc.RpcError as error:
            match error.code():
                case grpc.StatusCode.NOT_FOUND:
                    return NOT_SERVING, f"{asked}: no such health name"
                case grpc.StatusCode.UNIMPLEMENTED:
                    return NOT_SERVING, f"{asked}: the server has no gRPC health service"
                case grpc.StatusCode.DEADLINE_EXCEEDED:
                    return UNREACHABLE, f"{address} did not answer within {timeout_s:g} s"
            details = _tls_problem(address) or f"{address} cannot be reached: {' '.join(str(error.details()).split())}"
            return UNREACHABLE, details
    said = HealthCheckResponse.ServingStatus.Name(answer.status)
    return SERVING if answer.status == HealthCheckResponse.SERVING else NOT_SERVING, f"{asked}: {said}"


def _tls_problem(address: str) -> str:
    """Says that TLS is spoken there, and where none is; empty: that is not why nothing answers."""
    import asyncio
    from dataclasses import replace

    from highwater.rpc.connections.tls import SERVICES
    from highwater.rpc.connections.tls_diagnosis import diagnose

    if address.startswith("unix:"):
        return ""
    names = replace(SERVICES, to_turn_on="ask at its health.listen, where nobody does")
    return asyncio.run(diagnose(address, None, names))


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not text.startswith("unix:") and not (host and port.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not an address: write host:port or unix:/path")
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return seconds


if __name__ == "__main__":
    sys.exit(main())

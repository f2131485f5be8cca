"""Prints the metrics of this pod's services and what log-storage says of its directories, as JSON.

Arguments: URLs of metrics; `log-storage` asks the one that is here. What does not answer has a sentence in `errors`.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from typing import Any

TIMEOUT_S = 5.0
SOCKET = "/run/highwater/log-storage.sock"
TCP = "127.0.0.1:9083"  # where log-storage has a pod of its own


def metrics(url: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=TIMEOUT_S) as response:
        text: bytes = response.read()
    return text.decode(errors="replace")


def log_dirs() -> dict[str, Any]:
    import grpc  # noqa: PLC0415 - a pod without log-storage needs none of it
    from google.protobuf.json_format import MessageToDict  # noqa: PLC0415

    from highwater.client.cluster.tls import environment_certificates  # noqa: PLC0415
    from highwater.v1 import common_pb2, log_storage_pb2, log_storage_pb2_grpc  # noqa: PLC0415

    address = f"unix:{SOCKET}" if os.path.exists(SOCKET) else TCP
    # The directories alone: one log is asked for, which nobody has.
    nobodys = common_pb2.PartitionKey(topic_id=bytes(16), partition=0)
    certificates = environment_certificates() if address == TCP else None
    with (
        grpc.insecure_channel(address)
        if certificates is None
        else grpc.secure_channel(address, certificates.credentials())
    ) as channel:
        stub: Any = log_storage_pb2_grpc.LogStorageStub(channel)
        answer = stub.DescribeLogs(log_storage_pb2.DescribeLogsRequest(partitions=[nobodys]), timeout=TIMEOUT_S)
    described: dict[str, Any] = MessageToDict(
        answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return {"log_dirs": described["log_dirs"], "opening": described["opening"]}


def main(arguments: list[str]) -> None:
    report: dict[str, Any] = {"metrics": {}, "errors": {}}
    for one in arguments:
        try:
            if one == "log-storage":
                report |= log_dirs()
            else:
                report["metrics"][one] = metrics(one)
        except Exception as error:  # of any kind: the rest is wanted all the same
            details = getattr(error, "details", None)
            report["errors"][one] = f"{details() if details else error}" or type(error).__name__
    print(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1:])

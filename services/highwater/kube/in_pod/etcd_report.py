"""Prints what etcd's members say of themselves, as JSON; with `keys PREFIX MAX_BYTES`, keys and values as JSON lines.

Which members there are stands in the settings of the service whose container it is.
"""

from __future__ import annotations

import base64
import glob
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from aetcd import rpc

TIMEOUT_S = 3.0
PAGE = 500
SETTINGS = "/etc/highwater/*.properties"


def settings() -> dict[str, str]:
    found: dict[str, str] = {}
    for path in sorted(glob.glob(SETTINGS)):
        with open(path) as lines:
            for line in lines:
                key, separator, value = line.partition("=")
                if separator and key.strip().startswith(("etcd", "cluster")):
                    found.setdefault(key.strip(), value.strip())
    return found


def channel(endpoint: str, given: dict[str, str]) -> grpc.Channel:
    options = [("grpc.max_receive_message_length", 64 << 20), ("grpc.enable_http_proxy", 0)]
    files = [given.get(f"etcd.{name}.file", "") for name in ("ca", "key", "certificate")]
    if not any(files):
        return grpc.insecure_channel(endpoint, options=options)
    contents: list[bytes | None] = []
    for path in files:
        if not path:
            contents.append(None)
            continue
        with open(path, "rb") as file:
            contents.append(file.read())
    return grpc.secure_channel(endpoint, grpc.ssl_channel_credentials(*contents), options=options)


def status(endpoint: str, given: dict[str, str]) -> dict[str, Any]:
    with channel(endpoint, given) as opened:
        try:
            told = rpc.MaintenanceStub(opened).Status(rpc.StatusRequest(), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            code: Any = error
            return {"endpoint": endpoint, "error": f"{code.code().name}: {code.details()}"}
    return {
        "endpoint": endpoint,
        "id": told.header.member_id,
        "leader": told.leader,
        "version": told.version,
        "db_size_bytes": told.dbSize,
        "db_in_use_bytes": told.dbSizeInUse,
        "raft_index": told.raftIndex,
        "alarms": list(told.errors),
        "error": "" if told.leader else "it knows of no leader: there is no quorum",
    }


def report(endpoints: list[str], given: dict[str, str]) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(len(endpoints)) as pool:
        return list(pool.map(lambda one: status(one, given), endpoints))


def readable(data: bytes) -> Any:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
    try:
        return json.loads(text)
    except ValueError:
        return text


def dump(endpoints: list[str], given: dict[str, str], prefix: str, max_bytes: int) -> None:
    start, end = prefix.encode(), prefix.encode()[:-1] + bytes([prefix.encode()[-1] + 1])
    size, at = 0, 0
    failed = "there is no endpoint"
    for endpoint in endpoints:
        with channel(endpoint, given) as opened:
            stub = rpc.KVStub(opened)
            try:
                while True:
                    request = rpc.RangeRequest(key=start, range_end=end, limit=PAGE, revision=at)
                    page = stub.Range(request, timeout=TIMEOUT_S)
                    at = at or page.header.revision
                    for one in page.kvs:
                        size += len(one.key) + len(one.value)
                        if size > max_bytes:
                            print(json.dumps({"cut": f"there is more than {max_bytes} bytes", "count": page.count}))
                            return
                        line = {"key": one.key.decode(errors="replace"), "value": readable(one.value)}
                        print(json.dumps(line | {"lease": one.lease, "mod_revision": one.mod_revision}))
                    if not page.more:
                        return
                    start = page.kvs[-1].key + b"\0"
            except grpc.RpcError as error:
                code: Any = error
                failed = f"{endpoint}: {code.code().name}: {code.details()}"  # the next one goes on from there
    sys.exit(failed)


def main(arguments: list[str]) -> None:
    given = settings()
    endpoints = [one.strip() for one in given.get("etcd", "").split(",") if one.strip()]
    if not endpoints:
        sys.exit(f"no setting of {SETTINGS} names etcd")
    if arguments[:1] == ["keys"]:
        dump(endpoints, given, arguments[1], int(arguments[2]))
    else:
        print(json.dumps({"members": report(endpoints, given), "cluster": given.get("cluster", "")}))


if __name__ == "__main__":
    main(sys.argv[1:])

"""The LogStorage service's edge: protobuf in, protobuf out. Rules of a single log are in `log/`, those of the fence
in `fence.py`; here and in the parts is their order in time."""

from __future__ import annotations

from highwater.log_storage.server.append_and_read import DataPath
from highwater.log_storage.server.fences import Fencing
from highwater.log_storage.server.flush_and_checkpoint import Durability
from highwater.log_storage.server.list_batches import Listing
from highwater.log_storage.server.log_lifecycle import Hosting
from highwater.log_storage.server.log_moves import Moving
from highwater.log_storage.server.truncation import Cutting
from highwater.v1 import log_storage_pb2_grpc


class LogStorageServicer(  # type: ignore[misc]  # grpc's stub knows of no bidirectional stream that is read and written
    DataPath, Listing, Fencing, Cutting, Hosting, Moving, Durability, log_storage_pb2_grpc.LogStorageServicer
):
    """All of the service's calls."""

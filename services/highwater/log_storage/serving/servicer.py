"""The LogStorage service's edge: protobuf in, protobuf out. Rules of a single log are in `log.py`, those of the fence
in `fence.py`; here and in the parts is their order in time."""

from __future__ import annotations

from highwater.log_storage.serving.cutting import Cutting
from highwater.log_storage.serving.data_path import DataPath
from highwater.log_storage.serving.durability import Durability
from highwater.log_storage.serving.fencing import Fencing
from highwater.log_storage.serving.hosting import Hosting
from highwater.log_storage.serving.listing import Listing
from highwater.log_storage.serving.moving import Moving
from highwater.v1 import log_storage_pb2_grpc


class LogStorageServicer(  # type: ignore[misc]  # grpc's stub knows of no bidirectional stream that is read and written
    DataPath, Listing, Fencing, Cutting, Hosting, Moving, Durability, log_storage_pb2_grpc.LogStorageServicer
):
    """All of the service's calls."""

"""Record batches: Kafka's v2 batch header over rows (Kafka's records) or columns (Arrow). Pure: bytes in, bytes out.

encode_rows, encode_columns, encode_arrays, encode_lists    records -> one batch
decode                                                      one batch -> Batch (records() or to_arrow())
read_header, iter_batches, split_batches, verify,
first_columnar                                              what a broker looks at: headers and CRCs
stamp, with_producer, with_log_append_time                  change a header without touching the payload
retain                                                      what compaction keeps of a batch

What needs Arrow or a codec is imported at first use: a replica-manager and a fetcher look at headers only, and Arrow
would add half again to their memory.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from highwater.records.codec import Codec
from highwater.records.errors import CorruptBatchError
from highwater.records.header import (
    HEADER_BYTES,
    MAX_BATCH_BYTES,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchHeader,
    ReadableBuffer,
    TimestampType,
    first_columnar,
    iter_batches,
    read_header,
    split_batches,
    verify,
)
from highwater.records.limits import DEFAULT_MAX_PAYLOAD_BYTES
from highwater.records.record import Record, RecordHeader
from highwater.records.stamp import STAMP_BYTES, stamp, with_log_append_time, with_producer

if TYPE_CHECKING:
    from highwater.records.batch import (
        Batch,
        BatchOptions,
        decode,
        encode_arrays,
        encode_columns,
        encode_lists,
        encode_rows,
    )
    from highwater.records.compaction import retain

__all__ = [
    "DEFAULT_MAX_PAYLOAD_BYTES",
    "HEADER_BYTES",
    "MAX_BATCH_BYTES",
    "NO_LEADER_EPOCH",
    "NO_PRODUCER_EPOCH",
    "NO_PRODUCER_ID",
    "NO_SEQUENCE",
    "STAMP_BYTES",
    "Batch",
    "BatchHeader",
    "BatchOptions",
    "Codec",
    "CorruptBatchError",
    "ReadableBuffer",
    "Record",
    "RecordHeader",
    "TimestampType",
    "decode",
    "encode_arrays",
    "encode_columns",
    "encode_lists",
    "encode_rows",
    "first_columnar",
    "iter_batches",
    "read_header",
    "retain",
    "split_batches",
    "stamp",
    "verify",
    "with_log_append_time",
    "with_producer",
]

_AT_FIRST_USE = {
    "Batch": "batch",
    "BatchOptions": "batch",
    "decode": "batch",
    "encode_arrays": "batch",
    "encode_columns": "batch",
    "encode_lists": "batch",
    "encode_rows": "batch",
    "retain": "compaction",
}


def __getattr__(name: str) -> Any:
    module = _AT_FIRST_USE.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value

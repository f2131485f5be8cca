"""`consume --output FILE`: records as a Parquet or an Arrow file, which is there whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from highwater.atomic_file import replacing
from highwater.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = (".parquet", ".arrow")
# Of a row group, or of a batch of an Arrow file; whichever comes first. It bounds the memory.
_GROUP_ROWS = 128 * 1024
_GROUP_BYTES = 64 * 1024 * 1024


def check_suffix(path: Path) -> None:
    """Raises `UserError` for a file that would be neither."""
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"--output {path} is neither .parquet nor .arrow, of which one says what is written")


class TableFile:
    """An open file. Batches are gathered to groups."""

    def __init__(self, writer: Any, schema: pa.Schema) -> None:
        self._writer = writer
        self._schema = schema
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        import pyarrow as pa

        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema).combine_chunks())
            self._waiting, self._rows, self._bytes = [], 0, 0


@contextmanager
def table_file(path: Path, schema: pa.Schema) -> Iterator[TableFile]:
    """The file, in the place of an older one once the body has ended well. Raises `UserError` where it cannot be
    written: nothing has changed then."""
    try:
        with replacing(path) as temporary, _writer(temporary, path.suffix.lower(), schema) as writer:
            file = TableFile(writer, schema)
            yield file
            file.flush()
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None


def _writer(path: Path, suffix: str, schema: pa.Schema) -> Any:
    if suffix == ".parquet":
        import pyarrow.parquet as pq

        return pq.ParquetWriter(path, schema, compression="zstd")
    import pyarrow as pa

    return pa.ipc.new_file(str(path), schema, options=pa.ipc.IpcWriteOptions(compression="lz4"))

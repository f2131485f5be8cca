"""Options of the pipeline `archive`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer

from highwater.errors import UserError
from highwater.spark.pipelines.command.pipeline_options import PipelineOptions, duration_ms
from highwater.spark.pipelines.typed_values.value_schema import ValueSchemaOptions


class ArchiveFormat(StrEnum):
    DELTA = "delta"
    PARQUET = "parquet"


@dataclass(frozen=True, kw_only=True)
class ArchiveOptions(ValueSchemaOptions):
    to: Annotated[str, typer.Option(help="directory of the archive (any of Spark's file systems)")]
    format: Annotated[
        ArchiveFormat | None,
        typer.Option(help="delta: a table; parquet: plain files; default: as it is; a new one is a table"),
    ] = None
    compression: Annotated[str, typer.Option(help="of the Parquet files: zstd, snappy, gzip, lz4_raw, none")] = "zstd"
    compact: Annotated[bool, typer.Option("--compact", help="only merge small files of times that are over")] = False
    compact_every: Annotated[
        int | None, typer.Option(min=1, help="merge small files after so many commits", show_default=False)
    ] = None
    closed_after: Annotated[str, typer.Option(help="how long after its end an hour (a table: a day) may be merged")] = (
        "10m"
    )
    file_mib: Annotated[int, typer.Option(min=1, help="merge files below half of this, into files of about this")] = 128

    def __post_init__(self) -> None:
        if self.compact:
            PipelineOptions.__post_init__(self)  # no topic is read
        else:
            super().__post_init__()
            if self.dead_letter is not None and self.value_schema is None:
                raise UserError("--dead-letter needs --value-schema: bytes go into an archive as they are")
        _ = self.closed_after_ms

    @property
    def stoppable(self) -> bool:
        return not self.compact

    @property
    def closed_after_ms(self) -> int:
        """Raises `UserError`."""
        return duration_ms("--closed-after", self.closed_after)

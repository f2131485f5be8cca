"""Options that pipelines share, each declared once for the command line, `spark-submit` and Python.

@dataclass(frozen=True, kw_only=True)
class CopyOptions(StreamOptions):
    to: Annotated[str, typer.Option(help="the topic to copy to")]
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from highwater.console.output import DEFAULT_BOOTSTRAP, Bootstrap
from highwater.errors import UserError
from highwater.spark.errors import OptionError
from highwater.spark.options.positions import parse_duration_ms

AVAILABLE_NOW = "available-now"
COMMIT_OFFSETS_TO_GROUP = "commitOffsetsToGroup"  # the source's option


@dataclass(frozen=True, kw_only=True)
class PipelineOptions:
    """Options of every pipeline."""

    master: Annotated[
        str | None,
        typer.Option(help="Spark's master; default: local[*], or what spark-submit says", show_default=False),
    ] = None
    conf: Annotated[
        list[str], typer.Option(metavar="KEY=VALUE", help="a setting of Spark; may be repeated", show_default=False)
    ] = field(default_factory=list)

    def __post_init__(self) -> None:
        key_values("--conf", self.conf)

    @property
    def stoppable(self) -> bool:
        """True where the pipeline itself ends after SIGTERM."""
        return False


@dataclass(frozen=True, kw_only=True)
class StreamOptions(PipelineOptions):
    """Options of a pipeline that reads topics as a streaming query."""

    topic: Annotated[list[str], typer.Option(help="a topic to read; may be repeated", show_default=False)] = field(
        default_factory=list
    )
    pattern: Annotated[
        str | None,
        typer.Option(help="instead of --topic: a regular expression for names of topics", show_default=False),
    ] = None
    checkpoint: Annotated[
        str, typer.Option(help="directory (any of Spark's file systems) that says where a restarted pipeline goes on")
    ]
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP
    trigger: Annotated[
        str, typer.Option(help=f"{AVAILABLE_NOW}: read what there is and end; 10s, 1m: for ever, so often")
    ] = AVAILABLE_NOW
    starting_offsets: Annotated[str, typer.Option(help="where a pipeline without a checkpoint begins")] = "earliest"
    max_offsets_per_trigger: Annotated[
        int | None, typer.Option(min=1, help="records of one micro-batch at most", show_default=False)
    ] = None
    commit_offsets_to_group: Annotated[
        str | None,
        typer.Option(
            metavar="GROUP",
            help="tell this consumer group how far the pipeline is, which highwater groups describe shows",
            show_default=False,
        ),
    ] = None
    option: Annotated[
        list[str],
        typer.Option(metavar="KEY=VALUE", help="an option of the Spark source, e.g. highwater.…; may be repeated"),
    ] = field(default_factory=list)
    metrics_listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="where /metrics and /healthz are served", show_default=False)
    ] = ""
    stalled_after: Annotated[str, typer.Option(help="/healthz fails where Spark says nothing for so long")] = "10m"

    def __post_init__(self) -> None:
        super().__post_init__()
        key_values("--option", self.option)
        trigger_of(self.trigger)
        if self.commit_offsets_to_group is not None and not self.commit_offsets_to_group.strip():
            raise UserError("--commit-offsets-to-group is empty: name a group, or leave it out")
        _ = self.stalled_after_s
        listen_address("--metrics-listen", self.metrics_listen)
        if bool(self.topic) == (self.pattern is not None):
            raise UserError("say which topics to read: with --topic, or with --pattern")

    @property
    def stoppable(self) -> bool:
        return True

    @property
    def stalled_after_s(self) -> float:
        """Raises `UserError`."""
        return duration_ms("--stalled-after", self.stalled_after) / 1000

    def source_options(self) -> dict[str, str]:
        """Options for `spark.readStream.format("highwater")`."""
        found = {"highwater.bootstrap.servers": self.bootstrap, "startingOffsets": self.starting_offsets}
        if self.pattern is not None:
            found["subscribePattern"] = self.pattern
        else:
            found["subscribe"] = ",".join(self.topic)
        if self.max_offsets_per_trigger is not None:
            found["maxOffsetsPerTrigger"] = str(self.max_offsets_per_trigger)
        if self.commit_offsets_to_group is not None:
            found[COMMIT_OFFSETS_TO_GROUP] = self.commit_offsets_to_group
        return {**found, **key_values("--option", self.option)}


def key_values(option: str, items: Sequence[str]) -> dict[str, str]:
    """`key=value` items; raises `UserError` for others."""
    found = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise UserError(f"{item!r}: write {option} KEY=VALUE")
        found[key] = value
    return found


def listen_address(option: str, text: str) -> tuple[str, int] | None:
    """The address in `host:port`, or in `:port` for this machine alone; None where the text is empty. Raises
    `UserError`."""
    if not text:
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise UserError(f"{option} is {text!r}: write HOST:PORT, such as 0.0.0.0:9400")
    return host or "127.0.0.1", int(port)


def duration_ms(option: str, text: str) -> int:
    """The ms of a duration such as `10m`. Raises `UserError`."""
    try:
        return parse_duration_ms(option, text)
    except OptionError as error:
        raise UserError(str(error)) from None


def trigger_of(text: str) -> dict[str, Any]:
    """`--trigger` as arguments of `DataStreamWriter.trigger`; raises `UserError`."""
    if text == AVAILABLE_NOW:
        return {"availableNow": True}
    units = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}
    if found := re.fullmatch(r"(\d+) *(ms|s|m|h)", text):
        return {"processingTime": f"{found[1]} {units[found[2]]}"}
    raise UserError(f"--trigger is {text!r}; it can be {AVAILABLE_NOW}, or a time like 500ms, 10s, 1m")


def trigger_interval_s(text: str) -> float:
    """The interval of a valid trigger in s; 0 for one that has an end."""
    return 0.0 if text == AVAILABLE_NOW else duration_ms("--trigger", text.replace(" ", "")) / 1000

"""What every pipeline shares: options that are declared once for the command line, `spark-submit` and Python; the Spark
session; a streaming query run to its end.

    @dataclass(frozen=True, kw_only=True)
    class CopyOptions(StreamOptions):
        to: Annotated[str, typer.Option(help="the topic to copy to")]

    def run(options: CopyOptions) -> None: ...

    command = pipeline_command(CopyOptions, run, "Copy topics.")
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import MISSING, dataclass, field, fields
from inspect import Parameter, Signature, get_annotations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from highwater.console.exit_status import exit_status
from highwater.console.output import DEFAULT_BOOTSTRAP, Bootstrap
from highwater.errors import UserError
from highwater.extras import how_to_install
from highwater.spark.pipelines import termination
from highwater.spark.pipelines.s3a import s3a_settings
from highwater.spark.positions import OptionError, parse_duration_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AVAILABLE_NOW = "available-now"
_JAVA = 17  # what Spark 4 needs
_ERROR_LINE = re.compile(r"^(?:[a-z_]\w*\.)*([A-Z]\w*(?:Error|Exception)): (.+)$")
_JAVA_CALL = re.compile(r"^An error occurred while calling ")
_JAVA_ERROR = re.compile(r"^: (?:[a-z]\w*\.)+(\w+: .+|\w+)$")
_JAVA_CAUSE = re.compile(r"^Caused by: (?:[a-z]\w*\.)+(\w+: .+|\w+)$")
_LOCAL = re.compile(r"local(\[.*\])?")
_ONLY_STATE = re.compile(r"(?:null)? ?SQLSTATE: \w+$")
_UNSAID = (
    "Spark's query ended and does not say why: the Python process that plans what it reads was killed, or had too "
    "little memory; start the pipeline again, it goes on where it was"
)
_STREAM_FAILED = re.compile(r"^\[STREAM_FAILED\] .*? terminated with exception: ")

Options = TypeVar("Options", bound="PipelineOptions")


@dataclass(frozen=True, kw_only=True)
class PipelineOptions:
    """Of every pipeline."""

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
        """Whether the pipeline itself ends after SIGTERM."""
        return False


@dataclass(frozen=True, kw_only=True)
class StreamOptions(PipelineOptions):
    """Of a pipeline that reads topics as a streaming query."""

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
        """For `spark.readStream.format("highwater")`."""
        found = {"highwater.bootstrap.servers": self.bootstrap, "startingOffsets": self.starting_offsets}
        if self.pattern is not None:
            found["subscribePattern"] = self.pattern
        else:
            found["subscribe"] = ",".join(self.topic)
        if self.max_offsets_per_trigger is not None:
            found["maxOffsetsPerTrigger"] = str(self.max_offsets_per_trigger)
        return {**found, **key_values("--option", self.option)}


# Options


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
    """Of `host:port`, or `:port` for this machine alone; None where it is empty. Raises `UserError`."""
    if not text:
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise UserError(f"{option} is {text!r}: write HOST:PORT, such as 0.0.0.0:9400")
    return host or "127.0.0.1", int(port)


def duration_ms(option: str, text: str) -> int:
    """Of `10m`; raises `UserError`."""
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
    """Of a trigger that is valid; 0 for one that has an end."""
    return 0.0 if text == AVAILABLE_NOW else duration_ms("--trigger", text.replace(" ", "")) / 1000


def pipeline_command(options: type[Options], run: Callable[[Options], None], description: str) -> Callable[..., None]:
    """`run` as a function that typer makes a command of: a parameter for each field of `options`."""

    def command(**values: Any) -> None:
        given = options(**values)
        try:
            with termination.heeded() if given.stoppable else nullcontext():
                run(given)
        except OptionError as error:
            raise UserError(str(error)) from None

    hints = get_type_hints(options, include_extras=True)
    parameters = [
        Parameter(
            one.name,
            Parameter.KEYWORD_ONLY,
            default=one.default_factory()
            if one.default_factory is not MISSING
            else Parameter.empty
            if one.default is MISSING
            else one.default,
            annotation=hints[one.name],
        )
        for one in sorted(fields(options), key=lambda one: _depth(options, one.name))
    ]
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    command.__doc__ = description
    return command


def _depth(options: type[PipelineOptions], name: str) -> int:
    """A pipeline's own options come before those that it shares."""
    return next(depth for depth, owner in enumerate(options.__mro__) if name in get_annotations(owner))


def submitted(command: Callable[..., None], argv: Sequence[str]) -> int:
    """Runs a command as `spark-submit` does; its exit status. What the user can mend is one sentence on stderr."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
    app.command()(command)
    return exit_status(app, list(argv))


# The session

Needed = Callable[[Mapping[str, str]], Mapping[str, str]]
"""Settings that a new session must have, by those that the user has given."""


def nothing_needed(_given: Mapping[str, str]) -> Mapping[str, str]:
    return {}


def session(
    name: str,
    options: PipelineOptions,
    defaults: Mapping[str, str] | None = None,
    needed: Needed = nothing_needed,
) -> SparkSession:
    """The session that there is, as it is but for `--conf`, or a new one; `defaults` are settings of Spark that a user
    may override.

    Raises `UserError` where PySpark or Java is missing."""
    under_spark_submit = "PYSPARK_GATEWAY_PORT" in os.environ
    spark_session = _spark_session_class()
    spark = spark_session.getActiveSession()
    if spark is None:
        spark = _new_session(
            spark_session.builder, name, options, defaults or {}, needed, under_spark_submit=under_spark_submit
        )
    else:
        for key, value in key_values("--conf", options.conf).items():
            spark.conf.set(key, value)
    from highwater.spark import register

    register(spark)
    return spark


def _new_session(
    builder: Any,
    name: str,
    options: PipelineOptions,
    defaults: Mapping[str, str],
    needed: Needed,
    *,
    under_spark_submit: bool,
) -> Any:
    given = key_values("--conf", options.conf)
    own = {"spark.sql.session.timeZone": "UTC", "spark.ui.showConsoleProgress": "false", **defaults}
    if under_spark_submit:
        submitted_with = _submitted_conf()
        given = {**submitted_with, **given}
        own = {key: value for key, value in own.items() if key not in submitted_with}
    else:
        check_java()
        _name_python(options.master or given.get("spark.master", "local[*]"))
        own["spark.ui.enabled"] = "false"
        _quiet_start()
    if options.master is not None or not under_spark_submit:
        builder = builder.master(options.master or "local[*]")
    given = {**given, **needed(given)}
    given |= s3a_settings(_texts(options), given)
    spark = builder.appName(f"highwater {name}").config(map={**own, **given}).getOrCreate()
    if not under_spark_submit:
        # A failure is told once, by the pipeline itself.
        spark.sparkContext.setLogLevel("OFF")
        logging.getLogger("py4j.clientserver").setLevel(logging.CRITICAL + 1)
    return spark


def _quiet_start() -> None:
    """Of the JVM that is about to be started, unless its logging was configured by whoever starts the pipeline."""
    given = os.environ.get("SPARK_SUBMIT_OPTS", "")
    if "log4j" not in given and "SPARK_CONF_DIR" not in os.environ:
        quiet = Path(__file__).with_name("log4j2.properties")
        os.environ["SPARK_SUBMIT_OPTS"] = f'{given} "-Dlog4j2.configurationFile={quiet.as_uri()}"'.strip()


def _texts(options: PipelineOptions) -> list[str]:
    """What the options say, paths among it."""
    return [value for one in fields(options) if isinstance(value := getattr(options, one.name), str)]


def _name_python(master: str) -> None:
    """Spark starts its workers with the python3 on the PATH unless it is told: they need what this one has."""
    from highwater.spark.worker_python import quick_workers

    if _LOCAL.fullmatch(master):
        quick_workers()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def _submitted_conf() -> dict[str, str]:
    """The settings of Spark that `spark-submit` was given."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def _spark_session_class() -> Any:
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("pyspark"):
            raise
        raise UserError(
            f"pipelines run on Spark, which is not installed: {how_to_install('spark')} (Java {_JAVA} or newer is "
            "needed, too)"
        ) from None
    return SparkSession


def check_java() -> None:
    """Raises `UserError` where there is no Java that Spark can run on."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    wanted = f"Spark needs Java {_JAVA} or newer: install it, for example apt-get install openjdk-{_JAVA}-jre-headless"
    if java is None or not Path(java).exists():
        where = f"JAVA_HOME is {home}, which holds no bin/java" if home else "there is no java on the PATH"
        raise UserError(f"{where}; {wanted}")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    if found and int(found[1]) < _JAVA:
        raise UserError(f"{java} is Java {found[1]}; {wanted}, and set JAVA_HOME where there are several")


# Running


@contextmanager
def spark_errors() -> Iterator[None]:
    """What Spark raises becomes `UserError` with the sentence that its cause says."""
    from py4j.protocol import Py4JJavaError, Py4JNetworkError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise UserError(cause_of(str(error))) from error
    except (Py4JNetworkError, ConnectionError) as error:
        raise UserError(
            "the JVM of Spark's driver has ended: it was killed, or had too little memory (--conf "
            "spark.driver.memory=…); start the pipeline again, it goes on where it was"
        ) from error


def cause_of(message: str) -> str:
    """The sentence of the innermost Python error in what Spark says; of a failed call of Java, what Java says. Else the
    first line."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    found = [(number, match[2]) for number, line in enumerate(lines) if (match := _ERROR_LINE.match(line))]
    at, said = found[-1] if found else (0, lines[0] if lines else "")
    if _JAVA_CALL.match(said) and (java := _said_by_java(lines[at + 1 :])):
        return java
    if found:
        return said.removesuffix('"')
    said = _STREAM_FAILED.sub("", said)
    return _UNSAID if _ONLY_STATE.match(said) else said or "Spark failed and does not say why"


def _said_by_java(lines: Sequence[str]) -> str:
    """What it raised, and what that was caused by at first."""
    raised = _JAVA_ERROR.match(lines[0]) if lines else None
    if raised is None:
        return ""
    causes = [match[1] for line in lines if (match := _JAVA_CAUSE.match(line))]
    return f"{raised[1]} (caused by {causes[-1]})" if causes else raised[1]

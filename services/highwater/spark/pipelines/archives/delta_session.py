"""Delta Lake for the sessions of pipelines: its jars come from Maven, once, into a directory of the user's."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from highwater.rpc.server import UserError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VERSION = "4.4.0"
SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
# What Delta asks for and Spark has, most of it in a newer release: four fifths of the bytes.
_OF_SPARK = (
    "com.fasterxml.jackson.core:*",
    "com.fasterxml.jackson.datatype:*",
    "com.github.luben:*",
    "com.google.code.findbugs:*",
    "commons-logging:*",
    "io.airlift:*",
    "org.apache.hadoop:*",
    "org.apache.logging.log4j:*",
    "org.apache.parquet:*",
    "org.roaringbitmap:*",
    "org.slf4j:*",
    "org.xerial.snappy:*",
)
_FETCH_S = 600


class NoDeltaError(UserError):
    """There is no Delta Lake for this session."""


def coordinates() -> str:
    """Of the release for the PySpark that is installed."""
    import pyspark

    major, minor = pyspark.__version__.split(".")[:2]
    return f"io.delta:delta-spark_{major}.{minor}_2.13:{VERSION}"


def delta_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Settings of a new session with Delta Lake, which go before those that the user has given. Raises
    `NoDeltaError`."""
    extension = "spark.sql.extensions"
    found = {**SETTINGS, extension: _joined(given.get(extension), [SETTINGS[extension]])}
    if not _brought(given):
        found["spark.jars"] = _joined(given.get("spark.jars"), map(str, fetched_jars(given)))
    return found


class DeltaSettings:
    """`delta_settings` for a session that need not have it, unless it turns out to be needed."""

    def __init__(self) -> None:
        self._problem: NoDeltaError | None = None

    def __call__(self, given: Mapping[str, str]) -> dict[str, str]:
        try:
            return delta_settings(given)
        except NoDeltaError as error:
            self._problem = error
            return {}

    def check(self, spark: SparkSession) -> None:
        """It is needed. Raises `NoDeltaError`."""
        if self._problem is not None:
            raise self._problem
        check_delta(spark)


def check_delta(spark: SparkSession) -> None:
    """Raises `NoDeltaError` where the session, which may have been there before the pipeline, has no Delta Lake."""
    from py4j.java_gateway import JavaClass

    there = isinstance(spark._jvm.io.delta.tables.DeltaTable, JavaClass)
    wrong = [name for name, value in SETTINGS.items() if value not in (spark.conf.get(name, "") or "")]
    if not there or wrong:
        told = " ".join(f"--conf {name}={value}" for name, value in SETTINGS.items())
        raise NoDeltaError(
            f"this Spark session has no Delta Lake: start it with --packages {coordinates()} {told}, or archive plain "
            "Parquet files with --format parquet"
        )


def _brought(given: Mapping[str, str]) -> bool:
    """Whether the user, or who has installed Spark, says where Delta Lake is; `spark-submit` has begun without it
    otherwise."""
    names = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")
    return (
        any("delta-spark" in given.get(name, "") for name in names)
        or "PYSPARK_GATEWAY_PORT" in os.environ
        or any(Path(_spark_home(), "jars").glob("*delta-spark*.jar"))
    )


def fetched_jars(given: Mapping[str, str]) -> list[Path]:
    """Those of Delta Lake and of what it needs; fetched where this user has none yet. Raises `NoDeltaError`."""
    wanted = coordinates()
    home = _cache() / re.sub(r"[^\w.-]", "_", wanted)
    if not any(home.glob("*.jar")):
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home.parent) as directory:
            _fetch(wanted, Path(directory), given)
            try:
                (Path(directory) / "jars").rename(home)
            except OSError:
                if not any(home.glob("*.jar")):  # else another process was as quick
                    raise
    return sorted(home.glob("*.jar"))


def _fetch(wanted: str, directory: Path, given: Mapping[str, str]) -> None:
    """As Spark does it, without a session."""
    script = directory / "nothing.py"
    script.write_text("")
    settings = {key: value for key, value in given.items() if key.startswith("spark.jars.")}
    settings |= {"spark.jars.packages": wanted, "spark.jars.ivy": str(directory)}
    settings["spark.jars.excludes"] = _joined(given.get("spark.jars.excludes"), _OF_SPARK)
    conf = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    line = [str(Path(_spark_home(), "bin", "spark-submit")), *conf, str(script)]
    problem = ""
    try:
        done = subprocess.run(
            line, capture_output=True, text=True, timeout=_FETCH_S, check=False, stdin=subprocess.DEVNULL
        )
        if done.returncode or not any((directory / "jars").glob("*.jar")):
            problem = _problem(done.stdout + done.stderr) or "Spark does not say why"
    except subprocess.TimeoutExpired:
        problem = f"nothing came for {_FETCH_S} s"
    if problem:
        raise NoDeltaError(
            f"the jars of Delta Lake ({wanted}) cannot be fetched: {problem}; say where they are with --conf "
            "spark.jars=…/delta-spark….jar,…/delta-storage….jar or --conf spark.jars.ivySettings=…, or archive plain "
            "Parquet files with --format parquet"
        )


def _spark_home() -> str:
    from pyspark.find_spark_home import _find_spark_home

    return str(_find_spark_home())


def _joined(given: str | None, more: Iterable[str]) -> str:
    return ",".join([*([given] if given else []), *more])


def _problem(said: str) -> str:
    """The line that says most."""
    for pattern in (r"unresolved dependency: [^\]\n]+", r"[\w.]*(?:Exception|Error): [^\n]+"):
        if found := re.search(pattern, said):
            return found[0].strip()
    return ""


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "highwater"

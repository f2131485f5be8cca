"""The Spark session of a pipeline, and the Java that it runs on."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from highwater.errors import UserError
from highwater.extras import how_to_install
from highwater.spark.pipelines.command.pipeline_options import PipelineOptions, key_values
from highwater.spark.pipelines.session.s3a import s3a_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JAVA = 17  # what Spark 4 needs
_LOCAL = re.compile(r"local(\[.*\])?")

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
    """The active session, as it is but for `--conf`, or a new one; `defaults` are settings of Spark that a user may
    override.

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
    """Silences the JVM that is about to be started, unless its logging is configured already."""
    given = os.environ.get("SPARK_SUBMIT_OPTS", "")
    if "log4j" not in given and "SPARK_CONF_DIR" not in os.environ:
        quiet = Path(__file__).with_name("log4j2.properties")
        os.environ["SPARK_SUBMIT_OPTS"] = f'{given} "-Dlog4j2.configurationFile={quiet.as_uri()}"'.strip()


def _texts(options: PipelineOptions) -> list[str]:
    """The texts among the options' values, of which some are paths."""
    return [value for one in fields(options) if isinstance(value := getattr(options, one.name), str)]


def _name_python(master: str) -> None:
    """Spark starts its workers with the python3 on the PATH unless it is told: they need what this one has."""
    from highwater.spark.worker.worker_python import quick_workers

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

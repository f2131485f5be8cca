"""The number of times that Spark runs a task, on which guarantees of some pipelines depend."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from highwater.errors import UserError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_FAILURES, SPECULATION = "spark.task.maxFailures", "spark.speculation"
NO_SPECULATION = {SPECULATION: "false"}
ONCE = {MAX_FAILURES: "1", **NO_SPECULATION}
_DEFAULTS = {MAX_FAILURES: "4", SPECULATION: "false"}
_LOCAL = re.compile(r"local(?:\[[^,\]]+(?:, *(\d+))?\])?")


def check_attempts(name: str, spark: SparkSession, needed: Mapping[str, str]) -> None:
    """Raises `UserError` where the session, which may have been there before the pipeline, has other settings in force
    than `needed`. They are settings of the whole application: none can be changed once it runs."""
    context = spark.sparkContext
    given = {key: context.getConf().get(key, default) for key, default in _DEFAULTS.items()}
    found = in_force(context.master, given)
    wrong = [f"{key}={found[key]}" for key, value in needed.items() if found[key] != value]
    if wrong:
        told = " ".join(f"--conf {key}={value}" for key, value in needed.items())
        if _LOCAL.fullmatch(context.master):
            told = f"--master {re.sub(', *[0-9]+', '', context.master)}"
        raise UserError(
            f"{name} may send records twice where Spark runs a task twice, and this session ({context.master}) has "
            f"{' and '.join(wrong)}: start it with {told}"
        )


def in_force(master: str, given: Mapping[str, str | None]) -> dict[str, str]:
    """The settings as Spark applies them: within one process it neither speculates nor looks at the number of failures,
    but for that in the master's name."""
    if local := _LOCAL.fullmatch(master):
        return {MAX_FAILURES: local[1] or "1", SPECULATION: "false"}
    return {key: str(given[key]).lower() for key in _DEFAULTS}

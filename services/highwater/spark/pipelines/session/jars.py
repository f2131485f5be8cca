"""Jars that a pipeline's session needs and Spark does not have: from Maven, once, into a directory of the user's."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

_FETCH_S = 600


class NoJarsError(Exception):
    """They cannot be fetched; says why."""


def has_jar(name: str, given: Mapping[str, str]) -> bool:
    """Tells whether the user, or the installation of Spark, names the jar; `spark-submit` has begun without it
    otherwise."""
    names = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")
    return (
        any(name in given.get(setting, "") for setting in names)
        or "PYSPARK_GATEWAY_PORT" in os.environ
        or any(Path(spark_home(), "jars").glob(f"*{name}*.jar"))
    )


def fetched_jars(wanted: Sequence[str], excluded: Iterable[str], given: Mapping[str, str]) -> list[Path]:
    """Those of Maven's coordinates, and of what they need but for the excluded ones; fetched where this user has none
    yet. The first one names their directory. Raises `NoJarsError`."""
    home = _cache() / re.sub(r"[^\w.-]", "_", wanted[0])
    if not any(home.glob("*.jar")):
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home.parent) as directory:
            _fetch(wanted, excluded, Path(directory), given)
            try:
                (Path(directory) / "jars").rename(home)
            except OSError:
                if not any(home.glob("*.jar")):  # else another process was as quick
                    raise
    return sorted(home.glob("*.jar"))


def joined(given: str | None, more: Iterable[str]) -> str:
    """A setting that is a list."""
    return ",".join([*([given] if given else []), *more])


def spark_home() -> str:
    from pyspark.find_spark_home import _find_spark_home

    return str(_find_spark_home())


def _fetch(wanted: Sequence[str], excluded: Iterable[str], directory: Path, given: Mapping[str, str]) -> None:
    """Fetches jars into the directory as Spark does it, without a session."""
    script = directory / "nothing.py"
    script.write_text("")
    settings = {key: value for key, value in given.items() if key.startswith("spark.jars.")}
    settings |= {"spark.jars.packages": ",".join(wanted), "spark.jars.ivy": str(directory)}
    settings["spark.jars.excludes"] = joined(given.get("spark.jars.excludes"), excluded)
    conf = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    line = [str(Path(spark_home(), "bin", "spark-submit")), *conf, str(script)]
    try:
        done = subprocess.run(
            line, capture_output=True, text=True, timeout=_FETCH_S, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise NoJarsError(f"nothing came for {_FETCH_S} s") from None
    if done.returncode or not any((directory / "jars").glob("*.jar")):
        raise NoJarsError(_problem(done.stdout + done.stderr) or "Spark does not say why")


def _problem(said: str) -> str:
    """The line that says most."""
    for pattern in (r"unresolved dependency: [^\]\n]+", r"[\w.]*(?:Exception|Error): [^\n]+"):
        if found := re.search(pattern, said):
            return found[0].strip()
    return ""


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "highwater"

"""Hadoop's client of S3 (`s3a://`) for the sessions of pipelines that are told a path there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from highwater.errors import UserError
from highwater.spark.pipelines.session.jars import NoJarsError, fetched_jars, has_jar, joined, spark_home

SCHEME = "s3a"
# It asks for a bundle of all of Amazon's services, 686 MB. Of these it needs 19.
_SDK = "2.35.4"
_MODULES = ("s3", "s3-transfer-manager", "sts", "apache-client")
_EXCLUDED = ("software.amazon.awssdk:bundle", "commons-logging:*", "org.slf4j:*")


def coordinates() -> list[str]:
    """Maven coordinates of the release for the Hadoop that PySpark has."""
    jars = Path(spark_home(), "jars").glob("hadoop-client-api-*.jar")
    hadoop = next((jar.stem.removeprefix("hadoop-client-api-") for jar in jars), "")
    return [f"org.apache.hadoop:hadoop-aws:{hadoop}", *(f"software.amazon.awssdk:{name}:{_SDK}" for name in _MODULES)]


def s3a_settings(paths: Iterable[str], given: Mapping[str, str]) -> dict[str, str]:
    """Settings of a new session that is to use these paths. Raises `UserError`."""
    if not any(path.startswith(f"{SCHEME}:") for path in paths) or has_jar("hadoop-aws", given):
        return {}
    wanted = coordinates()
    try:
        jars = fetched_jars(wanted, _EXCLUDED, given)
    except NoJarsError as error:
        raise UserError(
            f"the jars of {SCHEME}:// ({wanted[0]}) cannot be fetched: {error}; say where they are with --conf "
            "spark.jars=…/hadoop-aws….jar,…, or where Maven is with --conf spark.jars.ivySettings=…"
        ) from error
    return {"spark.jars": joined(given.get("spark.jars"), map(str, jars))}

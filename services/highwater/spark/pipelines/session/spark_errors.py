"""Errors of Spark as `UserError`: the one sentence of them that says what failed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from highwater.errors import UserError

_ERROR_LINE = re.compile(r"^(?:[a-z_]\w*\.)*([A-Z]\w*(?:Error|Exception)): (.+)$")
_JAVA_CALL = re.compile(r"^An error occurred while calling ")
_JAVA_ERROR = re.compile(r"^: (?:[a-z]\w*\.)+(\w+: .+|\w+)$")
_JAVA_CAUSE = re.compile(r"^Caused by: (?:[a-z]\w*\.)+(\w+: .+|\w+)$")
_ONLY_STATE = re.compile(r"(?:null)? ?SQLSTATE: \w+$")
_STREAM_FAILED = re.compile(r"^\[STREAM_FAILED\] .*? terminated with exception: ")
_UNSAID = (
    "Spark's query ended and does not say why: the Python process that plans what it reads was killed, or had too "
    "little memory; start the pipeline again, it goes on where it was"
)


@contextmanager
def spark_errors() -> Iterator[None]:
    """Turns errors that Spark raises into `UserError`, with the sentence of their cause."""
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
    """The error that Java raised, and its first cause."""
    raised = _JAVA_ERROR.match(lines[0]) if lines else None
    if raised is None:
        return ""
    causes = [match[1] for line in lines if (match := _JAVA_CAUSE.match(line))]
    return f"{raised[1]} (caused by {causes[-1]})" if causes else raised[1]

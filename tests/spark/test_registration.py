"""The data source as a session knows it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from highwater.spark import register
from highwater.spark.data_source import HighwaterDataSource


def test_what_spark_has_found_by_itself_is_not_replaced(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark warns of that, each time."""
    registered: list[object] = []
    monkeypatch.setattr(type(spark), "dataSource", SimpleNamespace(register=registered.append))
    register(spark)
    assert registered == []
    manager = spark._jsparkSession.sessionState().dataSourceManager()
    assert manager.dataSourceExists("highwater")
    assert not manager.dataSourceExists("highwater-of-somebody-else")


def test_a_session_that_does_not_know_it_is_told() -> None:
    registered: list[object] = []
    register(SimpleNamespace(dataSource=SimpleNamespace(register=registered.append)))  # type: ignore[arg-type]
    assert registered == [HighwaterDataSource]


def refusing(condition: str) -> SparkSession:
    """A session that does not know the data source and refuses to be told."""

    def register_data_source(_: object) -> None:
        raise AnalysisException("refused", errorClass=condition)

    session: object = SimpleNamespace(dataSource=SimpleNamespace(register=register_data_source))
    return session  # type: ignore[return-value]


def test_a_session_that_has_found_it_meanwhile_is_left_as_it_is() -> None:
    """As where Spark's Python process, which it asks for what is installed, is killed and started anew."""
    register(refusing("DATA_SOURCE_ALREADY_EXISTS"))


def test_a_session_that_refuses_it_is_not_left_without_it() -> None:
    with pytest.raises(AnalysisException):
        register(refusing("SOMETHING_ELSE"))

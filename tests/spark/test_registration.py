"""The data source as a session knows it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
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

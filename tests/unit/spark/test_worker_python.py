"""The Python that Spark's workers start with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from highwater.spark import quick_workers

NAMES = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """With a PySpark that is installed."""
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    for name in (*NAMES, "HIGHWATER_WORKER_PYTHON"):
        monkeypatch.setenv(name, "")  # whatever it is afterwards, it is put back
        monkeypatch.delenv(name)
    return monkeypatch


def test_a_worker_does_without_the_zip_of_pyspark(environment: pytest.MonkeyPatch) -> None:
    quick_workers()

    assert os.environ["PYSPARK_PYTHON"] == os.environ["PYSPARK_DRIVER_PYTHON"]
    # Spark names its own twice for a source that it has found by itself.
    spark = "/spark/python/lib/pyspark.zip:/spark/python/lib/py4j-0.10.9.9-src.zip"
    environment.setenv("PYTHONPATH", f"{spark}:{spark}:/jobs")
    told = "import os, sys; print(os.environ['PYTHONPATH'], sys.executable)"
    said = subprocess.run([os.environ["PYSPARK_PYTHON"], "-c", told], capture_output=True, text=True, check=True).stdout
    py4j = "/spark/python/lib/py4j-0.10.9.9-src.zip"
    assert said.split() == [f"{py4j}:{py4j}:/jobs", sys.executable]


def test_it_is_named_again_where_this_python_was_named(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("PYSPARK_PYTHON", sys.executable)
    quick_workers()
    named = os.environ["PYSPARK_PYTHON"]
    quick_workers()

    assert named != sys.executable
    assert os.environ["PYSPARK_PYTHON"] == named


@pytest.mark.parametrize("name", NAMES)
def test_another_python_that_the_user_has_named_stays(environment: pytest.MonkeyPatch, name: str) -> None:
    environment.setenv(name, "/opt/python")
    quick_workers()

    assert {os.environ.get(one) for one in NAMES} == {"/opt/python", None}


def test_without_an_installed_pyspark_nothing_is_named(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    zipped = tmp_path / "pyspark.zip"
    subprocess.run([sys.executable, "-m", "zipfile", "-c", zipped, tmp_path / "pyspark"], check=True)
    environment.setattr(sys, "path", [str(zipped)])
    quick_workers()

    assert not any(name in os.environ for name in NAMES)

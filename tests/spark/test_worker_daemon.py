"""Python workers that are forked from a process that has imported what tasks need."""

import gc
import sys
from pathlib import Path
from zipfile import ZipFile

import pyspark
import pytest
from pyspark.sql import SparkSession

from holdfast.worker_daemon import installed_path

INSTALLED = Path(pyspark.__file__).parents[1]


def imported(_: object) -> tuple[int, bool, str]:
    """How many objects are left out of looks for garbage, whether Holdfast is there unasked, and where PySpark is."""
    return gc.get_freeze_count(), "holdfast.spark.subtask" in sys.modules, pyspark.__file__


def test_workers_begin_with_what_tasks_import(spark: SparkSession) -> None:
    frozen, is_there, home = spark.sparkContext.parallelize([0], 1).map(imported).first()
    assert frozen > 100_000
    assert is_there
    assert Path(home).parents[1] == INSTALLED


@pytest.fixture
def archives(tmp_path: Path) -> list[str]:
    """What Spark puts on the path of workers, with no more in it than is looked at."""
    version = (INSTALLED / "pyspark" / "version.py").read_text()
    with ZipFile(tmp_path / "pyspark.zip", "w") as zipped:
        zipped.writestr("pyspark/__init__.py", "")
        zipped.writestr("pyspark/version.py", version)
    return [
        str(tmp_path / name) for name in ("pyspark.zip", "py4j-1-src.zip", "spark-core_2.13-4.jar")
    ]


def test_pyspark_comes_from_where_it_is_installed(archives: list[str]) -> None:
    assert installed_path(["/of-user.zip", *archives, str(INSTALLED)]) == [
        "/of-user.zip",
        str(INSTALLED),
    ]


def test_pyspark_comes_from_the_archive_if_it_is_nowhere_else(
    archives: list[str], tmp_path: Path
) -> None:
    path = [*archives, str(tmp_path)]
    assert installed_path(path) == path


@pytest.mark.parametrize("content", ["", "__version__ = '0'"])
def test_pyspark_comes_from_the_archive_if_that_is_another(
    archives: list[str], content: str
) -> None:
    with ZipFile(archives[0], "w") as zipped:
        zipped.writestr("pyspark/version.py" if content else "other.py", content)
    path = [*archives, str(INSTALLED)]
    assert installed_path(path) == path

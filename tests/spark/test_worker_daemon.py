"""Python workers that are forked from a process with the imports of tasks."""

import gc
import sys
from pathlib import Path
from zipfile import ZipFile

import pyspark
import pytest
from pyspark.sql import SparkSession

from holdfast.worker_daemon import installed_path

INSTALLED = Path(pyspark.__file__).parents[1]


def worker_state(_: object) -> tuple[int, bool, str]:
    """Return the number of frozen objects, whether Holdfast is imported, and the file of PySpark."""
    return gc.get_freeze_count(), "holdfast.spark.subtask" in sys.modules, pyspark.__file__


def test_workers_start_with_the_imports_of_tasks(spark: SparkSession) -> None:
    frozen, is_imported, home = spark.sparkContext.parallelize([0], 1).map(worker_state).first()
    assert frozen > 100_000
    assert is_imported
    assert Path(home).parents[1] == INSTALLED


@pytest.fixture
def archives(tmp_path: Path) -> list[str]:
    """Return the archives that Spark puts on the path of workers, with a minimal content."""
    version = (INSTALLED / "pyspark" / "version.py").read_text()
    with ZipFile(tmp_path / "pyspark.zip", "w") as zipped:
        zipped.writestr("pyspark/__init__.py", "")
        zipped.writestr("pyspark/version.py", version)
    return [
        str(tmp_path / name) for name in ("pyspark.zip", "py4j-1-src.zip", "spark-core_2.13-4.jar")
    ]


def test_installed_pyspark_is_imported(archives: list[str]) -> None:
    assert installed_path(["/of-user.zip", *archives, str(INSTALLED)]) == [
        "/of-user.zip",
        str(INSTALLED),
    ]


def test_pyspark_of_the_archive_is_imported_if_not_installed(
    archives: list[str], tmp_path: Path
) -> None:
    path = [*archives, str(tmp_path)]
    assert installed_path(path) == path


@pytest.mark.parametrize("content", ["", "__version__ = '0'"])
def test_another_pyspark_in_the_archive_is_imported(archives: list[str], content: str) -> None:
    with ZipFile(archives[0], "w") as zipped:
        zipped.writestr("pyspark/version.py" if content else "other.py", content)
    path = [*archives, str(INSTALLED)]
    assert installed_path(path) == path

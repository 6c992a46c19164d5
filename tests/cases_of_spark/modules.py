"""The modules of Spark's own test cases of `transformWithState` and `applyInPandasWithState`.

They are Spark's, so none of their code is here. A PySpark has those of its version in the `pyspark.zip` that it ships to
its workers. `SPARK_CHECKOUT` names a checkout of Spark to take them from instead.
"""

import os
import sys
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

import pyspark
import pytest
from jobs.pyspark_versions import VERSION
from pyspark import cloudpickle

PACKAGE = "pyspark.sql.tests"


def folder_of_cases() -> str:
    """Return the folder of the package of the cases, which may be in an archive."""
    checkout = os.environ.get("SPARK_CHECKOUT")
    if checkout:
        return str(Path(checkout) / "python" / "pyspark" / "sql")
    return str(Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip" / "pyspark" / "sql")


def module_of_cases(name: str) -> Any:
    """Import a module of cases; skips the test if it does not exist.

    Args:
        name: The module's name in `pyspark.sql.tests.pandas.streaming`; with a dot first, in the package above.
    """
    if VERSION < (4, 3):
        pytest.skip(f"the cases are those of PySpark 4.3, and this is {pyspark.__version__}")
    folder = folder_of_cases()
    if not _has_package(folder):
        pytest.skip(
            f"Spark's own cases aren't in {folder}; SPARK_CHECKOUT can name a checkout of Spark "
            f"{pyspark.__version__}"
        )
    return import_module(f".{name}", f"{PACKAGE}.pandas.streaming")


@cache
def _has_package(folder: str) -> bool:
    """Import only the package, under its own name; everything else of Spark is as installed."""
    spec = PathFinder.find_spec(PACKAGE, [folder])
    if spec is None or spec.loader is None:
        return False
    package = sys.modules[PACKAGE] = module_from_spec(spec)
    spec.loader.exec_module(package)
    # Workers can't import it: processors are pickled by value.
    cloudpickle.register_pickle_by_value(package)  # type: ignore[no-untyped-call]
    return True

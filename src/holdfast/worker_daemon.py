"""Starts Python workers that begin at once: set `spark.python.daemon.module` to this module.

Spark's own daemon forks a worker which then imports Holdfast, Arrow and pandas, for a second of a processor;
each worker does so, and a task that fails takes its worker with it. Here they are imported before the fork,
once on each executor, and the workers share the memory.

Spark puts a ZIP of PySpark and a JAR before all else on the path of workers. What is imported from a ZIP is
compiled anew, for a second in each daemon; and each new worker forgets what Python knows of the path, which then
reads the lists of all files in them again, once for each of PySpark's packages: 0.2 s. So PySpark is imported
from where it is installed, if it is there in the same version.

Spark starts it as it starts its own: `python -m holdfast.worker_daemon pyspark.worker`. It is here and not in
`holdfast.spark`, whose import imports PySpark.
"""

import gc
import sys
from collections.abc import Sequence
from fnmatch import fnmatch
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from zipimport import zipimporter

_PYSPARK = "pyspark.zip"
_OF_SPARK = (_PYSPARK, "py4j-*-src.zip", "spark-core_*.jar")
_VERSION = "version.py"
_FOR_TASKS = ("pandas", "pyarrow", "pyspark.worker", "holdfast.spark")


def installed_path(path: Sequence[str]) -> list[str]:
    """The path for imports without Spark's archives, if PySpark is on it besides and is the same; else the path."""
    archives = [
        entry for entry in path if any(fnmatch(Path(entry).name, name) for name in _OF_SPARK)
    ]
    others = [entry for entry in path if entry not in archives]
    installed, py4j = (PathFinder.find_spec(name, others) for name in ("pyspark", "py4j"))
    if installed is None or not installed.origin or py4j is None:
        return list(path)
    try:
        version = Path(installed.origin).with_name(_VERSION).read_bytes()
        for archive in archives:
            if Path(archive).name == _PYSPARK:
                zipped = zipimporter(archive).get_data(f"pyspark/{_VERSION}")
                if zipped != version:
                    return list(path)
    except (OSError, ImportError):
        return list(path)
    return others


def _serve() -> None:
    """Import what tasks need, and fork a worker whenever Spark asks for it, for as long as Spark lives."""
    sys.path[:] = installed_path(sys.path)
    sys.path_importer_cache.clear()
    for module in _FOR_TASKS:
        import_module(module)
    # Workers look for garbage after each task: what stays is left out, and so not copied either.
    gc.collect()
    gc.freeze()
    import_module("pyspark.daemon").manager()


if __name__ == "__main__":
    _serve()

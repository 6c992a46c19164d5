"""A daemon whose Python workers start without delay: set `spark.python.daemon.module` to this module.

With Spark's own daemon each new worker imports Holdfast, Arrow and pandas after the fork, which takes a second of CPU
time; and a failed task ends its worker. This daemon imports them before the fork, once on each executor, and the
workers share the memory.

Spark puts a ZIP of PySpark and a JAR first on the path of workers. Python compiles modules from a ZIP in each process,
which takes a second in each daemon; and PySpark makes Python read the directories of both archives again, once for each
package: 0.2 s in the first task of a worker. So the daemon imports an installed PySpark of the same version instead, if
there is one.

Spark starts it as it starts its own: `python -m holdfast.worker_daemon pyspark.worker`. The module is not in
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
_ARCHIVES = (_PYSPARK, "py4j-*-src.zip", "spark-core_*.jar")
_VERSION = "version.py"
_FOR_TASKS = ("pandas", "pyarrow", "pyspark.worker", "holdfast.spark.by_key")


def installed_path(path: Sequence[str]) -> list[str]:
    """Return the path without Spark's archives if the same PySpark is installed elsewhere on it; else the path."""
    archives = [
        entry for entry in path if any(fnmatch(Path(entry).name, name) for name in _ARCHIVES)
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
    """Import the modules that tasks need, then fork workers on request until Spark ends."""
    sys.path[:] = installed_path(sys.path)
    sys.path_importer_cache.clear()
    for module in _FOR_TASKS:
        import_module(module)
    # Workers collect garbage after each task; frozen objects are skipped, so their memory pages stay shared.
    gc.collect()
    gc.freeze()
    import_module("pyspark.daemon").manager()


if __name__ == "__main__":
    _serve()

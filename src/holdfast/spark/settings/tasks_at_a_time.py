"""How many tasks an executor runs at a time, by Spark's configuration."""

import os
import re
from collections.abc import Mapping

_LOCAL = re.compile(r"local\[(\*|\d+)(?:,\s*\d+)?\]")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*\d+\s*,\s*(\d+)\s*,\s*\d+\s*\]")


def tasks_at_a_time(configuration: Mapping[str, str]) -> int | None:
    """How many tasks an executor runs at a time.

    Args:
        configuration: Spark's configuration, all of it.

    Returns:
        Their number, 1 at least; None where the executors' hosts alone know it: those of a standalone cluster have all cores of
        their worker if nothing is set.

    Source:
        Spark, SparkContext.createTaskScheduler, and `spark.executor.cores` in its documentation.
    """
    master = configuration.get("spark.master", "").strip()
    cores: int | None
    if master == "local":
        cores = 1
    elif local := _LOCAL.fullmatch(master):
        cores = (os.cpu_count() or 1) if local[1] == "*" else int(local[1])
    elif cluster := _LOCAL_CLUSTER.fullmatch(master):
        cores = int(cluster[1])
    else:
        cores = _number(configuration.get("spark.executor.cores"))
        if cores is None and master.startswith(("yarn", "k8s:")):
            cores = 1  # their default
    if cores is None:
        return None
    return max(1, cores // max(1, _number(configuration.get("spark.task.cpus")) or 1))


def _number(text: str | None) -> int | None:
    """A number of Spark's; None if there is none, about which Spark complains itself."""
    return int(text) if text is not None and text.strip().isdecimal() else None

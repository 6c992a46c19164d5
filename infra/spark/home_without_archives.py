"""Makes a home of Spark without the archives of Python packages: links to all else that PySpark has brought.

    home-without-archives DIRECTORY

Drivers take it by `SPARK_HOME=DIRECTORY`. Spark puts a ZIP of PySpark that is in its home before all else on the path
of the Python processes that it starts, and each compiles PySpark from there. Without it they import what is installed.

Exit status: 0 done, 2 wrong usage.
"""

import os
import shutil
import sys
from pathlib import Path

import pyspark

sys.path.insert(0, os.fspath(Path(__file__).parents[2]))

from infra.common import UsageError, run  # found by the line above

_LINKED = ("bin", "jars", "sbin")


def make_home(directory: Path) -> None:
    """Make the home, in place of an older one."""
    installed = Path(pyspark.__file__).parent
    new = directory.with_name(f"{directory.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    for name in _LINKED:
        (new / name).symlink_to(installed / name)
    shutil.rmtree(directory, ignore_errors=True)
    os.replace(new, directory)


def _command(arguments: list[str]) -> None:
    match arguments:
        case [directory]:
            make_home(Path(directory))
        case _:
            raise UsageError


if __name__ == "__main__":
    run(_command, __doc__)

"""The jars of Delta and Iceberg, which a Spark needs for their tables.

    fetch.py build

Maven brings the jars that `pom.xml` names once, into `${XDG_CACHE_HOME:-~/.cache}/holdfast/`.

Exit status: 0 done, 2 wrong usage, 3 can't be had here (no Maven, or the jars are out of reach), otherwise it failed; the
last line on stderr has the reason.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, os.fspath(Path(__file__).parents[2]))

from infra.common import UsageError, build_once, digest, fetch_jars, run  # found by the line above

POM = Path(__file__).parent / "pom.xml"


def build() -> Path:
    """Directory of the jars, made if it is not there."""
    return build_once("tables", digest(POM), _fetch)


def _fetch(directory: Path) -> Path:
    print("fetching the jars of Delta and Iceberg once, 62 MB", file=sys.stderr)
    fetch_jars("Delta and Iceberg", POM, directory / "jars")
    return directory / "jars"


def _command(arguments: list[str]) -> dict[str, str]:
    if arguments != ["build"]:
        raise UsageError
    return {"jars": str(build())}


if __name__ == "__main__":
    run(_command, __doc__)

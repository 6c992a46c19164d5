"""The jars of Delta and Iceberg, which a Spark needs for their tables.

    fetch.py build

Maven brings the jars that `pom.xml` names once, into `${XDG_CACHE_HOME:-~/.cache}/holdfast/`.

Exit status: 0 done, 2 wrong usage, 3 can't be had here (no Maven, or the jars are out of reach), otherwise it failed; the
last line on stderr has the reason.
"""

import fcntl
import hashlib
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, os.fspath(Path(__file__).parents[2]))

from infra.common import UsageError, fetch_jars, run  # found by the line above

POM = Path(__file__).parent / "pom.xml"


def build() -> Path:
    """Directory of the jars, made if it is not there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast"
    home = cache / f"tables-{hashlib.sha256(POM.read_bytes()).hexdigest()[:16]}"
    if home.exists():
        return home
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "tables.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be building it
        if not home.exists():
            with tempfile.TemporaryDirectory(dir=cache, prefix="building-") as directory:
                print("fetching the jars of Delta and Iceberg once, 62 MB", file=sys.stderr)
                fetch_jars("Delta and Iceberg", POM, Path(directory) / "jars")
                os.replace(Path(directory) / "jars", home)
    return home


def _command(arguments: list[str]) -> dict[str, str]:
    if arguments != ["build"]:
        raise UsageError
    return {"jars": str(build())}


if __name__ == "__main__":
    run(_command, __doc__)

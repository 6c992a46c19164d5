"""Makes `tests/data/flink/state-job.tar.xz` anew: savepoints of `StateJob.java` on both backends, in both formats.

    python infra/flink/golden.py --flink-jars ~/.cache/holdfast/flink-2.3.0/pyflink/lib

Run by hand, when the job or the version of Flink changes. What is in the files follows formulas, so that a new archive
passes the tests of the one before; its bytes differ, because of names and times.
"""

import argparse
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

_SOURCE = Path(__file__).parent / "StateJob.java"
_TARGET = Path(__file__).parents[2] / "tests" / "data" / "flink" / "state-job.tar.xz"
_FORMS = [(backend, form) for backend in ("hashmap", "rocksdb") for form in ("canonical", "native")]
_OPENED = ["java.base/java.lang", "java.base/java.util", "java.base/java.time"]
_MOST_BYTES = 200_000
_PARALLELISM = "2"


def main() -> None:
    """Run the job once for each form, and pack what it has written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flink-jars", type=Path, required=True, help="the jars of Flink")
    jars: Path = parser.parse_args().flink_jars
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        classes = directory / "classes"
        javac = ["javac", "-nowarn", "-cp", f"{jars}/*", "-d", str(classes), str(_SOURCE)]
        subprocess.run(javac, check=True)
        for form in _FORMS:
            _write(jars, classes, directory / "state-job" / "-".join(form), form)
        with tarfile.open(_TARGET, "w:xz", preset=9) as archive:
            archive.add(directory / "state-job", "state-job", filter=_anonymous)
    size = _TARGET.stat().st_size
    if size > _MOST_BYTES:
        message = f"{_TARGET} has {size} bytes, more than the {_MOST_BYTES} that it may have"
        raise SystemExit(message)
    print(f"{_TARGET}: {size} bytes")


def _write(jars: Path, classes: Path, target: Path, form: tuple[str, str]) -> None:
    """Run the job, and keep its savepoint under a name without anything random."""
    opened = [f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED]
    written = target.with_suffix(".written")
    path = ["-cp", f"{classes}:{jars}/*"]
    java = ["java", "-Xmx1g", *opened, *path, "StateJob", "write", *form, _PARALLELISM]
    subprocess.run([*java, f"file://{written}"], check=True, cwd=classes)
    [savepoint] = written.iterdir()
    shutil.move(savepoint, target)
    written.rmdir()


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    main()

"""Makes savepoints in `tests/data/flink` anew: `state-job.tar.xz`, `sql.tar.xz` and `orders.tar.xz`, by a real Flink.

    python infra/flink/golden.py --flink-jars ~/.cache/holdfast/flink-2.3.0/pyflink/lib

The first are of `StateJob.java`, on both backends in both formats, the second of `SqlJob.java`, the third of the job in
`examples/flink`. Run by hand, when a job or the version of Flink changes. What is in the files follows formulas, so that new ones pass the tests of
those before; their bytes differ, because of names and times.
"""

import argparse
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_SOURCES = [
    _ROOT / "infra" / "flink" / "StateJob.java",
    _ROOT / "infra" / "flink" / "SqlJob.java",
    _ROOT / "examples" / "flink" / "Orders.java",
]
_TARGET = _ROOT / "tests" / "data" / "flink"
_FORMS = [(backend, form) for backend in ("hashmap", "rocksdb") for form in ("canonical", "native")]
_ORDERS = ["ann,tea,3", "bob,tea,5", "ann,milk,4", "eve,tea,1", "ann,tea,2", "zoé,milk,7"]
_OPENED = ["java.base/java.lang", "java.base/java.util", "java.base/java.time"]
_MOST_BYTES = 200_000


def main() -> None:
    """Run the jobs, and pack what they have written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flink-jars", type=Path, required=True, help="the jars of Flink")
    jars: Path = parser.parse_args().flink_jars
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        classes = directory / "classes"
        sources = [str(source) for source in _SOURCES]
        javac = [
            "javac",
            "-encoding",
            "UTF-8",
            "-nowarn",
            "-cp",
            f"{jars}/*",
            "-d",
            str(classes),
            *sources,
        ]
        subprocess.run(javac, check=True)
        opened = [f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED]
        java = ["java", "-Xmx1g", "-Dfile.encoding=UTF-8", *opened, "-cp", f"{classes}:{jars}/*"]
        for form in _FORMS:
            target = directory / "state-job" / "-".join(form)
            _run([*java, "StateJob", "write", *form, "2"], target)
        _pack(directory / "state-job")
        for form in _FORMS:
            _run([*java, "SqlJob", *form, "2"], directory / "sql" / "-".join(form))
        _pack(directory / "sql")
        source = directory / "source"
        source.mkdir()
        lines = "".join(f"{order}\n" for order in _ORDERS)
        (source / "orders.csv").write_text(lines, encoding="utf-8")
        _run([*java, "Orders", str(source), str(len(_ORDERS))], directory / "orders")
        _pack(directory / "orders")


def _run(command: list[str], target: Path) -> None:
    """Run a job, and keep its savepoint under a name without anything random."""
    written = target.with_suffix(".written")
    subprocess.run([*command, f"file://{written}"], check=True)
    [savepoint] = written.iterdir()
    shutil.move(savepoint, target)
    written.rmdir()


def _pack(directory: Path) -> None:
    """Make an archive of a directory. Raises SystemExit if it is too large to be committed."""
    target = _TARGET / f"{directory.name}.tar.xz"
    with tarfile.open(target, "w:xz", preset=9) as archive:
        archive.add(directory, directory.name, filter=_anonymous)
    size = target.stat().st_size
    if size > _MOST_BYTES:
        message = f"{target} has {size} bytes, more than the {_MOST_BYTES} that it may have"
        raise SystemExit(message)
    print(f"{target}: {size} bytes")


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    main()

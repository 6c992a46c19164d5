"""Makes the savepoints and checkpoints in `tests/data/flink` with a real Flink.

    python infra/flink/golden.py --flink-jars ~/.cache/holdfast/flink-2.3.0/pyflink/lib --flink-1-jars DIRECTORY

`state-job` is of `StateJob.java`, on both backends in both formats; `sql` of `SqlJob.java`; `types` of `TypesJob.java`, one of
Flink 1.20; `patterns` of `PatternJob.java`; `checkpoints` of both, retained with several settings; `orders` of the job in `examples/flink`. Run by hand, when a
job or the version of Flink changes, or for some archives with --only. The content of the files follows formulas, so that new ones
pass the tests of those before; their bytes differ, because of names and times.
"""

import argparse
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_SOURCES = [
    *(
        _ROOT / "infra" / "flink" / f"{name}.java"
        for name in ("Savepoints", "StateJob", "SqlJob", "TypesJob", "PatternJob")
    ),
    _ROOT / "examples" / "flink" / "Orders.java",
]
_OF_FLINK_1 = [_ROOT / "infra" / "flink" / f"{name}.java" for name in ("Savepoints", "TypesJob")]
_TARGET = _ROOT / "tests" / "data" / "flink"
_FORMS = [(backend, form) for backend in ("hashmap", "rocksdb") for form in ("canonical", "native")]
_CHECKPOINTS = {
    "incremental": ["StateJob", "write", "rocksdb"],
    "compressed": [
        "StateJob",
        "write",
        "hashmap",
        "execution.checkpointing.snapshot-compression=true",
    ],
    "merged": ["StateJob", "write", "rocksdb", "execution.checkpointing.file-merging.enabled=true"],
    "changelog": [
        "StateJob",
        "write",
        "hashmap",
        "state.changelog.enabled=true",
        "state.changelog.storage=filesystem",
    ],
    "forst": ["StateJob", "write", "forst"],
    "unaligned": ["TypesJob", "rocksdb", "execution.checkpointing.unaligned.enabled=true"],
}
"""The command for each checkpoint: the job, its first arguments, and settings."""
_ORDERS = ["ann,tea,3", "bob,tea,5", "ann,milk,4", "eve,tea,1", "ann,tea,2", "zoé,milk,7"]
_OPENED = [
    f"java.base/java.{package}"
    for package in ("lang", "lang.invoke", "time", "util", "util.concurrent")
]
_MAX_BYTES = 200_000


def main() -> None:
    """Run the jobs, and pack what they have written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flink-jars", type=Path, required=True, help="the jars of Flink 2")
    parser.add_argument("--flink-1-jars", type=Path, help="the jars of Flink 1.20, for `types`")
    parser.add_argument("--only", nargs="+", choices=_ARCHIVES, default=list(_ARCHIVES))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        java = _compile(_SOURCES, options.flink_jars, directory / "classes")
        for archive in options.only:
            target = directory / archive
            target.mkdir()
            _ARCHIVES[archive](java, target)
            if archive == "types" and options.flink_1_jars is not None:
                older = _compile(_OF_FLINK_1, options.flink_1_jars, directory / "classes-1")
                _run([*older, "TypesJob", "hashmap", "native", "2"], target / "flink-1.20")
            _pack(target)


def _compile(sources: list[Path], jars: Path, classes: Path) -> list[str]:
    """Compile sources; returns the command that runs a job of them."""
    options = ["-encoding", "UTF-8", "-nowarn", "-cp", f"{jars}/*", "-d", str(classes)]
    subprocess.run(["javac", *options, *map(str, sources)], check=True)
    opened = [f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED]
    return ["java", "-Xmx1g", "-Dfile.encoding=UTF-8", *opened, "-cp", f"{classes}:{jars}/*"]


def _state_job(java: list[str], target: Path) -> None:
    for form in _FORMS:
        _run([*java, "StateJob", "write", *form, "2"], target / "-".join(form))


def _sql(java: list[str], target: Path) -> None:
    for form in _FORMS:
        _run([*java, "SqlJob", *form, "2"], target / "-".join(form))


def _patterns(java: list[str], target: Path) -> None:
    for form in (_FORMS[1], _FORMS[-1]):
        _run([*java, "PatternJob", *form, "1"], target / "-".join(form))


def _types(java: list[str], target: Path) -> None:
    for form in (_FORMS[0], _FORMS[-1]):
        _run([*java, "TypesJob", *form, "2"], target / "-".join(form))


def _checkpoints(java: list[str], target: Path) -> None:
    for name, arguments in _CHECKPOINTS.items():
        words = [word for word in arguments if "=" not in word]
        settings = [word for word in arguments if "=" in word]
        if name == "changelog":
            settings.append(f"state.changelog.dstl.dfs.base-path=file://{target}.changes")
        _run([*java, *words, "checkpoint", "2"], target / name, *settings)


def _orders(java: list[str], target: Path) -> None:
    source = target.with_name("source")
    source.mkdir()
    lines = "".join(f"{order}\n" for order in _ORDERS)
    (source / "orders.csv").write_text(lines, encoding="utf-8")
    target.rmdir()
    _run([*java, "Orders", str(source), str(len(_ORDERS))], target)


_ARCHIVES = {
    "state-job": _state_job,
    "sql": _sql,
    "types": _types,
    "patterns": _patterns,
    "checkpoints": _checkpoints,
    "orders": _orders,
}


def _run(command: list[str], target: Path, *settings: str) -> None:
    """Run a job, and keep its savepoint, or all of its checkpoints, under a name without anything random."""
    written = target.with_name(f"{target.name}.written")
    subprocess.run([*command, f"file://{written}", *settings], check=True)
    [savepoint] = written.iterdir()
    shutil.move(savepoint, target)
    written.rmdir()


def _pack(directory: Path) -> None:
    """Make an archive of a directory. Raises SystemExit if it is too large to be committed."""
    target = _TARGET / f"{directory.name}.tar.xz"
    with tarfile.open(target, "w:xz", preset=9) as archive:
        archive.add(directory, directory.name, filter=_anonymous)
    size = target.stat().st_size
    if size > _MAX_BYTES:
        message = f"{target} has {size} bytes, more than the {_MAX_BYTES} that it may have"
        raise SystemExit(message)
    print(f"{target}: {size} bytes")


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    main()

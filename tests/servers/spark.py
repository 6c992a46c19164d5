"""A Spark master and its workers on loopback, which tests may break.

If they can't run, the tests that request them are skipped with the reason.
"""

import os
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from contracts.patience import HANGS_S
from servers import infra

_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


@dataclass(frozen=True, slots=True)
class SparkCluster:
    """A cluster with faults. Each method waits until it has taken effect.

    Attributes:
        master: `spark://127.0.0.1:port`.
        directory: All files of the servers; their logs are `master.log` and `worker1.log`, those of
            executors are in `worker1/work/`.
    """

    master: str
    directory: Path

    def kill_worker(self, number: int) -> None:
        """Kill a worker with its executors, as if its machine had crashed."""
        infra.run("spark", "worker", "kill", str(number), str(self.directory))

    def start_worker(self, number: int) -> None:
        infra.run("spark", "worker", "start", str(number), str(self.directory))


@contextmanager
def spark_cluster(workers: int = 2) -> Iterator[SparkCluster]:
    """Run the servers of `infra/spark`, each worker with one core."""
    with infra.running("spark", str(workers)) as known:
        yield SparkCluster(known["master"], Path(known["directory"]))


def package(file: Path) -> None:
    """Write the package in the form of `--py-files`."""
    infra.run("spark", "package", str(file))


def python_without_holdfast(directory: Path) -> Path:
    """Create a Python environment with all dependencies of Holdfast, and without Holdfast."""
    venv.create(directory / "environment", symlinks=True)
    dependencies = directory / "dependencies"
    dependencies.mkdir()
    for folder in {path for path in map(Path, sys.path) if path.name == "site-packages"}:
        for entry in folder.iterdir():
            # An editable installation is a finder, which a .pth file installs.
            if "holdfast" not in entry.name and entry.suffix != ".pth":
                (dependencies / entry.name).symlink_to(entry)
    [packages] = (directory / "environment" / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{dependencies}\n")
    return directory / "environment" / "bin" / "python"


def python_with_holdfast(directory: Path, package_zip: Path) -> Path:
    """Create a Python environment with Holdfast and its dependencies, from the form of `--py-files`."""
    python = python_without_holdfast(directory)
    [packages] = (directory / "environment" / "lib").glob("python*/site-packages")
    with zipfile.ZipFile(package_zip) as archive:
        archive.extractall(packages)
    return python


def pack_environment(python: Path, archive: Path) -> None:
    """Pack the environment of a Python, as venv-pack does."""
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(python.parents[1], arcname=".")


def clean_environment() -> dict[str, str]:
    """Return the environment of this process without variables that would lead to other modules."""
    others = ("PYTHON", "PYSPARK_", "SPARK_")
    kept = {"SPARK_SUBMIT_OPTS"}  # Spark starts in half the time with it
    return {
        key: value for key, value in os.environ.items() if key in kept or not key.startswith(others)
    }


def executor_of(python_worker: int) -> psutil.Process:
    """Return the executor of a Python worker, given by its process id."""
    for process in psutil.Process(python_worker).parents():
        if _EXECUTOR in process.cmdline():
            return process
    raise AssertionError(f"process {python_worker} is not a Python worker of an executor")


def kill_tree(*roots: psutil.Process) -> None:
    """Kill processes and their descendants, and wait until they have ended."""
    processes = [member for root in roots for member in (root, *root.children(recursive=True))]
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()  # ignores new processes with the same id
    _, alive = psutil.wait_procs(processes, timeout=HANGS_S)
    assert not alive


@pytest.fixture(scope="session")
def cluster() -> Iterator[SparkCluster]:
    with spark_cluster() as cluster:
        yield cluster

"""Runs tests on other versions of Python, PySpark and libraries than those of `make test`, and records the results.

    run [--quick] [--only SUITE] [NAME…]

Names are those of ENVIRONMENTS, by default all of them; suites are `types`, `library`, `spark`, `quick`, `connect`, `cluster` and
`readme`. Environments are kept in build/versions. The results go to results.json next to this file, from which `make docs` makes a
table of docs/support-matrix.md. With `--quick` only `quick` runs, and nothing is recorded.

Exit status: 0 done, 1 a test failed, 2 wrong usage. A Python that this machine lacks is skipped with a message.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict
from xml.etree import ElementTree as ET

sys.path.insert(0, os.fspath(Path(__file__).parents[2]))

from infra.common import UsageError, run  # found by the line above
from infra.versions.readme import run_readme

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results.json"

LIBRARY = ("tests/backends", "tests/locations", "tests/flink", "tests/cli")
_WITHOUT_OWN_LOGIC = ("--ignore-glob=*machine*", "--ignore-glob=*crashes*")
"""Leaves out tests that no version of a library changes: state machines, and crashes at each call of a store."""

SPARK = ("tests/spark",)
CONNECT = ("integration_tests/test_connect.py",)
CLUSTER = ("integration_tests/spark/cluster/test_cluster.py",)

QUICK = tuple(
    f"tests/spark/test_{name}.py" for name in ("data_source", "event_time", "routing", "stateful")
)
QUICK_ON_LOWEST = (
    *("tests/backends", "--ignore-glob=*rocksdb*"),
    *(f"tests/spark/test_{name}.py" for name in ("compat", "data_source", "file_ticks", "routing")),
)
"""State in Arrow, and parts of Holdfast that differ on PySpark 3.5."""
QUICK_ON_NEWEST = (
    *CONNECT,
    "integration_tests/spark/test_cases_of_spark.py",
    "integration_tests/spark/test_savepoints.py::test_state_in_rocksdb_is_spread_over_more_partitions",
    "tests/spark/test_routing.py::test_unusable_key_columns_are_refused_by_name",
)
"""Tests that are skipped on the PySpark of requirements.lock: Spark Connect, Spark's own cases, repartitioned state of Spark, and types of columns."""


@dataclass(frozen=True, slots=True)
class Environment:
    """Versions that are tested together.

    Attributes:
        python: The command of this Python.
        over: Arguments of `uv pip install --no-deps` for what replaces parts of requirements.lock.
        fresh: Arguments of `uv pip install '.[spark]'` that give a user these versions.
        suites: The suites that run by default.
        quick: The tests of the suite `quick`.
    """

    python: str = "python3.11"
    over: tuple[str, ...] = ()
    fresh: tuple[str, ...] = ()
    suites: tuple[str, ...] = ("spark", "connect", "readme")
    quick: tuple[str, ...] = QUICK


def _pyspark(version: str, *suites: str, quick: tuple[str, ...] = QUICK) -> Environment:
    requirement = (f"pyspark=={version}.*",)
    return Environment(over=requirement, fresh=requirement, suites=suites, quick=quick)


_OF_NEW_PYTHONS = ("types", "library", "spark", "readme")

ENVIRONMENTS = {
    "lowest": Environment(
        over=("--require-hashes", "-r", "requirements-lowest.lock"),
        fresh=("--resolution", "lowest-direct"),
        suites=("library", "spark", "readme"),
        quick=QUICK_ON_LOWEST,
    ),
    "pyspark-3.5": _pyspark("3.5", "spark", "cluster", "readme"),
    "pyspark-4.0": _pyspark("4.0", "spark", "readme"),
    "pyspark-4.1": _pyspark("4.1", "spark", "readme"),
    "pyspark-4.2": _pyspark("4.2", "spark", "readme"),
    "pyspark-4.3": _pyspark("4.3", "spark", "connect", "readme", quick=QUICK_ON_NEWEST),
    "python3.12": Environment("python3.12", suites=_OF_NEW_PYTHONS),
    "python3.13": Environment("python3.13", suites=_OF_NEW_PYTHONS),
    "python3.14": Environment("python3.14", suites=_OF_NEW_PYTHONS),
}

_PRINT_VERSIONS = """
import json, platform
from importlib.metadata import version
names = ("pyspark", "pyarrow", "pandas", "numpy")
print(json.dumps({"python": platform.python_version()} | {name: version(name) for name in names}))
"""


class SuiteResult(TypedDict):
    """The number of tests with each outcome, and the day of the run."""

    passed: int
    skipped: int
    failed: int
    date: str


class Result(TypedDict):
    """The results of an environment: its versions by name, and its suites."""

    versions: dict[str, str]
    suites: dict[str, SuiteResult]


@dataclass(frozen=True, slots=True)
class Run:
    """An environment at work.

    Attributes:
        name: Its name.
        environment: Its versions and suites.
    """

    name: str
    environment: Environment

    @property
    def directory(self) -> Path:
        return ROOT / "build" / "versions" / self.name

    def install(self, python: str) -> None:
        """Create the environment: what requirements.lock names, with parts of it replaced."""
        mine, ready = _create(self.directory, python), self.directory / "ready"
        locks = [
            (ROOT / name).read_text() for name in ("requirements.lock", "requirements-lowest.lock")
        ]
        wanted = "\n".join([*locks, *self.environment.over])
        if ready.exists() and ready.read_text() == wanted:
            return
        _uv("sync", mine, "--require-hashes", "requirements.lock")
        if self.environment.over:
            _uv("install", mine, "--no-deps", *self.environment.over)
        _uv("install", mine, "--no-deps", "--editable", ".", *_EDITABLE)
        self._python("infra/spark/home_without_archives.py", str(self.directory / "spark-home"))
        ready.write_text(wanted)

    def versions(self) -> dict[str, str]:
        """Return the versions in the environment, by name."""
        done = self._python("-c", _PRINT_VERSIONS, stdout=subprocess.PIPE)
        versions: dict[str, str] = json.loads(done.stdout)
        return versions

    def run(self, suite: str, python: str) -> SuiteResult:
        """Run a suite."""
        print(f"== {self.name}: {suite}", flush=True)
        match suite:
            case "types":
                done = self._python("-m", "mypy", "--cache-dir", str(self.directory / "mypy"))
                return _result(failed=int(done.returncode != 0))
            case "readme":
                return _result(failed=int(not self._runs_readme(python)))
            case "quick":
                return self._pytest(*self.environment.quick, *_WITHOUT_OWN_LOGIC)
            case "library":
                return self._pytest(*LIBRARY, *_WITHOUT_OWN_LOGIC)
            case "spark":
                return self._pytest(*SPARK)
            case "connect":
                return self._pytest(*CONNECT)
            case "cluster":
                return self._pytest(*CLUSTER)
            case _:
                raise UsageError(f"no such suite: {suite}")

    def _pytest(self, *arguments: str) -> SuiteResult:
        with tempfile.TemporaryDirectory() as directory:
            report = Path(directory) / "report.xml"
            options = ("-q", "-m", "not exhaustive", f"--junit-xml={report}", *_OPTIONS)
            self._python("-m", "pytest", *options, *arguments)
            suite = ET.parse(report).getroot().find("testsuite")  # noqa: S314  # written by pytest
        assert suite is not None
        counts = {name: int(suite.get(name, 0)) for name in ("tests", "skipped")}
        failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        passed = counts["tests"] - counts["skipped"] - failed
        return _result(passed=passed, skipped=counts["skipped"], failed=failed)

    def _runs_readme(self, python: str) -> bool:
        """Return whether the example of the README works in an environment that is made as users make it."""
        directory = self.directory.with_name(f"{self.name}-fresh")
        shutil.rmtree(directory, ignore_errors=True)
        _uv("install", _create(directory, python), ".[spark]", *self.environment.fresh)
        return run_readme(ROOT / "README.md", directory / "bin")

    def _python(
        self, *arguments: str, stdout: int | None = None
    ) -> "subprocess.CompletedProcess[str]":
        environment = {
            **os.environ,
            "HYPOTHESIS_PROFILE": os.environ.get("HYPOTHESIS_PROFILE", "quick"),
            "PATH": f"{self.directory / 'bin'}:{os.environ['PATH']}",
            "PYTHONDONTWRITEBYTECODE": "",  # else each worker compiles PySpark
            "PYSPARK_PYTHON": str(self.directory / "bin" / "python"),
            "SPARK_HOME": str(self.directory / "spark-home"),
            "SPARK_SUBMIT_OPTS": _OF_SHORT_JVMS,
        }
        command = [str(self.directory / "bin" / "python"), *arguments]
        return subprocess.run(
            command, cwd=ROOT, env=environment, stdout=stdout, text=True, check=False
        )


_OF_SHORT_JVMS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djdk.lang.Process.launchMechanism=VFORK"
_EDITABLE = ("--config-settings", "editable_mode=compat")
_OPTIONS = (
    *("--numprocesses", "auto", "--maxprocesses", "3", "--dist", "loadfile"),
    *("-W", "default"),  # PySpark 3.5 imports distutils, and pandas 1.5 what NumPy has deprecated
)


def _result(*, passed: int = 0, skipped: int = 0, failed: int = 0) -> SuiteResult:
    """Count a command that has no tests as one."""
    passed = passed or int(not failed)
    date = datetime.now(UTC).date().isoformat()
    return {"passed": passed, "skipped": skipped, "failed": failed, "date": date}


def _create(directory: Path, python: str) -> str:
    """Create an environment if it does not exist; returns its Python."""
    uv = shutil.which("uv") or str(ROOT / ".tools" / "bin" / "uv")
    mine = directory / "bin" / "python"
    if not mine.exists():
        subprocess.run([uv, "venv", "--quiet", "--python", python, directory], check=True)
    return str(mine)


def _uv(command: str, python: str, *arguments: str) -> None:
    uv = shutil.which("uv") or str(ROOT / ".tools" / "bin" / "uv")
    subprocess.run(
        [uv, "pip", command, "--quiet", "--python", python, *arguments], cwd=ROOT, check=True
    )


def _find(python: str) -> str | None:
    """Return the path of a Python: on the path, or pyenv's."""
    version = python.removeprefix("python")
    of_pyenv = (Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/{python}")
    for path in filter(None, [shutil.which(python), *map(str, of_pyenv)]):
        # A shim of pyenv is there for versions that are not chosen too.
        done = subprocess.run(
            [path, "-c", "import sys; print(sys.executable)"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            return done.stdout.strip()
    return None


def _record(name: str, versions: dict[str, str], suites: dict[str, SuiteResult]) -> None:
    """Replace the results of these suites, also while other runs do so."""
    with RESULTS.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        results: dict[str, Result] = json.load(file)
        earlier = results.get(name, {"versions": {}, "suites": {}})
        results[name] = {"versions": versions, "suites": earlier["suites"] | suites}
        in_order = {name: results[name] for name in ENVIRONMENTS if name in results}
        file.seek(0)
        file.write(json.dumps(in_order, indent=2) + "\n")
        file.truncate()


def _command(arguments: list[str]) -> int:
    is_quick, only, names = False, None, []
    words = iter(arguments)
    for word in words:
        match word:
            case "--quick":
                is_quick = True
            case "--only":
                only = next(words, "")
            case _ if word in ENVIRONMENTS:
                names.append(word)
            case _:
                raise UsageError(f"no such environment: {word}")
    failed = 0
    for name in names or ENVIRONMENTS:
        environment = ENVIRONMENTS[name]
        python = _find(environment.python)
        if python is None:
            print(f"== {name}: skipped, because this machine has no {environment.python}")
            continue
        run_here = Run(name, environment)
        run_here.install(python)
        chosen = ["quick"] if is_quick else [only] if only else environment.suites
        suites = {suite: run_here.run(suite, python) for suite in chosen}
        print(f"== {name}: {json.dumps(suites)}", flush=True)
        failed += sum(result["failed"] for result in suites.values())
        if not is_quick:
            _record(name, run_here.versions(), suites)
    return int(failed > 0)


if __name__ == "__main__":
    run(_command, __doc__)

"""Jobs of a real Flink, if a JDK and its jars are available, and the savepoints of Flink's own tests."""

import os
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_SOURCES = [
    _ROOT / "infra" / "flink" / "Savepoints.java",
    _ROOT / "infra" / "flink" / "StateJob.java",
    _ROOT / "infra" / "flink" / "WindowJob.java",
    _ROOT / "examples" / "flink" / "Orders.java",
]
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
_JARS = Path(os.environ.get("FLINK_JARS") or _CACHE / "holdfast/flink-2.3.0/pyflink/lib")
_TESTS = "org.apache.flink:flink-tests:2.3.0:jar:tests"
_OPENED = ["java.base/java.lang", "java.base/java.util", "java.base/java.time"]
_LIMIT_S = 300

FlinkJob = Callable[..., list[list[str]]]
"""Runs a job with arguments; returns the fields of each line that it prints."""


@pytest.fixture(scope="session")
def flink_job(tmp_path_factory: pytest.TempPathFactory) -> FlinkJob:
    """The jobs `StateJob` and `WindowJob` of `infra/flink` and `Orders` of `examples/flink`, compiled."""
    java, javac = shutil.which("java"), shutil.which("javac")
    if java is None or javac is None:
        pytest.skip("a Flink job needs a JDK, which is missing")
    if not list(_JARS.glob("flink-dist*.jar")):
        pytest.skip(f"there are no Flink jars in {_JARS}; `make flink-libraries` fetches them")
    classes = tmp_path_factory.mktemp("flink-classes")
    command = [
        javac,
        "-encoding",
        "UTF-8",
        "-nowarn",
        "-cp",
        f"{_JARS}/*",
        "-d",
        str(classes),
        *map(str, _SOURCES),
    ]
    subprocess.run(command, check=True, timeout=_LIMIT_S)

    def run(*arguments: str) -> list[list[str]]:
        opened = [f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED]
        memory = ["-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        path = ["-cp", f"{classes}:{_JARS}/*"]
        done = subprocess.run(
            [java, *memory, *opened, *path, *arguments],
            check=False,
            capture_output=True,
            text=True,
            encoding="utf-8",
            env={
                **os.environ,
                "JAVA_TOOL_OPTIONS": "-Dstdout.encoding=UTF-8 -Dfile.encoding=UTF-8",
            },
            cwd=classes,
            timeout=_LIMIT_S,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
        lines = done.stdout.splitlines()
        return [line[1:].split("\t") for line in lines if line.startswith("@")]

    return run


@pytest.fixture(scope="session")
def flink_savepoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with savepoints and checkpoints of Flink 1.8 to 2.2, out of the jar of Flink's tests."""
    kept = _CACHE / "holdfast" / "flink-tests-2.3.0"
    if not list(kept.glob("*.jar")):
        maven = shutil.which("mvn")
        if maven is None:
            pytest.skip("the savepoints of Flink's tests are fetched by Maven, which is missing")
        options = [f"-Dartifact={_TESTS}", f"-DoutputDirectory={kept}"]
        fetched = subprocess.run(
            [maven, "-q", "-B", "dependency:copy", *options],
            check=False,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
        )
        if fetched.returncode:
            reason = (fetched.stdout.strip() or "no reason").splitlines()[0]
            pytest.skip(f"Maven can't fetch {_TESTS}: {reason}")
    [jar] = kept.glob("*.jar")
    directory = tmp_path_factory.mktemp("flink-tests")
    with zipfile.ZipFile(jar) as content:
        names = [name for name in content.namelist() if not name.endswith(".class")]
        content.extractall(directory, names)
    return directory

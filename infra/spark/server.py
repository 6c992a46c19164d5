"""A local Spark cluster: a standalone master and its workers, each a process, on loopback.

    server.py start [WORKERS]
    server.py hold [WORKERS]
    server.py worker kill|start NUMBER DIRECTORY
    server.py stop DIRECTORY
    server.py package FILE

They are Spark's own classes, in the jars that the PySpark of this Python brings. Each worker has one
core and 1 GiB for executors, and a separate loopback address if the system has more than one:
for Spark they are different hosts then. All files of them and their executors are in one temporary
directory.

Exit status: 0 done, 2 wrong usage, 3 can't be had here (no Java, no PySpark), else it failed; the
last line on stderr has the reason.
"""

import http.client
import importlib.util
import json
import os
import shutil
import socket
import sys
import time
import zipfile
from importlib.metadata import distribution
from pathlib import Path

sys.path.insert(0, os.fspath(Path(__file__).parents[2]))

from infra.common import (  # found by the line above
    MAX_START_S,
    UnavailableError,
    UsageError,
    directory_of,
    free_ports,
    is_alive,
    kill_below,
    new_directory,
    processes_below,
    run,
    start_process,
)

MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"

MODULES = ("holdfast", "pyspark_holdfast", "pyspark_holdfast_ticks")

CORES = "1"
MEMORY = "1g"

_JVM = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # they are up in half the time
    "-XX:-UsePerfData",  # or there would be files outside of the directory
)

_OF_OTHERS = ("HADOOP_", "PYSPARK_", "PYTHON", "SPARK_", "VIRTUAL_ENV")
"""Variables that executors must not inherit; the application sets their environment."""


def start(workers: int) -> dict[str, str]:
    """Start a master and its workers; returns the values that drivers and the other commands need."""
    _check_java()
    directory = new_directory("spark")
    try:
        port, web_port = free_ports(2)
        addresses = {"master": f"127.0.0.1:{port}", "web": f"127.0.0.1:{web_port}"}
        (directory / "addresses").write_text(json.dumps(addresses))
        (directory / "tmp").mkdir()
        arguments = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(web_port)]
        _launch(directory, "master", MASTER, arguments)
        _wait_for(directory, workers=0)
        for number in range(1, workers + 1):
            _launch_worker(directory, number)
        _wait_for(directory, workers=workers)
    except BaseException:
        stop(directory)
        raise
    return {"master": f"spark://{addresses['master']}", "directory": str(directory)}


def start_worker(directory: Path, number: int) -> None:
    """Start a worker that doesn't run, and wait until the master knows it."""
    if processes_below(directory / f"worker{number}"):
        return
    alive = _alive(directory) or 0
    _launch_worker(directory, number)
    _wait_for(directory, workers=alive + 1)


def kill_worker(directory: Path, number: int) -> None:
    """Kill a worker with its executors, as if its machine was gone."""
    kill_below(directory / f"worker{number}")


def stop(directory: Path) -> None:
    """Stop all that runs in a directory, executors too, and remove the directory."""
    kill_below(directory)
    shutil.rmtree(directory, ignore_errors=True)


def package(file: Path) -> None:
    """Write what `--py-files` takes: the modules, and what holdfast needs to know its version."""
    metadata = distribution("holdfast")
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for module in MODULES:
            file_of_module = _file_of(module)
            if file_of_module.name != "__init__.py":
                archive.write(file_of_module, file_of_module.name)
                continue
            root = file_of_module.parent
            # In the repository two of its folders are links.
            for folder, folders, names in os.walk(root, followlinks=True):
                folders[:] = sorted(set(folders) - {"__pycache__"})
                for name in sorted(names):
                    path = Path(folder) / name
                    archive.write(path, Path(module) / path.relative_to(root))
        name = f"holdfast-{metadata.version}.dist-info/METADATA"
        archive.writestr(name, metadata.read_text("METADATA") or "")


def _file_of(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise UnavailableError(f"{module} is not installed for this Python")
    return Path(spec.origin)


def _launch_worker(directory: Path, number: int) -> None:
    home = directory / f"worker{number}"
    for name in ("work", "local"):
        (home / name).mkdir(parents=True, exist_ok=True)
    arguments = ["--host", _address(number), "--port", "0", "--webui-port", "0"]
    arguments += ["--cores", CORES, "--memory", MEMORY, "--work-dir", str(home / "work")]
    master = json.loads((directory / "addresses").read_text())["master"]
    _launch(directory, home.name, WORKER, [*arguments, f"spark://{master}"])


def _launch(directory: Path, name: str, main_class: str, arguments: list[str]) -> None:
    home = directory / name
    home.mkdir(exist_ok=True)
    spark = _spark_home()
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(_OF_OTHERS)
    }
    environment |= {
        "SPARK_DAEMON_JAVA_OPTS": " ".join([*_JVM, f"-Djava.io.tmpdir={directory / 'tmp'}"]),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_HOME": str(spark),
        "SPARK_LOCAL_DIRS": str(home / "local"),
        "TMPDIR": str(directory / "tmp"),
    }
    start_process([spark / "bin" / "spark-class", main_class, *arguments], home, environment)


def _wait_for(directory: Path, *, workers: int) -> None:
    """Wait until the master reports at least a number of live workers."""
    deadline = time.monotonic() + MAX_START_S
    while time.monotonic() < deadline:
        alive = _alive(directory)
        if alive is not None and alive >= workers:
            return
        for home in directory.glob("*/pid"):
            if not is_alive(int(home.read_text())):
                log = (home.parent / "log").read_text(errors="replace")
                sys.exit(f"the {home.parent.name} failed:\n{log[-4000:]}")
        time.sleep(0.05)
    sys.exit(f"not ready after {MAX_START_S:g} s")


def _alive(directory: Path) -> int | None:
    """Return the master's number of workers, or None if it does not answer."""
    address = json.loads((directory / "addresses").read_text())["web"]
    connection = http.client.HTTPConnection(address, timeout=5)
    try:
        connection.request("GET", "/json/")
        return int(json.loads(connection.getresponse().read())["aliveworkers"])
    except (OSError, http.client.HTTPException, ValueError, KeyError):
        return None
    finally:
        connection.close()


def _address(number: int) -> str:
    """A loopback address of the worker's own, where the system answers to more than one."""
    address = f"127.0.0.{number + 1}"
    try:
        socket.create_server((address, 0)).close()
    except OSError:
        return "127.0.0.1"
    return address


def _spark_home() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise UnavailableError("a Spark cluster needs PySpark, which this Python has not")
    return Path(spec.origin).parent


def _check_java() -> None:
    java_home = os.environ.get("JAVA_HOME")
    if shutil.which(f"{java_home}/bin/java" if java_home else "java") is None:
        raise UnavailableError("a Spark cluster needs Java 17, and no java was found")


def _command(arguments: list[str]) -> dict[str, str] | None:
    match arguments:
        case ["start"]:
            return start(2)
        case ["start", workers] if workers.isdecimal() and int(workers):
            return start(int(workers))
        case ["worker", "start", number, directory] if number.isdecimal():
            start_worker(directory_of(directory, "spark"), int(number))
        case ["worker", "kill", number, directory] if number.isdecimal():
            kill_worker(directory_of(directory, "spark"), int(number))
        case ["stop", directory]:
            stop(directory_of(directory, "spark"))
        case ["package", file]:
            package(Path(file))
        case _:
            raise UsageError
    return None


if __name__ == "__main__":
    run(_command, __doc__)

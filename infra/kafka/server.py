"""A local Kafka: one node that is broker and controller, on loopback, and the jars of Spark's connector.

    server.py build
    server.py connector
    server.py start
    server.py hold
    server.py broker kill|start DIRECTORY
    server.py stop DIRECTORY

The broker is Kafka's own class, in the jars that `pom.xml` names; `connector/pom.xml` names those of Spark's connector. Maven
brings both once, into `${XDG_CACHE_HOME:-~/.cache}/holdfast/`, with an empty log directory that Kafka has formatted next to
the broker's jars. Everything else is in one temporary directory.

Exit status: 0 done, 2 wrong usage, 3 can't be had here (no Java, no Maven, or the jars are out of reach), otherwise it
failed; the last line on stderr has the reason.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, os.fspath(Path(__file__).parents[2]))

from infra.common import (  # found by the line above
    UsageError,
    build_once,
    digest,
    directory_of,
    fetch_jars,
    free_ports,
    is_running,
    java_program,
    kill,
    run,
    server_directory,
    start_process,
    stop,
    wait_until_ready,
)

POM = Path(__file__).parent / "pom.xml"
CONNECTOR_POM = Path(__file__).parent / "connector" / "pom.xml"

BROKER = "kafka.Kafka"
STORAGE_TOOL = "kafka.tools.StorageTool"

_STARTED = "Kafka Server started"

_JVM = (
    "-Xmx384m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",  # or there would be files outside of the directory
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.net.preferIPv4Stack=true",
)

_LOG = """\
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %p %c{1}: %m%n
"""


def build() -> Path:
    """Directory of the broker's `jars/` and `formatted/`, made if it is not there."""
    return build_once("kafka", digest(POM), _build_broker)


def connector() -> Path:
    """Directory of the connector's `jars/`, which Spark needs in addition to its own, made if it is not there."""
    return build_once("spark-kafka", digest(CONNECTOR_POM), _build_connector)


def _build_broker(directory: Path) -> Path:
    print("fetching the jars of Kafka once, 45 MB", file=sys.stderr)
    new = directory / "kafka"
    fetch_jars("Kafka", POM, new / "jars")
    _format(new)
    return new


def _build_connector(directory: Path) -> Path:
    print("fetching Spark's connector for Kafka once, 10 MB", file=sys.stderr)
    new = directory / "spark-kafka"
    fetch_jars("Kafka", CONNECTOR_POM, new / "jars")
    return new


def _format(home: Path) -> None:
    """Format the empty log directory, as Kafka requires it; that takes a JVM, so it is done once."""
    _write_settings(home, home / "formatted", 9092, 9093)
    command = [java_program("Kafka"), *_JVM, "-cp", f"{home}/jars/*", STORAGE_TOOL, "format"]
    command += ["--cluster-id", "holdfast-tests-abcdefg", "--config", f"{home}/server.properties"]
    formatted = subprocess.run(
        command,
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if formatted.returncode != 0:
        sys.exit(f"formatting failed:\n{(formatted.stderr or formatted.stdout)[-4000:]}")


def start() -> dict[str, str]:
    """Start a new broker without topics; returns the values that clients and the other commands need."""
    home = build()
    port, controller_port = free_ports(2)
    with server_directory("kafka") as directory:
        shutil.copytree(home / "formatted", directory / "data")
        _write_settings(directory, directory / "data", port, controller_port)
        (directory / "log4j2.properties").write_text(_LOG)
        (directory / "tmp").mkdir()
        start_broker(directory)
    return {"bootstrap": f"127.0.0.1:{port}", "directory": str(directory)}


def start_broker(directory: Path) -> None:
    """Start the broker, if it doesn't run, with the data and ports that it has, and wait for it."""
    pid_file = directory / "pid"
    if pid_file.exists() and is_running(int(pid_file.read_text()), directory):
        return
    classes = f"{directory}:{build()}/jars/*"
    command = [java_program("Kafka"), *_JVM, f"-Djava.io.tmpdir={directory / 'tmp'}"]
    command += [f"-Dlog4j2.configurationFile={directory / 'log4j2.properties'}", "-cp", classes]
    broker = start_process([*command, BROKER, str(directory / "server.properties")], directory)
    log = directory / "log"
    wait_until_ready(broker, directory, lambda: _STARTED in log.read_text(errors="replace"))


def _write_settings(directory: Path, data: Path, port: int, controller_port: int) -> None:
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "log.dirs": str(data),
        # Of the topics that a broker creates for itself, one node can only hold one replica; one partition starts sooner.
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        # A test that forgets a topic has to fail, and a consumer need not wait for others.
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
    }
    lines = (f"{name}={value}\n" for name, value in settings.items())
    (directory / "server.properties").write_text("".join(lines))


def _command(arguments: list[str]) -> dict[str, str] | None:
    match arguments:
        case ["build"]:
            build()
        case ["connector"]:
            return {"jars": str(connector() / "jars")}
        case ["start"]:
            return start()
        case ["broker", "start", directory]:
            start_broker(directory_of(directory, "kafka"))
        case ["broker", "kill", directory]:
            kill(Path(directory) / "pid", directory_of(directory, "kafka"))
        case ["stop", directory]:
            stop(directory_of(directory, "kafka"))
        case _:
            raise UsageError
    return None


if __name__ == "__main__":
    run(_command, __doc__)

"""A local HDFS: a NameNode and two DataNodes, each a process, on loopback.

    server.py build
    server.py start
    server.py hold
    server.py node kill|start name|data1|data2 DIRECTORY
    server.py dfsadmin DIRECTORY OPTION...
    server.py stop DIRECTORY

They are Hadoop's own classes, in the jars that `pom.xml` names. Maven brings those once, into
`${XDG_CACHE_HOME:-~/.cache}/holdfast/`, with an empty file system that Hadoop has formatted
next to them. Everything else is in one temporary directory.

Exit status: 0 done, 2 wrong usage, 3 can't be had here (no Java, no Maven, or the jars are out of
reach), otherwise it failed; the last line on stderr has the reason. `dfsadmin` returns that of Hadoop's command.
"""

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

sys.path.insert(0, os.fspath(Path(__file__).parents[2]))

from infra.common import (  # found by the line above
    MAX_START_S,
    UnavailableError,
    UsageError,
    build_once,
    digest,
    directory_of,
    fetch_jars,
    free_ports,
    is_running,
    java_program,
    kill,
    new_directory,
    run,
)

POM = Path(__file__).parent / "pom.xml"

NAME_NODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
DATA_NODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"

DATA_NODES = ("data1", "data2")
"""Two, so that one can die; and because the end of a file costs a client 500 ms with a single one,
whose report of the last block comes later at the NameNode than the client does."""

NODES = ("name", *DATA_NODES)

DFSADMIN = "org.apache.hadoop.hdfs.tools.DFSAdmin"

JVM = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # they are up in half the time, and stream as fast
    "-XX:-UsePerfData",  # or there would be files outside of the directory
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.net.preferIPv4Stack=true",
)

_PATIENT = {
    "ipc.client.connect.retry.interval": "100",
    "ipc.client.connect.max.retries": "600",
}
"""A DataNode that finds no NameNode asks again soon. Clients have Hadoop's defaults."""

LOG = """\
log4j.rootLogger=INFO,stderr
log4j.appender.stderr=org.apache.log4j.ConsoleAppender
log4j.appender.stderr.target=System.err
log4j.appender.stderr.layout=org.apache.log4j.PatternLayout
log4j.appender.stderr.layout.ConversionPattern=%d{ISO8601} %p %c{1}: %m%n
log4j.logger.http.requests=WARN
log4j.logger.org.apache.hadoop.util.NativeCodeLoader=ERROR
"""


def build() -> Path:
    """Directory of `jars/` and `formatted/`, made if it is not there."""
    return build_once("hdfs", digest(POM), _build)


def _build(directory: Path) -> Path:
    java = java_program("HDFS")
    print("fetching the jars of Hadoop once, 115 MB", file=sys.stderr)
    new = directory / "hdfs"
    fetch_jars("HDFS", POM, new / "jars")
    site = {"dfs.namenode.name.dir": (new / "formatted").as_uri()}
    conf = directory / "conf"
    conf.mkdir()
    write_site(conf / "hdfs-site.xml", site)
    formatted = subprocess.run(
        [java, *JVM, "-cp", f"{conf}:{new}/jars/*", NAME_NODE, "-format"],
        check=False,
        cwd=directory,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if formatted.returncode != 0:
        raise _failure("formatting", formatted.stderr)
    return new


def start() -> dict[str, str]:
    """Start a new, empty file system; returns the values that clients and the other commands need."""
    home = build()
    java_program("HDFS")
    directory = new_directory("hdfs")
    try:
        rpc, name_http, *others = (f"127.0.0.1:{port}" for port in free_ports(8))
        ports = dict(zip(DATA_NODES, zip(*[iter(others)] * 3, strict=True), strict=True))
        conf = directory / "conf"
        conf.mkdir()
        write_site(conf / "core-site.xml", {"fs.defaultFS": f"hdfs://{rpc}"})
        site = {
            "dfs.replication": str(len(DATA_NODES)),
            # A DataNode needs space for each block that it was assigned, also for those of clients that have died.
            "dfs.blocksize": str(16 * 2**20),
            "dfs.namenode.name.dir": (directory / "name").as_uri(),
            "dfs.namenode.http-address": name_http,
            # The machine's own name need not resolve.
            "dfs.datanode.hostname": "127.0.0.1",
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            # A DataNode that is gone is dead after 12 seconds, not after 10 minutes.
            "dfs.heartbeat.interval": "1",
            "dfs.namenode.heartbeat.recheck-interval": "1000",
            # Safe mode ends with the last block that is reported, not 30 seconds later; of a
            # few blocks the usual 99.9 % would be none.
            "dfs.namenode.safemode.threshold-pct": "1",
            "dfs.namenode.safemode.extension": "0",
        }
        write_site(conf / "hdfs-site.xml", site)
        for node, (http_address, address, ipc_address) in ports.items():
            own = {
                "dfs.datanode.data.dir": (directory / node).as_uri(),
                "dfs.datanode.http.address": http_address,
                "dfs.datanode.address": address,
                "dfs.datanode.ipc.address": ipc_address,
            }
            (conf / node).mkdir()
            write_site(conf / node / "hdfs-site.xml", site | own | _PATIENT)
        addresses = {"rpc": rpc, "name": name_http} | {
            node: http for node, (http, *_) in ports.items()
        }
        (directory / "addresses").write_text(json.dumps(addresses))
        (directory / "tmp").mkdir()
        (directory / "log4j.properties").write_text(LOG)
        for pages in ("hdfs", "datanode", "static"):
            # Without these the pages in the jars would be unpacked at every start.
            (directory / "webapps" / pages).mkdir(parents=True)
        shutil.copytree(home / "formatted", directory / "name")
        start_nodes(directory, *NODES)
    except BaseException:
        stop(directory)
        raise
    return {
        "uri": f"hdfs://{rpc}",
        "conf_dir": str(conf),
        "directory": str(directory),
    }


def start_nodes(directory: Path, *nodes: str) -> None:
    """Start servers that don't run, with the data and ports they have, and wait for them."""
    started: dict[str, subprocess.Popen[bytes]] = {}
    for node in nodes:
        if _is_running(directory, node):
            continue
        with open(directory / f"{node}.log", "ab") as log:
            started[node] = subprocess.Popen(
                [*_java(directory, node), DATA_NODE if node in DATA_NODES else NAME_NODE],
                cwd=directory,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        _pid_file(directory, node).write_text(str(started[node].pid))
    _wait_until_ready(directory, started)


def stop(directory: Path) -> None:
    """Stop the servers of a directory, if they still run, and remove the directory."""
    for node in NODES:
        kill(_pid_file(directory, node), directory)
    shutil.rmtree(directory, ignore_errors=True)


def dfsadmin(directory: Path, options: list[str]) -> int:
    """Run Hadoop's `dfsadmin`; its exit status."""
    command = [*_java(directory, "name"), DFSADMIN, *options]
    return subprocess.run(command, check=False, cwd=directory, env=environment()).returncode


def _wait_until_ready(directory: Path, started: "dict[str, subprocess.Popen[bytes]]") -> None:
    deadline = time.monotonic() + MAX_START_S
    running = [node for node in NODES if node in started or _is_running(directory, node)]
    pause_s = 0.05
    while time.monotonic() < deadline:
        if _is_ready(directory, running):
            return
        for node, server in started.items():
            if server.poll() is not None:
                log = (directory / f"{node}.log").read_text(errors="replace")
                raise _failure(f"the {node} node", log)
        time.sleep(pause_s)
        pause_s = min(1.2 * pause_s, 0.5)  # to answer costs the servers more than to start
    sys.exit(f"not ready after {MAX_START_S:g} s: {' and '.join(running)} node")


def _is_ready(directory: Path, running: list[str]) -> bool:
    """Return whether the running servers are ready: the NameNode for clients, the DataNodes with all blocks."""
    addresses = json.loads((directory / "addresses").read_text())
    data_nodes = [node for node in running if node in DATA_NODES]
    try:
        if "name" in running:
            host, port = addresses["rpc"].split(":")
            socket.create_connection((host, int(port)), timeout=5).close()
            name = _beans(addresses["name"], "NameNode,name=NameNode*")
            if name["State"] != "active":
                return False
        infos = [_beans(addresses[node], "DataNode,name=DataNodeInfo") for node in data_nodes]
        if "name" not in running or not data_nodes:
            return True
        blocks = _beans(addresses["name"], "NameNode,name=FSNamesystemState")
        if name["Safemode"] and "manually" not in name["Safemode"]:
            return False
        # A storage is known by a heartbeat, and stale until its blocks are reported.
        has_all = blocks["NumLiveDataNodes"] >= len(data_nodes) and blocks["NumStaleStorages"] == 0
        return has_all and int(blocks["CapacityTotal"]) > 0 and all(map(_has_reported, infos))
    except (OSError, http.client.HTTPException, ValueError, KeyError):
        return False


def _has_reported(data_node: dict[str, Any]) -> bool:
    """Return whether a DataNode has reported its blocks to the NameNode."""
    # Seconds since the last report, or since the machine's start without a report.
    age_s = time.time() - data_node["DNStartedTimeInMillis"] / 1000
    [actor] = json.loads(data_node["BPServiceActorInfo"])
    return bool(actor["ActorState"] == "RUNNING" and int(actor["LastBlockReport"]) <= age_s)


def _beans(address: str, names: str) -> dict[str, Any]:
    """Return the attributes of some JMX beans of a server."""
    connection = http.client.HTTPConnection(address, timeout=5)
    try:
        connection.request("GET", f"/jmx?qry=Hadoop:service={names}")
        beans = json.loads(connection.getresponse().read())["beans"]
    finally:
        connection.close()
    return {name: value for bean in beans for name, value in bean.items()}


def _java(directory: Path, node: str) -> list[str]:
    """Return the command up to the class; its directory identifies our processes."""
    temporary = f"-Djava.io.tmpdir={directory / 'tmp'}"
    classes = f"{directory}/conf/{node}:{directory}/conf:{directory}:{build()}/jars/*"
    return [java_program("HDFS"), *JVM, temporary, "-cp", classes]


def environment() -> dict[str, str]:
    """Without what would make it another Hadoop's, or another user's."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HADOOP_", "HDFS_"))
    }


def _failure(subject: str, log: str) -> UnavailableError | SystemExit:
    if "UnsupportedClassVersionError" in log:
        return UnavailableError("HDFS needs Java 17, and the one here is older")
    return SystemExit(f"{subject} failed:\n{log[-4000:]}")


def write_site(path: Path, settings: dict[str, str]) -> None:
    """Write a file of Hadoop's settings."""
    properties = (
        f"  <property><name>{escape(name)}</name><value>{escape(value)}</value></property>\n"
        for name, value in settings.items()
    )
    path.write_text(f"<configuration>\n{''.join(properties)}</configuration>\n")


def _is_running(directory: Path, node: str) -> bool:
    pid_file = _pid_file(directory, node)
    return pid_file.exists() and is_running(int(pid_file.read_text()), directory)


def _pid_file(directory: Path, node: str) -> Path:
    return directory / f"{node}.pid"


def _command(arguments: list[str]) -> dict[str, str] | int | None:
    match arguments:
        case ["build"]:
            build()
        case ["start"]:
            return start()
        case ["node", "start", node, directory] if node in NODES:
            start_nodes(directory_of(directory, "hdfs"), node)
        case ["node", "kill", node, directory] if node in NODES:
            kill(_pid_file(Path(directory), node), directory_of(directory, "hdfs"))
        case ["dfsadmin", directory, *options]:
            return dfsadmin(directory_of(directory, "hdfs"), options)
        case ["stop", directory]:
            stop(directory_of(directory, "hdfs"))
        case _:
            raise UsageError
    return None


if __name__ == "__main__":
    run(_command, __doc__)

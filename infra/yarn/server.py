"""A local YARN: a ResourceManager and a NodeManager, each a process, on loopback.

    server.py start
    server.py hold
    server.py stop DIRECTORY

They are Hadoop's own classes, in the jars that `infra/hdfs` fetches. Containers are processes of the user who has
called `start`. All files of the servers and their containers are in one temporary directory.

Exit status: 0 done, 2 wrong usage, 3 can't be had here (no Java, no Maven, or the jars are out of
reach), otherwise it failed; the last line on stderr has the reason.
"""

import http.client
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, os.fspath(Path(__file__).parents[2]))

from infra.common import (  # found by the line above
    MAX_START_S,
    UsageError,
    directory_of,
    free_ports,
    java_program,
    kill_below,
    new_directory,
    run,
)
from infra.hdfs.server import JVM, LOG, build, environment, write_site

RESOURCE_MANAGER = "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager"
NODE_MANAGER = "org.apache.hadoop.yarn.server.nodemanager.NodeManager"

MEMORY_MIB = 4096
CORES = 8

ADDRESSES = (
    "yarn.resourcemanager.webapp.address",
    "yarn.resourcemanager.address",
    "yarn.resourcemanager.admin.address",
    "yarn.resourcemanager.resource-tracker.address",
    "yarn.resourcemanager.scheduler.address",
    "yarn.nodemanager.address",
    "yarn.nodemanager.localizer.address",
    "yarn.nodemanager.webapp.address",
)


def start() -> dict[str, str]:
    """Start a cluster without applications; returns the values that clients need."""
    jars = build() / "jars"
    java = java_program("YARN")
    directory = new_directory("yarn")
    try:
        addresses = [f"127.0.0.1:{port}" for port in free_ports(len(ADDRESSES))]
        conf = directory / "conf"
        conf.mkdir()
        write_site(conf / "core-site.xml", {"fs.defaultFS": "file:///"})
        write_site(conf / "yarn-site.xml", _settings(directory, addresses))
        (directory / "log4j.properties").write_text(LOG)
        (directory / "tmp").mkdir()
        for pages in ("cluster", "node", "static"):
            # Without these the pages in the jars would be unpacked at every start.
            (directory / "webapps" / pages).mkdir(parents=True)
        classes = f"{conf}:{directory}:{jars}/*"
        options = [*JVM, f"-Djava.io.tmpdir={directory / 'tmp'}", "-cp", classes]
        servers = {}
        for name, main_class in (("resources", RESOURCE_MANAGER), ("node", NODE_MANAGER)):
            with open(directory / f"{name}.log", "ab") as log:
                servers[name] = subprocess.Popen(
                    [java, *options, main_class],
                    cwd=directory,
                    env=environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        _wait_until_ready(directory, servers, addresses[0])
    except BaseException:
        stop(directory)
        raise
    return {"conf_dir": str(conf), "directory": str(directory)}


def stop(directory: Path) -> None:
    """Stop the servers and all containers of a directory, and remove the directory."""
    kill_below(directory)
    shutil.rmtree(directory, ignore_errors=True)


def _settings(directory: Path, addresses: list[str]) -> dict[str, str]:
    return {
        **dict(zip(ADDRESSES, addresses, strict=True)),
        "yarn.resourcemanager.hostname": "127.0.0.1",
        "yarn.nodemanager.hostname": "127.0.0.1",
        # The other schedulers need files with queues.
        "yarn.resourcemanager.scheduler.class": (
            "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler"
        ),
        "yarn.scheduler.minimum-allocation-mb": "128",
        "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": "100",
        "yarn.nodemanager.local-dirs": str(directory / "local"),
        "yarn.nodemanager.log-dirs": str(directory / "logs"),
        "yarn.nodemanager.resource.memory-mb": str(MEMORY_MIB),
        "yarn.nodemanager.resource.cpu-vcores": str(CORES),
        # A NodeManager gives no containers to a machine whose disk is 90 % full, or whose processes have much virtual memory.
        "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
        "yarn.nodemanager.pmem-check-enabled": "false",
        "yarn.nodemanager.vmem-check-enabled": "false",
        # A NodeManager that finds no ResourceManager asks again soon.
        "yarn.resourcemanager.connect.retry-interval.ms": "200",
        "ipc.client.connect.retry.interval": "100",
    }


def _wait_until_ready(
    directory: Path, servers: "dict[str, subprocess.Popen[bytes]]", address: str
) -> None:
    deadline = time.monotonic() + MAX_START_S
    while time.monotonic() < deadline:
        if _active_nodes(address):
            return
        for name, server in servers.items():
            if server.poll() is not None:
                log = (directory / f"{name}.log").read_text(errors="replace")
                sys.exit(f"{name}.log:\n{log[-4000:]}")
        time.sleep(0.2)
    sys.exit(f"not ready after {MAX_START_S:g} s")


def _active_nodes(address: str) -> int:
    """Return the number of NodeManagers that the ResourceManager reports, 0 if it does not answer."""
    connection = http.client.HTTPConnection(address, timeout=5)
    try:
        connection.request("GET", "/ws/v1/cluster/metrics", headers={"Accept": "application/json"})
        metrics = json.loads(connection.getresponse().read())["clusterMetrics"]
        return int(metrics["activeNodes"])
    except (OSError, http.client.HTTPException, ValueError, KeyError):
        return 0
    finally:
        connection.close()


def _command(arguments: list[str]) -> dict[str, str] | None:
    match arguments:
        case ["start"]:
            return start()
        case ["stop", directory]:
            stop(directory_of(directory, "yarn"))
        case _:
            raise UsageError
    return None


if __name__ == "__main__":
    run(_command, __doc__)

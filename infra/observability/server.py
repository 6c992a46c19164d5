"""Prometheus on this machine, with the alert rules of this folder.

    server.py build
    server.py start HOST:PORT
    server.py hold HOST:PORT
    server.py stop DIRECTORY

It scrapes HOST:PORT once a second. The program is that on the path, or that of Debian's package, which is fetched
once into `${XDG_CACHE_HOME:-~/.cache}/holdfast/`, and not installed. `build` prints the directory of `prometheus` and `promtool`.

Exit status: 0 done, 2 wrong usage, 3 not available here, else it failed; the last line on stderr has the reason.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, os.fspath(Path(__file__).parents[2]))

from infra.common import (  # found by the line above
    UnavailableError,
    UsageError,
    build_once,
    digest,
    directory_of,
    free_ports,
    is_listening,
    run,
    server_directory,
    start_process,
    stop,
    wait_until_ready,
)

RULES = Path(__file__).parent / "alerts.yml"

_CONFIGURATION = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: drivers
    static_configs: [{{targets: ["{target}"]}}]
"""


def build() -> Path:
    """Return the directory of the programs, which are fetched first if necessary."""
    program = shutil.which("prometheus")
    if program is not None and shutil.which("promtool") is not None:
        return Path(program).parent
    return build_once("prometheus", digest(Path(__file__)), _fetch) / "usr" / "bin"


def _fetch(directory: Path) -> Path:
    """Fetch the package, and unpack it."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise UnavailableError(
            "no prometheus was found on the path, and no apt-get to fetch it with"
        )
    fetched = _run(directory, "apt-get", "download", "prometheus")
    packages = list(directory.glob("prometheus_*.deb"))
    if fetched.returncode != 0 or not packages:
        reason = (fetched.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise UnavailableError(f"apt-get can't fetch prometheus: {reason}")
    unpacked = directory / "prometheus"
    _run(directory, "dpkg", "-x", str(packages[0]), str(unpacked)).check_returncode()
    return unpacked


def _run(directory: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, cwd=directory, check=False, capture_output=True, text=True)


def start(target: str) -> dict[str, str]:
    """Start a server; returns the values that clients and `stop` need."""
    program = build() / "prometheus"
    [port] = free_ports(1)
    with server_directory("observability") as directory:
        configuration = directory / "prometheus.yml"
        configuration.write_text(_CONFIGURATION.format(rules=RULES.resolve(), target=target))
        command = [str(program), f"--config.file={configuration}"]
        command += [f"--storage.tsdb.path={directory}/data"]
        server = start_process([*command, f"--web.listen-address=127.0.0.1:{port}"], directory)
        wait_until_ready(server, directory, lambda: is_listening(port))
    return {"url": f"http://127.0.0.1:{port}", "directory": str(directory)}


def _command(arguments: list[str]) -> dict[str, str] | None:
    match arguments:
        case ["build"]:
            print(build())
        case ["start", target]:
            return start(target)
        case ["stop", directory]:
            stop(directory_of(directory, "observability"))
        case _:
            raise UsageError
    return None


if __name__ == "__main__":
    run(_command, __doc__)

"""The tests' server of Google's XML API, on loopback.

    server.py start
    server.py hold
    server.py bucket DIRECTORY NAME
    server.py stop DIRECTORY

It keeps all objects in its memory, and runs `servers.memory_gcs` of the tests in a separate process.

Exit status: 0 done, 2 wrong usage, 3 not available here (this Python has no holdfast[testing]), otherwise it
failed; the last line on stderr has the reason.
"""

import http.client
import json
import os
import signal
import sys
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, os.fspath(Path(__file__).parents[2] / "tests"))
sys.path.insert(0, os.fspath(Path(__file__).parents[2]))

from infra.common import (  # found by the lines above
    MAX_START_S,
    UNAVAILABLE,
    UsageError,
    directory_of,
    run,
    server_directory,
    start_process,
    stop,
    wait_until_ready,
)

try:
    from servers.in_process import serve
    from servers.memory_gcs import MemoryGcs
except ImportError as error:
    print(f"this Python has no holdfast[testing]: {error}", file=sys.stderr)
    sys.exit(UNAVAILABLE)


def start() -> dict[str, str]:
    """Start a server; returns the values that clients and `stop` need."""
    with server_directory("gcs") as directory:
        command = [sys.executable, os.path.abspath(__file__), "serve", str(directory)]
        server = start_process(command, directory)
        wait_until_ready(server, directory, (directory / "endpoint").exists)
    endpoint = (directory / "endpoint").read_text()
    credentials = directory / "credentials.json"
    credentials.write_text(json.dumps(_without_tokens(endpoint)))
    return {"endpoint": endpoint, "credentials": str(credentials), "directory": str(directory)}


def serve_until_killed(directory: Path) -> None:
    """Answer requests, and leave the endpoint in a file."""
    with serve(MemoryGcs().answer) as endpoint:
        unfinished = directory / "endpoint.new"
        unfinished.write_text(endpoint)
        unfinished.replace(directory / "endpoint")
        signal.pause()


def add_bucket(directory: Path, name: str) -> None:
    """Create a bucket, which obstore can't."""
    endpoint = urlsplit((directory / "endpoint").read_text())
    connection = http.client.HTTPConnection(endpoint.netloc, timeout=MAX_START_S)
    connection.request("PUT", f"/{name}")
    answer = connection.getresponse()
    if answer.status != 200:
        sys.exit(f"the bucket can't be created: {answer.status} {answer.read().decode()}")


def _without_tokens(endpoint: str) -> dict[str, object]:
    """Return a service account for obstore, which then requests no token."""
    unused = dict.fromkeys(("client_email", "private_key", "private_key_id"), "unused")
    account = {"type": "service_account", "gcs_base_url": endpoint, "disable_oauth": True}
    return {**account, **unused}


def _command(arguments: list[str]) -> dict[str, str] | None:
    match arguments:
        case ["start"]:
            return start()
        case ["serve", directory]:
            serve_until_killed(directory_of(directory, "gcs"))
        case ["bucket", directory, name]:
            add_bucket(directory_of(directory, "gcs"), name)
        case ["stop", directory]:
            stop(directory_of(directory, "gcs"))
        case _:
            raise UsageError
    return None


if __name__ == "__main__":
    run(_command, __doc__)

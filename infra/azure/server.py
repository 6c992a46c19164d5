"""Azurite, Microsoft's emulator of Azure Blob Storage, on loopback.

    server.py build
    server.py start
    server.py hold
    server.py container DIRECTORY NAME
    server.py stop DIRECTORY

npm brings it once, into `${XDG_CACHE_HOME:-~/.cache}/holdfast/`. A server keeps everything else in one temporary
directory.

Exit status: 0 done, 2 wrong usage, 3 not available here (no Node.js, or the package is out of reach), otherwise it
failed; the last line on stderr has the reason.
"""

import base64
import hmac
import http.client
import json
import os
import secrets
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, os.fspath(Path(__file__).parents[2]))

from infra.common import (  # found by the line above
    MAX_START_S,
    UnavailableError,
    UsageError,
    build_once,
    directory_of,
    free_ports,
    is_listening,
    run,
    server_directory,
    start_process,
    stop,
    wait_until_ready,
)

VERSION = "3.37.0"

ACCOUNT = "holdfast"

MAIN = Path("node_modules") / "azurite" / "dist" / "src" / "blob" / "main.js"


def build() -> Path:
    """Return the path of the server's main file, fetched if it is not there."""
    return build_once("azurite", VERSION, _fetch) / MAIN


def _fetch(directory: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise UnavailableError("Azurite comes by npm and runs on Node.js, and these were not found")
    print("fetching Azurite once, which takes minutes", file=sys.stderr)
    new = directory / "azurite"
    new.mkdir()
    # No dependency needs its install script.
    command = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
    done = subprocess.run(
        [*command, "--prefix", str(new), f"azurite@{VERSION}"],
        check=False,
        cwd=new,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0 or not (new / MAIN).exists():
        lines = (done.stderr + done.stdout).strip().splitlines() or ["no reason given"]
        raise UnavailableError(f"npm can't fetch Azurite: {lines[0]}")
    return new


def start() -> dict[str, str]:
    """Start a server; returns the values that clients and `stop` need."""
    main = build()
    key = base64.b64encode(secrets.token_bytes(64)).decode()
    [port] = free_ports(1)
    command = ["node", str(main), "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    environment = {**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{key}"}
    with server_directory("azure") as directory:
        command += ["--location", str(directory), "--silent", "--skipApiVersionCheck"]
        server = start_process([*command, "--disableTelemetry"], directory, environment)
        wait_until_ready(server, directory, lambda: is_listening(port))
    known = {
        "endpoint": f"http://127.0.0.1:{port}/{ACCOUNT}",
        "account": ACCOUNT,
        "secret_key": key,
        "directory": str(directory),
    }
    (directory / "known.json").write_text(json.dumps(known))
    return known


def add_container(directory: Path, name: str) -> None:
    """Create a container, which obstore can't, by a request that is signed with the account's key."""
    known = json.loads((directory / "known.json").read_text())
    endpoint = urlsplit(known["endpoint"])
    headers = {
        "x-ms-date": format_datetime(datetime.now(UTC), usegmt=True),
        "x-ms-version": "2023-11-03",
    }
    signed = "\n".join(f"{key}:{value}" for key, value in headers.items())
    path = f"{endpoint.path}/{name}"
    text = f"PUT{12 * chr(10)}{signed}\n/{known['account']}{path}\nrestype:container"
    digest = hmac.digest(base64.b64decode(known["secret_key"]), text.encode(), "sha256")
    headers["Authorization"] = f"SharedKey {known['account']}:{base64.b64encode(digest).decode()}"
    connection = http.client.HTTPConnection(endpoint.netloc, timeout=MAX_START_S)
    connection.request("PUT", f"{path}?restype=container", headers=headers)
    answer = connection.getresponse()
    if answer.status != 201:
        sys.exit(f"the container can't be created: {answer.status} {answer.read().decode()}")


def _command(arguments: list[str]) -> dict[str, str] | None:
    match arguments:
        case ["build"]:
            build()
        case ["start"]:
            return start()
        case ["container", directory, name]:
            add_container(directory_of(directory, "azure"), name)
        case ["stop", directory]:
            stop(directory_of(directory, "azure"))
        case _:
            raise UsageError
    return None


if __name__ == "__main__":
    run(_command, __doc__)

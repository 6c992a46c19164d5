"""A local S3 server.

    server.py build minio|versitygw|sink
    server.py start minio|versitygw|sink
    server.py hold minio|versitygw|sink
    server.py link HOST:PORT DELAY_MS MEGABYTES_A_SECOND
    server.py stop DIRECTORY

`link` starts a proxy that makes a server distant, which is `link/main.go` and for benchmarks: `endpoint` leads to
the server, `counts` has the traffic.

The real ones are test tools, which Holdfast neither ships nor links (MinIO is archived, and under
the AGPL). They are built from source once, by `go install`, into
`${XDG_CACHE_HOME:-~/.cache}/holdfast/`, as is the sink, which is `sink/main.go` and for benchmarks.
A server listens on loopback only and keeps everything in one temporary directory.

Exit status: 0 done, 2 wrong usage, 3 can't be had here (no Go, or the module is out of reach), else
it failed; the last line on stderr has the reason.
"""

import http.client
import os
import secrets
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, os.fspath(Path(__file__).parents[2]))

from infra.common import (  # found by the line above
    UnavailableError,
    UsageError,
    build_once,
    digest,
    directory_of,
    free_ports,
    run,
    server_directory,
    start_process,
    stop,
    wait_until_ready,
)

PACKAGES = {
    # By commit, because its tags are not Go versions.
    "minio": "github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c",
    "versitygw": "github.com/versity/versitygw/cmd/versitygw@v1.7.0",
}

# Programs of the standard library only.
SOURCES = {name: Path(__file__).parent / name / "main.go" for name in ("sink", "link")}

NAMES = [*PACKAGES, "sink"]

REGION = "us-east-1"


def build(name: str) -> Path:
    """Path of the server's program, built if it is not there."""
    version = digest(SOURCES[name]) if name in SOURCES else PACKAGES[name].split("@")[1]
    return build_once(name, version, partial(_build, name))


def _build(name: str, directory: Path) -> Path:
    go = shutil.which("go")
    if go is None:
        raise UnavailableError(f"{name} is built from source, and no go was found")
    environment = {**os.environ, "GOBIN": str(directory), "CGO_ENABLED": "0"}
    options = ["-trimpath", "-ldflags=-s -w"]
    if name in SOURCES:
        command = [go, "build", *options, "-o", name, str(SOURCES[name].resolve())]
    else:
        package, version = PACKAGES[name].split("@")
        module = f"{package.split('/cmd/')[0]}@{version}"
        reached = _run([go, "list", "-m", module], directory, environment)
        if reached.returncode != 0:
            raise UnavailableError(f"go can't reach {module}: {_last_line(reached.stderr)}")
        print(f"building {name} once, which takes minutes", file=sys.stderr)
        command = [go, "install", *options, PACKAGES[name]]
    built = _run(command, directory, environment)
    if built.returncode != 0:
        sys.exit(f"{' '.join(command[:2])} failed: {built.stderr}")
    return directory / name


def start(name: str) -> dict[str, str]:
    """Start a server; returns the values that clients and `stop` need."""
    program = build(name)
    access_key, secret_key = secrets.token_hex(8), secrets.token_hex(20)
    port, other_port = free_ports(2)
    address = f"127.0.0.1:{port}"
    with server_directory("s3") as directory:
        data = directory / "data"
        data.mkdir()
        if name == "minio":
            settings = {
                "MINIO_BROWSER": "off",
                "MINIO_ROOT_PASSWORD": secret_key,
                "MINIO_ROOT_USER": access_key,
                "MINIO_SITE_REGION": REGION,
                "MINIO_UPDATE": "off",
            }
            command = ["server", "--quiet", "--certs-dir", f"{directory}/certs"]
            command += ["--address", address, "--console-address", f"127.0.0.1:{other_port}"]
            command.append(str(data))
        elif name == "sink":
            settings = {}
            command = [address, str(directory)]
        else:
            versions = directory / "versions"
            versions.mkdir()
            settings = {"ROOT_ACCESS_KEY": access_key, "ROOT_SECRET_KEY": secret_key}
            command = ["--quiet", "--keep-alive", "--port", address, "--region", REGION]
            command += ["posix", "--versioning-dir", str(versions), str(data)]
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("MINIO_", "ROOT_", "VGW_"))
        }
        environment |= {**settings, "HOME": str(directory)}
        server = start_process([program, *command], directory, environment)
        wait_until_ready(server, directory, lambda: _is_ready(port))
    return {
        "endpoint": f"http://{address}",
        "region": REGION,
        "access_key": access_key,
        "secret_key": secret_key,
        "directory": str(directory),
    }


def link(target: str, delay_ms: float, megabytes_a_second: float) -> dict[str, str]:
    """Start a proxy to a server; returns the values that clients and `stop` need."""
    program = build("link")
    ports = free_ports(2)
    address, counts = (f"127.0.0.1:{port}" for port in ports)
    bytes_a_second = str(megabytes_a_second * 1e6)
    command: list[str | Path] = [program, address, target, counts, str(delay_ms), bytes_a_second]
    with server_directory("s3") as directory:
        command.append(directory)  # `stop` recognizes the process by it
        process = start_process(command, directory, dict(os.environ))
        wait_until_ready(process, directory, lambda: _is_ready(ports[1]))
    return {
        "endpoint": f"http://{address}",
        "counts": f"http://{counts}",
        "directory": str(directory),
    }


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        # MinIO reports "ready" before it has loaded its buckets, and this only after. Elsewhere 403 is fine.
        connection.request("GET", "/minio/health/cluster")
        return connection.getresponse().status < 500
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _run(
    command: list[str], directory: Path, environment: dict[str, str]
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, check=False, cwd=directory, env=environment, capture_output=True, text=True
    )


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[-1]


def _command(arguments: list[str]) -> dict[str, str] | None:
    match arguments:
        case ["build", name] if name in NAMES:
            build(name)
        case ["start", name] if name in NAMES:
            return start(name)
        case ["link", target, delay_ms, megabytes_a_second]:
            return link(target, float(delay_ms), float(megabytes_a_second))
        case ["stop", directory]:
            stop(directory_of(directory, "s3"))
        case _:
            raise UsageError
    return None


if __name__ == "__main__":
    run(_command, __doc__)

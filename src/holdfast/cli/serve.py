"""`holdfast serve`: the jobs of some directories as a live page with a REST API."""

import argparse
import ipaddress
import os
import socket
from pathlib import Path

from holdfast.cli.options import STORES, command, configure_stores, duration_s, option
from holdfast.cli.output import print_status
from holdfast.errors import InvalidRequestError
from holdfast.locations.storages import CompletedCheckpoint
from holdfast.spark_progress import directories_of

TOKEN = "HOLDFAST_SERVE_TOKEN"  # noqa: S105  # the name of a variable
"""The environment variable with the token."""

_PORT, _BACKLOG, _MAX_CONNECTIONS = 8098, 128, 256
_MIN_TOKEN = 16


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"must be 0 to 65535, got {text!r}")
    return int(text)


def _interval_s(text: str) -> float:
    seconds = duration_s("5s or 1m")(text)
    if seconds < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1s, got {text!r}")
    return seconds


@command(
    "serve",
    help="show all jobs on a live page, with a REST API",
    description="Serve a page that shows the jobs of some directories and updates while they run, and the\n"
    "REST API that it uses, described in /openapi.json. Everything is read from storage, and\n"
    "nothing is written. Figures that only a running driver has are read from its metrics, if you\n"
    "name their URL by --driver.\n\n"
    "The server listens on this machine only. Another --host needs a token of at least\n"
    f"{_MIN_TOKEN} characters: in the file that --token-file names, or in {TOKEN}.",
    examples="""
        holdfast serve file:///data/holdfast
        holdfast serve s3://bucket/checkpoints s3://bucket/savepoints --port 0
        holdfast serve file:///data/holdfast --host 0.0.0.0 --token-file token.txt
    """,
    options=[
        option(
            "directories",
            nargs="+",
            metavar="DIRECTORY",
            help="URI of a checkpoint directory, such as file:///data/holdfast, or of one with savepoints",
        ),
        option(
            "--host",
            default="127.0.0.1",
            metavar="HOST",
            help="the address to listen at (default: 127.0.0.1)",
        ),
        option(
            "--port",
            type=_port,
            default=_PORT,
            metavar="PORT",
            help=f"the port to listen at (default: {_PORT}); 0 for a free one, which is printed",
        ),
        option(
            "--token-file",
            metavar="FILE",
            help=f"file with the token that requests need; by default that of {TOKEN}, if it is set",
        ),
        option(
            "--driver",
            action="append",
            default=[],
            metavar="URL",
            help="metrics of a running driver to show as well, such as http://driver:9250/metrics; can be given several times",
        ),
        option(
            "--interval",
            type=_interval_s,
            default=5.0,
            metavar="DURATION",
            help="time between two looks at the storage while a page is open, such as 10s (default: 5s)",
        ),
        STORES,
    ],
)
def serve_command(options: argparse.Namespace) -> int:
    """Serve until the process is interrupted or terminated."""
    try:
        import uvicorn  # noqa: PLC0415  # an extra

        from holdfast.cli.server import (  # noqa: PLC0415
            Access,
            Jobs,
            application,
            check_driver,
        )
    except ModuleNotFoundError as error:
        message = f"the server needs {error.name}; pip install 'holdfast[serve]'"
        raise InvalidRequestError(message) from error
    token = _token(options.token_file)
    if token is None and not _is_loopback(options.host):
        message = (
            f"--host {options.host} can be reached from other machines, and needs a token: name a file with one by "
            f"--token-file, or set {TOKEN}"
        )
        raise InvalidRequestError(message)
    for driver in options.driver:
        check_driver(driver)
    configure_stores(options, *options.directories)

    def configure(checkpoint: CompletedCheckpoint) -> None:
        configure_stores(options, *directories_of(checkpoint))

    jobs = Jobs(
        options.directories,
        clock=options.clock,
        interval_s=options.interval,
        configure=configure,
        drivers=options.driver,
    )
    with _listen(options.host, options.port) as listener:
        config = uvicorn.Config(
            application(jobs, Access(token), lambda: bool(server.should_exit)),
            access_log=False,  # a path may have the token
            log_config=None,
            lifespan="off",
            limit_concurrency=_MAX_CONNECTIONS,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=3,
        )
        server = uvicorn.Server(config)
        host = f"[{options.host}]" if ":" in options.host else options.host
        print(f"http://{host}:{listener.getsockname()[1]}/", flush=True)
        print_status("serving; stop with Ctrl-C")
        server.run(sockets=[listener])
    return 0


def _token(file: str | None) -> str | None:
    """Return the token of the file or the environment; None without one. Raises `InvalidRequestError`."""
    place, token = TOKEN, os.environ.get(TOKEN)
    if file is not None:
        place = file
        try:
            token = Path(file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequestError(
                f"token can't be read ({type(error).__name__})", file
            ) from None
    if token is not None and (len(token) < _MIN_TOKEN or not token.isascii()):
        message = f"token in {place} must be at least {_MIN_TOKEN} characters of ASCII"
        raise InvalidRequestError(message)
    return token


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    """Open the port. Raises `InvalidRequestError`."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        message = (
            f"can't listen at {host}, port {port} ({reason}); choose another with --host and --port"
        )
        raise InvalidRequestError(message) from error

"""Secrets planted in the settings of a query on S3, and searched for in everything that it and the commands write.

The query runs, loses its store, and is started with invalid settings; the commands read its checkpoints. The search
includes its debug log, Spark's event log, Spark's and Holdfast's checkpoints, the files of executors and drivers while
they run and afterwards, the objects in the bucket, and the output of the commands.
"""

import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from servers.buckets import MemoryS3Server, memory_server

from proof.kinds_job import JOB, STOP_FILE
from proof.running_query import RunningQuery

_UNREACHABLE = "http://127.0.0.1:9"
_BATCHES = 3


@dataclass(slots=True)
class SearchResult:
    """The result of the search.

    Attributes:
        places: Number of files, objects and outputs.
        failures: Places with secrets, and other errors.
    """

    places: int = 0
    failures: list[str] = field(default_factory=list)
    planted: tuple[str, ...] = ()

    def look(self, place: str, content: bytes) -> None:
        """Search a place."""
        self.places += 1
        for secret in self.planted:
            if any(form.encode() in content for form in {secret, quote(secret, safe="")}):
                self.failures.append(f"a secret is in {place}")


def search_for_planted_secrets(directory: Path) -> SearchResult:
    """Plant secrets, run the query and the commands, and search.

    Args:
        directory: An empty directory.
    """
    planted = tuple(f"planted/{secrets.token_hex(16)}+=" for _ in range(2))
    searched = SearchResult(planted=planted)
    searched.look("a control", planted[0].encode())
    if len(searched.failures) != 1:
        searched.failures = ["the control was not found"]
        return searched
    searched.failures.clear()
    with memory_server() as server, server.new_bucket() as bucket:
        settings = _settings(server, *planted)
        uri = f"s3://{bucket.name}/checkpoints"
        _run(directory / "runs", uri, settings, searched)
        for name, key, value in (
            ("has no store", "spark.holdfast.s3.endpoint", _UNREACHABLE),
            ("is refused", "spark.holdfast.s3.secret_key", planted[0]),  # no such setting
        ):
            _run(directory / name, uri, {**settings, key: value}, searched, fails=True)
        for key in bucket.keys():  # noqa: SIM118  # not a dictionary
            searched.look(f"object {key}", bucket.read(key))
        for name, output in _commands(uri, settings):
            searched.look(name, output)
    _search_files(directory, searched)
    return searched


def _settings(server: MemoryS3Server, secret: str, token: str) -> dict[str, str]:
    return {
        "spark.holdfast.s3.endpoint": server.endpoint,
        "spark.holdfast.s3.region": server.region,
        "spark.holdfast.s3.path-style-access": "true",
        "spark.holdfast.s3.access-key": server.access_key,
        "spark.holdfast.s3.secret-key": secret,
        "spark.holdfast.s3.session-token": token,
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
    }


def _run(
    home: Path, uri: str, settings: dict[str, str], searched: SearchResult, *, fails: bool = False
) -> None:
    """Run the query, and search its files while it runs."""
    events = home / "events"
    events.mkdir(parents=True)
    settings = {**settings, "spark.eventLog.dir": f"file://{events}"}
    query = RunningQuery(home, uri, conf=settings)
    try:
        if not fails:
            query.wait_for_batches(_BATCHES)
            _search_files(home, searched)
            (home / STOP_FILE).touch()
        query.wait_for_end()
    finally:
        query.kill()
    if (query.exit_code != 0) is not fails:
        searched.failures.append(f"the query has ended with {query.exit_code}: {query.log_tail()}")


def _search_files(directory: Path, searched: SearchResult) -> None:
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):
            if path.is_file():
                searched.look(str(path.relative_to(directory)), path.read_bytes())


def _commands(uri: str, settings: dict[str, str]) -> Iterator[tuple[str, bytes]]:
    """Yield the output of the commands, also of one that can't access the store."""
    nowhere = {**settings, "spark.holdfast.s3.endpoint": _UNREACHABLE}
    last = f"{uri}/{JOB}/chk-{_BATCHES}"
    for arguments, conf in (
        (["list", uri], settings),
        (["show", last], settings),
        (["verify", "--all", uri], settings),
        (["report", uri], settings),
        (["report", "--json", uri], settings),
        (["clean", uri], settings),
        (["list", uri], nowhere),
    ):
        with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
            file.write("".join(f"{key} {value}\n" for key, value in conf.items()))
            file.flush()
            command = [sys.executable, "-m", "holdfast", *arguments, "--properties-file", file.name]
            ran = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=False,
            )
        yield f"the output of `holdfast {arguments[0]}`", ran.stdout

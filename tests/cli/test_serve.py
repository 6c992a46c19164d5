"""The REST API of `holdfast serve`, without a network; and the command."""

import asyncio
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import msgspec
import pytest
from contracts.histories import HOSTILE, checkpoint_metadata, write_checkpoints
from contracts.written_keyed_states import keyed_checkpoint
from openapi_spec_validator import validate
from prometheus_client import start_http_server

from holdfast.cli.command_line import main
from holdfast.cli.serve import TOKEN
from holdfast.cli.server import Access, Jobs, application
from holdfast.common import SYSTEM_CLOCK
from holdfast.locations import complete_checkpoint
from holdfast.locations.adapters import file_system_for
from holdfast.spark.metrics import definitions
from holdfast.spark.metrics.prometheus import registry_of
from holdfast.spark.metrics.values import MetricValues, Sample
from holdfast.spark_progress import HISTORY, FailedAttempt, next_history

SECRET = "a-token-of-the-test-0123456789"


@dataclass
class Answer:
    """An answer of the server."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Asks an application, without a network."""

    def __init__(
        self, *directories: Path | str, token: str | None = None, drivers: Sequence[str] = ()
    ) -> None:
        uris = [each if isinstance(each, str) else f"file://{each}" for each in directories]
        self.jobs = Jobs(uris, clock=SYSTEM_CLOCK, interval_s=0, drivers=drivers)
        self._app = application(self.jobs, Access(token))

    def ask(
        self,
        path: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> Answer:
        raw, _, query = path.partition("?")
        given = {"host": "localhost:8098", **(headers or {})}
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": raw,
            "raw_path": raw.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
            "server": ("127.0.0.1", 8098),
            "client": ("127.0.0.1", 1),
        }
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        # In a separate thread: a browser of other tests keeps an event loop in this one.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, self._app(scope, receive, send)).result()
        answer_headers = {
            name.decode().lower(): value.decode() for name, value in sent[0]["headers"]
        }
        content = b"".join(message.get("body", b"") for message in sent[1:])
        return Answer(sent[0]["status"], answer_headers, content)

    def read(self, path: str) -> Any:
        """Return the value of an answer without an error."""
        answer = self.ask(path)
        assert answer.status == 200, answer.body
        return answer.json


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """An empty checkpoint directory."""
    made = tmp_path / "checkpoints"
    made.mkdir()
    return made


def test_api_has_the_values_of_report_and_show(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_checkpoints(directory, [1, 2, 4], parallelism=3)
    (directory / "job" / "chk-5").mkdir()
    client = Client(directory)
    [job] = client.read("/jobs")["jobs"]
    assert main(["report", f"file://{directory}", "--json"]) == 0
    [reported] = json.loads(capsys.readouterr().out)["jobs"]
    assert (job["state"], job["checkpoint"], job["retained"]) == (reported["state"], 4, 3)
    details = client.read("/jobs/job")
    assert details["failures"] == reported["failures"]
    assert details["gaps"] == reported["gaps"] == [[3, 3]]
    checkpoints = client.read("/jobs/job/checkpoints")
    assert checkpoints["counts"]["completed"] == 3
    assert [entry["status"] for entry in checkpoints["history"]] == [
        "IN_PROGRESS",
        *["COMPLETED"] * 3,
    ]
    assert checkpoints["latest"]["completed"]["rows_in"] == reported["checkpoints"][-1]["rows_in"]
    assert client.read("/jobs/job/checkpoints/config")["interval"] == reported["median_interval_ms"]
    assert main(["show", f"file://{directory}/job/chk-2", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    content = client.read("/jobs/job/checkpoints/details/2")["content"]
    subtasks = client.read("/jobs/job/checkpoints/details/2/subtasks/operator")
    assert subtasks["subtasks"] == shown["operators"]["operator"].pop("subtasks")
    assert subtasks["skew"]["rows_in"] == 1.5
    assert content == shown


def test_history_has_deleted_checkpoints_and_failed_attempts(directory: Path) -> None:
    storage = write_checkpoints(directory, [1])
    client = Client(directory)
    access = storage.create_checkpoint_storage("job")
    [first] = [client.jobs.find("job").load(1)]
    attempt = FailedAttempt(2, 1, 0, 1_700_000_000_500, 20.0, "ValueError")
    metadata = checkpoint_metadata(
        2, job_id="job", uids=["operator"], parallelism=2, created_ms=1_700_000_001_000
    )
    states = metadata.coordinator_states | next_history(first, [attempt])
    assert HISTORY in states
    complete_checkpoint(
        access.initialize_location_for_checkpoint(2),
        msgspec.structs.replace(metadata, coordinator_states=states, epoch=1),
    )
    first.discard()
    newest, failed, oldest = client.read("/jobs/job/checkpoints")["history"]
    assert (newest["id"], newest["restored_checkpoint"]) == (2, 1)
    assert (failed["status"], failed["failure_message"]) == ("FAILED", "ValueError")
    assert (oldest["id"], oldest["is_retained"]) == (1, False)
    assert client.ask("/jobs/job/checkpoints/details/1").status == 404
    assert len(client.read("/jobs/job")["restarts"]) == 1


def test_damaged_metadata_is_shown_and_hides_no_other_job(directory: Path) -> None:
    write_checkpoints(directory, [1, 2], job_id="damaged")
    write_checkpoints(directory, [1], job_id="whole")
    (directory / "damaged" / "chk-2" / "_metadata").write_bytes(b"no metadata")
    client = Client(directory, directory.parent / "none")
    damaged, whole = client.read("/jobs")["jobs"]
    assert (damaged["state"], damaged["checkpoint"]) == ("damaged", 1)
    assert whole["state"] == "healthy"
    entry = client.read("/jobs/damaged/checkpoints/details/2")["checkpoint"]
    assert entry["status"] == "UNREADABLE"
    assert "not a holdfast metadata file" in entry["failure_message"]
    assert "not a holdfast metadata file" in client.read("/jobs/damaged/sweep")["sweep"]["error"]
    assert client.ask("/jobs/damaged/states/operator/list").status == 500


def test_new_deleted_and_replaced_checkpoints_are_noticed(directory: Path) -> None:
    write_checkpoints(directory, [1, 2], newest_ms=1_700_000_000_000)
    client = Client(directory)
    assert client.read("/jobs")["jobs"][0]["checkpoint"] == 2
    write_checkpoints(directory, [3])
    assert client.read("/jobs")["jobs"][0]["checkpoint"] == 3
    # A rollback to 1, and a new driver, which completes 2 again.
    shutil.rmtree(directory / "job" / "chk-2")
    shutil.rmtree(directory / "job" / "chk-3")
    assert client.read("/jobs")["jobs"][0]["checkpoint"] == 1
    write_checkpoints(directory, [2], newest_ms=1_800_000_000_000)
    assert client.read("/jobs")["jobs"][0]["completed_ms"] == 1_800_000_000_000
    shutil.rmtree(directory / "job")
    assert client.read("/jobs")["jobs"] == []


def test_old_checkpoints_are_read_little_by_little_the_newest_at_once(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoints(directory, range(1, 8))
    size = (directory / "job" / "chk-7" / "_metadata").stat().st_size
    monkeypatch.setattr("holdfast.cli.server.jobs.MAX_BYTES", 3 * size)
    (directory / "job" / "chk-1" / "_metadata").write_bytes(bytes(1000))
    client = Client(directory)
    [job] = client.read("/jobs")["jobs"]
    assert (job["checkpoint"], job["retained"], job["state"]) == (7, 7, "healthy")
    assert client.read("/jobs/job/checkpoints/details/2")["checkpoint"]["id"] == 2
    states = [client.read("/jobs")["jobs"][0]["state"] for _ in range(4)]
    assert states[-1] == "attention"
    assert client.read("/jobs/job/checkpoints")["counts"]["completed"] == 6


def test_jobs_of_the_same_id_and_savepoints_keep_apart(tmp_path: Path) -> None:
    storage = write_checkpoints(tmp_path / "a", [1])
    write_checkpoints(tmp_path / "b", [1, 2])
    access = storage.create_checkpoint_storage("gone")
    location = access.initialize_location_for_savepoint(7, f"file://{tmp_path}/savepoints")
    complete_checkpoint(
        location,
        checkpoint_metadata(7, job_id="gone", uids=["operator"], parallelism=1, created_ms=1),
    )
    client = Client(tmp_path / "a", tmp_path / "b", tmp_path / "savepoints")
    jobs = {job["id"]: job for job in client.read("/jobs")["jobs"]}
    assert list(jobs) == ["gone", "job@1", "job@2"]
    assert jobs["gone"]["headline"] == "only savepoints"
    assert jobs["job@2"]["checkpoint"] == 2
    [savepoint] = client.read("/jobs/gone/savepoints")["savepoints"]
    assert savepoint["external_path"] == location.external_pointer
    assert client.read("/jobs/gone/sweep")["sweep"] is None


def test_state_has_columns_key_groups_largest_keys_and_values(directory: Path) -> None:
    keyed_checkpoint(f"file://{directory}")
    client = Client(directory)
    state = client.read("/jobs/job/states/op/pages")
    assert state["key"] == {"user": "string"}
    assert state["freshness"]["checkpoint"] == 1
    assert [column["name"] for column in state["state"]["columns"]] == ["user", "key", "value"]
    groups = state["key_groups"]
    assert groups["is_complete"]
    assert sum(groups["rows"]) == 8
    assert sum(key["bytes"] for key in groups["largest_keys"]) == sum(groups["bytes"])
    assert {key["key"]["user"]: key["rows"] for key in groups["largest_keys"]} == {
        "ann": 2,
        "bob": 2,
        "eve": 2,
        None: 2,
    }
    totals = client.read("/jobs/job/states/op/totals/value?key=bob")
    assert [row["value"] for row in totals["rows"]] == [2]
    assert totals["freshness"]["age_ms"] > 0
    named = client.read("/jobs/job/states/op/totals/value?key.user=eve")
    assert [row["value"] for row in named["rows"]] == [3]
    null = client.read("/jobs/job/states/op/totals/value?null=user")
    assert [row["value"] for row in null["rows"]] == [4]
    assert client.read("/jobs/job/states/op/totals/value?key=zoe")["rows"] == []
    for path in ("totals/value", "totals/value?key.page=1", "none", "none/value?key=1"):
        assert client.ask(f"/jobs/job/states/op/{path}").status == 400
    assert client.ask("/jobs/job/states/none/totals").status == 404


@pytest.mark.parametrize(
    "path",
    [
        "/jobs/none",
        "/jobs/..",
        "/jobs/../jobs",
        "/jobs/%2e%2e%2fcheckpoints",
        "/jobs/..%2f..%2fetc%2fpasswd/checkpoints",
        "/jobs/%00",
        "/jobs/%ff",
        "/jobs/job%2fchk-1",
        "/live_page.js/../login.html",
        "/static/login.html",
        "/jobs/job/checkpoints/details/99",
        "/jobs/job/checkpoints/details/1/subtasks/none",
    ],
)
def test_hostile_and_unknown_paths_are_404(directory: Path, path: str) -> None:
    write_checkpoints(directory, [1])
    answer = Client(directory).ask(path)
    assert answer.status == 404
    assert list(answer.json) == ["errors"]


def test_bad_numbers_and_methods_are_refused(directory: Path) -> None:
    write_checkpoints(directory, [1])
    client = Client(directory)
    for path in ("details/x", "details/-1", "details/٣", f"details/{'9' * 40}"):
        assert client.ask(f"/jobs/job/checkpoints/{quote(path)}").status == 400
    assert client.ask("/jobs/job/checkpoints?limit=x").status == 400
    for method in ("POST", "PUT", "DELETE"):
        assert client.ask("/jobs/job", method=method).status == 405


def test_names_of_any_characters_are_reached_by_encoding(directory: Path) -> None:
    write_checkpoints(directory, [1], uids=HOSTILE)
    client = Client(directory)
    for uid in HOSTILE:
        path = f"/jobs/job/checkpoints/details/1/subtasks/{quote(uid, safe='')}"
        assert client.read(path)["id"] == uid


def test_requests_write_nothing(directory: Path) -> None:
    write_checkpoints(directory, [1, 2])
    keyed_checkpoint(f"file://{directory}/keyed")
    (directory / "job" / "chk-3").mkdir()
    before = _content(directory)
    client = Client(directory, directory / "keyed")
    for path in (
        "",
        "/job@1",
        "/job@1/checkpoints",
        "/job@1/savepoints",
        "/job@1/sweep",
        "/job@2/states/op/totals",
    ):
        client.read(f"/jobs{path}")
    assert _content(directory) == before


def _content(directory: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.stat().st_mtime_ns) for path in directory.rglob("*"))


def test_openapi_describes_every_path(directory: Path) -> None:
    document = Client(directory).read("/openapi.json")
    validate(document)
    assert "/jobs/{job}/checkpoints/details/{id}/subtasks/{operator}" in document["paths"]
    answer = document["paths"]["/jobs"]["get"]["responses"]["200"]["content"]["application/json"]
    assert answer["schema"] == {"$ref": "#/components/schemas/JobList"}


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8098", 200),
        ("127.0.0.1", 200),
        ("[::1]:8098", 200),
        ("evil.example", 400),
        ("localhost.evil.example", 400),
        ("127.0.0.1.evil.example:8098", 400),
        ("", 400),
    ],
)
def test_host_of_another_name_is_refused(directory: Path, host: str, status: int) -> None:
    assert Client(directory).ask("/jobs", headers={"host": host}).status == status


def test_headers_of_answers_restrict_browsers(directory: Path) -> None:
    client = Client(directory)
    for path in ("/", "/live_page.js", "/style.css", "/jobs", "/jobs/none"):
        headers = client.ask(path).headers
        assert (
            "default-src 'none'; script-src 'self'; style-src 'self'"
            in headers["content-security-policy"]
        )
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert headers["referrer-policy"] == "no-referrer"
    page = client.ask("/").body.decode()
    assert "<script>" not in page
    assert " style=" not in page
    assert " on" not in page.partition("<body>")[2].replace(" one", "")[:200]


def test_token_is_required_in_a_header_or_a_session(directory: Path) -> None:
    write_checkpoints(directory, [1])
    client = Client(directory, token=SECRET)
    refused = client.ask("/jobs", headers={"host": "any.example"})
    assert refused.status == 401
    assert refused.headers["www-authenticate"] == "Bearer"
    for path in (
        "/openapi.json",
        "/events",
        "/live_page.js",
        "/jobs/none",
        "/style.css/..",
        f"/jobs?token={SECRET}",
    ):
        assert client.ask(path).status in {401, 404}
    login = client.ask("/")
    assert login.status == 401
    assert b"<form" in login.body
    assert client.ask("/jobs", headers={"authorization": f"Bearer {SECRET}"}).status == 200
    for wrong in ("", "Bearer", f"Basic {SECRET}", f"Bearer {SECRET}x", "Bearer \xe9"):
        assert client.ask("/jobs", headers={"authorization": wrong}).status == 401


@pytest.mark.parametrize("way", ["form", "query"])
def test_session_does_not_contain_the_token(directory: Path, way: str) -> None:
    client = Client(directory, token=SECRET)

    def sign_in(token: str) -> Answer:
        if way == "query":
            return client.ask(f"/?token={token}")
        return client.ask("/login", method="POST", body=f"token={token}".encode())

    assert sign_in("wrong").status == 401
    assert b"not the token" in sign_in("wrong").body
    answer = sign_in(SECRET)
    assert (answer.status, answer.headers["location"]) == (303, "./")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert SECRET not in cookie
    assert hashlib.sha256(SECRET.encode()).hexdigest() not in cookie
    session = cookie.partition(";")[0]
    assert client.ask("/jobs", headers={"cookie": session}).status == 200
    other = Client(directory, token=f"{SECRET}-of-another-server")
    assert other.ask("/jobs", headers={"cookie": session}).status == 401


def test_long_login_is_not_read(directory: Path) -> None:
    client = Client(directory, token=SECRET)
    body = b"x" * 5000 + f"&token={SECRET}".encode()
    assert client.ask("/login", method="POST", body=body).status == 401


def test_users_in_uris_are_left_out() -> None:
    directory = "memory://AKIAKEY@host/serve"
    write_checkpoints(directory, [1])
    file_system_for(directory).prepare_directory(f"{directory}/job/chk-2")
    client = Client(directory)
    try:
        for path in (
            "/jobs",
            "/jobs/job",
            "/jobs/job/checkpoints",
            "/jobs/job/checkpoints/details/1",
            "/jobs/job/checkpoints/config",
            "/jobs/job/sweep",
        ):
            answer = client.ask(path)
            assert answer.status == 200
            assert b"AKIAKEY" not in answer.body
    finally:
        file_system_for(directory).delete_tree(directory)


@pytest.fixture(scope="module")
def page_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server that has a page at `/page`, and nothing else."""
    directory = tmp_path_factory.mktemp("pages")
    (directory / "page").write_text("<html> not metrics </html>")
    handler = partial(SimpleHTTPRequestHandler, directory=str(directory))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def driver() -> Iterator[str]:
    """The URL of the metrics of a driver that runs `job` and `other`."""
    values = MetricValues()
    values.record(
        [
            Sample(definitions.SOURCE_LAG, ("job", "0"), 70.0),
            Sample(definitions.CHECKPOINT_DURATION, ("job",), 1.5),
            Sample(definitions.SOURCE_LAG, ("other", "0"), 3.0),
        ]
    )
    server, thread = start_http_server(0, "127.0.0.1", registry_of(values))
    yield f"http://127.0.0.1:{server.server_port}/metrics"
    server.shutdown()
    thread.join()


def test_metrics_are_those_of_the_running_driver(directory: Path, driver: str) -> None:
    write_checkpoints(directory, [1])
    assert Client(directory).read("/jobs/job/metrics") == {"metrics": [], "errors": []}
    live = Client(directory, drivers=[driver]).read("/jobs/job/metrics")
    assert live["errors"] == []
    assert live["metrics"] == [
        {"id": "holdfast_source_lag_rows", "labels": {"source": "0"}, "value": 70.0},
        {"id": "holdfast_checkpoint_duration_seconds_count", "labels": {}, "value": 1.0},
        {"id": "holdfast_checkpoint_duration_seconds_sum", "labels": {}, "value": 1.5},
    ]


def test_drivers_without_metrics_are_named_and_hide_no_others(
    directory: Path, driver: str, page_server: str
) -> None:
    write_checkpoints(directory, [1])
    with socket.create_server(("127.0.0.1", 0)) as free:
        gone = f"http://127.0.0.1:{free.getsockname()[1]}/metrics"
    wrong, missing = f"{page_server}/page", f"{page_server}/missing"
    client = Client(directory, drivers=[gone, wrong, missing, driver])
    live = client.read("/jobs/job/metrics")
    assert len(live["metrics"]) == 3
    assert live["errors"] == [
        f"driver {gone} does not answer (URLError)",
        f"driver {wrong} answers with something else than metrics of Prometheus",
        f"driver {missing} answers with status 404",
    ]


@pytest.mark.parametrize("url", ["driver:9250", "ftp://driver/metrics", "http://me:pass-word@host"])
def test_command_refuses_a_driver_without_a_plain_url(
    directory: Path, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    assert main(["serve", f"file://{directory}", "--driver", url]) == 2
    error = capsys.readouterr().err
    assert "--driver must be a URL" in error
    assert "pass-word" not in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], "needs a token"),
        (["--host", "example.com"], "needs a token"),
        (["--token-file", "/none/token"], "token can't be read"),
    ],
)
def test_command_refuses_to_serve_others_without_a_token(
    directory: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["serve", f"file://{directory}", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_command_refuses_a_short_token_and_a_used_port(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, "short")
    assert main(["serve", f"file://{directory}"]) == 2
    error = capsys.readouterr().err
    assert "at least 16 characters" in error
    assert "short" not in error
    monkeypatch.delenv(TOKEN)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        assert main(["serve", f"file://{directory}", "--port", port]) == 2
    [error] = capsys.readouterr().err.splitlines()
    assert f"can't listen at 127.0.0.1, port {port}" in error


def test_without_starlette_the_command_names_the_extra(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve", f"file://{directory}"]) == 2
    assert "pip install 'holdfast[serve]'" in capsys.readouterr().err


def test_command_serves_until_interrupted_and_logs_no_token(directory: Path) -> None:
    write_checkpoints(directory, [1])
    command = [sys.executable, "-m", "holdfast", "serve", f"file://{directory}", "--port", "0"]
    environment = {**os.environ, TOKEN: SECRET}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            token = {"Authorization": f"Bearer {SECRET}"}
            with urlopen(
                Request(f"{address}jobs?token={SECRET}", headers=token), timeout=20
            ) as page:
                assert json.load(page)["jobs"][0]["id"] == "job"
            process.send_signal(signal.SIGINT)
            out, error = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == 130
    assert out == ""
    assert error.splitlines() == ["holdfast: serving; stop with Ctrl-C"]

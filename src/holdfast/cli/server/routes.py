"""The REST API and the page: each path, and what it answers. `ENDPOINTS` is the table of the API."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from importlib.metadata import version
from importlib.resources import files
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from holdfast.cli.report_values import sweep_of, without_users
from holdfast.cli.server import states
from holdfast.cli.server.access import SLASH, Access, App
from holdfast.cli.server.answers import (
    CheckpointDetails,
    CheckpointEntry,
    CheckpointHistory,
    Config,
    Directory,
    Errors,
    JobDetails,
    JobList,
    Overview,
    Savepoints,
    SubtaskDetails,
    SweepAnswer,
    Task,
)
from holdfast.cli.server.drivers import LiveMetrics, read_metrics
from holdfast.cli.server.jobs import Jobs, ServedJob
from holdfast.cli.server.openapi import Endpoint, description
from holdfast.cli.show import checkpoint_values
from holdfast.errors import (
    CheckpointConflictError,
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
    StorageUnavailableError,
)
from holdfast.locations.coordination import GRACE_S, is_gone, sweep
from holdfast.locations.storages import CompletedCheckpoint
from holdfast.spark_progress import CheckpointView, add_known, iso_time

_Result = TypeVar("_Result")

Query = Mapping[str, str]

_MAX_ENTRIES = 1000
_MAX_ATTEMPTS = 5

_KEEP_ALIVE_S = 15.0
_STEP_S = 0.25
"""Time in which a stream of events notices that the server stops."""

_STATUS: tuple[tuple[type[CheckpointError], int], ...] = (
    (CheckpointNotFoundError, 404),
    (InvalidRequestError, 400),
    (StorageUnavailableError, 503),
    (CheckpointConflictError, 503),
    (CheckpointError, 500),
)

_FILES = {
    "/": ("text/html", ("holdfast.cli.server", "live_page.html")),
    "/live_page.js": ("text/javascript", ("holdfast.cli.server", "live_page.js")),
}


def _list(jobs: Jobs, _query: Query) -> JobList:
    now_ms = jobs.clock.now_ms()
    return JobList(
        jobs=[
            Overview.of(served, served.overview(now_ms=now_ms), now_ms=now_ms)
            for served in jobs.all()
        ],
        directories=[Directory(without_users(each.uri), each.error) for each in jobs.directories],
        made=iso_time(now_ms),
        made_ms=now_ms,
        made_by=f"holdfast {version('holdfast')}",
    )


def _job(jobs: Jobs, _query: Query, job: str) -> JobDetails:
    served, now_ms = jobs.find(job), jobs.clock.now_ms()
    return JobDetails.of(served, served.job(now_ms=now_ms), now_ms=now_ms)


def _checkpoints(jobs: Jobs, query: Query, job: str) -> CheckpointHistory:
    limit = _count(query.get("limit", str(_MAX_ENTRIES)), "limit")
    values = jobs.find(job).job(now_ms=jobs.clock.now_ms())
    return CheckpointHistory.of(values, limit=min(limit, _MAX_ENTRIES))


def _config(jobs: Jobs, _query: Query, job: str) -> Config:
    served = jobs.find(job)
    values = served.overview(now_ms=jobs.clock.now_ms())
    return Config(
        mode="exactly_once",
        interval=values.median_interval_ms,
        num_retained=len(served.retained_ids),
        checkpoint_storage="filesystem",
        directory=without_users(served.directory),
        writer=values.checkpoints[-1].writer if values.checkpoints else None,
    )


def _details(jobs: Jobs, _query: Query, job: str, id: str) -> CheckpointDetails:
    served, number = jobs.find(job), _count(id, "id")
    values = served.overview(now_ms=jobs.clock.now_ms())
    for failure in values.failures:
        if failure.checkpoint == number:
            newest = values.checkpoints[-1].checkpoint if values.checkpoints else -1
            return CheckpointDetails(CheckpointEntry.of_failure(failure, newest), {}, None)
    checkpoint = jobs.checkpoint(served, number)
    view = CheckpointView.of(checkpoint, allow_corrupt_progress=True)
    content = _without_users(checkpoint_values(checkpoint))
    for operator in content["operators"].values():
        del operator["subtasks"]
    entry = msgspec.structs.replace(
        CheckpointEntry.of_view(view), external_path=without_users(view.pointer)
    )
    tasks = {
        uid: Task(
            id=uid,
            num_subtasks=operator.parallelism,
            state_size=sum(subtask.stored_bytes for subtask in operator.subtasks),
            **{
                name: add_known(getattr(subtask, field) for subtask in operator.subtasks)
                for name, field in (
                    ("checkpointed_size", "state_bytes"),
                    ("rows_in", "rows_in"),
                    ("rows_late", "rows_late"),
                    ("rows_out", "rows_out"),
                )
            },
        )
        for uid, operator in view.operators.items()
    }
    return CheckpointDetails(entry, tasks, content)


def _subtasks(jobs: Jobs, _query: Query, job: str, id: str, operator: str) -> SubtaskDetails:
    checkpoint = jobs.checkpoint(jobs.find(job), _count(id, "id"))
    view = CheckpointView.of(checkpoint, allow_corrupt_progress=True)
    if operator not in view.operators:
        message = f"checkpoint {id} has no operator {operator!r}"
        raise CheckpointNotFoundError(message, kind="no-checkpoint")
    return SubtaskDetails.of(operator, view.checkpoint, view.operators[operator])


def _metrics(jobs: Jobs, _query: Query, job: str) -> LiveMetrics:
    return read_metrics(jobs.drivers, jobs.find(job).job_id)


def _savepoints(jobs: Jobs, _query: Query, job: str) -> Savepoints:
    values = jobs.find(job).overview(now_ms=jobs.clock.now_ms())
    readable = [CheckpointEntry.of_view(view) for view in values.savepoints[::-1]]
    unreadable = [CheckpointEntry.of_failure(each, -1) for each in values.unreadable_savepoints]
    return Savepoints([*readable, *unreadable])


def _sweep(jobs: Jobs, _query: Query, job: str) -> SweepAnswer:
    served = jobs.find(job)
    if not served.directory:
        return SweepAnswer(None, GRACE_S)
    try:
        # This machine's time: to learn that of the store, a sweep would write a file.
        report = sweep(served.directory, served.job_id, dry_run=True, now_ms=jobs.clock.now_ms())
    except CheckpointError as error:
        return SweepAnswer(sweep_of(error), GRACE_S)
    return SweepAnswer(sweep_of(report), GRACE_S)


def _state(jobs: Jobs, query: Query, job: str, operator: str, state: str) -> states.StateDetails:
    return _of_newest(
        jobs,
        job,
        operator,
        lambda checkpoint: states.state_details(
            checkpoint, operator, state, query.get("kind"), now_ms=jobs.clock.now_ms()
        ),
    )


def _value(jobs: Jobs, query: Query, job: str, operator: str, state: str) -> states.StateRows:
    key = states.key_in_query(query)
    return _of_newest(
        jobs,
        job,
        operator,
        lambda checkpoint: states.state_rows(
            checkpoint, operator, state, query.get("kind"), key, now_ms=jobs.clock.now_ms()
        ),
    )


def _of_newest(
    jobs: Jobs, job: str, operator: str, read: Callable[[CompletedCheckpoint], _Result]
) -> _Result:
    """Read the newest checkpoint; start over with a newer one if the job deletes it in the meantime."""
    for attempt in range(_MAX_ATTEMPTS):
        checkpoint = jobs.newest(jobs.find(job))
        if operator not in checkpoint.metadata.operators:
            message = f"job {job!r} has no operator {operator!r}"
            raise CheckpointNotFoundError(message, kind="no-checkpoint")
        try:
            return read(checkpoint)
        except CheckpointNotFoundError:
            if attempt == _MAX_ATTEMPTS - 1 or not is_gone(checkpoint):
                raise
            jobs.refresh(max_age_s=0)
    raise AssertionError  # unreachable: the last attempt returns or raises


ENDPOINTS = (
    Endpoint("/jobs", "all jobs", JobList, _list),
    Endpoint("/jobs/{job}", "a job", JobDetails, _job),
    Endpoint(
        "/jobs/{job}/checkpoints",
        "the checkpoints of a job, with those that retention has deleted, and failed attempts",
        CheckpointHistory,
        _checkpoints,
        {"limit": f"maximum number of entries, at most {_MAX_ENTRIES}"},
    ),
    Endpoint("/jobs/{job}/checkpoints/config", "how a job takes checkpoints", Config, _config),
    Endpoint("/jobs/{job}/checkpoints/details/{id}", "a checkpoint", CheckpointDetails, _details),
    Endpoint(
        "/jobs/{job}/checkpoints/details/{id}/subtasks/{operator}",
        "the subtasks of an operator in a checkpoint",
        SubtaskDetails,
        _subtasks,
    ),
    Endpoint("/jobs/{job}/metrics", "the metrics of the running driver", LiveMetrics, _metrics),
    Endpoint("/jobs/{job}/savepoints", "the savepoints of a job", Savepoints, _savepoints),
    Endpoint("/jobs/{job}/sweep", "the files that a sweep would delete", SweepAnswer, _sweep),
    Endpoint(
        "/jobs/{job}/states/{operator}/{state}",
        "a state in the newest checkpoint: its columns, sizes and largest keys",
        states.StateDetails,
        _state,
        {"kind": "kind of the state, if several have that name"},
    ),
    Endpoint(
        "/jobs/{job}/states/{operator}/{state}/value",
        "the rows of a key in the newest checkpoint",
        states.StateRows,
        _value,
        {
            "key": "the key, if it has one column; key.NAME for each column of others",
            "null": "names of key columns that are null, separated by commas",
            "kind": "kind of the state, if several have that name",
        },
    ),
)


def application(jobs: Jobs, access: Access, is_stopping: Callable[[], bool] = lambda: False) -> App:
    """Return the application: the page and its API.

    Args:
        jobs: The jobs to serve.
        access: The rules of access.
        is_stopping: Whether the server is about to stop: streams of events end then.
    """
    document = description(ENDPOINTS)
    routes = [
        *(Route(path, _file(*file)) for path, file in _FILES.items()),
        Route("/style.css", _style),
        Route("/openapi.json", lambda _: _json(document)),
        Route("/events", _events(jobs, is_stopping)),
        *(Route(endpoint.path, _answer(jobs, endpoint)) for endpoint in ENDPOINTS),
    ]
    app = access.protect(Starlette(routes=routes, exception_handlers={404: _missing}))
    served: App = TrustedHostMiddleware(app, allowed_hosts=access.hosts, www_redirect=False)
    return served


def _answer(jobs: Jobs, endpoint: Endpoint) -> Callable[[Request], Response]:
    def answer(request: Request) -> Response:
        names = {name: value.replace(SLASH, "/") for name, value in request.path_params.items()}
        try:
            return _json(endpoint.read(jobs, dict(request.query_params), **names))
        except CheckpointError as error:
            status = next(status for type, status in _STATUS if isinstance(error, type))
            return _json(Errors([without_users(str(error))]), status)

    return answer


def _missing(_request: Request, _error: Exception) -> Response:
    return _json(Errors(["not found"]), 404)


def _json(value: Any, status: int = 200) -> Response:
    """Return an answer in ASCII: a name on a disk may have bytes that are not UTF-8."""
    text = json.dumps(msgspec.to_builtins(value))
    return Response(text, status, media_type="application/json")


def _file(content_type: str, place: tuple[str, str]) -> Callable[[Request], Response]:
    package, name = place
    content = files(package).joinpath(name).read_bytes()
    return lambda _: Response(content, media_type=content_type)


def _style(_request: Request) -> Response:
    names = (("holdfast.cli", "report_page.css"), ("holdfast.cli.server", "live_page.css"))
    sheets = [files(package).joinpath(name).read_text("utf-8") for package, name in names]
    return Response("\n".join(sheets), media_type="text/css")


def _events(
    jobs: Jobs, is_stopping: Callable[[], bool]
) -> Callable[[Request], Awaitable[Response]]:
    async def stream(request: Request) -> AsyncIterator[str]:
        known = await run_in_threadpool(_versions, jobs)
        yield "retry: 2000\n\n"
        silent_s = waited_s = 0.0
        while not is_stopping() and not await request.is_disconnected():
            await asyncio.sleep(_STEP_S)
            waited_s += _STEP_S
            if waited_s < jobs.interval_s:
                continue
            silent_s, waited_s = silent_s + waited_s, 0.0
            now = await run_in_threadpool(_versions, jobs)
            for event in _changes(known, now):
                yield event
                silent_s = 0.0
            known = now
            if silent_s >= _KEEP_ALIVE_S:
                yield ": nothing new\n\n"
                silent_s = 0.0

    async def events(request: Request) -> Response:
        return StreamingResponse(stream(request), media_type="text/event-stream")

    return events


def _versions(jobs: Jobs) -> dict[str, ServedJob]:
    return {served.id: served for served in jobs.all()}


def _changes(before: Mapping[str, ServedJob], now: Mapping[str, ServedJob]) -> list[str]:
    """Return the events between two looks at the jobs."""
    events = []
    for id in sorted(before.keys() | now.keys()):
        old, new = before.get(id), now.get(id)
        if old and new and old.version == new.version and old.error == new.error:
            continue
        newest = new.retained_ids[-1] if new and new.retained_ids else None
        data = json.dumps({"job": id, "checkpoint": newest})
        names = ["change"]
        if new and new.retained_ids and (not old or old.retained_ids[-1:] != [newest]):
            names.append("checkpoint")
        if new and new.failures - (old.failures if old else frozenset()):
            names.append("failure")
        events += [f"event: {name}\ndata: {data}\n\n" for name in names]
    return events


def _count(text: str, name: str) -> int:
    if not text.isdecimal() or not text.isascii() or len(text) > 18:
        raise InvalidRequestError(f"{name} must be a number, got {text!r}")
    return int(text)


def _without_users(value: Any) -> Any:
    """Remove names of users from the URIs in a value of JSON."""
    if isinstance(value, str):
        return without_users(value)
    if isinstance(value, dict):
        return {name: _without_users(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_users(each) for each in value]
    return value

"""`holdfast clean`: orphaned files of crashed jobs."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from holdfast.cli.options import (
    STORES,
    command,
    configure_stores,
    delete_options,
    duration_s,
    flag,
    json_option,
    option,
)
from holdfast.cli.output import (
    bytes_text,
    count_text,
    print_json,
    print_status,
    print_table,
    span_text,
)
from holdfast.errors import CheckpointError, InvalidRequestError
from holdfast.locations.coordination import (
    GRACE_S,
    MIN_GRACE_S,
    SweepReport,
    jobs_with_savepoints,
    sweep,
    sweep_savepoints,
)
from holdfast.locations.storages import FileSystemCheckpointStorage
from holdfast.spark_progress import iso_time


@command(
    "clean",
    help="find files that crashes have left, and delete them with --yes",
    description="Find files that crashes have left in a checkpoint directory; with --yes, delete them.\n\n"
    "These are files that no completed checkpoint refers to: state files and directories of\n"
    "failed checkpoints, unfinished files and uploads. Jobs may be running: files within the\n"
    "grace period, by the store's clock, are kept. Exit status 1 if there are no such files.\n\n"
    "With --savepoint-dir unfinished savepoints are deleted too, also those of queries without\n"
    "operators, which have no checkpoints; their job has the name of the query.",
    examples="""
        holdfast clean file:///data/holdfast
        holdfast clean s3://bucket/checkpoints --job totals --grace 2d --yes
        holdfast clean --savepoint-dir s3://bucket/savepoints
    """,
    options=[
        option(
            "directory",
            nargs="?",
            metavar="DIRECTORY",
            help="URI of the checkpoint directory, such as file:///data/holdfast; may be left out with "
            "--savepoint-dir",
        ),
        option("--job", metavar="JOB", help="only this job; by default all jobs"),
        option(
            "--savepoint-dir",
            metavar="URI",
            help="a directory to search for unfinished savepoints, of all jobs",
        ),
        option(
            "--grace",
            type=duration_s("24h or 90m"),
            default=GRACE_S,
            metavar="DURATION",
            help="grace period since the last write to a file, such as 90m or 2d (default 24h); must be longer than any "
            "micro-batch or savepoint takes",
        ),
        flag(
            "--stopped",
            "assert that no job here is running and no savepoint is in progress; "
            f"without it --yes requires a grace period of at least {span_text(MIN_GRACE_S)}",
        ),
        delete_options("delete the files"),
        json_option("with the files and the failures"),
        STORES,
    ],
)
def clean_command(options: argparse.Namespace) -> int:
    """Sweep jobs, and print the files that were deleted, or would be."""
    if options.yes and options.grace < MIN_GRACE_S and not options.stopped:
        message = (
            f"--grace below {span_text(MIN_GRACE_S)} could delete files that a running job has just "
            "written; use a longer grace, or add --stopped if no job here is running"
        )
        raise InvalidRequestError(message)
    if options.directory is None and options.savepoint_dir is None:
        raise InvalidRequestError("name a checkpoint directory, or --savepoint-dir")
    configure_stores(options, options.directory, options.savepoint_dir)
    with_checkpoints = (
        [] if options.directory is None else FileSystemCheckpointStorage(options.directory).jobs()
    )
    with_savepoints = (
        [] if options.savepoint_dir is None else jobs_with_savepoints(options.savepoint_dir)
    )
    jobs = sorted({*with_checkpoints, *with_savepoints})
    if options.job is not None:
        if options.job not in jobs:
            print_status(f"no job {options.job!r} here; jobs: {', '.join(jobs) or 'none'}")
            return 1
        jobs = [options.job]
    sweeps = _Sweeps(dry_run=not options.yes, now_s=options.clock.now_ms() / 1000)
    try:
        for job in jobs:
            sweeps.sweep(job, options, has_checkpoints=job in with_checkpoints)
    except KeyboardInterrupt:
        print_status("interrupted; run the command again to delete the rest")
        sweeps.print(as_json=options.json)
        raise
    sweeps.print(as_json=options.json)
    failures = list(sweeps.failures.values())
    for failure in failures[:-1]:
        print_status(str(failure))
    if failures:
        raise failures[-1]
    return 0 if sweeps.rows else 1


_KINDS = {"file": "file", "upload": "unfinished upload", "directory": "unfinished checkpoint"}


@dataclass(slots=True)
class _Sweeps:
    """Results of all sweeps so far."""

    dry_run: bool
    now_s: float
    rows: list[dict[str, Any]] = field(default_factory=list)
    within_grace: int = 0
    swept: int = 0
    failures: dict[str, CheckpointError] = field(default_factory=dict)

    @property
    def total_bytes(self) -> int:
        return sum(row["size_bytes"] or 0 for row in self.rows)

    def sweep(self, job: str, options: argparse.Namespace, *, has_checkpoints: bool) -> None:
        settings: dict[str, Any] = {"grace_s": options.grace, "dry_run": self.dry_run}
        try:
            if has_checkpoints:
                report = sweep(
                    options.directory, job, savepoint_directory=options.savepoint_dir, **settings
                )
            else:
                report = sweep_savepoints(options.savepoint_dir, job, **settings)
        except CheckpointError as failure:
            self.failures[job] = failure
        else:
            self.rows += _rows(job, report)
            self.within_grace += report.within_grace
            self.swept += 1

    def print(self, *, as_json: bool) -> None:
        failed = [{"job": job, "error": str(failure)} for job, failure in self.failures.items()]
        if as_json:
            print_json(
                {
                    "dry_run": self.dry_run,
                    "found": self.rows,
                    "total_bytes": self.total_bytes,
                    "within_grace": self.within_grace,
                    "failed": failed,
                }
            )
        else:
            print_table([_text(row, self.now_s) for row in self.rows], right=("size", "age"))
        print_status(self._summary())

    def _summary(self) -> str:
        counts = (
            count_text(count, name)
            for kind, name in _KINDS.items()
            if (count := sum(row["kind"] == kind for row in self.rows))
        )
        failed = f"{count_text(len(self.failures), 'job')} could not be swept"
        if self.failures and not self.swept:
            return failed
        files = f"{', '.join(counts)} ({bytes_text(self.total_bytes)})" if self.rows else "nothing"
        result = f"deleted {files}"
        if self.dry_run:
            result = f"{files} would be deleted" + ("; use --yes to delete" if self.rows else "")
        summary = f"{result}; {self.within_grace} more within the grace period"
        return f"{summary}; {failed}" if self.failures else summary


def _rows(job: str, report: SweepReport) -> Iterator[dict[str, Any]]:
    leftovers: list[tuple[str, str, int | None, int | None]] = [
        *(("file", file.uri, file.size, file.modified_ms) for file in report.files),
        *(("upload", upload.uri, None, upload.started_ms) for upload in report.uploads),
        *(("directory", directory, None, None) for directory in report.directories),
    ]
    kinds = list(_KINDS)
    for kind, uri, size, modified_ms in sorted(
        leftovers, key=lambda row: (kinds.index(row[0]), row[1])
    ):
        modified = None if modified_ms is None else iso_time(modified_ms)
        yield {"job": job, "kind": kind, "uri": uri, "size_bytes": size, "modified": modified}


def _text(row: dict[str, Any], now_s: float) -> dict[str, str]:
    modified = row["modified"]
    return {
        "job": row["job"],
        "kind": row["kind"],
        "size": "-" if row["size_bytes"] is None else bytes_text(row["size_bytes"]),
        # By this machine's clock; the grace period is by the store's.
        "age": "-"
        if modified is None
        else span_text(now_s - datetime.fromisoformat(modified).timestamp()),
        "path": row["uri"],
    }

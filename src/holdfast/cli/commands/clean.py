"""`holdfast clean`: what crashes have left."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from holdfast.cli.command import add_command, add_json
from holdfast.cli.output import (
    age_text,
    bytes_text,
    count_text,
    print_json,
    print_table,
    say,
    time_text,
)
from holdfast.cli.stores import add_stores, use_stores
from holdfast.common import parse_duration_s
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

if TYPE_CHECKING:
    from holdfast.cli.command import Commands


def add_to(commands: "Commands") -> None:
    """Add the command."""
    command = add_command(
        commands,
        "clean",
        clean_command,
        help="delete what crashes have left in a checkpoint directory",
        description=(
            "Find what crashes have left in a checkpoint directory; with --yes, delete it.\n\n"
            "That is what no completed checkpoint leads to: state files and directories of checkpoints\n"
            "that failed, files that were never finished, uploads that were never completed. Jobs may\n"
            "be running: what is younger than the grace period, by the store's clock, is left alone.\n"
            "Exit status 1 if there is nothing.\n\n"
            "With --savepoint-dir savepoints that were never finished go too, also of queries without\n"
            "operators, which have no checkpoints: their job is called like the query."
        ),
        examples="""
            holdfast clean file:///data/holdfast
            holdfast clean s3://bucket/checkpoints --job totals --grace 2d --yes
            holdfast clean --savepoint-dir s3://bucket/savepoints
        """,
    )
    command.add_argument(
        "directory",
        nargs="?",
        help="URI of the checkpoint directory, such as file:///data/holdfast; may be left out with "
        "--savepoint-dir",
    )
    command.add_argument("--job", help="only this job; otherwise all there are, one after another")
    command.add_argument(
        "--savepoint-dir",
        metavar="URI",
        help="where savepoints that were never finished are looked for, of all jobs there",
    )
    command.add_argument(
        "--grace",
        type=_grace_s,
        default=GRACE_S,
        metavar="DURATION",
        help="how long a file must have been left alone, such as 90m or 2d (24h); longer than any "
        "micro-batch or savepoint takes",
    )
    command.add_argument(
        "--stopped",
        action="store_true",
        help="the promise that none of these jobs runs, nor is a savepoint being taken; "
        f"without it --yes takes no grace below {age_text(MIN_GRACE_S)}",
    )
    command.add_argument("--yes", action="store_true", help="delete it")
    add_json(command, "with all that goes and what failed")
    add_stores(command)


def clean_command(options: argparse.Namespace) -> int:
    """Sweep one job after another, and print what was deleted, or would be.

    Raises:
        InvalidRequestError: The grace period is too short for jobs that may be running, or there is
            no directory.
        CheckpointError: Some job could not be swept; this is the last job's error. The other jobs are
            swept all the same.
    """
    if options.yes and options.grace < MIN_GRACE_S and not options.stopped:
        message = (
            f"with a grace below {age_text(MIN_GRACE_S)} what a running job has just written "
            "could go; give it longer, or add --stopped if no job here runs"
        )
        raise InvalidRequestError(message)
    if options.directory is None and options.savepoint_dir is None:
        raise InvalidRequestError("name a checkpoint directory, or --savepoint-dir")
    use_stores(options, options.directory, options.savepoint_dir)
    with_checkpoints = (
        [] if options.directory is None else FileSystemCheckpointStorage(options.directory).jobs()
    )
    with_savepoints = (
        [] if options.savepoint_dir is None else jobs_with_savepoints(options.savepoint_dir)
    )
    jobs = sorted({*with_checkpoints, *with_savepoints})
    if options.job is not None:
        if options.job not in jobs:
            say(f"no job {options.job!r} here; there are: {', '.join(jobs) or 'none'}")
            return 1
        jobs = [options.job]
    sweeps = _Sweeps(dry_run=not options.yes, now_s=options.clock.now_ms() / 1000)
    try:
        for job in jobs:
            sweeps.sweep(job, options, has_checkpoints=job in with_checkpoints)
    except KeyboardInterrupt:
        say("interrupted; the same command again deletes what is left of it")
        sweeps.print(as_json=options.json)  # what is gone is told
        raise
    sweeps.print(as_json=options.json)
    failures = list(sweeps.failures.values())
    for failure in failures[:-1]:
        say(str(failure))
    if failures:
        raise failures[-1]
    return 0 if sweeps.rows else 1


@dataclass(slots=True)
class _Sweeps:
    """The files that were deleted, or would be, of all jobs so far."""

    dry_run: bool
    now_s: float
    rows: list[dict[str, Any]] = field(default_factory=list)
    too_young: int = 0
    swept: int = 0
    failures: dict[str, CheckpointError] = field(default_factory=dict)

    @property
    def total_bytes(self) -> int:
        return sum(row["size_bytes"] or 0 for row in self.rows)

    def sweep(self, job: str, options: argparse.Namespace, *, has_checkpoints: bool) -> None:
        how: dict[str, Any] = {"grace_s": options.grace, "dry_run": self.dry_run}
        try:
            if has_checkpoints:
                report = sweep(
                    options.directory, job, savepoint_directory=options.savepoint_dir, **how
                )
            else:
                report = sweep_savepoints(options.savepoint_dir, job, **how)
        except CheckpointError as failure:
            self.failures[job] = failure
        else:
            self.rows += _rows(job, report)
            self.too_young += report.within_grace
            self.swept += 1

    def print(self, *, as_json: bool) -> None:
        failed = [{"job": job, "error": str(failure)} for job, failure in self.failures.items()]
        if as_json:
            print_json(
                {
                    "dry_run": self.dry_run,
                    "found": self.rows,
                    "total_bytes": self.total_bytes,
                    "too_young": self.too_young,
                    "failed": failed,
                }
            )
        else:
            print_table([_text(row, self.now_s) for row in self.rows], right=("size", "age"))
        say(self._summary())

    def _summary(self) -> str:
        names = {
            "file": "file",
            "upload": "unfinished upload",
            "directory": "unfinished checkpoint",
        }
        counts = (
            count_text(count, name)
            for kind, name in names.items()
            if (count := sum(row["kind"] == kind for row in self.rows))
        )
        failed = f"{count_text(len(self.failures), 'job')} could not be looked through"
        if self.failures and not self.swept:
            return failed
        what = f"{', '.join(counts)} ({bytes_text(self.total_bytes)})" if self.rows else "nothing"
        done = f"deleted {what}"
        if self.dry_run:
            done = f"{what} would be deleted" + ("; --yes does it" if self.rows else "")
        told = f"{done}; {self.too_young} more too young to tell"
        return f"{told}; {failed}" if self.failures else told


def _grace_s(text: str) -> float:
    try:
        return parse_duration_s(text)
    except ValueError as error:
        message = f"{text!r} is no duration such as 24h or 90m"
        raise argparse.ArgumentTypeError(message) from error


def _rows(job: str, report: SweepReport) -> Iterator[dict[str, Any]]:
    for file in sorted(report.files, key=lambda file: file.uri):
        yield _row(job, "file", file.uri, file.size, file.modified_ms)
    for upload in sorted(report.uploads, key=lambda upload: upload.uri):
        yield _row(job, "upload", upload.uri, None, upload.started_ms)
    for directory in sorted(report.directories):
        yield _row(job, "directory", directory, None, None)


def _row(
    job: str, kind: str, uri: str, size: int | None, modified_ms: int | None
) -> dict[str, Any]:
    modified = None if modified_ms is None else time_text(modified_ms)
    return {"job": job, "kind": kind, "uri": uri, "size_bytes": size, "modified": modified}


def _text(row: dict[str, Any], now_s: float) -> dict[str, str]:
    modified = row["modified"]
    return {
        "job": row["job"],
        "kind": row["kind"],
        "size": "-" if row["size_bytes"] is None else bytes_text(row["size_bytes"]),
        # By this machine's clock, for people; what is old enough the store's decided.
        "age": "-"
        if modified is None
        else age_text(now_s - datetime.fromisoformat(modified).timestamp()),
        "path": row["uri"],
    }

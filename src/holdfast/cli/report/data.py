"""The values that the report shows: the page and the JSON are made of them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Subtask:
    """One subtask's part of a checkpoint; None stands for what nobody has counted.

    Attributes:
        subtask: The subtask's index.
        stored_bytes: Length of its state, in files and inline.
        rows_in: Rows given to the operator.
        rows_late: Rows dropped before it because they came too late.
        rows_out: Rows that it gave on.
        restore_ms: Time to read the state that it began with, milliseconds.
        process_ms: Time in the operator's own code, milliseconds.
        snapshot_ms: Time to write its state, milliseconds.
        restored_from: Where it found its state: `worker`, `local`, `storage`, or empty.
        backend_metrics: What the backend of its keyed state said of itself, by that backend's names.
    """

    subtask: int
    stored_bytes: int
    rows_in: int | None
    rows_late: int | None
    rows_out: int | None
    restore_ms: float | None
    process_ms: float | None
    snapshot_ms: float | None
    restored_from: str
    backend_metrics: dict[str, int]


@dataclass(frozen=True, slots=True)
class ReportedOperator:
    """One operator's part of a checkpoint."""

    uid: str
    parallelism: int
    max_parallelism: int
    key: list[str]
    subtasks: list[Subtask]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A completed checkpoint or savepoint.

    Attributes:
        checkpoint: The checkpoint's id.
        pointer: URI of its directory, without a user's name.
        batch: The micro-batch of Spark that it completes; None if it is not one of Spark's.
        completed: When, by the driver's clock, ISO 8601 in UTC.
        completed_ms: The same in milliseconds since 1970.
        duration_ms: From its beginning to its completion, milliseconds.
        writer: Name and version of the program that wrote it.
        new_bytes: As in `CheckpointSize`.
        referenced_bytes: The same.
        total_bytes: The same.
        metadata_bytes: Length of `_metadata`, which is among the new bytes.
        rows_in: The rows of the operator that was given the most; None if nobody has counted.
        rows_late: The rows that came too late for all operators together.
        rows_out: The rows that all operators together gave on.
        operators: By uid, sorted.
    """

    checkpoint: int
    pointer: str
    batch: int | None
    completed: str
    completed_ms: int
    duration_ms: float
    writer: str
    new_bytes: int
    referenced_bytes: int
    total_bytes: int
    metadata_bytes: int
    rows_in: int | None
    rows_late: int | None
    rows_out: int | None
    operators: list[ReportedOperator]


@dataclass(frozen=True, slots=True)
class Failure:
    """A checkpoint or savepoint that can't be read or was not completed.

    Attributes:
        checkpoint: The checkpoint's id; None for a savepoint.
        pointer: URI of its directory, without a user's name.
        reason: `unreadable`, or `uncommitted` for a directory without metadata.
        error: Why it can't be read, else empty.
        files: Number of files in an uncommitted one.
        bytes: Length of these files.
        modified: When something was last written to it, ISO 8601 in UTC; None if not known.
    """

    checkpoint: int | None
    pointer: str
    reason: str
    error: str = ""
    files: int = 0
    bytes: int = 0
    modified: str | None = None


@dataclass(frozen=True, slots=True)
class Leftover:
    """A file or upload that a sweep would delete; an upload that was begun has no length."""

    uri: str
    bytes: int | None


@dataclass(frozen=True, slots=True)
class Sweep:
    """The files that a sweep would delete.

    Attributes:
        error: Why nothing can be said, and nothing would be deleted; else empty.
        files: Files and unfinished uploads.
        directories: URIs of directories.
        bytes: Length of the files.
        too_young: Number of files that nothing leads to, but that somebody may still be writing.
    """

    error: str
    files: list[Leftover]
    directories: list[str]
    bytes: int
    too_young: int


@dataclass(frozen=True, slots=True)
class RememberedOperator:
    """What an operator's subtasks did for a checkpoint that may be there no more, together."""

    uid: str
    parallelism: int
    rows_in: int
    rows_late: int
    rows_out: int
    written_bytes: int
    process_ms: int
    restored_from: str


@dataclass(frozen=True, slots=True)
class RememberedCheckpoint:
    """A completed checkpoint, as those behind it remember it.

    Attributes:
        checkpoint: The checkpoint's id.
        batch: The micro-batch of Spark that it completes; None if it is not one of Spark's.
        completed: When, by the driver's clock, ISO 8601 in UTC.
        duration_ms: From its beginning to its completion, milliseconds.
        epoch: Number of the claim under which it was committed.
        new_bytes: As in `CheckpointSize`.
        referenced_bytes: The same.
        rows_in: As in `Checkpoint`.
        rows_late: The same.
        rows_out: The same.
        operators: By uid, sorted; empty where there was no room to remember them.
        is_retained: Whether it is still there, and can be read.
        restored_checkpoint: The checkpoint that its driver went on from, if this is the first that the driver
            completed, and another one had completed those before; else None.
        claims: Number of claims to the job since that checkpoint, 0 if there was none.
    """

    checkpoint: int
    batch: int | None
    completed: str
    duration_ms: int
    epoch: int
    new_bytes: int
    referenced_bytes: int
    rows_in: int
    rows_late: int
    rows_out: int
    operators: list[RememberedOperator]
    is_retained: bool
    restored_checkpoint: int | None
    claims: int


@dataclass(frozen=True, slots=True)
class GivenUp:
    """An attempt at a checkpoint that failed, and was cleaned up.

    Attributes:
        checkpoint: The id that it would have got.
        batch: The micro-batch of Spark.
        epoch: Number of the driver's claim.
        given_up: When, ISO 8601 in UTC.
        duration_ms: How long it had taken until then, milliseconds.
        reason: Why.
    """

    checkpoint: int
    batch: int
    epoch: int
    given_up: str
    duration_ms: float
    reason: str


@dataclass(frozen=True, slots=True)
class Job:
    """One job.

    Attributes:
        job: The job's id.
        query_name: The name of its query, in the newest checkpoint; empty if it has none.
        state: `healthy`; `quiet`, if the newest checkpoint is far older than their usual distance;
            `attention`, if a newer one was begun long ago and not completed, or an older one can't
            be read; `damaged`, if the newest can't be read; `empty`, if there is none.
        usual_distance_ms: Median time between one checkpoint and the next; None for less than three.
        checkpoints: Oldest first.
        failures: Checkpoints that can't be read or were not completed, oldest first.
        gaps: First and last id of each run that is missing between retained ones.
        savepoints: Oldest first.
        unreadable_savepoints: The savepoints that can't be read.
        sweep: The files that a sweep of the job would delete; None if the job has no directory.
        history: All completed checkpoints that are remembered, oldest first; also those that are deleted.
        given_up: Attempts that are remembered, oldest first.
        history_error: Why not more is remembered; else empty.
    """

    job: str
    query_name: str
    state: str
    usual_distance_ms: float | None
    checkpoints: list[Checkpoint]
    failures: list[Failure]
    gaps: list[tuple[int, int]]
    savepoints: list[Checkpoint]
    unreadable_savepoints: list[Failure]
    sweep: Sweep | None
    history: list[RememberedCheckpoint]
    given_up: list[GivenUp]
    history_error: str

    @property
    def restarts(self) -> list[RememberedCheckpoint]:
        """The first checkpoint of each driver that took the job over."""
        return [past for past in self.history if past.claims]


@dataclass(frozen=True, slots=True)
class Report:
    """All jobs below a directory.

    Attributes:
        directory: The directory's URI, without a user's name.
        savepoint_directory: The directory that was searched for savepoints, if any.
        made: When, ISO 8601 in UTC.
        made_ms: The same in milliseconds since 1970.
        made_by: Name and version of this program.
        jobs: Sorted by id.
    """

    directory: str
    savepoint_directory: str | None
    made: str
    made_ms: int
    made_by: str
    jobs: list[Job]

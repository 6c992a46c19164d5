"""The table of all metrics: name, type, unit, labels and meaning. It makes docs/metrics.md."""

from dataclasses import dataclass
from typing import Literal

JOB = "job_id"
OPERATOR = "operator"

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
"""Upper bounds of the buckets of durations: from a small batch to a timeout."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric.

    Attributes:
        name: Its name in Prometheus and OpenTelemetry.
        type: Counters add up, gauges have the last value, histograms count values in buckets.
        unit: Unit of its values, by OpenTelemetry's names: `s`, `By`, `1` for ratios, or the thing that is counted.
        meaning: A sentence for people.
        labels: Names of its labels.
        is_total: Whether values of a counter are recorded as totals, because they are counted elsewhere.
    """

    name: str
    type: Literal["counter", "gauge", "histogram"]
    unit: str
    meaning: str
    labels: tuple[str, ...] = (JOB,)
    is_total: bool = False

    @property
    def buckets(self) -> tuple[float, ...]:
        """Upper bounds of the buckets of a histogram; the last bucket has none."""
        return _SECONDS


_BY_OPERATOR = (JOB, OPERATOR)
_BY_SUBTASK = (JOB, OPERATOR, "subtask")

CHECKPOINTS_COMPLETED = Metric(
    "holdfast_checkpoints_completed_total", "counter", "checkpoint", "Completed checkpoints."
)
CHECKPOINTS_FAILED = Metric(
    "holdfast_checkpoints_failed_total",
    "counter",
    "checkpoint",
    "Checkpoints that failed with their batch. `reason` is the code of the error in the runbook in lower case, without "
    "`HF-`: `store-failed`, for example; `other` for errors of Spark or of your code.",
    (JOB, "reason"),
)
CHECKPOINT_DURATION = Metric(
    "holdfast_checkpoint_duration_seconds",
    "histogram",
    "s",
    "Time of a completed checkpoint, from the start of its batch to its commit.",
)
LAST_DURATION = Metric(
    "holdfast_last_checkpoint_duration_seconds",
    "gauge",
    "s",
    "Duration of the last completed checkpoint.",
)
LAST_SIZE = Metric(
    "holdfast_last_checkpoint_size_bytes",
    "gauge",
    "By",
    "Size of the directory of the last completed checkpoint: its `_metadata` and its own files.",
)
LAST_FULL_SIZE = Metric(
    "holdfast_last_checkpoint_full_size_bytes",
    "gauge",
    "By",
    "Size of the last completed checkpoint with the files that it shares with others.",
)
LAST_ID = Metric(
    "holdfast_last_checkpoint_id", "gauge", "checkpoint", "Id of the last completed checkpoint."
)
LAST_COMPLETED = Metric(
    "holdfast_last_checkpoint_completed_timestamp_seconds",
    "gauge",
    "s",
    "Time at which the last checkpoint was completed, in seconds since 1970.",
)
INTERVAL = Metric(
    "holdfast_checkpoint_interval_seconds",
    "gauge",
    "s",
    "Time between the last two completed checkpoints, also over a restart.",
)
METADATA_SIZE = Metric(
    "holdfast_last_checkpoint_metadata_bytes",
    "gauge",
    "By",
    "Size of `_metadata` in the last completed checkpoint.",
)
RESTARTS = Metric(
    "holdfast_restarts_total",
    "counter",
    "restart",
    "Starts of the job after its first: the epoch of its driver, less one. It is kept in the checkpoints, so "
    "it continues when the driver is replaced.",
    is_total=True,
)
INITIALIZATION_DURATION = Metric(
    "holdfast_job_initialization_duration_seconds",
    "gauge",
    "s",
    "Time of the run's start: checkpoints are read, the job is claimed, and state is assigned to subtasks.",
)
WATERMARK = Metric(
    "holdfast_watermark_timestamp_seconds",
    "gauge",
    "s",
    "Watermark of the last completed batch, in seconds since 1970; absent without a watermark.",
)
SOURCE_LAG = Metric(
    "holdfast_source_lag_rows",
    "gauge",
    "row",
    "Rows of a Kafka source that the query has not read yet: the latest offsets less the end offsets in Spark's last "
    "progress, which is that of the batch before. `source` is the number of the source in the query, from 0. Updated once in "
    "`spark.holdfast.metrics.interval`; absent for other sources, and with Spark Connect.",
    (JOB, "source"),
)
SWEPT_FILES = Metric(
    "holdfast_swept_files_total",
    "counter",
    "file",
    "Orphaned files that the sweep at the start of a run has deleted.",
)
SWEPT_BYTES = Metric(
    "holdfast_swept_bytes_total", "counter", "By", "Size of the orphaned files that were deleted."
)
ORPHANED_FILES = Metric(
    "holdfast_orphaned_files",
    "gauge",
    "file",
    "Files that no checkpoint refers to, but that are younger than `spark.holdfast.cleanup.orphan-grace`, at the "
    "last sweep.",
)
ROWS_IN = Metric(
    "holdfast_rows_in_total", "counter", "row", "Rows given to the operator.", _BY_OPERATOR
)
ROWS_OUT = Metric(
    "holdfast_rows_out_total", "counter", "row", "Rows that the operator emitted.", _BY_OPERATOR
)
ROWS_LATE = Metric(
    "holdfast_rows_late_total",
    "counter",
    "row",
    "Rows that were dropped because they were late; not part of the rows in.",
    _BY_OPERATOR,
)
STATE_BYTES = Metric(
    "holdfast_state_bytes", "gauge", "By", "Size of the operator's stored state.", _BY_OPERATOR
)
STATE_ROWS = Metric(
    "holdfast_state_rows",
    "gauge",
    "row",
    "Rows and elements of the operator's stored states without timers, as `holdfast show` counts them: rows that were "
    "replaced or deleted count until the backend merges them away. Updated once in `spark.holdfast.metrics.interval`.",
    _BY_OPERATOR,
)
TIMERS_PENDING = Metric(
    "holdfast_timers_pending",
    "gauge",
    "timer",
    "Stored timers of the operator, counted like the rows of state.",
    _BY_OPERATOR,
)
WRITTEN_BYTES = Metric(
    "holdfast_state_written_bytes_total",
    "counter",
    "By",
    "State that subtasks wrote, in files and in `_metadata`.",
    _BY_OPERATOR,
)
RESTORED_BYTES = Metric(
    "holdfast_restored_bytes_total",
    "counter",
    "By",
    "Size of the state from which subtasks were restored. `from` is the farthest place that files were read from: "
    "memory of the `worker`, `local` copies, `storage`; `metadata` if there were no files.",
    (JOB, OPERATOR, "from"),
)
FETCHED_BYTES = Metric(
    "holdfast_fetched_bytes_total",
    "counter",
    "By",
    "Bytes of segments of keyed state that subtasks read from storage, because their host had no copies.",
    _BY_OPERATOR,
)
FETCH_REQUESTS = Metric(
    "holdfast_fetch_requests_total",
    "counter",
    "request",
    "Requests of subtasks for segments of keyed state in storage.",
    _BY_OPERATOR,
)
FETCH_DURATION = Metric(
    "holdfast_fetch_duration_seconds",
    "histogram",
    "s",
    "Time of a subtask in which requests for segments were in progress; only of subtasks that fetched some.",
    _BY_OPERATOR,
)
PARALLELISM = Metric(
    "holdfast_operator_parallelism", "gauge", "subtask", "Number of subtasks.", _BY_OPERATOR
)
SKEW = Metric(
    "holdfast_subtask_skew_ratio",
    "gauge",
    "1",
    "Rows of the subtask with the most, divided by the mean of all subtasks, in the last batch with rows; 1 is even.",
    _BY_OPERATOR,
)
RESTORE_DURATION = Metric(
    "holdfast_subtask_restore_duration_seconds",
    "histogram",
    "s",
    "Time in which a subtask restored its state.",
    _BY_OPERATOR,
)
PROCESS_DURATION = Metric(
    "holdfast_subtask_process_duration_seconds",
    "histogram",
    "s",
    "Time of a subtask in the operator's code and in reading its input.",
    _BY_OPERATOR,
)
STORE_DURATION = Metric(
    "holdfast_subtask_store_duration_seconds",
    "histogram",
    "s",
    "Time in which a subtask wrote its state: both parts of the snapshot.",
    _BY_OPERATOR,
)
NEXT_TIMER = Metric(
    "holdfast_next_timer_timestamp_seconds",
    "gauge",
    "s",
    "Time of the operator's earliest timer, in seconds since 1970; `domain` is `event` or `processing`. Absent if "
    "there is no timer.",
    (JOB, OPERATOR, "domain"),
)
WORKER_MEMORY = Metric(
    "holdfast_worker_peak_memory_bytes",
    "gauge",
    "By",
    "Peak resident memory of the Python workers that ran the operator's subtasks in the last batch; the largest.",
    _BY_OPERATOR,
)
STORE_RETRIES = Metric(
    "holdfast_store_retries_total",
    "counter",
    "retry",
    "Requests to the store that were repeated by subtasks, or by the driver for its jobs. `call` is the call of the store, "
    "such as `list` or `upload_part`; `process` is `subtask` or `driver`. Retries of a driver with several jobs count for the "
    "job that completes the next checkpoint.",
    (JOB, "process", "call"),
)
STORE_CALLS = Metric(
    "holdfast_store_calls_total",
    "counter",
    "call",
    "Calls of the store by subtasks, or by the driver for its jobs, with their retries; labels as for "
    "`holdfast_store_retries_total`. Most are one request; `list` may be several, and `seek` needs none.",
    (JOB, "process", "call"),
)
BACKEND = Metric(
    "holdfast_rocksdb",
    "gauge",
    "1",
    "RocksDB's own metrics, added over the subtasks, if `spark.holdfast.state.backend.rocksdb.metrics` is true; "
    "`name` is RocksDB's name.",
    (JOB, OPERATOR, "name"),
)
SUBTASK_ROWS_IN = Metric(
    "holdfast_subtask_rows_in",
    "gauge",
    "row",
    "Rows given to the subtask in the last batch. Like all metrics of subtasks only if "
    "`spark.holdfast.metrics.subtasks` is true.",
    _BY_SUBTASK,
)
SUBTASK_STATE_BYTES = Metric(
    "holdfast_subtask_state_bytes",
    "gauge",
    "By",
    "Size of the subtask's stored state.",
    _BY_SUBTASK,
)
SUBTASK_DURATION = Metric(
    "holdfast_subtask_duration_seconds",
    "gauge",
    "s",
    "Time of the subtask in the last batch; `phase` is `restore`, `process` or `store`.",
    (*_BY_SUBTASK, "phase"),
)
METRICS_DROPPED = Metric(
    "holdfast_metrics_dropped_total",
    "counter",
    "event",
    "Events that are missing in the metrics because their queue was full.",
    (),
    is_total=True,
)
METRICS_ERRORS = Metric(
    "holdfast_metrics_errors_total",
    "counter",
    "error",
    "Errors of the metrics themselves, which never fail a batch: a push gateway that can't be reached, for example.",
    (),
    is_total=True,
)

METRICS: tuple[Metric, ...] = tuple(
    each for each in vars().copy().values() if isinstance(each, Metric)
)
"""All metrics, in the order of the docs."""

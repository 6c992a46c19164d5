"""Metrics, spans and log lines of a job, from what its driver knows anyway.

    definitions    the table of all metrics
    values         the values of a process
    samples        the values that a completed checkpoint adds
    spans          the spans of checkpoints and of starts
    log_lines      the message about a checkpoint as JSON
    reporter       the thread that does all work, off the path of batches, and the destinations
    prometheus     destinations of metrics, with prometheus_client
    opentelemetry  destinations of metrics and spans, with its SDK
    job_metrics    what a run of a query calls

`query_run` and the coordinator of `query` report to `JobMetrics`. Start with `definitions`.
"""

from holdfast.spark.metrics.definitions import METRICS, Metric
from holdfast.spark.metrics.job_metrics import JobMetrics
from holdfast.spark.metrics.log_lines import checkpoint_fields, json_line
from holdfast.spark.metrics.samples import CompletedBatch
from holdfast.spark.metrics.spans import FailedCheckpoint, Initialization

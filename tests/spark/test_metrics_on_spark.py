"""Metrics of jobs on Spark: they are those of `holdfast show`, and never fail a batch."""

import json
import time

import pytest
from jobs.job import Job
from jobs.operators import Groups
from prometheus_client.parser import text_string_to_metric_families
from pyspark.errors import StreamingQueryException

from holdfast.cli.command_line import main

Samples = dict[tuple[str, str, str], float]


def exported_samples(job: Job, checkpoint: int) -> Samples:
    """Return the values by name, operator and reason, from the textfile, when it has a checkpoint."""
    file, end = job.directory / "job.prom", time.monotonic() + 30
    while True:
        text = file.read_text() if file.exists() else ""
        samples = {
            (each.name, each.labels.get("operator", ""), each.labels.get("reason", "")): each.value
            for family in text_string_to_metric_families(text)
            for each in family.samples
            if each.labels.get("job_id") == job.job_directory.name
        }
        if samples.get(("holdfast_last_checkpoint_id", "", "")) == checkpoint:
            return samples
        assert time.monotonic() < end, text
        time.sleep(0.1)


def test_metrics_equal_show_and_failed_pushes_change_nothing(
    job: Job, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    job.settings |= {
        "spark.holdfast.metrics.textfile": str(job.directory / "job.prom"),
        "spark.holdfast.metrics.interval": "1s",
        # Nothing listens there: each push fails.
        "spark.holdfast.metrics.pushgateway.url": "http://127.0.0.1:9",
    }

    def parts() -> list[object]:
        return [job.part(Groups(7), "first"), job.part(Groups(11), "second")]

    job.feed(files=2, rows=50)
    job.run(job.chain(*parts()))  # type: ignore[arg-type]
    with pytest.raises(StreamingQueryException, match="as planned"):
        job.feed(files=1, rows=50)
        job.run(job.chain(*parts(), sink=job.write_and_fail_in(2)))  # type: ignore[arg-type]
    job.run(job.chain(*parts()))  # type: ignore[arg-type]
    assert job.checkpoint_ids() == [3]
    exported = exported_samples(job, 3)
    messages = [record.getMessage() for record in caplog.records]
    failures = [message for message in messages if message.startswith("metrics: ")]
    assert len(failures) == 1, failures
    assert failures[0].startswith(f"metrics: push of job {job.job_directory.name}")

    capsys.readouterr()
    assert main(["show", f"file://{job.checkpoints}", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert exported["holdfast_last_checkpoint_id", "", ""] == shown["checkpoint"] == 3
    assert (
        exported["holdfast_last_checkpoint_duration_seconds", "", ""] == shown["duration_ms"] / 1000
    )
    assert exported["holdfast_last_checkpoint_size_bytes", "", ""] == shown["new_bytes"]
    assert exported["holdfast_last_checkpoint_full_size_bytes", "", ""] == shown["total_bytes"]
    assert exported["holdfast_last_checkpoint_metadata_bytes", "", ""] == shown["metadata_bytes"]
    assert exported["holdfast_restarts_total", "", ""] == shown["epoch"] - 1
    assert exported["holdfast_checkpoints_completed_total", "", ""] == 3
    assert exported["holdfast_checkpoints_failed_total", "", "other"] == 1
    for uid, operator in shown["operators"].items():
        assert exported["holdfast_operator_parallelism", uid, ""] == operator["parallelism"]
        stored_bytes = sum(subtask["stored_bytes"] for subtask in operator["subtasks"])
        assert exported["holdfast_state_bytes", uid, ""] == stored_bytes
        assert exported["holdfast_subtask_process_duration_seconds_count", uid, ""] == 3 * 2
        assert exported["holdfast_worker_peak_memory_bytes", uid, ""] > 1 << 20
    assert exported["holdfast_rows_in_total", "first", ""] == 150
    held = len(job.ids_held("first"))
    assert exported["holdfast_rows_out_total", "first", ""] == 150 - held
    assert exported["holdfast_state_rows", "first", ""] == held

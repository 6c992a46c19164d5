"""Metrics of jobs on Spark: they are those of `holdfast show`, and never fail a batch."""

import json

import pytest
from jobs.job import Job
from jobs.operators import Groups
from prometheus_client.parser import text_string_to_metric_families
from pyspark.errors import StreamingQueryException

from holdfast.cli.command_line import main
from holdfast.spark.metrics.reporter import process_reporter

Samples = dict[tuple[str, str, str], float]


def written_samples(job: Job) -> Samples:
    """Return the values in the textfile by name, operator and reason."""
    process_reporter().wait()
    text = (job.directory / "job.prom").read_text()
    return {
        (
            sample.name,
            sample.labels.get("operator", ""),
            sample.labels.get("reason", ""),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("job_id") == job.job_directory.name
    }


def test_metrics_equal_show_and_faults_leave_the_job_alone(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    textfile = job.directory / "job.prom"
    job.settings |= {
        "spark.holdfast.metrics.textfile": str(textfile),
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
    process_reporter().wait()
    textfile.unlink(missing_ok=True)
    process_reporter().write_outputs()
    found = written_samples(job)

    capsys.readouterr()
    assert main(["show", f"file://{job.checkpoints}", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert found["holdfast_last_checkpoint_id", "", ""] == shown["checkpoint"] == 3
    assert found["holdfast_last_checkpoint_duration_seconds", "", ""] == shown["duration_ms"] / 1000
    assert found["holdfast_last_checkpoint_size_bytes", "", ""] == shown["new_bytes"]
    assert found["holdfast_last_checkpoint_full_size_bytes", "", ""] == shown["total_bytes"]
    assert found["holdfast_last_checkpoint_metadata_bytes", "", ""] == shown["metadata_bytes"]
    assert found["holdfast_restarts_total", "", ""] == shown["epoch"] - 1
    assert found["holdfast_checkpoints_completed_total", "", ""] == 3
    assert found["holdfast_checkpoints_failed_total", "", "other"] == 1
    for uid, operator in shown["operators"].items():
        assert found["holdfast_operator_parallelism", uid, ""] == operator["parallelism"]
        stored_bytes = sum(subtask["stored_bytes"] for subtask in operator["subtasks"])
        assert found["holdfast_state_bytes", uid, ""] == stored_bytes
        assert found["holdfast_subtask_process_duration_seconds_count", uid, ""] == 3 * 2
        assert found["holdfast_worker_peak_memory_bytes", uid, ""] > 1 << 20
    assert found["holdfast_rows_in_total", "first", ""] == 150
    held = len(job.ids_held("first"))
    assert found["holdfast_rows_out_total", "first", ""] == 150 - held
    assert found["holdfast_state_rows", "first", ""] == held

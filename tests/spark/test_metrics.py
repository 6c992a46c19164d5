"""Metrics: their values, destinations and faults, without Spark."""

import json
import logging
import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from jobs.coordinator import acknowledge, begin_checkpoint, coordinator, progress
from msgspec.structs import replace
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from holdfast.common import SYSTEM_CLOCK
from holdfast.errors import InvalidRequestError, StorageUnavailableError
from holdfast.locations.file_systems import Retrier, RetryPolicy
from holdfast.locations.metadata import SubtaskStatistics
from holdfast.spark.metrics import CompletedBatch, FailedCheckpoint, Initialization, JobMetrics
from holdfast.spark.metrics import definitions as d
from holdfast.spark.metrics.opentelemetry import MetricExport, SpanExport
from holdfast.spark.metrics.prometheus import push, serve, write_textfile
from holdfast.spark.metrics.reporter import Reporter, open_destinations
from holdfast.spark.metrics.samples import checkpoint_samples, lag_samples, subtask_samples
from holdfast.spark.metrics.values import MAX_SERIES, MetricValues, Sample
from holdfast.spark.settings import MetricsSettings, Settings
from holdfast.testing import ManualClock

HOSTILE = 'job "1"\\ \n{a="b"} é'


class Receiver:
    """An HTTP server that keeps what it is sent, by path."""

    def __init__(self) -> None:
        self.bodies: dict[str, bytes] = {}
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.bodies[self.path] = body
                self.send_response(200)
                self.end_headers()

            do_PUT = do_POST  # noqa: N815  # the name that http.server calls

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def completed_batch(directory: str, clock: ManualClock) -> CompletedBatch:
    """Complete a checkpoint with two subtasks after two seconds."""
    driver = coordinator(directory, clock=clock)
    pending = begin_checkpoint(driver, 0)
    acknowledgements = acknowledge(pending)
    clock.advance(2)
    completed = driver.complete(pending, acknowledgements, progress(0))
    return CompletedBatch(completed, pending.assigned, acknowledgements)


def job_metrics(**settings: Any) -> JobMetrics:
    return JobMetrics(Reporter(), MetricsSettings(**settings), ManualClock())


def numbers(values: MetricValues) -> dict[str, float]:
    """Return the values of metrics that have one."""
    return {
        metric.name: next(iter(series.values()))
        for metric, series in values.read().numbers.items()
        if len(series) == 1
    }


def test_values_of_counters_add_up_and_gauges_are_replaced() -> None:
    values = MetricValues()
    for value in (3, 4):
        values.record(
            Sample(metric, ("job",), value)
            for metric in (d.CHECKPOINTS_COMPLETED, d.LAST_ID, d.RESTARTS)
        )
    assert numbers(values) == {
        "holdfast_checkpoints_completed_total": 7,
        "holdfast_last_checkpoint_id": 4,
        "holdfast_restarts_total": 4,  # counted elsewhere
    }
    values.record([Sample(d.LAST_ID, ("job",), None)])
    assert "holdfast_last_checkpoint_id" not in numbers(values)


def test_series_of_a_metric_are_limited() -> None:
    values = MetricValues()
    values.record(Sample(d.LAST_ID, (str(job),), 1) for job in range(MAX_SERIES + 5))
    values.record(Sample(d.CHECKPOINT_DURATION, (str(job),), 1) for job in range(MAX_SERIES + 5))
    snapshot = values.read()
    assert len(snapshot.numbers[d.LAST_ID]) == MAX_SERIES
    assert len(snapshot.distributions[d.CHECKPOINT_DURATION]) == MAX_SERIES


def test_samples_are_those_of_the_checkpoint(memory_directory: str) -> None:
    batch = completed_batch(memory_directory, ManualClock())
    values = MetricValues()
    values.record([*checkpoint_samples(batch), *subtask_samples(batch.completed)])
    metadata = batch.completed.metadata
    shown = numbers(values)
    assert shown["holdfast_checkpoints_completed_total"] == 1
    assert shown["holdfast_last_checkpoint_duration_seconds"] == 2
    assert (
        shown["holdfast_last_checkpoint_completed_timestamp_seconds"] == metadata.created_ms / 1000
    )
    assert shown["holdfast_restarts_total"] == metadata.epoch - 1 == 0
    assert shown["holdfast_operator_parallelism"] == 2
    assert shown["holdfast_state_bytes"] == metadata.state_bytes
    distribution = values.read().distributions[d.CHECKPOINT_DURATION]["job",]
    assert (sum(distribution.counts), distribution.sum) == (1, 2)


def test_interval_is_the_time_between_two_checkpoints(memory_directory: str) -> None:
    clock = ManualClock()
    metrics = JobMetrics(Reporter(), MetricsSettings(), clock)
    driver = coordinator(memory_directory, clock=clock)
    for batch_id in range(2):
        pending = begin_checkpoint(driver, batch_id)
        acknowledgements = acknowledge(pending)
        clock.advance(30)
        completed = driver.complete(pending, acknowledgements, progress(batch_id))
        metrics.report_completed(CompletedBatch(completed, pending.assigned, acknowledgements))
    metrics.reporter.wait()
    assert numbers(metrics.reporter.values)["holdfast_checkpoint_interval_seconds"] == 30


def test_interval_continues_over_a_restart(memory_directory: str) -> None:
    clock = ManualClock()
    metrics = JobMetrics(Reporter(), MetricsSettings(), clock)
    first = completed_batch(memory_directory, clock).completed
    clock.advance(3598)
    metrics.report_start(Initialization("job", clock.now_ms(), 0.0, 0.0, first))
    driver = coordinator(memory_directory, clock=clock)
    pending = begin_checkpoint(driver, 1)
    acknowledgements = acknowledge(pending)
    clock.advance(2)
    completed = driver.complete(pending, acknowledgements, progress(1))
    metrics.report_completed(CompletedBatch(completed, pending.assigned, acknowledgements))
    metrics.reporter.wait()
    assert numbers(metrics.reporter.values)["holdfast_checkpoint_interval_seconds"] == 3600


def test_scrape_of_a_real_port_has_hostile_labels_unchanged(port: int) -> None:
    values = MetricValues()
    values.record(
        [
            Sample(d.CHECKPOINTS_FAILED, (HOSTILE, "other"), 2),
            Sample(d.CHECKPOINT_DURATION, (HOSTILE,), 0.3),
        ]
    )
    assert serve(values, "127.0.0.1", (port, port)) == port
    with urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        families = list(text_string_to_metric_families(page.read().decode()))
    samples = {sample.name: sample for family in families for sample in family.samples}
    failed = samples["holdfast_checkpoints_failed_total"]
    assert (failed.labels, failed.value) == ({"job_id": HOSTILE, "reason": "other"}, 2)
    assert samples["holdfast_checkpoint_duration_seconds_count"].value == 1
    with pytest.raises(
        InvalidRequestError, match=rf"prometheus.port' is {port}, .* no such free port"
    ):
        serve(values, "127.0.0.1", (port, port))


def test_range_of_ports_gives_the_first_free_one(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)):
        assert port < serve(MetricValues(), "127.0.0.1", (port, port + 20)) <= port + 20


def test_address_of_another_host_is_refused(port: int) -> None:
    with pytest.raises(InvalidRequestError, match=r"prometheus\.port' .* 192\.0\.2\.1"):
        serve(MetricValues(), "192.0.2.1", (port, port))


def test_textfile_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "job.prom"
    values = MetricValues()
    values.record([Sample(d.LAST_ID, ("job",), 1)])
    write_textfile(values, str(path))
    with open(path) as before:
        values.record([Sample(d.LAST_ID, ("job",), 2)])
        write_textfile(values, str(path))
        assert 'holdfast_last_checkpoint_id{job_id="job"} 1.0' in before.read()
    assert 'holdfast_last_checkpoint_id{job_id="job"} 2.0' in path.read_text()
    assert os.listdir(tmp_path) == ["job.prom"]


def test_push_sends_the_metrics_of_one_job(receiver: Receiver) -> None:
    values = MetricValues()
    values.record(Sample(d.LAST_ID, (job,), 1) for job in ("a", "b"))
    push(values, receiver.url, "a")
    ((path, body),) = receiver.bodies.items()
    assert path == "/metrics/job/holdfast/job_id/a"
    assert b'job_id="a"' in body
    assert b'job_id="b"' not in body


def test_metrics_by_otlp_have_names_units_and_labels(receiver: Receiver) -> None:
    values = MetricValues()
    export = MetricExport.to_endpoint(values, receiver.url, 3600)
    samples = [Sample(d.LAST_SIZE, (HOSTILE,), 7), Sample(d.CHECKPOINT_DURATION, (HOSTILE,), 0.3)]
    values.record(samples)
    export.record(samples)
    export.flush()
    request = ExportMetricsServiceRequest.FromString(receiver.bodies["/v1/metrics"])
    (resource,) = request.resource_metrics
    services = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert services["service.name"] == "holdfast"
    metrics = {each.name: each for each in resource.scope_metrics[0].metrics}
    size, duration = metrics[d.LAST_SIZE.name], metrics[d.CHECKPOINT_DURATION.name]
    assert (size.unit, duration.unit) == ("By", "s")
    (point,) = size.gauge.data_points
    assert (point.as_double, point.attributes[0].value.string_value) == (7, HOSTILE)
    assert list(duration.histogram.data_points[0].explicit_bounds) == list(
        d.CHECKPOINT_DURATION.buckets
    )


def test_spans_have_the_names_and_times_of_the_checkpoint(
    memory_directory: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEPARENT", f"00-{'ab' * 16}-{'cd' * 8}-01")
    metrics = job_metrics()
    spans = metrics.spans = SpanExport.to_endpoint(receiver.url)
    batch = completed_batch(memory_directory, ManualClock())
    first, second = batch.acknowledgements["operator"]
    state = replace(first.state, statistics=SubtaskStatistics(1, 1, 100, 1.0, 1.0, 1.0, 1.0))
    reports = [replace(first, state=state, start_ms=1, store_calls={"publish": 3}), second]
    batch = CompletedBatch(batch.completed, batch.assigned, {"operator": reports})
    metrics.report_start(Initialization("job", 1000.0, 20.0, 5.0, batch.completed))
    metrics.report_completed(batch)
    metrics.report_failed(FailedCheckpoint("job", 2, 5000.0, 10.0, "store-failed", "no answer"))
    metrics.reporter.wait()
    spans.flush()
    request = ExportTraceServiceRequest.FromString(receiver.bodies["/v1/traces"])
    exported = request.resource_spans[0].scope_spans[0].spans
    roots = [span for span in exported if not span.parent_span_id]
    started, failed, completed = sorted(roots, key=lambda span: span.end_time_unix_nano)
    names = {span.name for span in exported}
    assert {"JobInitialization", "ReadMetadata", "AssignState", "Checkpoint"} <= names
    assert started.end_time_unix_nano - started.start_time_unix_nano == 25_000_000
    attributes = {each.key: each.value for each in completed.attributes}
    assert attributes["checkpointStatus"].string_value == "COMPLETED"
    assert attributes["checkpointId"].int_value == 1
    assert completed.end_time_unix_nano - completed.start_time_unix_nano == 2_000_000_000
    assert attributes["queryId"].string_value == progress(0).query_id
    assert failed.status.message == "no answer"
    (subtask,) = (span for span in exported if span.name == "Subtask")
    calls = {each.key: each.value for each in subtask.attributes}["storeCalls.publish"]
    assert calls.int_value == 3
    assert [link.span_id.hex() for root in roots for link in root.links] == ["cd" * 8] * 3


def test_calls_and_retries_of_driver_and_subtasks_are_counted(memory_directory: str) -> None:
    metrics, batch = job_metrics(), completed_batch(memory_directory, ManualClock())
    first, second = batch.acknowledgements["operator"]
    reports = [
        replace(first, store_calls={"upload_part": 7}, store_retries={"upload_part": 2}),
        second,
    ]
    batch = CompletedBatch(batch.completed, batch.assigned, {"operator": reports})
    metrics.reporter.take_store_calls()  # those of other tests
    retrier = Retrier(RetryPolicy(), clock=ManualClock())
    answers = iter([StorageUnavailableError("as planned"), None])

    def attempt() -> None:
        if error := next(answers):
            raise error

    retrier.call("list", attempt)
    metrics.report_completed(batch)
    metrics.reporter.wait()
    counted = metrics.reporter.values.read().numbers
    subtask, driver = ("job", "subtask", "upload_part"), ("job", "driver", "list")
    assert counted[d.STORE_CALLS] == {subtask: 7, driver: 2}
    assert counted[d.STORE_RETRIES] == {subtask: 2, driver: 1}


def test_errors_are_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    reporter = Reporter()

    def fail() -> None:
        raise OSError("as planned")

    with caplog.at_level(logging.WARNING, "holdfast"):
        for _ in range(3):
            reporter.submit("push", fail)
        reporter.wait()
    assert numbers(reporter.values) == {"holdfast_metrics_errors_total": 3}
    assert [record.getMessage() for record in caplog.records] == [
        "metrics: push failed; further errors like this are only counted"
    ]


def test_full_queue_drops_events_without_waiting() -> None:
    reporter = Reporter(max_events=2)
    started, release = threading.Event(), threading.Event()

    def wait() -> None:
        started.set()
        release.wait()

    reporter.submit("wait", wait)
    started.wait()
    for _ in range(5):
        reporter.submit("record", lambda: reporter.record([]))
    release.set()
    reporter.wait()
    assert numbers(reporter.values)["holdfast_metrics_dropped_total"] == 3


def test_outputs_are_written_once_in_an_interval() -> None:
    reporter, clock, written = Reporter(), ManualClock(), []
    for _ in range(2):  # of two queries
        reporter.add_output("file", lambda: written.append(clock.monotonic_s()), 10, clock)
    for _ in range(4):
        reporter.submit("nothing", lambda: None)
        reporter.wait()
        clock.advance(5)
    assert written == [0, 10]
    reporter.close()
    assert written == [0, 10, 20]


def test_queries_of_a_driver_share_the_port(port: int) -> None:
    settings, reporter = MetricsSettings(ports=(port, port)), Reporter()
    for job in ("a", "b"):
        open_destinations(settings, job, reporter, SYSTEM_CLOCK)
    reporter.values.record(Sample(d.LAST_ID, (job,), 1) for job in ("a", "b"))
    with urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        text = page.read().decode()
    assert 'holdfast_last_checkpoint_id{job_id="a"} 1.0' in text
    assert 'holdfast_last_checkpoint_id{job_id="b"} 1.0' in text


def test_no_destination_means_no_metrics() -> None:
    assert JobMetrics.open(MetricsSettings(), "job", SYSTEM_CLOCK, lambda: None) is None


def test_lag_of_partitioned_sources_is_counted() -> None:
    progress = """{"sources": [
        {"description": "rate", "endOffset": 7, "latestOffset": 9},
        {"description": "Kafka", "endOffset": {"orders": {"0": 5, "1": 8}},
         "latestOffset": {"orders": {"0": 15, "1": 8, "2": 4}}},
        {"description": "files", "endOffset": {"logOffset": 4}, "latestOffset": null}
    ]}"""
    assert list(lag_samples("job", progress)) == [Sample(d.SOURCE_LAG, ("job", "1"), 14)]
    assert list(lag_samples("job", None)) == []


def test_json_log_has_the_names_of_the_metrics(
    memory_directory: str, caplog: pytest.LogCaptureFixture
) -> None:
    driver = coordinator(memory_directory, log_format="json", clock=ManualClock())
    pending = begin_checkpoint(driver, 0)
    with caplog.at_level(logging.INFO, "holdfast"):
        driver.complete(pending, acknowledge(pending), progress(0))
    (line,) = [record.getMessage() for record in caplog.records if record.getMessage()[0] == "{"]
    shown = json.loads(line)
    assert shown["event"] == "checkpoint_completed"
    assert shown["job_id"] == "job"
    known = {metric.name for metric in d.METRICS}
    assert {name for name in shown if name.startswith("holdfast_")} <= known
    assert set(shown["operators"]["operator"]) <= known
    assert shown["operators"]["operator"]["holdfast_operator_parallelism"] == 2


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("prometheus.port", "0"),
        ("prometheus.port", "9260-9250"),
        ("textfile", "job.prom"),
        ("textfile", "/tmp/job.txt"),
        ("pushgateway.url", "gateway:9091"),
        ("otlp.endpoint", "http://"),
        ("otlp.spans-endpoint", "http://user:pass-word@collector:4318"),
    ],
)
def test_bad_setting_is_named_without_secrets(key: str, value: str) -> None:
    name = f"spark.holdfast.metrics.{key}"
    with pytest.raises(InvalidRequestError, match=f"setting '{name}' must be") as caught:
        Settings.parse({"spark.holdfast.checkpoint.dir": "file:///tmp/x", name: value})
    assert "pass-word" not in str(caught.value)


def test_names_of_metrics_follow_the_conventions_of_prometheus() -> None:
    names = [metric.name for metric in d.METRICS]
    assert len(set(names)) == len(names)
    for metric in d.METRICS:
        assert metric.name.endswith("_total") == (metric.type == "counter")
        base = metric.name.removesuffix("_total")
        assert (metric.unit == "s") == base.endswith("_seconds")
        assert (metric.unit == "By") == base.endswith("_bytes")
